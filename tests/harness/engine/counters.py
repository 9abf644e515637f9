"""Counters and histograms of one engine, and their text for a scrape."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.harness.engine.settings import EngineSettings

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
LONG_SECONDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)


class Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: str) -> list[str]:
        total, lines = 0, [f"# TYPE {name} histogram"]
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {total}')
        return [*lines, f"{name}_sum{{{labels}}} {self.sum}", f"{name}_count{{{labels}}} {total}"]


def _histograms() -> dict[str, Histogram]:
    return {
        "time_to_first_token_seconds": Histogram(SECONDS),
        "inter_token_latency_seconds": Histogram(SECONDS),
        "request_time_per_output_token_seconds": Histogram(SECONDS),
        "e2e_request_latency_seconds": Histogram(LONG_SECONDS),
        "request_queue_time_seconds": Histogram(LONG_SECONDS),
        "request_prefill_time_seconds": Histogram(LONG_SECONDS),
        "request_decode_time_seconds": Histogram(LONG_SECONDS),
    }


@dataclass
class Gauges:
    """What is the case at the moment of a scrape."""

    running: int = 0
    waiting: int = 0
    usage: float = 0.0
    """Part of the KV cache in use, 0 to 1."""
    generated: int = 0
    """Tokens that requests under way have so far."""


@dataclass
class Counters:
    """Everything that only grows. Prefix queries and hits are tokens, as in vLLM."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    pulled_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    external_queries: int = 0
    external_hits: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0})
    rejected: int = 0
    failed_transfers: int = 0
    expired_transfers: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)
    seconds: dict[str, Histogram] = field(default_factory=_histograms)
    born: float = field(default_factory=time.time)

    def observe(self, name: str, value: float) -> None:
        self.seconds[name].observe(value)

    def drafted(self, settings: EngineSettings, tokens: int) -> None:
        """Count the drafts behind `tokens` output tokens: each step yields accepted_length of them on average."""
        if not settings.draft_tokens or tokens <= 0:
            return
        length = min(settings.accepted_length, 1.0 + settings.draft_tokens)
        steps = max(1, round(tokens / length))
        accepted = max(0, tokens - steps)
        self.drafts += steps
        self.draft_tokens += steps * settings.draft_tokens
        self.accepted += accepted
        self.accepted_at = self.accepted_at or [0] * settings.draft_tokens
        for position in range(settings.draft_tokens):
            here = min(accepted, steps)
            self.accepted_at[position] += here
            accepted -= here


class Exposition:
    """The text of `/metrics`; what never changes and what changes rarely is written once and kept."""

    def __init__(self, settings: EngineSettings, counters: Counters) -> None:
        self._settings = settings
        self._counters = counters
        self._labels = f'engine="0",model_name="{settings.served_name}"'
        self._fixed = _fixed(settings, counters)
        self._slow = ""
        self._slow_revision = -1
        self._prefill_tokens = -1

    def text(self, gauges: Gauges) -> str:
        counters, labels = self._counters, self._labels
        revision = sum(counters.finished.values()) + counters.rejected + counters.expired_transfers
        if revision != self._slow_revision or counters.prompt_tokens != self._prefill_tokens:
            self._slow, self._slow_revision = self._latencies(), revision
            self._prefill_tokens = counters.prompt_tokens
        fast = {
            "num_requests_running": ("gauge", gauges.running),
            "num_requests_waiting": ("gauge", gauges.waiting),
            "kv_cache_usage_perc": ("gauge", gauges.usage),
            "prompt_tokens_total": ("counter", counters.prompt_tokens),
            "prompt_tokens_cached_total": ("counter", counters.cached_tokens + counters.pulled_tokens),
            "generation_tokens_total": ("counter", counters.generation_tokens + gauges.generated),
            "prefix_cache_queries_total": ("counter", counters.prefix_queries),
            "prefix_cache_hits_total": ("counter", counters.prefix_hits),
            "external_prefix_cache_queries_total": ("counter", counters.external_queries),
            "external_prefix_cache_hits_total": ("counter", counters.external_hits),
            "num_preemptions_total": ("counter", 0),
            "corrupted_requests_total": ("counter", 0),
        }
        lines = [self._fixed]
        for name, (kind, value) in fast.items():
            lines.append(f"# TYPE vllm:{name} {kind}\nvllm:{name}{{{labels}}} {value}")
        lines.append(
            "# TYPE vllm:num_requests_waiting_by_reason gauge\n"
            f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} {gauges.waiting}\n'
            f'vllm:num_requests_waiting_by_reason{{{labels},reason="deferred"}} 0'
        )
        return "\n".join((*lines, self._slow, ""))

    def _latencies(self) -> str:
        counters, settings, labels = self._counters, self._settings, self._labels
        computed = counters.prompt_tokens - counters.cached_tokens - counters.pulled_tokens
        sources = {
            "local_compute": computed,
            "local_cache_hit": counters.cached_tokens,
            "external_kv_transfer": counters.pulled_tokens,
        }
        lines = [*_labelled("prompt_tokens_by_source_total", labels, "source", sources)]
        lines += _labelled("request_success_total", labels, "finished_reason", counters.finished)
        if settings.draft_tokens:
            lines += _counter("spec_decode_num_drafts_total", labels, counters.drafts)
            lines += _counter("spec_decode_num_draft_tokens_total", labels, counters.draft_tokens)
            lines += _counter("spec_decode_num_accepted_tokens_total", labels, counters.accepted)
            each = counters.accepted_at or [0] * settings.draft_tokens
            places = {str(position): count for position, count in enumerate(each)}
            lines += _labelled("spec_decode_num_accepted_tokens_per_pos_total", labels, "position", places)
        if settings.transfer is not None:
            lines += _counter("nixl_num_failed_transfers_total", labels, counters.failed_transfers)
            lines += _counter("nixl_num_kv_expired_reqs_total", labels, counters.expired_transfers)
        if settings.version >= "0.32.0":
            lines += _labelled("admission_rejections_total", labels, "reason", {"num_reqs": counters.rejected})
        for name, histogram in counters.seconds.items():
            lines += histogram.lines(f"vllm:{name}", labels)
        return "\n".join(lines)


def _counter(name: str, labels: str, value: int) -> list[str]:
    return [f"# TYPE vllm:{name} counter", f"vllm:{name}{{{labels}}} {value}"]


def _labelled(name: str, labels: str, label: str, values: Mapping[str, int]) -> list[str]:
    rows = [f'vllm:{name}{{{labels},{label}="{key}"}} {value}' for key, value in values.items()]
    return [f"# TYPE vllm:{name} counter", *rows]


def _fixed(settings: EngineSettings, counters: Counters) -> str:
    cache = {
        "block_size": settings.block_tokens,
        "cache_dtype": settings.kv_cache_dtype,
        "enable_prefix_caching": settings.prefix_caching,
        "engine": 0,
        "mamba_cache_mode": "align" if settings.prefix_caching else "none",
        "num_gpu_blocks": settings.kv_blocks,
        "prefix_match_unit": settings.unit_tokens,
    }
    labels = ",".join(f'{key}="{value}"' for key, value in cache.items())
    return (
        "# TYPE process_start_time_seconds gauge\n"
        f"process_start_time_seconds {counters.born:.2f}\n"
        "# TYPE vllm:cache_config_info gauge\n"
        f"vllm:cache_config_info{{{labels}}} 1"
    )
