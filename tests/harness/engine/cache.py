"""Prefix cache of one engine: units of equal size, held by running requests or idle, idle ones evicted oldest first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """`capacity` is in units; a unit is named by a hash that covers everything before it too."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.reserved = 0
        """Units that running requests use without a name: recurrent state and the end of a text."""
        self._held: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def used(self) -> int:
        """Units that cannot be evicted now."""
        return len(self._held) + self.reserved

    @property
    def kept(self) -> int:
        """Units that a later request could hit."""
        return len(self._held) + len(self._idle)

    def match(self, units: Sequence[int]) -> int:
        """How many units from the start are there."""
        count = 0
        for unit in units:
            if unit not in self._held and unit not in self._idle:
                break
            count += 1
        return count

    def fits(self, units: Sequence[int], reserve: int) -> bool:
        new = sum(unit not in self._held for unit in units)
        return self.used + new + reserve <= self.capacity

    def hold(self, units: Sequence[int], reserve: int) -> None:
        """Take the units for a request and `reserve` more, evicting what is idle where it has to."""
        held, idle = self._held, self._idle
        for unit in units:
            if unit in held:
                held[unit] += 1
            else:
                idle.pop(unit, None)
                held[unit] = 1
        self.reserved += reserve
        while idle and self.used + len(idle) > self.capacity:
            idle.popitem(last=False)

    def release(self, units: Sequence[int], reserve: int, *, computed: int | None = None) -> None:
        """Give them back; the first `computed` (default all) stay for later hits, the end of a text going first."""
        keep = len(units) if computed is None else computed
        held = self._held
        for index in range(len(units) - 1, -1, -1):
            unit = units[index]
            if held[unit] > 1:
                held[unit] -= 1
                continue
            del held[unit]
            if index < keep:
                self._idle[unit] = None
        self.reserved -= reserve

    def clear(self) -> None:
        self._idle.clear()
