"""Nodes, pods and deployments for tests, each made with only what a test is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from kimi_k3_operator.api import labels
from kimi_k3_operator.api.base import API_VERSION, Manifest
from kimi_k3_operator.api.parse import Deployment, parse_deployment
from kimi_k3_operator.compile.replica import PoolKey, Replica
from kimi_k3_operator.compile.revision import Revision, compile_revision
from kimi_k3_operator.inventory.model import DomainPlacement, Inventory, NodeView, PodView, Promise, Taint
from kimi_k3_operator.inventory.selection import DomainState
from kimi_k3_operator.plan.actions import Plan
from kimi_k3_operator.plan.engine import Planner
from kimi_k3_operator.plan.replicas import Observed
from kimi_k3_operator.plan.snapshot import Child, parse_child
from kimi_k3_operator.profiles.catalog import Catalog
from kimi_k3_operator.profiles.engine import EngineConfig
from kimi_k3_operator.profiles.flags import FlagTable
from kimi_k3_operator.profiles.resolve import resolve

CLIQUE = "nvidia.com/gpu.clique"
NAMESPACE = "serving"
UID = "11111111-1111-1111-1111-111111111111"
BORN = "2026-01-01T00:00:00Z"
NOW = "2026-01-01T01:00:00Z"
GROUP_APIS = frozenset({"LeaderWorkerSet", "ComputeDomain"})
CLAIM = {"persistentVolumeClaim": {"claimName": "kimi-k3"}}
HOST_PATH = {"hostPath": {"path": "/mnt/nvme/kimi-k3"}}
HUB = {"huggingFace": {"cache": CLAIM, "tokenSecretRef": {"name": "hub", "key": "token"}}}


@cache
def planner() -> Planner:
    return Planner(Catalog.load(), FlagTable.load())


# Deployments


def deployment(*pools: Mapping[str, Any], name: str = "k3", weights: Any = HOST_PATH, **spec: Any) -> Manifest:
    """A KimiK3Deployment as stored."""
    return {
        "apiVersion": API_VERSION,
        "kind": "KimiK3Deployment",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": UID,
            "generation": 1,
            "creationTimestamp": BORN,
            "resourceVersion": "1",
        },
        "spec": {"weights": weights, "pools": [dict(pool) for pool in pools or (b300(),)], **spec},
    }


def pool(profile: str, replicas: int | None = 1, *, name: str = "", **more: Any) -> dict[str, Any]:
    """A pool of `profile`; with replicas None its count comes from elsewhere."""
    counted = {} if replicas is None else {"replicas": replicas}
    return {"name": name or profile, "profile": {"name": profile}, **counted, **more}


def b300(replicas: int | None = 1, **more: Any) -> dict[str, Any]:
    return pool("b300", replicas, **more)


def mi350x(replicas: int | None = 1, **more: Any) -> dict[str, Any]:
    return pool("mi350x", replicas, **more)


def gb300(replicas: int | None = 1, **more: Any) -> dict[str, Any]:
    return pool("gb300", replicas, **more)


def autoscaled(profile: str, low: int, high: int, **more: Any) -> dict[str, Any]:
    return pool(profile, None, autoscaling={"minReplicas": low, "maxReplicas": high}, **more)


def parsed(body: Mapping[str, Any]) -> Deployment:
    found = parse_deployment(body)
    assert isinstance(found, Deployment), found
    return found


def engine_of(body: Mapping[str, Any], position: int = 0) -> EngineConfig:
    """The resolved engine of a pool of a deployment that is not refused."""
    spec = parsed(body).spec
    chosen = spec.pools[position]
    profile = planner().catalog.newest_stable(chosen.profile.name)
    found = resolve(spec, chosen, profile, planner().flags)
    assert isinstance(found, EngineConfig), found
    return found


def revision_of(body: Mapping[str, Any], position: int = 0, *, claim_template: str = "channel") -> Revision:
    """What this operator makes of a pool of a deployment."""
    found, engine = parsed(body), engine_of(body, position)
    key = PoolKey(found.namespace, found.name, found.spec.pools[position].name)
    claim = claim_template if engine.profile.hardware.multi_node else None
    return compile_revision(key, found.spec, found.spec.pools[position], engine, claim)


# Nodes


def node(name: str, marks: Mapping[str, str], gpus: Mapping[str, int], **state: Any) -> NodeView:
    """A node that is ready and open unless `state` says otherwise."""
    view = NodeView(name, dict(marks), ready=True, unschedulable=False, taints=(), gpus=dict(gpus))
    return replace(view, **state)


def gb300_node(name: str, clique: str | None = None, *, gpus: int = 4, marks: Any = None, **state: Any) -> NodeView:
    own = {"kubernetes.io/arch": "arm64", "nvidia.com/gpu.product": "NVIDIA-GB300", "kubernetes.io/hostname": name}
    own |= {CLIQUE: clique} if clique is not None else {}
    return node(name, own | (marks or {}), {"nvidia.com/gpu": gpus}, **state)


def b300_node(name: str, **state: Any) -> NodeView:
    marks = {"kubernetes.io/arch": "amd64", "nvidia.com/gpu.product": "NVIDIA-B300-SXM6-AC"}
    return node(name, marks | state.pop("marks", {}), {"nvidia.com/gpu": 8}, **state)


def mi350x_node(name: str, **state: Any) -> NodeView:
    return node(name, {"kubernetes.io/arch": "amd64", "amd.com/gpu.device-id": "75a0"}, {"amd.com/gpu": 8}, **state)


def taint(key: str, effect: str = "NoSchedule", value: str = "") -> Taint:
    return Taint(key, value, effect)


def domain(name: str, *, free: int = 0, busy: int = 0, cordoned: int = 0) -> Inventory:
    """The GB300 nodes of one NVLink domain; busy ones hold a pod of somebody else."""
    names = [f"{name}-{index:02}" for index in range(free + busy + cordoned)]
    nodes = [gb300_node(n, name, unschedulable=index >= free + busy) for index, n in enumerate(names)]
    pods = tuple(PodView("other", f"job-{n}", n, 4) for n in names[free : free + busy])
    return Inventory({view.name: view for view in nodes}, pods)


def cluster(*parts: Inventory | NodeView, pods: Iterable[PodView] = (), promises: Iterable[Promise] = ()) -> Inventory:
    """All the parts in one inventory."""
    nodes: dict[str, NodeView] = {}
    held: list[PodView] = []
    for part in parts:
        if isinstance(part, NodeView):
            nodes[part.name] = part
        else:
            nodes |= part.nodes
            held += part.pods
    return Inventory(nodes, (*held, *pods), tuple(promises))


def state(name: str, free: int, *, shared: bool = False, nodes: int = 18) -> DomainState:
    return DomainState(DomainPlacement(CLIQUE, name), nodes, free, shared)


def promise(replica: str, domain_name: str, *, label: str = CLIQUE, namespace: str = NAMESPACE) -> Promise:
    return Promise(namespace, replica.rsplit("-", 2)[0], replica, DomainPlacement(label, domain_name), 2)


# Children and pods


def child(
    kind: str, name: str, *, owner: str | None = UID, uid: str = "", mine: Mapping[str, str] | None = None, **body: Any
) -> Child:
    """A child of the deployment with `owner` as its UID; None: without an owner."""
    owners = [{"uid": owner, "name": "k3"}] if owner else []
    metadata = {
        "name": name,
        "namespace": NAMESPACE,
        "uid": uid or f"{kind}-{name}",
        "resourceVersion": "5",
        "ownerReferences": owners,
        "labels": labels.deployment_labels("k3") | dict(mine or {}),
        **body.pop("metadata", {}),
    }
    return parse_child({"metadata": metadata, "spec": {}, **body}, kind)


def a_pod(name: str, replica: str = "", *, node: str | None = None, ready: bool = False, **more: Any) -> PodView:
    """A pod of ours that asks for GPUs."""
    own: dict[str, Any] = {"deployment": "k3", "pool": "b300", "uid": name, "phase": "Running", "gpus": 8}
    return PodView(
        **{**own, "namespace": NAMESPACE, "name": name, "node": node, "replica": replica, "ready": ready, **more}
    )


def seen(ordinal: int, revision: str = "k3-b300-new", *, ready: bool = True, group: bool = False) -> Observed:
    """A replica as a pass observes it."""
    key = PoolKey(NAMESPACE, "k3", "gb300" if group else "b300")
    replica = Replica(key, ordinal)
    label = revision.rsplit("-", 1)[-1]
    count = 2 if group else 1
    pods = tuple(a_pod(f"{replica.name}-{i}", replica.name, ready=ready, revision=label) for i in range(count))
    workload = child("LeaderWorkerSet" if group else "Deployment", replica.name)
    return Observed(replica, workload, revision, None, pods)


# Answers


def condition(plan: Plan | Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of that type in the status that a plan wants."""
    status = plan.status if isinstance(plan, Plan) else plan
    return next(c for c in status["conditions"] if c["type"] == kind)


def summary(plan: Plan, kind: str = "Ready") -> tuple[str, str]:
    """(status, reason) of a condition."""
    found = condition(plan, kind)
    return found["status"], found["reason"]
