"""Conditions: each comes from one pure function of the facts of a pass.

A message says what is the case, what is awaited and what the user can do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kimi_k3_operator.api.refusal import Refusal
from kimi_k3_operator.api.v1alpha1 import Rollout
from kimi_k3_operator.plan.pool import PoolPlan, capacity_sentence
from kimi_k3_operator.plan.routing import RoutingPlan
from kimi_k3_operator.plan.verification import Verification

Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True)
class Verdict:
    """A condition without its times."""

    type: str
    status: Truth
    reason: str
    message: str


@dataclass(frozen=True)
class Blocker:
    """Something that keeps the deployment from being ready; the lower the rank, the earlier to act on it."""

    rank: int
    reason: str
    sentence: str


@dataclass(frozen=True)
class Facts:
    refusals: tuple[Refusal, ...]
    conflicts: tuple[str, ...]
    """Objects of others that have the names of children, one sentence each."""
    pools: tuple[PoolPlan, ...]
    rollout: Rollout
    paused: bool
    planned_by: str
    troubles: tuple[tuple[str, str], ...]
    """(replica, what is wrong with it), for those that fail."""
    verification: Verification = field(default_factory=Verification)
    routing: RoutingPlan | None = None

    @property
    def desired(self) -> int:
        return sum(plan.desired for plan in self.pools)

    @property
    def ready(self) -> int:
        return sum(plan.ready for plan in self.pools)


def conditions(facts: Facts) -> tuple[Verdict, ...]:
    """All conditions of a KimiK3Deployment, in the order in which they are shown."""
    blocking = blockers(facts)
    return (
        ready(facts, blocking),
        available(facts),
        accepted(facts),
        capacity_available(facts),
        verified(facts),
        *routed(facts),
        reconciling(facts, blocking),
        stalled(facts),
        update_available(facts),
    )


def blockers(facts: Facts) -> tuple[Blocker, ...]:
    """Everything that stands between the deployment and Ready, the one to act on first leading."""
    found = [Blocker(0, _reason_of(refusal), str(refusal)) for refusal in facts.refusals]
    found += [Blocker(1, "NameConflict", sentence) for sentence in facts.conflicts]
    found += [Blocker(2, "APIMissing", sentence) for sentence in missing_apis(facts)]
    found += [Blocker(3, "ReplicaFailing", f"{name}: {words}") for name, words in facts.troubles]
    found += [Blocker(4, reason, f"{name}: {words}") for name, reason, words in facts.verification.unverified]
    for plan in facts.pools:
        if (sentence := capacity_sentence(plan)) is not None and not plan.missing_api:
            elsewhere = bool(facts.planned_by) and bool(plan.unplaced)
            found.append(Blocker(5, "PlannedElsewhere" if elsewhere else "InsufficientCapacity", sentence))
        behind = sum(seen.revision != plan.target.name for seen in plan.staying)
        if behind:
            sentence = f"pool {plan.pool.name}: {behind} of {plan.desired} replicas still run the previous revision"
            found.append(Blocker(6, "RollingOut", sentence))
        starting = _starting(plan, facts)
        if starting:
            names = ", ".join(starting[:3]) + (", ..." if len(starting) > 3 else "")
            within = f"each may take up to {_duration(plan.target.startup_seconds)}"
            found.append(Blocker(7, "Starting", f"starting: {names} ({within})"))
        draining = len(plan.surplus)
        if draining:
            found.append(Blocker(8, "ScalingDown", f"pool {plan.pool.name}: {draining} replicas are being given up"))
    found += [Blocker(9, "EntranceStarting", words) for words in (facts.routing.waits if facts.routing else ())]
    return tuple(sorted(found, key=lambda blocker: blocker.rank))


def ready(facts: Facts, blocking: tuple[Blocker, ...]) -> Verdict:
    """True: every desired replica serves at the current revision."""
    if facts.refusals:
        return Verdict("Ready", "False", blocking[0].reason, _joined(b.sentence for b in blocking))
    count = f"{facts.ready} of {facts.desired} replicas ready"
    if not blocking:
        if facts.desired == 0:
            return Verdict("Ready", "True", "ScaledToZero", "no replica is asked for")
        return Verdict("Ready", "True", "AllReplicasReady", count)
    return Verdict("Ready", "False", blocking[0].reason, _joined([count, *(b.sentence for b in blocking)]))


def available(facts: Facts) -> Verdict:
    """True: each pool has at least its desired replicas less the rollout's allowance, and one at all serves."""
    if not facts.pools:
        return Verdict("Available", "Unknown", "NotAccepted", "the spec is refused; what runs is left as it is")
    if facts.desired == 0:
        return Verdict("Available", "False", "ScaledToZero", "no replica is asked for")
    count = f"{facts.ready} of {facts.desired} replicas ready"
    short = [
        f"pool {plan.pool.name} has {plan.ready} of at least {plan.desired - facts.rollout.max_unavailable}"
        for plan in facts.pools
        if plan.ready < plan.desired - facts.rollout.max_unavailable
    ]
    if facts.ready == 0:
        return Verdict("Available", "False", "NoReplicaReady", count)
    if facts.routing and facts.routing.waits:
        return Verdict("Available", "False", "EntranceNotAvailable", _joined([count, *facts.routing.waits]))
    if short:
        return Verdict("Available", "False", "TooFewReplicas", _joined([count, *short]))
    return Verdict("Available", "True", "MinimumReplicasReady", count)


def accepted(facts: Facts) -> Verdict:
    """False: the spec is refused, and nothing that runs is touched."""
    if facts.refusals:
        message = _joined(str(refusal) for refusal in facts.refusals)
        return Verdict("Accepted", "False", _reason_of(facts.refusals[0]), message)
    warnings = [str(warning) for plan in facts.pools for warning in plan.engine.warnings]
    if warnings:
        return Verdict("Accepted", "True", "AcceptedWithWarnings", _joined(warnings))
    return Verdict("Accepted", "True", "Accepted", "the spec is valid")


def capacity_available(facts: Facts) -> Verdict:
    """True: every desired replica has its nodes. Unknown: another instance plans, or the spec is refused."""
    if not facts.pools:
        return Verdict("CapacityAvailable", "Unknown", "NotAccepted", "the spec is refused")
    sentences = [sentence for plan in facts.pools if (sentence := capacity_sentence(plan)) is not None]
    if not sentences:
        return Verdict("CapacityAvailable", "True", "AllReplicasPlaced", "every replica has its nodes")
    if facts.planned_by:
        return Verdict("CapacityAvailable", "Unknown", "PlannedElsewhere", _joined(sentences))
    if missing_apis(facts):
        return Verdict("CapacityAvailable", "Unknown", "APIMissing", _joined(sentences))
    return Verdict("CapacityAvailable", "False", "InsufficientCapacity", _joined(sentences))


def verified(facts: Facts) -> Verdict:
    """True: every engine that runs has answered rightly. Unknown: nothing runs, or rather the checks are wrong."""
    found = facts.verification
    if found.suspect:
        message = f"checks fail on {', '.join(found.suspect)}, more than may be taken out at once; they keep serving"
        return Verdict("Verified", "Unknown", "ProbeSuspect", message)
    if found.unverified:
        sentences = [f"{name}: {words}" for name, _, words in found.unverified]
        return Verdict("Verified", "False", found.unverified[0][1], _joined(sentences))
    if not found.verified:
        return Verdict("Verified", "Unknown", "NothingRuns", "no engine runs yet")
    return Verdict("Verified", "True", "AnswersRightly", f"{found.verified} engines have answered rightly")


def routed(facts: Facts) -> tuple[Verdict, ...]:
    """Only where an entrance is asked for. True: picker and entrance are available."""
    if facts.routing is None:
        return ()
    if facts.routing.waits:
        return (Verdict("Routed", "False", "EntranceStarting", _joined(facts.routing.waits)),)
    note = "; no API key is asked for, whoever reaches it may use it" if facts.routing.open_to_all else ""
    return (Verdict("Routed", "True", "EntranceAnswers", f"clients use {facts.routing.endpoint}{note}"),)


def reconciling(facts: Facts, blocking: tuple[Blocker, ...]) -> Verdict:
    """True while the operator is working towards the spec (kstatus: in progress)."""
    if facts.paused:
        return Verdict("Reconciling", "False", "Paused", "spec.paused is true: nothing is changed")
    if facts.refusals or not blocking:
        return Verdict("Reconciling", "False", "Settled", "nothing is being changed")
    return Verdict("Reconciling", "True", blocking[0].reason, blocking[0].sentence)


def stalled(facts: Facts) -> Verdict:
    """True when nothing will move without somebody's action (kstatus: failed)."""
    stuck = [blocker for blocker in blockers(facts) if blocker.rank <= 2]
    if stuck:
        return Verdict("Stalled", "True", stuck[0].reason, _joined(blocker.sentence for blocker in stuck))
    return Verdict("Stalled", "False", "Progressing", "nothing waits for an action")


def update_available(facts: Facts) -> Verdict:
    """True when this operator would render a pool differently; it does so only when told to."""
    pools = [plan.pool.name for plan in facts.pools if plan.update_available]
    if not pools:
        return Verdict("UpdateAvailable", "False", "UpToDate", "replicas run what this operator renders")
    message = f"this operator renders pools {', '.join(pools)} differently; replicas keep their stored revision"
    return Verdict("UpdateAvailable", "True", "RenderingChanged", message)


def missing_apis(facts: Facts) -> list[str]:
    return [
        f"pool {plan.pool.name} waits for the API of {plan.missing_api}; install it and the pool goes on by itself"
        for plan in facts.pools
        if plan.missing_api
    ]


def with_times(
    verdicts: Iterable[Verdict], previous: Iterable[Mapping[str, Any]], generation: int, now: str
) -> list[dict[str, Any]]:
    """Conditions as stored: the transition time changes only when the status does."""
    known = {condition.get("type"): condition for condition in previous}
    stored = []
    for verdict in verdicts:
        before = known.get(verdict.type, {})
        same = before.get("status") == verdict.status and before.get("lastTransitionTime")
        stored.append(
            {
                "type": verdict.type,
                "status": verdict.status,
                "reason": verdict.reason,
                "message": verdict.message[:4000],
                "observedGeneration": generation,
                "lastTransitionTime": before["lastTransitionTime"] if same else now,
            }
        )
    return stored


def _starting(plan: PoolPlan, facts: Facts) -> list[str]:
    """Replicas that have a place and do not fail, but do not serve yet."""
    failing = {name for name, _ in facts.troubles}
    stuck = {seen.name for seen in plan.staying if any(pod.unschedulable for pod in seen.pods)}
    serving = {seen.name for seen in plan.staying if seen.ready}
    asked = {name for name, _, _ in facts.verification.unverified}
    return sorted(plan.wanted - serving - failing - stuck - asked - set(plan.unplaced))


def _reason_of(refusal: Refusal) -> str:
    return "".join(part.capitalize() for part in refusal.id.split("-"))


def _joined(sentences: Iterable[str]) -> str:
    """Sentences with repetitions removed, in order, cut to what a condition may hold."""
    return "; ".join(dict.fromkeys(sentences))[:4000]


def _duration(seconds: int) -> str:
    hours, minutes = divmod(-(-seconds // 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
