"""The one startup budget, from which every probe, timeout and wait is derived."""

from __future__ import annotations

import math

from kimi_k3_operator.profiles.model import Startup

PROBE_PERIOD_SECONDS = 30


def startup_seconds(startup: Startup, *, shared_claim: bool) -> int:
    """Seconds from container start to serving: reading the weights plus the engine's own start.

    Every node of a replica reads the whole checkpoint; from a shared claim they share its bandwidth.
    """
    if shared_claim:
        readers, rate = startup.readers_per_replica, startup.shared_claim_bytes_per_second
        least = startup.minimum_seconds_shared_claim
    else:
        readers, rate, least = 1, startup.host_path_bytes_per_second, startup.minimum_seconds
    return max(least, math.ceil(startup.weight_bytes * readers / rate) + startup.fixed_seconds)


def probe_failures(budget: int) -> int:
    """`failureThreshold` of the startup probe for a budget in seconds."""
    return math.ceil(budget / PROBE_PERIOD_SECONDS)


def engine_ready_timeout(budget: int) -> int:
    """Seconds vLLM waits for its own workers: ends before the probe, so that the engine's error is the one seen."""
    return max(budget - 300, 600)


def progress_deadline(budget: int) -> int:
    """Seconds after which a Deployment says it makes no progress: after the probe has given up."""
    return budget + 600
