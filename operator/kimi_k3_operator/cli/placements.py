"""Where the replicas of a resource would go in a cluster, and what is left there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kimi_k3_operator.cli.cluster import Cluster
from kimi_k3_operator.cli.judged import Accepted
from kimi_k3_operator.inventory.model import DomainPlacement, Inventory, NodeView
from kimi_k3_operator.inventory.selection import NodeNeeds, domain_label, domains, needs_of
from kimi_k3_operator.plan.engine import Planner
from kimi_k3_operator.plan.snapshot import Snapshot
from kimi_k3_operator.profiles.engine import EngineConfig


@dataclass(frozen=True)
class ReplicaPlace:
    """`place` is empty for a replica without one; `reason` says why then, or what it waits for."""

    deployment: str
    replica: str
    profile: str
    hardware: str
    place: str
    reason: str


@dataclass(frozen=True)
class Capacity:
    """Nodes of one NVLink domain, or of one kind of single-node hardware; `left` once every replica has its nodes."""

    hardware: str
    domain: str
    label: str
    nodes: int
    free: int
    left: int


@dataclass(frozen=True)
class Placements:
    replicas: tuple[ReplicaPlace, ...]
    capacity: tuple[Capacity, ...]

    def wire(self) -> dict[str, Any]:
        """Plain data; empty fields left out."""
        return {
            "replicas": [_filled(replica) for replica in self.replicas],
            "capacity": [_filled(capacity) for capacity in self.capacity],
        }

    def rows(self) -> list[tuple[str, ...]]:
        several = len({replica.deployment for replica in self.replicas}) > 1
        return [
            (
                f"{r.deployment.split('/')[0]}/{r.replica}" if several else r.replica,
                r.profile,
                r.hardware,
                r.place or "none",
                r.reason,
            )
            for r in self.replicas
        ]

    def capacity_rows(self) -> list[tuple[str, ...]]:
        return [(c.hardware, c.domain or "-", str(c.nodes), str(c.free), str(c.left)) for c in self.capacity]


def _filled(row: ReplicaPlace | Capacity) -> dict[str, Any]:
    return {key: value for key, value in asdict(row).items() if value != ""}


def placements(planner: Planner, resources: Iterable[Accepted], cluster: Cluster) -> Placements:
    """The plan of a first pass over each resource, one after the other."""
    found: list[ReplicaPlace] = []
    capacity: dict[tuple[str, str, str], Capacity] = {}
    taken: set[str] = set()
    planned = cluster
    for accepted in resources:
        name, namespace = accepted.deployment.name, accepted.deployment.namespace
        snapshot = planned.snapshot(accepted.body, namespace, name)
        plan = planner.plan(snapshot)
        planned = planned.with_promises(plan.promises)
        promised = {promise.replica: promise.domain for promise in plan.promises}
        own = _compute_domain_uid(accepted, snapshot)
        override = accepted.deployment.spec.placement.domain_label if accepted.deployment.spec.placement else None
        for pool, engine in zip(accepted.deployment.spec.pools, accepted.engines, strict=True):
            needs = needs_of(pool, engine.profile.hardware)
            entries = plan.pool_statuses[f"{name}-{pool.name}"].get("replicaStatuses") or ()
            if engine.profile.hardware.multi_node:
                found += [_grouped(accepted, engine, entry, promised) for entry in entries]
                rows = list(_domain_capacity(engine, needs, cluster.inventory, planned.inventory, override, own))
            else:
                open_nodes = _open_nodes(cluster.inventory, needs)
                found += [_single(accepted, engine, entry, needs, planned, taken) for entry in entries]
                left = len([node for node in open_nodes if node not in taken])
                total = sum(map(needs.is_candidate, cluster.inventory.nodes.values()))
                hardware = engine.profile.name
                rows = [Capacity(hardware, "", "", total, len(open_nodes), left)]
            capacity |= {(row.hardware, row.label, row.domain): row for row in rows}
    return Placements(tuple(found), tuple(capacity[key] for key in sorted(capacity)))


def _grouped(
    accepted: Accepted, engine: EngineConfig, entry: Mapping[str, Any], promised: Mapping[str, DomainPlacement]
) -> ReplicaPlace:
    new = promised.get(entry["name"])
    domain = new.value if new else str(entry.get("domain") or "")
    return _replica(accepted, engine, entry, f"domain {domain}" if domain else "", "" if new else _message(entry))


def _single(
    accepted: Accepted,
    engine: EngineConfig,
    entry: Mapping[str, Any],
    needs: NodeNeeds,
    cluster: Cluster,
    taken: set[str],
) -> ReplicaPlace:
    """kube-scheduler chooses among the free nodes; here each replica takes one away, whichever it will be."""
    if entry.get("nodes"):
        return _replica(accepted, engine, entry, f"node {', '.join(entry['nodes'])}", _message(entry))
    free = [node for node in _open_nodes(cluster.inventory, needs) if node not in taken]
    if not free:
        return _replica(accepted, engine, entry, "", _no_node(cluster.inventory, needs, taken))
    taken.add(free[0])
    place = f"any of {len(free)} free nodes" if len(free) > 1 else f"node {free[0]}"
    return _replica(accepted, engine, entry, place, "")


def _replica(
    accepted: Accepted, engine: EngineConfig, entry: Mapping[str, Any], place: str, reason: str
) -> ReplicaPlace:
    profile = f"{engine.profile.name}/{engine.profile.version}"
    display = engine.profile.hardware.display_name
    return ReplicaPlace(accepted.label, entry["name"], profile, display, place, reason)


def _message(entry: Mapping[str, Any]) -> str:
    return str(entry.get("message", ""))


def _no_node(inventory: Inventory, needs: NodeNeeds, taken: set[str]) -> str:
    """Why no node is free, with the number of nodes for each cause."""
    busy = inventory.busy_nodes()
    causes = Counter(_cause(node, needs, busy, taken) for node in inventory.nodes.values() if needs.is_candidate(node))
    if not causes:
        return f"no node of the cluster is {needs.hardware.display_name}"
    return f"no free node ({', '.join(f'{cause}: {count}' for cause, count in sorted(causes.items()))})"


def _cause(node: NodeView, needs: NodeNeeds, busy: frozenset[str], taken: set[str]) -> str:
    if node.name in taken:
        return "taken by other replicas"
    return needs.obstacle(node) or ("GPUs in use" if node.name in busy else "free")


def _open_nodes(inventory: Inventory, needs: NodeNeeds) -> list[str]:
    busy = inventory.busy_nodes()
    return sorted(
        node.name
        for node in inventory.nodes.values()
        if needs.is_candidate(node) and needs.obstacle(node) is None and node.name not in busy
    )


def _compute_domain_uid(accepted: Accepted, snapshot: Snapshot) -> str | None:
    """Of the ComputeDomain whose nodes are not somebody else's: the named one, or the deployment's own."""
    placement = accepted.deployment.spec.placement
    if placement is not None and placement.compute_domain is not None:
        named = (accepted.deployment.namespace, placement.compute_domain.existing)
        return next((d.uid for d in snapshot.inventory.compute_domains if (d.namespace, d.name) == named), None)
    return next((child.uid for child in snapshot.children if child.kind == "ComputeDomain"), None)


def _domain_capacity(
    engine: EngineConfig, needs: NodeNeeds, before: Inventory, after: Inventory, override: str | None, own: str | None
) -> Iterator[Capacity]:
    label = domain_label(before, needs, override)
    if label is None:
        return
    left = {state.placement: state.free for state in domains(after, needs, label, own)}
    for state in domains(before, needs, label, own):
        value = state.placement.value
        yield Capacity(engine.profile.name, value, label, state.nodes, state.free, left[state.placement])
