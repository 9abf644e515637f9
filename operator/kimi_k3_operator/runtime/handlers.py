"""The only module with kopf decorators: indices of what is watched, events that wake passes."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from typing import Any

import kopf

from kimi_k3_operator.api import labels
from kimi_k3_operator.api.base import GROUP, VERSION
from kimi_k3_operator.apply.kinds import CHILD_KINDS, LEASE, Kind
from kimi_k3_operator.inventory.model import NodeView, PodView
from kimi_k3_operator.inventory.parse import parse_compute_domain, parse_node, parse_pod
from kimi_k3_operator.metrics import WATCH_SEEN
from kimi_k3_operator.plan.snapshot import Child, parse_child
from kimi_k3_operator.runtime.app import App
from kimi_k3_operator.runtime.lease import LEASE_NAME
from kimi_k3_operator.runtime.wakeups import Key
from kimi_k3_operator.runtime.world import APIS, DOMAINS, NODES, OPTIONAL_CRDS, PODS, deployment_key

_ACTIVE_PODS = "status.phase!=Succeeded,status.phase!=Failed"
_CRDS = ("apiextensions.k8s.io", "v1", "customresourcedefinitions")


def build_registry(app: App) -> kopf.OperatorRegistry:
    """Everything kopf runs."""
    registry = kopf.OperatorRegistry()
    _watch_cluster(app, registry)
    for kind in CHILD_KINDS:
        _watch_children(app, registry, kind)
    _watch_deployments(app, registry)
    kopf.on.login(registry=registry)(kopf.login_via_client)
    return registry


def build_settings() -> kopf.OperatorSettings:
    """Settings with reasons: docs/design/0007-runtime.md."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.persistence.finalizer = f"{GROUP}/unused"  # kopf takes its own off where no handler of its needs it
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    settings.posting.enabled = False
    settings.watching.server_timeout = 290
    settings.watching.client_timeout = 320
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 70
    settings.watching.chunk_size = 500
    for kind in CHILD_KINDS:
        if kind.kind != "ComputeDomain":  # others' domains matter to placement
            settings.watching.label_selectors[f"{kind.plural}.{kind.group}".rstrip(".")] = labels.MANAGED_SELECTOR
    settings.watching.field_selectors["pods"] = _ACTIVE_PODS
    settings.watching.field_selectors["leases.coordination.k8s.io"] = f"metadata.name={LEASE_NAME}"
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 60
    settings.networking.error_backoffs = (1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 55, 55)
    settings.networking.enforce_retry_after = True
    settings.execution.max_workers = 8
    settings.background.cancellation_polling = 1
    settings.background.instant_exit_timeout = 0.1
    settings.process.ultimate_exiting_timeout = 25
    return settings


def _watch_cluster(app: App, registry: kopf.OperatorRegistry) -> None:
    """Nodes, GPU pods, installed APIs, ComputeDomains of everybody, and our own Lease as a sign of life."""
    world = app.world

    @kopf.index("v1", "nodes", id=NODES, registry=registry)
    def nodes(name: str, body: kopf.Body, **_: Any) -> Mapping[str, NodeView]:
        return {name: parse_node(body)}

    @kopf.on.event("v1", "nodes", registry=registry)
    async def node_changed(type: str | None, body: kopf.Body, **_: Any) -> None:
        if app.node_is_new(body["metadata"]["name"], None if type == "DELETED" else parse_node(body)):
            world.changed()
            app.wake_waiting()

    @kopf.index("v1", "pods", id=PODS, registry=registry)
    def pods(body: kopf.Body, **_: Any) -> Mapping[Key, PodView] | None:
        pod = parse_pod(body)
        return None if pod is None else {(pod.namespace, pod.deployment) if pod.replica else ("", ""): pod}

    @kopf.on.event("v1", "pods", registry=registry)
    async def pod_changed(type: str | None, body: kopf.Body, **_: Any) -> None:
        pod = parse_pod(body)
        if pod is None and type != "DELETED":
            return
        world.changed()
        app.wake(deployment_key(body))
        if type == "DELETED":
            app.wake_waiting()

    @kopf.index(*_CRDS, id=APIS, registry=registry, when=_is_optional_api)
    def apis(name: str, body: kopf.Body, **_: Any) -> Mapping[str, bool] | None:
        conditions = (body.get("status") or {}).get("conditions") or ()
        served = any(c.get("type") == "Established" and c.get("status") == "True" for c in conditions)
        return {OPTIONAL_CRDS[name]: True} if served else None

    @kopf.on.event(*_CRDS, registry=registry, when=_is_optional_api)
    async def api_changed(name: str, **_: Any) -> None:
        app.wakeups.wake_all()
        app.api_seen(OPTIONAL_CRDS[name])

    @kopf.index("resource.nvidia.com", "v1beta1", "computedomains", id=DOMAINS, registry=registry)
    def compute_domains(name: str, namespace: str | None, body: kopf.Body, **_: Any) -> Mapping[Key, Any]:
        return {(namespace or "", name): parse_compute_domain(body)}

    @kopf.on.event(LEASE.group, "v1", LEASE.plural, registry=registry, field="metadata.name", value=LEASE_NAME)
    async def lease_changed(**indices: Any) -> None:
        app.filled(indices)  # kopf runs no event handler before all indices are full
        app.pulse.watch = time.monotonic()
        WATCH_SEEN.labels(kind="Lease").set_to_current_time()


def _is_optional_api(name: str, **_: Any) -> bool:
    return name in OPTIONAL_CRDS


def _watch_children(app: App, registry: kopf.OperatorRegistry, kind: Kind) -> None:
    selection = (kind.api_version, kind.plural) if not kind.group else (kind.group, kind.version, kind.plural)
    mine = {labels.MANAGED_BY: labels.OPERATOR}

    @kopf.index(*selection, id=kind.plural, registry=registry, labels=mine)
    def children(body: kopf.Body, **_: Any) -> Mapping[Key, Child]:
        return {deployment_key(body): parse_child(body, kind.kind)}

    @kopf.on.event(*selection, id=f"{kind.plural}-changed", registry=registry, labels=mine)
    async def child_changed(type: str | None, body: kopf.Body, **_: Any) -> None:
        WATCH_SEEN.labels(kind=kind.kind).set_to_current_time()
        if kind.optional:
            app.world.changed()
        key = deployment_key(body)
        if type == "DELETED":
            app.child_gone(key, (kind.kind, body["metadata"]["name"]), body["metadata"]["uid"])
        app.wake(key)


def _watch_deployments(app: App, registry: kopf.OperatorRegistry) -> None:
    selection = (GROUP, VERSION, "kimik3deployments")

    def served(namespace: str | None, **_: Any) -> bool:
        return app.config.serves(namespace or "")

    @kopf.on.event(*selection, registry=registry, when=served)
    async def deployment_changed(
        type: str | None,
        namespace: str | None,
        name: str,
        body: kopf.Body,
        **indices: Any,
    ) -> None:
        app.filled(indices)
        if type == "DELETED":
            await app.deployment_gone((namespace or "", name), str(body["metadata"]["uid"]))
        else:
            app.deployment_seen((namespace or "", name), _plain(body))


def _plain(body: Mapping[str, Any]) -> dict[str, Any]:
    """A copy that kopf's next event cannot change."""
    return copy.deepcopy({key: body[key] for key in body})
