"""The entrance of a deployment: what it consists of, whether it answers, and where.

Like engines it follows a stored revision (docs/design/0006-revisions.md): what the operator renders of unchanged inputs
may differ after an upgrade, and cutting a picker or an Envoy would cut the answers that stream through it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kimi_k3_operator.api import labels
from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.api.parse import Deployment
from kimi_k3_operator.api.refusal import Refusal
from kimi_k3_operator.api.v1alpha1 import Session
from kimi_k3_operator.compile.entrance import entrance_name, entrance_objects
from kimi_k3_operator.compile.picker import picker_name, picker_objects
from kimi_k3_operator.compile.revision import digest
from kimi_k3_operator.plan.snapshot import Child
from kimi_k3_operator.profiles.engine import EngineConfig

CONTRACT = ("max-model-len", "language-model-only", "limit-mm-per-prompt")
"""What clients notice of an engine: it must be the same behind one address."""


@dataclass(frozen=True)
class RoutingPlan:
    manifests: tuple[Manifest, ...]
    """All objects, the stored revision among them."""
    endpoint: str
    """Base URL for clients inside the cluster."""
    waits: tuple[str, ...]
    """What does not answer yet, one sentence each."""
    open_to_all: bool
    """No API key is asked for."""


def unified_contract(engines: Iterable[EngineConfig]) -> tuple[Refusal, ...]:
    """Engines behind one entrance must look the same to a client, whatever hardware they run on."""
    refusals = []
    found = list(engines)
    for name in CONTRACT:
        values = {engine.pool: str(engine.args.get(name, "unset")) for engine in found}
        if len(set(values.values())) > 1:
            shown = ", ".join(f"{pool} has {value}" for pool, value in values.items())
            fix = "give all pools the same value, or use deployments of their own"
            refusals.append(Refusal("unified-contract", f"pools differ in {name}: {shown}", "spec.routing", fix))
    return tuple(refusals)


def plan_routing(deployment: Deployment, children: Iterable[Child]) -> RoutingPlan | None:
    """None where the spec asks for no entrance."""
    routing = deployment.spec.routing
    if routing is None:
        return None
    known = [child for child in children if not child.terminating]
    drain = max(pool.drain_seconds for pool in deployment.spec.pools)
    chosen = routing.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    inputs = digest({"routing": chosen, "drain": drain})
    stored = [
        child.body
        for child in known
        if child.kind == "ControllerRevision" and not child.pool and child.body["data"].get("inputs") == inputs
    ]
    revision = stored[0] if stored else _revision(deployment, drain, inputs)
    scheme = "https" if routing.tls else "http"
    return RoutingPlan(
        manifests=(_bare(revision), *revision["data"]["objects"]),
        endpoint=f"{scheme}://{entrance_name(deployment.name)}.{deployment.namespace}.svc/v1",
        waits=tuple(_waits(deployment.name, known)),
        open_to_all=routing.auth is None,
    )


def _revision(deployment: Deployment, drain: int, inputs: str) -> Manifest:
    routing = deployment.spec.routing
    assert routing is not None
    picker = picker_name(deployment.name)
    objects = [
        *picker_objects(namespace=deployment.namespace, deployment=deployment.name, drain_seconds=drain),
        *entrance_objects(
            namespace=deployment.namespace,
            deployment=deployment.name,
            picker_host=f"{picker}.{deployment.namespace}.svc",
            session_header=(routing.session or Session()).header,
            api_key_secret=routing.auth.api_keys.secret_ref.name if routing.auth else None,
            tls_secret=routing.tls.secret_ref.name if routing.tls else None,
            drain_seconds=drain,
        ),
    ]
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            # A dot, which no pool's name has: a pool may be called routing.
            "name": f"{deployment.name}.routing-{digest([inputs, objects])[:10]}",
            "namespace": deployment.namespace,
            "labels": labels.deployment_labels(deployment.name),
        },
        "revision": 1,
        "data": {"inputs": inputs, "objects": objects},
    }


def _bare(revision: Mapping[str, Any]) -> Manifest:
    """A stored revision as it is applied: without what the server and `marked` add to it."""
    metadata = {key: revision["metadata"][key] for key in ("name", "namespace", "labels")}
    return {**{key: revision[key] for key in ("apiVersion", "kind", "revision", "data")}, "metadata": metadata}


def _waits(deployment: str, children: Iterable[Child]) -> Iterable[str]:
    available = {c.name: int(c.status.get("availableReplicas", 0)) for c in children if c.kind == "Deployment"}
    for what, name in (("endpoint picker", picker_name(deployment)), ("entrance", entrance_name(deployment))):
        if not available.get(name):
            yield f"the {what} {name} is not available"
