"""What the watches have shown, as views: kopf's indices on one side, snapshots on the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from kimi_k3_operator.api import labels
from kimi_k3_operator.apply.kinds import CHILD_KINDS
from kimi_k3_operator.inventory.model import ComputeDomainView, Inventory, NodeView, PodView, Promise
from kimi_k3_operator.inventory.parse import parse_promise
from kimi_k3_operator.plan.snapshot import Child
from kimi_k3_operator.runtime.wakeups import Key

T = TypeVar("T")

Indices = Mapping[str, Mapping[Any, Iterable[Any]]]
"""kopf's read-only indices by name; each maps a key to the values that objects put there."""

NODES, PODS, APIS, DOMAINS = "nodes", "pods", "apis", "compute_domain_views"
OPTIONAL_CRDS = {f"{kind.plural}.{kind.group}": kind.kind for kind in CHILD_KINDS if kind.optional}


class World:
    """The inventory is rebuilt only after something in it changed."""

    def __init__(self) -> None:
        self._indices: Indices = {}
        self._inventory: Inventory | None = None
        self.waiting: set[Key] = set()
        """Deployments that wait for capacity: woken when a node or a GPU becomes free."""

    def attach(self, indices: Indices) -> None:
        self._indices = indices

    def changed(self) -> None:
        """A node, a GPU pod, a promise or a ComputeDomain changed."""
        self._inventory = None

    def inventory(self) -> Inventory:
        if self._inventory is None:
            self._inventory = Inventory(
                nodes={node.name: node for node in self._all(NODES, NodeView)},
                pods=tuple(sorted(self._all(PODS, PodView), key=lambda pod: (pod.namespace, pod.name))),
                promises=tuple(self._promises()),
                compute_domains=tuple(self._all(DOMAINS, ComputeDomainView)),
            )
        return self._inventory

    def children(self, key: Key) -> list[Child]:
        return [child for kind in CHILD_KINDS for child in self._indices.get(kind.plural, {}).get(key, ())]

    def pods(self, key: Key) -> tuple[PodView, ...]:
        return tuple(sorted(self._indices.get(PODS, {}).get(key, ()), key=lambda pod: pod.name))

    def apis(self) -> frozenset[str]:
        """Optional kinds that are installed."""
        return frozenset(self._indices.get(APIS, {}))

    def _promises(self) -> Iterable[Promise]:
        for child in self._all("leaderworkersets", Child):
            if not child.terminating and (promise := parse_promise(child.body)) is not None:
                yield promise

    def _all(self, index: str, _: type[T]) -> list[T]:
        found = self._indices.get(index, {})
        return [value for key in found for value in found[key]]


def deployment_key(body: Mapping[str, Any]) -> Key:
    """The deployment that a child belongs to, by its label; labels outlive owner references."""
    metadata = body["metadata"]
    return metadata.get("namespace", ""), (metadata.get("labels") or {}).get(labels.DEPLOYMENT, "")
