"""The two statuses, from the plan of a pass and the status before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.api.status import (
    DomainCapacity,
    KimiK3DeploymentStatus,
    KimiK3PoolStatus,
    Phase,
    PoolSummary,
    ReplicaStatus,
)
from kimi_k3_operator.compile.objects import serving_selector
from kimi_k3_operator.plan.conditions import Facts, conditions, with_times
from kimi_k3_operator.plan.pool import PoolPlan
from kimi_k3_operator.plan.replicas import Observed, selector_text

_RESTARTS_OF_A_LOOP = 2
_FAILING = ("CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CreateContainerConfigError")


def deployment_status(facts: Facts, previous: Mapping[str, Any], generation: int, now: str) -> Manifest:
    """Status of the KimiK3Deployment. A refused spec keeps what was said of the running pools."""
    stored = with_times(conditions(facts), previous.get("conditions") or (), generation, now)
    if not facts.pools:
        kept = {key: previous[key] for key in ("endpoint", "replicas", "hardware", "pools") if key in previous}
        return {"observedGeneration": generation, "conditions": stored, **kept}
    hardware = Counter({plan.engine.profile.name.upper(): 0 for plan in facts.pools})
    for plan in facts.pools:
        hardware[plan.engine.profile.name.upper()] += plan.desired
    status = KimiK3DeploymentStatus(
        observed_generation=generation,
        endpoint=facts.routing.endpoint if facts.routing else None,
        replicas=f"{facts.ready}/{facts.desired}",
        hardware=", ".join(f"{count} x {name}" for name, count in hardware.items()),
        pools=tuple(
            PoolSummary(
                name=plan.pool.name,
                hardware=plan.engine.profile.hardware.display_name,
                profile=plan.target.profile,
                desired=plan.desired,
                ready=plan.ready,
                speculation=plan.engine.speculation.reason,
            )
            for plan in facts.pools
        ),
    )
    return {**status.wire(), "conditions": stored}


def pool_status(plan: PoolPlan, previous: Mapping[str, Any], generation: int, now: str) -> Manifest:
    """Status of a KimiK3Pool, with one entry per replica."""
    before = {entry["name"]: entry for entry in previous.get("replicaStatuses") or ()}
    entries = [_replica(plan, seen, before.get(seen.name, {}), now) for seen in plan.observed]
    entries += [
        _entry(name, "Pending", before.get(name, {}), now, message=reason) for name, reason in plan.unplaced.items()
    ]
    known = {entry.name for entry in entries}
    entries += [
        _entry(name, "Pending", before.get(name, {}), now, message="its workload is being made")
        for name in plan.wanted - known
    ]
    status = KimiK3PoolStatus(
        observed_generation=generation,
        replicas=len(plan.staying),
        ready_replicas=plan.ready,
        selector=selector_text(serving_selector(plan.key)),
        revision=plan.target.name,
        replica_statuses=tuple(sorted(entries, key=lambda entry: (_ordinal(entry.name), entry.name)))[:1000],
        domains=tuple(
            DomainCapacity(name=state.placement.value, free_nodes=state.free, nodes=state.nodes)
            for state in plan.domains[:256]
        )
        or None,
    )
    return status.wire()


def troubles(plans: Iterable[PoolPlan]) -> tuple[tuple[str, str], ...]:
    """(replica, words) of every replica whose engine fails."""
    return tuple((seen.name, words) for plan in plans for seen in plan.staying if (words := failure(seen)) is not None)


def failure(seen: Observed) -> str | None:
    """What is wrong with a replica that fails, in the kubelet's words; None while it only waits or loads.

    A pod that restarted again and again fails also in the moments in which it runs.
    """
    for pod in seen.pods:
        if pod.terminating or pod.unschedulable or pod.ready:
            continue
        if pod.restarts >= _RESTARTS_OF_A_LOOP or any(mark in pod.trouble for mark in _FAILING):
            return f"{pod.name}: {pod.trouble or f'restarted {pod.restarts} times'}"[:400]
    return None


def _replica(plan: PoolPlan, seen: Observed, before: Mapping[str, Any], now: str) -> ReplicaStatus:
    phase, message = _phase(plan, seen, before)
    leader = next((pod for pod in seen.pods if pod.serves_http and pod.image), None)
    return _entry(
        seen.name,
        phase,
        before,
        now,
        message=message,
        nodes=seen.nodes or None,
        domain=seen.placement.value if seen.placement else None,
        revision=seen.revision or None,
        image=leader.image if leader else None,
    )


def _phase(plan: PoolPlan, seen: Observed, before: Mapping[str, Any]) -> tuple[Phase, str]:
    """The phase of a replica and, where it does not serve, why."""
    if seen.terminating or seen.name not in plan.wanted:
        return "Terminating", "it is being given up; running requests are answered first"
    if seen.ready:
        return "Ready", "" if seen.revision == plan.target.name else "waits for its turn in the rollout"
    if (words := failure(seen)) is not None:
        return "Failed", words
    pods = seen.current_pods
    if len(seen.pods) > len(pods) and not any(pod.ready for pod in pods):
        return "Updating", "the engine of the previous revision is draining"
    waiting = next((pod for pod in pods if pod.unschedulable), None)
    if waiting is not None:
        return "Scheduling", waiting.trouble[:400]
    if len(pods) < seen.size or not all(pod.node for pod in pods):
        return "Scheduling", "its pods are being made and bound"
    leader = next((pod for pod in pods if pod.serves_http), None)
    if leader is not None and leader.gated and leader.containers_ready and leader.gate != "True":
        return "Verifying", (leader.gate_message or "its engine is asked a first question")[:400]
    if before.get("phase") in ("Ready", "NotReady") and before.get("revision") == seen.revision:
        return "NotReady", next((pod.trouble for pod in pods if pod.trouble), "its readiness probe fails")[:400]
    return "Starting", f"the engine has up to {plan.target.startup_seconds} s from its start to answer"


def _entry(name: str, phase: Phase, before: Mapping[str, Any], now: str, **fields: Any) -> ReplicaStatus:
    since = before.get("since") if before.get("phase") == phase else None
    message = fields.pop("message", "")[:512] or None
    return ReplicaStatus(name=name, phase=phase, since=since or now, message=message, **fields)


def _ordinal(name: str) -> int:
    tail = name.rsplit("-", 1)[-1]
    return int(tail) if tail.isdigit() else 0
