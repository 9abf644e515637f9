"""Time of one engine, which a hang stops."""

from __future__ import annotations

import asyncio


class EngineClock:
    """Seconds of the running event loop, less those for which it stood still."""

    def __init__(self) -> None:
        self._lost = 0.0
        self._stopped_at: float | None = None
        self._runs = asyncio.Event()
        self._runs.set()

    @property
    def frozen(self) -> bool:
        return self._stopped_at is not None

    def now(self) -> float:
        moment = asyncio.get_running_loop().time() if self._stopped_at is None else self._stopped_at
        return moment - self._lost

    def freeze(self) -> None:
        if self._stopped_at is None:
            self._stopped_at = asyncio.get_running_loop().time()
            self._runs.clear()

    def thaw(self) -> None:
        if self._stopped_at is not None:
            self._lost += asyncio.get_running_loop().time() - self._stopped_at
            self._stopped_at = None
            self._runs.set()

    async def running(self) -> None:
        """Returns at once, or when the clock goes on."""
        await self._runs.wait()

    async def sleep_until(self, moment: float) -> None:
        while self.frozen or (remaining := moment - self.now()) > 0:
            if self.frozen:
                await self._runs.wait()
            else:
                await asyncio.sleep(remaining)
