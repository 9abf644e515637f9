"""Prometheus metrics. Names: `kimi_k3_operator_*`, base units, counters end in `_total`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from kimi_k3_operator import __version__

REGISTRY = CollectorRegistry()
_PREFIX = "kimi_k3_operator"

API_REQUESTS = Counter(
    f"{_PREFIX}_api_requests_total", "Requests to the API server.", ("verb", "kind", "code"), registry=REGISTRY
)
API_SECONDS = Histogram(
    f"{_PREFIX}_api_request_duration_seconds", "Time of a request to the API server.", ("verb",), registry=REGISTRY
)
PASSES = Counter(f"{_PREFIX}_reconcile_total", "Passes, by result.", ("result",), registry=REGISTRY)
PASS_SECONDS = Histogram(
    f"{_PREFIX}_reconcile_duration_seconds", "Time of a pass, its writes included.", registry=REGISTRY
)
ACTIONS = Counter(f"{_PREFIX}_actions_total", "Changes made to children.", ("action", "kind"), registry=REGISTRY)
PROBES = Counter(f"{_PREFIX}_probes_total", "Questions asked to engines, by outcome.", ("outcome",), registry=REGISTRY)
CONDITION = Gauge(
    f"{_PREFIX}_deployment_condition",
    "1 for the status a condition has.",
    ("namespace", "name", "type", "status"),
    registry=REGISTRY,
)
REPLICAS = Gauge(
    f"{_PREFIX}_deployment_replicas", "Replicas of a pool.", ("namespace", "name", "pool", "state"), registry=REGISTRY
)
WATCH_SEEN = Gauge(
    f"{_PREFIX}_watch_last_event_timestamp_seconds",
    "When a kind's watch last said anything.",
    ("kind",),
    registry=REGISTRY,
)
PLANNING = Gauge(f"{_PREFIX}_planning", "1 while this instance plans NVLink domains.", registry=REGISTRY)
Info(f"{_PREFIX}_build", "Version of this operator.", registry=REGISTRY).info({"version": __version__})
