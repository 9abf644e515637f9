"""When the next pass of a deployment is due: on a wake-up, after a failure, at a time it asked for, now and then."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

Key = tuple[str, str]
"""Namespace and name."""

RESYNC_SECONDS = 600.0
DEBOUNCE_SECONDS = 0.05
"""Events come in bursts; one pass sees them all."""
LONGEST_BACKOFF_SECONDS = 60.0


@dataclass
class Pass:
    """One pass. The loop body says how it went."""

    failed: bool = False
    retry_after: float | None = None
    """Seconds the API server asked to wait, after a failure."""
    requeue_after: float | None = None
    """Seconds until the next pass is wanted, after a success."""


class Wakeups:
    """One asyncio event per deployment. All methods run in the event loop."""

    def __init__(self) -> None:
        self._events: dict[Key, asyncio.Event] = {}

    def wake(self, key: Key) -> None:
        """Ask for a pass; unknown keys are ignored."""
        if (event := self._events.get(key)) is not None:
            event.set()

    def wake_all(self) -> None:
        for event in self._events.values():
            event.set()

    async def passes(self, key: Key, stop: asyncio.Future[None]) -> AsyncGenerator[Pass, None]:
        """Yield a pass whenever one is due, until `stop` is done."""
        event = self._events.setdefault(key, asyncio.Event())
        backoff = 1.0
        try:
            while not stop.done():
                event.clear()  # before the state is read: whatever changes later wakes again
                current = Pass()
                yield current
                if current.failed:
                    wait = current.retry_after or backoff * random.uniform(0.8, 1.2)
                    backoff = min(backoff * 2, LONGEST_BACKOFF_SECONDS)
                    await self._sleep(stop, wait)  # a wake-up does not shorten it
                    continue
                backoff = 1.0
                due = current.requeue_after
                woken = asyncio.ensure_future(event.wait())
                try:
                    ends: set[asyncio.Future[Any]] = {woken, stop}
                    longest = RESYNC_SECONDS * random.uniform(0.8, 1.2) if due is None else due
                    await asyncio.wait(ends, timeout=longest, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    woken.cancel()
                if event.is_set():
                    await self._sleep(stop, DEBOUNCE_SECONDS)
        finally:
            self._events.pop(key, None)

    @staticmethod
    async def _sleep(stop: asyncio.Future[None], seconds: float) -> None:
        await asyncio.wait({stop}, timeout=seconds)
