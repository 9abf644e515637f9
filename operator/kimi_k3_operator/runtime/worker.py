"""One task per deployment: its passes, one after the other, from its first sight to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.metrics import PASSES
from kimi_k3_operator.runtime.lease import Standing
from kimi_k3_operator.runtime.reconciler import Reconciler
from kimi_k3_operator.runtime.wakeups import Key, Wakeups

log = logging.getLogger(__name__)


class Worker:
    """Runs until `stop`. An error in a pass ends that pass, never the worker."""

    def __init__(
        self, key: Key, body: Manifest, reconciler: Reconciler, wakeups: Wakeups, standing: Callable[[], Standing]
    ) -> None:
        self.uid = str(body["metadata"]["uid"])
        self.reconciler = reconciler
        self._key, self._body, self._wakeups, self._standing = key, body, wakeups, standing
        self._stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name=f"{key[0]}/{key[1]}")

    def tell(self, body: Manifest) -> bool:
        """Take a newer body; returns whether more than status, labels or annotations changed."""
        old, self._body = self._body, body
        return _weight(old) != _weight(body)

    def stop(self) -> None:
        if not self._stop.done():
            self._stop.set_result(None)
        self._task.cancel()

    async def finish(self) -> None:
        """Stop, wait for the end of the task, and forget what was counted and promised."""
        self.stop()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self.reconciler.forget()

    async def _run(self) -> None:
        async for current in self._wakeups.passes(self._key, self._stop):
            try:
                await self.reconciler.run(self._body, self._standing(), current)
            except Exception:
                log.exception("a pass of %s/%s failed", *self._key)
                PASSES.labels(result="fault").inc()
                current.failed = True


def _weight(body: Manifest) -> tuple[Any, ...]:
    """What of a deployment a pass depends on, besides its status."""
    metadata = body["metadata"]
    return metadata.get("generation"), metadata.get("deletionTimestamp"), tuple(metadata.get("finalizers") or ())
