"""An immutable view of nodes, GPU pods and NVLink domains, reduced to what decisions need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Taint:
    key: str
    value: str
    effect: str


@dataclass(frozen=True)
class NodeView:
    name: str
    labels: Mapping[str, str]
    ready: bool
    unschedulable: bool
    taints: tuple[Taint, ...]
    gpus: Mapping[str, int]
    """Allocatable GPUs by resource name."""


@dataclass(frozen=True)
class PodView:
    """A pod that is not finished. Of pods that are not ours only the first block is filled."""

    namespace: str
    name: str
    node: str | None
    gpus: int
    terminating: bool = False

    uid: str = ""
    deployment: str = ""
    pool: str = ""
    role: str = ""
    replica: str = ""
    revision: str = ""
    """Hash of the revision its template came from."""
    serves_http: bool = False
    phase: str = ""
    ready: bool = False
    restarts: int = 0
    trouble: str = ""
    """Why it does not run, in the kubelet's or the scheduler's words."""
    unschedulable: bool = False
    image: str = ""
    """What the engine container runs, as the kubelet reports it."""
    since: str = ""
    """When it was created, RFC 3339."""
    ip: str = ""
    container: str = ""
    """ID of the engine container; another one after a restart."""
    containers_ready: bool = False
    gated: bool = False
    """It carries our readiness gate."""
    gate: str = ""
    """Status of the gate's condition: True, False, or empty where nobody has set it."""
    gate_reason: str = ""
    gate_message: str = ""


@dataclass(frozen=True, order=True)
class DomainPlacement:
    """An NVLink domain: the node label that names it, and the value. Its nodes hold one replica."""

    label: str
    value: str


@dataclass(frozen=True)
class Promise:
    """`nodes` nodes of a domain belong to a replica, whether or not its pods are bound yet."""

    namespace: str
    deployment: str
    replica: str
    domain: DomainPlacement
    nodes: int


@dataclass(frozen=True)
class ComputeDomainView:
    namespace: str
    name: str
    uid: str
    claim_template: str
    """Name of the ResourceClaimTemplate of its channels."""


@dataclass(frozen=True)
class Inventory:
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    pods: tuple[PodView, ...] = ()
    """Pods that ask for GPUs or hold a node, of all namespaces."""
    promises: tuple[Promise, ...] = ()
    compute_domains: tuple[ComputeDomainView, ...] = ()

    def busy_nodes(self) -> frozenset[str]:
        """Nodes on which any GPU is asked for. A terminating pod still holds its node."""
        return frozenset(pod.node for pod in self.pods if pod.node and pod.gpus)

    def with_promises(self, promises: Iterable[Promise]) -> Inventory:
        """The same view with `promises` added; one that is already there (same replica) counts once."""
        known = {(p.namespace, p.replica) for p in self.promises}
        extra = tuple(p for p in promises if (p.namespace, p.replica) not in known)
        return Inventory(self.nodes, self.pods, (*self.promises, *extra), self.compute_domains)
