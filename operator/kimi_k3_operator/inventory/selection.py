"""Which nodes a pool may use, and how they fall into NVLink domains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from kimi_k3_operator.api.v1alpha1 import Pool
from kimi_k3_operator.inventory.model import DomainPlacement, Inventory, NodeView, Taint
from kimi_k3_operator.profiles.model import Hardware, LabelRequirement

ARCHITECTURE = "kubernetes.io/arch"
COMPUTE_DOMAIN_LABEL = "resource.nvidia.com/computeDomain"
"""The driver puts the UID of the ComputeDomain that uses a node here; a node serves one at a time."""
DRIVER_UPGRADE = "nvidia.com/gpu-driver-upgrade-state"


@dataclass(frozen=True)
class Tolerated:
    """One toleration; an empty field matches anything."""

    key: str
    operator: str
    value: str
    effect: str

    def covers(self, taint: Taint) -> bool:
        return (
            (not self.key or self.key == taint.key)
            and (self.operator == "Exists" or self.value == taint.value)
            and (not self.effect or self.effect == taint.effect)
        )


@dataclass(frozen=True)
class NodeNeeds:
    """What a node must be like for a pool."""

    hardware: Hardware
    node_selector: Mapping[str, str]
    tolerations: tuple[Tolerated, ...]

    def is_candidate(self, node: NodeView) -> bool:
        """The right hardware, whatever its present state."""
        return (
            node.labels.get(ARCHITECTURE) == self.hardware.architecture
            and all(node.labels.get(key) == value for key, value in self.node_selector.items())
            and any(all(_holds(r, node.labels) for r in option) for option in self.hardware.node_selection)
        )

    def obstacle(self, node: NodeView) -> str | None:
        """Why a candidate cannot take a new replica now; None if it can, as far as the node itself says."""
        if not node.ready:
            return "not ready"
        if node.unschedulable:
            return "cordoned"
        if node.gpus.get(self.hardware.gpu_resource, 0) != self.hardware.gpus_per_node:
            return f"{node.gpus.get(self.hardware.gpu_resource, 0)} of {self.hardware.gpus_per_node} GPUs"
        if node.labels.get(DRIVER_UPGRADE, "upgrade-done") != "upgrade-done":
            return "driver upgrade"
        for taint in node.taints:
            if taint.effect in ("NoSchedule", "NoExecute") and not any(t.covers(taint) for t in self.tolerations):
                return f"taint {taint.key}"
        return None


def needs_of(pool: Pool, hardware: Hardware) -> NodeNeeds:
    scheduling = pool.scheduling
    given = [
        Tolerated(t.key or "", t.operator, t.value or "", t.effect or "")
        for t in (scheduling.tolerations or () if scheduling else ())
    ]
    own = [Tolerated(t.key, t.operator, t.value or "", t.effect or "") for t in hardware.tolerations]
    return NodeNeeds(hardware, dict(scheduling.node_selector or {}) if scheduling else {}, (*own, *given))


@dataclass(frozen=True)
class DomainState:
    """One NVLink domain as a pool sees it. `free` nodes are promised to nobody."""

    placement: DomainPlacement
    nodes: int
    free: int
    shared: bool
    """Another live ComputeDomain uses nodes of this domain."""


def free_nodes(inventory: Inventory, needs: NodeNeeds) -> int:
    """Whole nodes of the pool's hardware that a replica could take now."""
    busy = inventory.busy_nodes()
    return sum(
        needs.is_candidate(node) and needs.obstacle(node) is None and node.name not in busy
        for node in inventory.nodes.values()
    )


def domain_label(inventory: Inventory, needs: NodeNeeds, override: str | None) -> str | None:
    """The node label that names domains: the override, else the first that all candidate nodes carry; else None."""
    if override:
        return override
    candidates = [node for node in inventory.nodes.values() if needs.is_candidate(node)]
    for label in needs.hardware.domain_labels:
        if candidates and all(label in node.labels for node in candidates):
            return label
    return None


def domains(
    inventory: Inventory, needs: NodeNeeds, label: str, own_compute_domain: str | None = None
) -> tuple[DomainState, ...]:
    """Every domain with candidate nodes, ordered by name.

    A node is free when the node itself allows a replica, no pod on it asks for GPUs, and no other ComputeDomain holds
    it. From the free nodes of a domain those are taken off that its promised replicas have not bound yet. A promise
    counts wherever its domain has nodes, also where another label named it.
    """
    busy = inventory.busy_nodes()
    open_promises = _open_promises(inventory)
    members: dict[str, list[NodeView]] = defaultdict(list)
    for node in inventory.nodes.values():
        if needs.is_candidate(node) and label in node.labels:
            members[node.labels[label]].append(node)
    states = []
    for value in sorted(members):
        placement = DomainPlacement(label, value)
        foreign = [n for n in members[value] if _held_by_other(n, own_compute_domain)]
        names = {node.name for node in foreign}
        open_nodes = sum(
            node.name not in busy and node.name not in names and needs.obstacle(node) is None for node in members[value]
        )
        owed = sum(count for home, count in open_promises if not home.isdisjoint(node.name for node in members[value]))
        states.append(DomainState(placement, len(members[value]), max(0, open_nodes - owed), bool(foreign)))
    return tuple(states)


def _open_promises(inventory: Inventory) -> list[tuple[frozenset[str], int]]:
    """(nodes of its domain, how many of them it has yet to bind) of each promise that is not all bound.

    Pods that are going away may be those of a namesake, so they bind nothing.
    """
    bound: dict[tuple[str, str], set[str]] = defaultdict(set)
    for pod in inventory.pods:
        if pod.node and pod.replica and not pod.terminating:
            bound[pod.namespace, pod.replica].add(pod.node)
    found = []
    for promise in inventory.promises:
        taken = bound[promise.namespace, promise.replica]
        if len(taken) >= promise.nodes and all(_is_in(inventory.nodes.get(name), promise.domain) for name in taken):
            continue
        home = frozenset(node.name for node in inventory.nodes.values() if _is_in(node, promise.domain))
        if (count := promise.nodes - len(taken & home)) > 0:
            found.append((home, count))
    return found


def _is_in(node: NodeView | None, domain: DomainPlacement) -> bool:
    return node is not None and node.labels.get(domain.label) == domain.value


def _held_by_other(node: NodeView, own: str | None) -> bool:
    holder = node.labels.get(COMPUTE_DOMAIN_LABEL)
    return holder is not None and holder != own


def _holds(requirement: LabelRequirement, node_labels: Mapping[str, str]) -> bool:
    if requirement.operator == "Exists":
        return requirement.key in node_labels
    return node_labels.get(requirement.key) in requirement.values
