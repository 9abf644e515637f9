"""What this process wrote and the watches have not shown yet.

A pass must not decide twice because a watch is late: each written object covers the indexed one until the index has its
resource version, and each deleted one counts as terminating until it is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.plan.snapshot import Child, parse_child

_LONGEST_LAG_SECONDS = 60.0
"""A watch that is later than this is dead; what it says when it is back is the truth."""


@dataclass(frozen=True)
class _Written:
    child: Child
    at: float


class Overlay:
    """The writes of one deployment. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, str], _Written] = {}
        self._deleted: set[str] = set()

    def wrote(self, stored: Manifest, now: float) -> None:
        child = parse_child(stored, stored["kind"])
        self._written[child.identity] = _Written(child, now)

    def scaled(self, pool: Child, scale: Manifest, now: float) -> None:
        """The scale subresource of `pool` was written; the answer carries the object's new resource version."""
        spec = {**pool.body["spec"], "replicas": (scale.get("spec") or {}).get("replicas", 0)}
        version = str(scale["metadata"].get("resourceVersion", ""))
        child = replace(pool, body={**pool.body, "spec": spec}, resource_version=version)
        self._written[child.identity] = _Written(child, now)

    def deleted(self, uid: str) -> None:
        self._deleted.add(uid)

    def gone(self, identity: tuple[str, str], uid: str) -> None:
        """The watch says that an object was deleted."""
        known = self._written.get(identity)
        if known is not None and known.child.uid == uid:
            del self._written[identity]
        self._deleted.discard(uid)

    def merge(self, indexed: Iterable[Child], now: float) -> tuple[Child, ...]:
        """The children as they are by now, ordered by kind and name. Forgets what the index has caught up with."""
        merged = {child.identity: child for child in indexed}
        for identity, written in list(self._written.items()):
            known = merged.get(identity)
            caught_up = known is not None and _version(known) >= _version(written.child)
            if caught_up or now - written.at > _LONGEST_LAG_SECONDS:
                del self._written[identity]
            else:
                merged[identity] = written.child
        self._deleted &= {child.uid for child in merged.values()}
        kept = (replace(child, terminating=True) if child.uid in self._deleted else child for child in merged.values())
        return tuple(sorted(kept, key=lambda child: child.identity))


def _version(child: Child) -> int:
    """Resource versions of one kind grow; the API server promises it since 1.35 and has always done it."""
    return int(child.resource_version) if child.resource_version.isdigit() else 0
