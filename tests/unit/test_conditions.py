from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.factories import NAMESPACE, a_pod, deployment, engine_of, gb300, pool, revision_of, seen, state

from kimi_k3_operator.api.refusal import Refusal
from kimi_k3_operator.api.v1alpha1 import Pool, Rollout
from kimi_k3_operator.compile.replica import PoolKey
from kimi_k3_operator.plan.conditions import (
    Facts,
    Verdict,
    accepted,
    available,
    blockers,
    capacity_available,
    conditions,
    ready,
    reconciling,
    stalled,
    update_available,
    with_times,
)
from kimi_k3_operator.plan.engine import transitions
from kimi_k3_operator.plan.pool import PoolPlan

BODIES = {"b300": deployment(), "gb300": deployment(gb300())}
TARGETS = {name: revision_of(body) for name, body in BODIES.items()}
REFUSED = Refusal("reserved-override", "port cannot be overridden", "spec.pools[b300].overrides.args", "remove it")


def replica(ordinal: int, *, ready: bool = True, old: bool = False, waits: bool = False, group: bool = False):
    """A replica of the target revision, or of one before it; `waits`: no node fits its pod."""
    name = "gb300" if group else "b300"
    found = seen(ordinal, f"k3-{name}-old" if old else TARGETS[name].name, ready=ready, group=group)
    pods = (a_pod("p", found.name, unschedulable=True),) if waits else found.pods
    return replace(found, pods=pods)


def plan(*observed: Any, desired: int | None = None, profile: str = "b300", **changes: Any) -> PoolPlan:
    count = len(observed) if desired is None else desired
    names = [f"k3-{profile}-{i}" for i in range(count)]
    made = PoolPlan(
        key=PoolKey(NAMESPACE, "k3", profile),
        pool=Pool.model_validate(pool(profile)),
        engine=engine_of(BODIES[profile]),
        target=TARGETS[profile],
        update_available=False,
        desired=count,
        observed=tuple(observed),
        manifests=(),
        workloads=(),
        surplus=(),
        unplaced={},
        promises=(),
        domains=(),
        free_nodes=0,
        missing_api="",
        wanted=frozenset(names),
    )
    return replace(made, **changes)


def facts(*pools: PoolPlan, **changes: Any) -> Facts:
    return replace(Facts((), (), pools, Rollout(), False, "", ()), **changes)


def said(verdict: Verdict) -> tuple[str, str, str]:
    return verdict.status, verdict.reason, verdict.message


def readiness(found: Facts) -> tuple[str, str, str]:
    return said(ready(found, blockers(found)))


def progress(found: Facts) -> tuple[str, str, str]:
    return said(reconciling(found, blockers(found)))


FULL = "no NVLink domain has 2 free nodes (a: 1)"
UNPLACED = plan(profile="gb300", desired=2, unplaced={"k3-gb300-0": FULL, "k3-gb300-1": FULL})
WITHOUT_API = plan(profile="gb300", desired=1, unplaced={"k3-gb300-0": "waits"}, missing_api="X (x/v1)")
INSTALL = "pool gb300 waits for the API of X (x/v1); install it and the pool goes on by itself"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (facts(plan(replica(0), replica(1))), ("True", "AllReplicasReady", "2 of 2 replicas ready")),
        (facts(plan()), ("True", "ScaledToZero", "no replica is asked for")),
        (facts(refusals=(REFUSED,)), ("False", "ReservedOverride", str(REFUSED))),
        (
            facts(plan(replica(0), replica(1, ready=False))),
            ("False", "Starting", "1 of 2 replicas ready; starting: k3-b300-1 (each may take up to 1 h 0 min)"),
        ),
        (
            facts(plan(replica(0), replica(1, old=True))),
            (
                "False",
                "RollingOut",
                "2 of 2 replicas ready; pool b300: 1 of 2 replicas still run the previous revision",
            ),
        ),
        (
            facts(plan(replica(0, ready=False)), troubles=(("k3-b300-0", "engine: Error: no GPU"),)),
            ("False", "ReplicaFailing", "0 of 1 replicas ready; k3-b300-0: engine: Error: no GPU"),
        ),
        (
            facts(UNPLACED),
            ("False", "InsufficientCapacity", f"0 of 2 replicas ready; k3-gb300-0 (and 1 more): {FULL}"),
        ),
        (
            facts(UNPLACED, planned_by="operator x"),
            ("False", "PlannedElsewhere", f"0 of 2 replicas ready; k3-gb300-0 (and 1 more): {FULL}"),
        ),
        (
            facts(plan(replica(0), replica(1, waits=True), free_nodes=0)),
            (
                "False",
                "InsufficientCapacity",
                "1 of 2 replicas ready; k3-b300-1 waits for a free b300 node (free now: 0)",
            ),
        ),
        (facts(WITHOUT_API), ("False", "APIMissing", f"0 of 1 replicas ready; {INSTALL}")),
        (
            facts(plan(replica(0)), conflicts=("Service s exists",)),
            ("False", "NameConflict", "1 of 1 replicas ready; Service s exists"),
        ),
        (
            facts(plan(replica(0), replica(1), desired=1, surplus=(replica(1).workload,))),
            ("False", "ScalingDown", "1 of 1 replicas ready; pool b300: 1 replicas are being given up"),
        ),
    ],
)
def test_ready(found: Facts, expected):
    assert readiness(found) == expected


def test_ready_names_every_blocking_reason_the_one_to_act_on_first_leading():
    found = facts(
        plan(replica(0, old=True), replica(1, ready=False), replica(2, ready=False)),
        UNPLACED,
        conflicts=("Service s exists",),
        troubles=(("k3-b300-1", "crashes"),),
    )
    assert [b.reason for b in blockers(found)] == [
        "NameConflict",
        "ReplicaFailing",
        "InsufficientCapacity",
        "RollingOut",
        "Starting",
    ]
    status, reason, message = readiness(found)
    assert (status, reason) == ("False", "NameConflict")
    places = [message.index(b.sentence) for b in blockers(found)]
    assert places == sorted(places)


def test_a_long_list_of_starting_replicas_is_cut():
    sentence = blockers(facts(plan(*(replica(i, ready=False) for i in range(5)))))[0].sentence
    assert sentence == "starting: k3-b300-0, k3-b300-1, k3-b300-2, ... (each may take up to 1 h 0 min)"


def test_a_message_is_cut_to_what_a_condition_holds():
    many = tuple(Refusal("malformed", f"{i} " + "x" * 300, "spec") for i in range(30))
    assert len(readiness(facts(refusals=many))[2]) == 4000


@pytest.mark.parametrize(
    ("found", "status", "reason"),
    [
        (facts(refusals=(REFUSED,)), "Unknown", "NotAccepted"),
        (facts(plan()), "False", "ScaledToZero"),
        (facts(plan(replica(0), replica(1))), "True", "MinimumReplicasReady"),
        (facts(plan(replica(0), replica(1, ready=False))), "True", "MinimumReplicasReady"),
        (facts(plan(replica(0), replica(1, ready=False), replica(2, ready=False))), "False", "TooFewReplicas"),
        (facts(plan(replica(0, ready=False))), "False", "NoReplicaReady"),
        (facts(plan(replica(0)), UNPLACED), "False", "TooFewReplicas"),
        (facts(plan(replica(0)), UNPLACED, rollout=Rollout(max_unavailable=2)), "True", "MinimumReplicasReady"),
    ],
)
def test_available(found: Facts, status: str, reason: str):
    assert said(available(found))[:2] == (status, reason)


def test_available_names_the_pools_that_are_short():
    message = available(facts(plan(replica(0)), UNPLACED)).message
    assert message == "1 of 3 replicas ready; pool gb300 has 0 of at least 1"


def test_accepted():
    assert said(accepted(facts(plan(replica(0))))) == ("True", "Accepted", "the spec is valid")
    assert said(accepted(facts(refusals=(REFUSED,)))) == ("False", "ReservedOverride", str(REFUSED))
    warned = plan(engine=replace(engine_of(BODIES["b300"]), warnings=(Refusal("draft", "is unverified"),)))
    assert said(accepted(facts(warned))) == ("True", "AcceptedWithWarnings", "is unverified")


@pytest.mark.parametrize(
    ("found", "status", "reason"),
    [
        (facts(refusals=(REFUSED,)), "Unknown", "NotAccepted"),
        (facts(plan(replica(0, ready=False))), "True", "AllReplicasPlaced"),
        (facts(UNPLACED), "False", "InsufficientCapacity"),
        (facts(UNPLACED, planned_by="operator x"), "Unknown", "PlannedElsewhere"),
        (facts(WITHOUT_API), "Unknown", "APIMissing"),
        (facts(plan(replica(0, waits=True))), "False", "InsufficientCapacity"),
        (facts(plan(replica(0, waits=True, group=True), profile="gb300")), "False", "InsufficientCapacity"),
    ],
)
def test_capacity_available(found: Facts, status: str, reason: str):
    assert said(capacity_available(found))[:2] == (status, reason)


def test_a_group_that_waits_for_its_nodes_says_what_is_free():
    waiting = plan(replica(0, waits=True, group=True), profile="gb300", domains=(state("a", 1),))
    assert capacity_available(facts(waiting)).message == f"k3-gb300-0: {FULL}"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (facts(plan(replica(0))), ("False", "Settled", "nothing is being changed")),
        (facts(refusals=(REFUSED,)), ("False", "Settled", "nothing is being changed")),
        (facts(plan(replica(0)), paused=True), ("False", "Paused", "spec.paused is true: nothing is changed")),
        (facts(UNPLACED), ("True", "InsufficientCapacity", f"k3-gb300-0 (and 1 more): {FULL}")),
    ],
)
def test_reconciling(found: Facts, expected):
    assert progress(found) == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (facts(plan(replica(0, ready=False))), ("False", "Progressing", "nothing waits for an action")),
        (facts(UNPLACED), ("False", "Progressing", "nothing waits for an action")),
        (facts(refusals=(REFUSED,)), ("True", "ReservedOverride", str(REFUSED))),
        (facts(plan(), conflicts=("Service s exists",)), ("True", "NameConflict", "Service s exists")),
        (facts(WITHOUT_API), ("True", "APIMissing", INSTALL)),
    ],
)
def test_stalled(found: Facts, expected):
    assert said(stalled(found)) == expected


def test_update_available():
    assert said(update_available(facts(plan())))[:2] == ("False", "UpToDate")
    status, reason, message = said(update_available(facts(plan(update_available=True))))
    assert (status, reason) == ("True", "RenderingChanged")
    assert "pools b300 differently" in message


def test_each_condition_appears_once_and_in_order():
    assert [v.type for v in conditions(facts(plan(replica(0))))] == [
        "Ready",
        "Available",
        "Accepted",
        "CapacityAvailable",
        "Verified",
        "Reconciling",
        "Stalled",
        "UpdateAvailable",
    ]


def times(previous: list[dict[str, Any]], **verdict: str) -> dict[str, Any]:
    made = Verdict(**{"type": "Ready", "status": "True", "reason": "R", "message": "m", **verdict})
    return with_times([made], previous, 7, "now")[0]


def test_the_transition_time_changes_only_with_the_status():
    before = [{"type": "Ready", "status": "True", "reason": "Other", "message": "x", "lastTransitionTime": "then"}]
    assert times(before)["lastTransitionTime"] == "then"
    assert times(before, status="False")["lastTransitionTime"] == "now"
    assert times(before, type="Stalled")["lastTransitionTime"] == "now"
    assert times([])["lastTransitionTime"] == "now"
    assert times(before)["observedGeneration"] == 7


def event(before: tuple[str, str, str] | None, after: tuple[str, str, str]) -> list[tuple[str, str]]:
    old = [] if before is None else [dict(zip(("type", "status", "reason"), before, strict=True))]
    new = dict(zip(("type", "status", "reason"), after, strict=True)) | {"message": "m"}
    return [(e.type, e.reason) for e in transitions(old, [new])]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, ("Ready", "False", "Starting"), []),
        (None, ("Available", "False", "NoReplicaReady"), []),
        (None, ("Stalled", "False", "Progressing"), []),
        (None, ("Stalled", "True", "APIMissing"), [("Warning", "APIMissing")]),
        (None, ("Accepted", "False", "Malformed"), [("Warning", "Malformed")]),
        (None, ("Accepted", "True", "Accepted"), []),
        (None, ("CapacityAvailable", "False", "InsufficientCapacity"), [("Warning", "InsufficientCapacity")]),
        (("Ready", "False", "Starting"), ("Ready", "True", "AllReplicasReady"), [("Normal", "AllReplicasReady")]),
        (("Ready", "True", "AllReplicasReady"), ("Ready", "False", "RollingOut"), [("Normal", "RollingOut")]),
        (("Ready", "False", "Starting"), ("Ready", "False", "Starting"), []),
        (("Ready", "False", "Starting"), ("Ready", "False", "ReplicaFailing"), [("Normal", "ReplicaFailing")]),
        (("Ready", "True", "AllReplicasReady"), ("Ready", "True", "ScaledToZero"), []),
        (("Stalled", "True", "X"), ("Stalled", "False", "Progressing"), [("Normal", "Progressing")]),
        (("UpdateAvailable", "False", "X"), ("UpdateAvailable", "True", "Y"), [("Normal", "Y")]),
        (("Reconciling", "False", "X"), ("Reconciling", "True", "Y"), []),
    ],
)
def test_events_tell_transitions_only(before, after, expected):
    assert event(before, after) == expected


def test_an_event_says_the_condition_and_its_message():
    after = {"type": "Stalled", "status": "True", "reason": "APIMissing", "message": "install it"}
    assert transitions([], [after])[0].message == "Stalled is True: install it"
