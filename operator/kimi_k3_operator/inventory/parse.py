"""Objects of the API server, parsed once at the edge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kimi_k3_operator.api import labels
from kimi_k3_operator.inventory.model import (
    ComputeDomainView,
    DomainPlacement,
    Inventory,
    NodeView,
    PodView,
    Promise,
    Taint,
)

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
FINISHED = ("Succeeded", "Failed")


def parse_node(body: Mapping[str, Any]) -> NodeView:
    spec, status = body.get("spec") or {}, body.get("status") or {}
    conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or ()}
    allocatable = status.get("allocatable") or {}
    return NodeView(
        name=body["metadata"]["name"],
        labels=dict(body["metadata"].get("labels") or {}),
        ready=conditions.get("Ready") == "True",
        unschedulable=bool(spec.get("unschedulable")),
        taints=tuple(
            Taint(t.get("key", ""), t.get("value") or "", t.get("effect", "")) for t in spec.get("taints") or ()
        ),
        gpus={name: int(allocatable[name]) for name in GPU_RESOURCES if str(allocatable.get(name, "")).isdigit()},
    )


def parse_pod(body: Mapping[str, Any]) -> PodView | None:
    """None for a finished pod, and for a pod that neither asks for GPUs nor is ours."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    if status.get("phase") in FINISHED:
        return None
    gpus = _gpus(spec)
    mine = metadata.get("labels") or {}
    ours = mine.get(labels.MANAGED_BY) == labels.OPERATOR and labels.REPLICA in mine
    base = {
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "node": spec.get("nodeName"),
        "gpus": gpus,
        "terminating": "deletionTimestamp" in metadata,
    }
    if not ours:
        return PodView(**base) if gpus else None
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    scheduled = conditions.get("PodScheduled") or {}
    gate = conditions.get(labels.VERIFIED) or {}
    engine: Mapping[str, Any] = next((c for c in containers if c.get("name") == "engine"), {})
    return PodView(
        **base,
        uid=metadata.get("uid", ""),
        deployment=mine.get(labels.DEPLOYMENT, ""),
        pool=mine.get(labels.POOL, ""),
        role=mine.get(labels.ROLE, ""),
        replica=mine[labels.REPLICA],
        revision=mine.get(labels.REVISION, ""),
        serves_http=labels.SERVES_HTTP in mine,
        phase=status.get("phase", "Pending"),
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        restarts=sum(int(c.get("restartCount", 0)) for c in containers),
        trouble=_trouble(containers, scheduled),
        unschedulable=scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable",
        image=engine.get("imageID", ""),
        since=metadata.get("creationTimestamp", ""),
        ip=status.get("podIP", ""),
        container=engine.get("containerID", ""),
        containers_ready=(conditions.get("ContainersReady") or {}).get("status") == "True",
        gated=any(g.get("conditionType") == labels.VERIFIED for g in spec.get("readinessGates") or ()),
        gate=gate.get("status", ""),
        gate_reason=gate.get("reason", ""),
        gate_message=gate.get("message", ""),
    )


def parse_promise(body: Mapping[str, Any]) -> Promise | None:
    """The promise that a multi-node workload of ours is: its annotation says which domain its affinity names."""
    metadata = body["metadata"]
    label, _, value = (metadata.get("annotations") or {}).get(labels.PLACEMENT, "").partition("=")
    if not value:
        return None
    size = ((body.get("spec") or {}).get("leaderWorkerTemplate") or {}).get("size", 1)
    mine = metadata.get("labels") or {}
    return Promise(
        namespace=metadata.get("namespace", ""),
        deployment=mine.get(labels.DEPLOYMENT, ""),
        replica=mine.get(labels.REPLICA, metadata["name"]),
        domain=DomainPlacement(label, value),
        nodes=int(size),
    )


def parse_compute_domain(body: Mapping[str, Any]) -> ComputeDomainView:
    metadata = body["metadata"]
    channel = (body.get("spec") or {}).get("channel") or {}
    return ComputeDomainView(
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        claim_template=(channel.get("resourceClaimTemplate") or {}).get("name", ""),
    )


def parse_snapshot(objects: Iterable[Mapping[str, Any]]) -> Inventory:
    """An inventory from nodes, pods, workloads and ComputeDomains given as plain objects; others are passed over."""
    nodes: dict[str, NodeView] = {}
    pods: list[PodView] = []
    promises: list[Promise] = []
    domains: list[ComputeDomainView] = []
    for body in objects:
        if body.get("kind") == "Node":
            node = parse_node(body)
            nodes[node.name] = node
        elif body.get("kind") == "Pod" and (pod := parse_pod(body)) is not None:
            pods.append(pod)
        elif body.get("kind") == "LeaderWorkerSet" and (promise := parse_promise(body)) is not None:
            promises.append(promise)
        elif body.get("kind") == "ComputeDomain":
            domains.append(parse_compute_domain(body))
    return Inventory(nodes, tuple(pods), tuple(promises), tuple(domains))


def _gpus(spec: Mapping[str, Any]) -> int:
    """GPUs the scheduler counts for a pod: all containers together, or the largest init container."""

    def asked(container: Mapping[str, Any]) -> int:
        resources = container.get("resources") or {}
        amounts = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        return sum(int(amounts.get(name, 0)) for name in GPU_RESOURCES)

    running = sum(asked(container) for container in spec.get("containers") or ())
    return max([running, *(asked(container) for container in spec.get("initContainers") or ())])


def _trouble(containers: list[Mapping[str, Any]], scheduled: Mapping[str, Any]) -> str:
    if scheduled.get("status") == "False":
        return str(scheduled.get("message", ""))
    for container in containers:
        state = container.get("state") or {}
        last = (container.get("lastState") or {}).get("terminated") or {}
        stopped = state.get("terminated") or last
        waiting = state.get("waiting") or {}
        words = str(stopped.get("message") or "").strip()
        if stopped.get("exitCode") and (words or waiting):
            reason = waiting.get("reason") or stopped.get("reason") or "Error"
            return f"{container.get('name')}: {reason}: {words or 'exit code ' + str(stopped['exitCode'])}"
        if waiting.get("reason") and waiting["reason"] not in ("ContainerCreating", "PodInitializing"):
            return f"{container.get('name')}: {waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    return ""
