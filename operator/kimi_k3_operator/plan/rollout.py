"""Which revision each replica gets. When do we restart? Only where this module says so.

A replica is a whole 8-GPU machine and there is usually no spare one, so a replica is updated in its place: the old
engine drains and goes, then the new one loads. The rules, in order:

1. A replica that does not serve may be updated at once: nothing is lost.
2. A serving replica is updated only while enough others serve: never more than `max_unavailable` are down.
3. So the next one follows only when the one before it is ready, and a failing first one stops the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kimi_k3_operator.plan.replicas import Observed


@dataclass(frozen=True)
class Roll:
    """`update` replicas get the target revision now; `waiting` ones keep theirs for the time being."""

    update: frozenset[str]
    waiting: frozenset[str]


def roll(replicas: Iterable[Observed], target: str, *, desired: int, max_unavailable: int) -> Roll:
    """Decide for the replicas that stay; `desired` is how many the pool should have in the end."""
    staying = list(replicas)
    outdated = [seen for seen in staying if seen.revision != target]
    down = max(0, desired - sum(seen.ready for seen in staying))
    allowance = max(0, max_unavailable - down)
    update: set[str] = {seen.name for seen in outdated if not seen.ready}
    serving = sorted((seen for seen in outdated if seen.ready), key=lambda seen: -seen.replica.ordinal)
    update |= {seen.name for seen in serving[:allowance]}
    return Roll(frozenset(update), frozenset(seen.name for seen in outdated) - update)
