"""The state of each replica, and which replicas a pool should have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kimi_k3_operator.api import labels
from kimi_k3_operator.compile.replica import PoolKey, Replica
from kimi_k3_operator.inventory.model import DomainPlacement, PodView
from kimi_k3_operator.plan.snapshot import Child


@dataclass(frozen=True)
class Observed:
    """A replica that has a workload."""

    replica: Replica
    workload: Child
    revision: str
    """Name of the revision its workload was made from."""
    placement: DomainPlacement | None
    pods: tuple[PodView, ...]

    @property
    def name(self) -> str:
        return self.replica.name

    @property
    def terminating(self) -> bool:
        return self.workload.terminating

    @property
    def size(self) -> int:
        return 2 if self.workload.kind == "LeaderWorkerSet" else 1

    @property
    def current_pods(self) -> tuple[PodView, ...]:
        """Pods of the revision that the workload has now."""
        label = self.revision.rsplit("-", 1)[-1]
        return tuple(pod for pod in self.pods if pod.revision == label and not pod.terminating)

    @property
    def ready(self) -> bool:
        """All its pods are ready, from its present revision. A pod that is going away does not count."""
        pods = self.current_pods
        return not self.terminating and len(pods) == self.size and all(pod.ready for pod in pods)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(sorted({pod.node for pod in self.pods if pod.node and not pod.terminating}))


def observe(key: PoolKey, children: Iterable[Child], pods: Iterable[PodView]) -> tuple[Observed, ...]:
    """The replicas of a pool that have a workload, by ordinal."""
    by_replica: dict[str, list[PodView]] = {}
    for pod in pods:
        by_replica.setdefault(pod.replica, []).append(pod)
    found = []
    for child in children:
        if not child.replica or (child.pool, child.role) != (key.pool, key.role):
            continue
        ordinal = child.replica.rsplit("-", 1)[-1]
        if child.kind not in ("Deployment", "LeaderWorkerSet") or not ordinal.isdigit():
            continue
        label, _, value = child.annotation(labels.PLACEMENT).partition("=")
        found.append(
            Observed(
                replica=Replica(key, int(ordinal)),
                workload=child,
                revision=child.annotation(labels.REVISION),
                placement=DomainPlacement(label, value) if value else None,
                pods=tuple(sorted(by_replica.get(child.replica, ()), key=lambda pod: pod.name)),
            )
        )
    return tuple(sorted(found, key=lambda seen: (seen.replica.ordinal, seen.workload.kind)))


def victims(observed: Iterable[Observed], count: int) -> tuple[Observed, ...]:
    """The `count` replicas to give up first: those that do not serve, then the highest ordinals."""
    order = sorted(observed, key=lambda seen: (seen.ready, -seen.replica.ordinal))
    return tuple(order[:count])


def new_replicas(key: PoolKey, taken: Iterable[Replica], count: int) -> tuple[Replica, ...]:
    """`count` replicas with the lowest ordinals that no workload has."""
    used = {replica.ordinal for replica in taken}
    fresh: list[Replica] = []
    ordinal = 0
    while len(fresh) < count:
        if ordinal not in used:
            fresh.append(Replica(key, ordinal))
        ordinal += 1
    return tuple(fresh)


def selector_text(selector: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
