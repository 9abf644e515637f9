"""Which NVLink domain a new group goes to: best fit, deterministic, never half a group.

A placed group stays where it is: its workload's required node affinity is the promise, and all promises of all
deployments are in the inventory, so nothing is booked twice (docs/design/0005-placement.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kimi_k3_operator.inventory.model import DomainPlacement
from kimi_k3_operator.inventory.selection import DomainState


@dataclass(frozen=True)
class Placement:
    """`assigned` and `unplaced` (replica to the reason, one sentence) cover all replicas that were asked for."""

    assigned: Mapping[str, DomainPlacement]
    unplaced: Mapping[str, str]
    domains: tuple[DomainState, ...]
    """What is left after the assignments."""


def place(replicas: Iterable[str], domains: tuple[DomainState, ...], *, nodes_per_replica: int = 2) -> Placement:
    """Give each replica, in the order given, the fullest domain that still has enough free nodes.

    Domains in which another ComputeDomain lives are taken last: two of them in one clique fail sporadically.
    Ties go to the lowest name.
    """
    left = list(domains)
    assigned: dict[str, DomainPlacement] = {}
    unplaced: dict[str, str] = {}
    for name in replicas:
        fitting = [state for state in left if state.free >= nodes_per_replica]
        if not fitting:
            unplaced[name] = no_room(left, nodes_per_replica)
            continue
        best = min(fitting, key=lambda state: (state.shared, state.free, state.placement))
        assigned[name] = best.placement
        left[left.index(best)] = replace(best, free=best.free - nodes_per_replica)
    return Placement(assigned, unplaced, tuple(left))


def no_room(domains: Iterable[DomainState], nodes_per_replica: int = 2) -> str:
    """One sentence with the free nodes of each domain; long tables are cut to the emptiest eight."""
    states = sorted(domains, key=lambda state: (-state.free, state.placement))
    if not states:
        return "no node of this hardware is in an NVLink domain"
    shown = ", ".join(f"{state.placement.value}: {state.free}" for state in states[:8])
    more = f", and {len(states) - 8} more" if len(states) > 8 else ""
    return f"no NVLink domain has {nodes_per_replica} free nodes ({shown}{more})"
