"""Scheduling of one engine in simulated time: seats, KV cache, one prefill after the other, tokens at a steady rate."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.harness.engine.cache import PrefixCache
from tests.harness.engine.clock import EngineClock
from tests.harness.engine.counters import Counters, Gauges
from tests.harness.engine.settings import EngineSettings


@dataclass(eq=False)
class Turn:
    """One request in the engine. Times are seconds of the engine's clock; units are of prefix matching."""

    prompt_tokens: int
    answer_tokens: int
    units: list[int]
    """Names of the full units of prompt and answer."""
    remote_tokens: int = 0
    """Prompt tokens whose KV cache another engine computed and handed over."""
    long_prefill: float = 0.0
    """Seconds that the prefill takes at least."""
    cached_tokens: int = 0
    """Prompt tokens that were not computed here, from this engine's cache and from another's."""
    arrived: float = 0.0
    started: float = 0.0
    first_token: float = 0.0
    anonymous: int = 0
    prefilled: bool = False
    kept: bool = False
    """The blocks outlive the request because a decode engine will pull them."""
    admitted: asyncio.Event = field(default_factory=asyncio.Event)


class Simulation:
    def __init__(self, settings: EngineSettings, counters: Counters, clock: EngineClock) -> None:
        self.settings = settings
        self.counters = counters
        self.clock = clock
        self.cache = PrefixCache(settings.capacity_units)
        self.running: set[Turn] = set()
        self.waiting: deque[Turn] = deque()
        self.idle = asyncio.Event()
        """Set while no request is running or waiting."""
        self.idle.set()
        self._prefill_free = 0.0

    @property
    def in_flight(self) -> int:
        return len(self.running) + len(self.waiting)

    @asynccontextmanager
    async def turn(self, turn: Turn) -> AsyncIterator[Turn]:
        """A seat and KV cache for one request, from admission on; the body waits for tokens with `generated`."""
        turn.arrived = self.clock.now()
        turn.anonymous = self.settings.state_units + 1
        self.waiting.append(turn)
        self.idle.clear()
        done = False
        try:
            self.admit()
            await turn.admitted.wait()
            await self.clock.sleep_until(turn.first_token)
            self._prefill_done(turn)
            yield turn
            done = True
        finally:
            self._leave(turn, done=done)

    async def generated(self, turn: Turn, tokens: int) -> None:
        """Until the first `tokens` tokens of the answer are there."""
        await self.clock.sleep_until(turn.first_token + (tokens - 1) / self.settings.pace.decode)

    def available(self, turn: Turn) -> int:
        """Tokens of the answer that are there now."""
        now = self.clock.now()
        if not turn.first_token or now < turn.first_token:
            return 0
        # the rounding keeps a token that is due at this very moment
        return min(turn.answer_tokens, 1 + int((now - turn.first_token) * self.settings.pace.decode + 1e-6))

    def gauges(self) -> Gauges:
        pending = sum(len(turn.units) * (1.0 - self._filled(turn)) for turn in self.running)
        usage = max(0.0, self.cache.used - pending) / self.cache.capacity
        generated = sum(self.available(turn) for turn in self.running)
        return Gauges(len(self.running), len(self.waiting), round(usage, 6), generated)

    def admit(self) -> None:
        """Start what there are seats and blocks for, in order of arrival."""
        while self.waiting and len(self.running) < self.settings.max_num_seqs and not self.clock.frozen:
            turn = self.waiting[0]
            if self.running and not self.cache.fits(turn.units, turn.anonymous):
                return
            self.waiting.popleft()
            self._start(turn)

    def release(self, turn: Turn) -> None:
        """Free the blocks of a turn that was `kept`."""
        self.cache.release(turn.units, turn.anonymous)
        self.admit()

    def _start(self, turn: Turn) -> None:
        settings, counters, now = self.settings, self.counters, self.clock.now()
        hit = min(self.cache.match(turn.units) * settings.unit_tokens, turn.prompt_tokens - 1)
        local = hit - hit % settings.unit_tokens if settings.prefix_caching else 0
        pulled = max(0, min(turn.remote_tokens, turn.prompt_tokens - 1) - local)
        turn.cached_tokens = local + pulled
        if settings.prefix_caching:
            counters.prefix_queries += turn.prompt_tokens
            counters.prefix_hits += local
        if settings.transfer is not None:
            counters.external_queries += turn.prompt_tokens - local
            counters.external_hits += pulled
        counters.cached_tokens += local
        counters.pulled_tokens += pulled
        self.cache.hold(turn.units, turn.anonymous)
        self.running.add(turn)
        seconds = (turn.prompt_tokens - turn.cached_tokens) / settings.pace.prefill
        turn.started = max(now, self._prefill_free)
        turn.first_token = turn.started + max(seconds, turn.long_prefill)
        self._prefill_free = turn.first_token
        counters.observe("request_queue_time_seconds", turn.started - turn.arrived)
        turn.admitted.set()

    def _prefill_done(self, turn: Turn) -> None:
        turn.prefilled = True
        self.counters.prompt_tokens += turn.prompt_tokens
        self.counters.observe("time_to_first_token_seconds", turn.first_token - turn.arrived)
        self.counters.observe("request_prefill_time_seconds", turn.first_token - turn.started)

    def _leave(self, turn: Turn, *, done: bool) -> None:
        if turn in self.running:
            tokens = turn.answer_tokens if done else self.available(turn)
            self.counters.generation_tokens += tokens
            self.counters.drafted(self.settings, tokens - 1)
            self.running.remove(turn)
            if done:
                self._observe_end(turn)
            if not turn.kept:
                computed = len(turn.units) if done else int(len(turn.units) * self._filled(turn))
                self.cache.release(turn.units, turn.anonymous, computed=computed)
            if not turn.prefilled:
                self._prefill_free = min(self._prefill_free, self.clock.now())
        else:
            self.waiting.remove(turn)
        self.admit()
        if not self.in_flight:
            self.idle.set()

    def _observe_end(self, turn: Turn) -> None:
        decoding = (turn.answer_tokens - 1) / self.settings.pace.decode
        self.counters.observe("request_decode_time_seconds", decoding)
        self.counters.observe("e2e_request_latency_seconds", turn.first_token + decoding - turn.arrived)
        if turn.answer_tokens > 1:
            for name in ("inter_token_latency_seconds", "request_time_per_output_token_seconds"):
                self.counters.observe(name, decoding / (turn.answer_tokens - 1))

    def _filled(self, turn: Turn) -> float:
        """Part of the turn's units that hold computed tokens, 0 to 1; what was cached is there from the start."""
        total = turn.prompt_tokens + turn.answer_tokens
        span = turn.first_token - turn.started
        progress = 1.0 if span <= 0 else min(1.0, max(0.0, (self.clock.now() - turn.started) / span))
        there = turn.cached_tokens + progress * (turn.prompt_tokens - turn.cached_tokens) + self.available(turn)
        return min(1.0, there / total)
