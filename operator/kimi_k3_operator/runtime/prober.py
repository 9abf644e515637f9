"""Probes of all engines, side by side; what they show is folded into one `Probe` per pod."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import httpx

from kimi_k3_operator.apply.probe import Finding, ask
from kimi_k3_operator.metrics import PROBES
from kimi_k3_operator.plan.snapshot import Probe
from kimi_k3_operator.plan.targets import Target
from kimi_k3_operator.plan.verification import WRONG_ANSWERS
from kimi_k3_operator.runtime.wakeups import Key

PERIOD_SECONDS = 10.0
FIRST_PERIOD_SECONDS = 2.0
"""Until an engine has answered rightly for the first time."""
REPEAT_SECONDS = 1.0
"""After a wrong answer that does not count yet."""
FROZEN_SECONDS = 300.0
"""Requests run and no counter moves for so long: the engine hangs."""
PROBES_AT_ONCE = 32


@dataclass(frozen=True)
class History:
    """A probe, the last counters and since when they stand still; seconds of the event loop's clock."""

    probe: Probe
    counters: tuple[float, ...] | None = None
    moved: float = 0.0
    quiet: int = 0
    """After a completion without an answer only the counters are read, so that probes move nothing themselves:
    1 until the first such reading, 2 while the readings stay the same."""


def fold(history: History, finding: Finding, now: float) -> History:
    """One more finding. A right answer clears everything but the memory that there was one."""
    counters = finding.counters if finding.counters is not None else history.counters
    moves = finding.counters is not None and _progress(history.counters, finding.counters)
    moved = now if moves or finding.outcome == "right" else history.moved
    stands = now - moved >= FROZEN_SECONDS
    probe = history.probe
    if finding.outcome == "right":
        answered = replace(probe, passed=True, wrong=0, frozen=False, reason="Verified", words="")
        return History(answered, counters, moved)
    frozen = stands and (probe.frozen if finding.counters is None else finding.running > 0)
    words = finding.words
    if frozen:
        words = f"{finding.running:.0f} requests run and nothing has moved for {now - moved:.0f} s"
    wrong = probe.wrong + 1 if finding.outcome == "wrong" else probe.wrong
    judged = replace(probe, wrong=wrong, frozen=frozen, reason=finding.reason, words=words)
    return History(judged, counters, moved, _quiet(history, finding, moves))


def _quiet(history: History, finding: Finding, moves: bool) -> int:
    if finding.timed_out:
        return 1
    if not history.quiet or finding.counters is None:
        return history.quiet
    if finding.running == 0 or (history.quiet == 2 and moves):
        return 0
    return 2


def _progress(before: tuple[float, ...] | None, after: tuple[float, ...]) -> bool:
    """Anything changed, but for a queue that only grows: requests that arrive are no work done."""
    if before is None:
        return True
    return before[:-1] != after[:-1] or after[-1] < before[-1]


def pause(probe: Probe) -> float:
    """Seconds from one probe to the next: a wrong answer is repeated at once, a verified engine is left in peace."""
    if 0 < probe.wrong < WRONG_ANSWERS:
        return REPEAT_SECONDS
    return PERIOD_SECONDS if probe.passed else FIRST_PERIOD_SECONDS


class Prober:
    """One task per engine container of one deployment."""

    def __init__(
        self, key: Key, client: httpx.AsyncClient, slots: asyncio.Semaphore, wake: Callable[[Key], None]
    ) -> None:
        self._key, self._client, self._slots, self._wake = key, client, slots, wake
        self._tasks: dict[Target, asyncio.Task[None]] = {}
        self._histories: dict[Target, History] = {}

    @property
    def probes(self) -> Mapping[str, Probe]:
        """What is known of each pod, by UID."""
        return {target.pod: history.probe for target, history in self._histories.items()}

    def watch(self, targets: Iterable[Target]) -> None:
        """Probe exactly these from now on."""
        wanted = set(targets)
        for target in set(self._tasks) - wanted:
            self._tasks.pop(target).cancel()
            del self._histories[target]
        for target in wanted - set(self._tasks):
            self._histories[target] = History(Probe(target.container), moved=asyncio.get_running_loop().time())
            self._tasks[target] = asyncio.create_task(self._run(target), name=f"probe {target.url}")

    async def _run(self, target: Target) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            async with self._slots:
                finding = await ask(self._client, target, counters_only=self._histories[target].quiet > 0)
            PROBES.labels(outcome=finding.outcome).inc()
            before = self._histories[target]
            after = self._histories[target] = fold(before, finding, loop.time())
            if after.probe != before.probe:
                self._wake(self._key)
            await asyncio.sleep(max(0.0, began + pause(after.probe) - loop.time()))
