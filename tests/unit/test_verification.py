from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import a_pod

from kimi_k3_operator.inventory.model import PodView
from kimi_k3_operator.plan.snapshot import Probe
from kimi_k3_operator.plan.verification import Verification, verify, verify_all

WRONG = Probe("c1", passed=True, wrong=3, reason="WrongAnswer", words="the answer to a sum is empty")
FROZEN = Probe("c1", passed=True, frozen=True, reason="NoAnswer", words="3 requests run and nothing has moved")
UNCLEAR = Probe("c1", passed=True, reason="NotReachable", words="ConnectError")
RIGHT = Probe("c1", passed=True, reason="Verified", words="")


def pod(name: str = "k3-b300-0-x", **more: Any) -> PodView:
    shown = {
        "uid": name,
        "serves_http": True,
        "containers_ready": True,
        "gated": True,
        "container": "c1",
        "pool": "b300",
    }
    return replace(a_pod(name, name.removesuffix("-x")), **(shown | more))


def verified(name: str = "k3-b300-0-x", **more: Any) -> PodView:
    return pod(name, **({"gate": "True", "gate_reason": "Verified", "gate_message": "verified c1"} | more))


def judged(one: PodView, probe: Probe | None, allowance: int = 1) -> Verification:
    return verify([one], {one.uid: probe} if probe else {}, allowance=allowance)


def opened(found: Verification) -> list[tuple[bool, str]]:
    return [(gate.open, gate.reason) for gate in found.gates]


def test_a_gate_opens_after_a_right_answer_and_remembers_the_container():
    (gate,) = judged(pod(), RIGHT).gates
    assert (gate.open, gate.message) == (True, "verified c1")
    assert judged(verified(), RIGHT) == Verification(verified=1)


def test_a_new_pod_says_what_it_waits_for_once_a_probe_has_shown_it_and_says_it_once():
    found = judged(pod(), None)
    assert found.gates == (), "an unset gate is shut, and nothing is known yet"
    assert found.unverified == (("k3-b300-0", "NotProbedYet", "it has not been asked yet"),)
    missing = Probe("c1", reason="ModelMissing", words="/v1/models does not list kimi-k3")
    assert opened(judged(pod(), missing)) == [(False, "ModelMissing")]
    assert judged(pod(gate="False", gate_reason="ModelMissing"), missing).gates == ()


def test_a_new_operator_process_trusts_the_gate_of_the_same_container():
    assert judged(verified(), None) == Verification(verified=1)


def test_another_container_is_asked_anew():
    restarted = verified(container="c2")
    assert opened(judged(restarted, RIGHT)) == [(False, "NotProbedYet")]
    assert opened(judged(restarted, replace(RIGHT, container="c2"))) == [(True, "Verified")]


@pytest.mark.parametrize("wrong", [1, 2])
def test_a_wrong_answer_counts_only_when_it_is_repeated_twice(wrong: int):
    assert judged(verified(), replace(WRONG, wrong=wrong)) == Verification(verified=1)


@pytest.mark.parametrize(("probe", "reason"), [(WRONG, "WrongAnswer"), (FROZEN, "Stalled")])
def test_evidence_closes_an_open_gate(probe: Probe, reason: str):
    found = judged(verified(), probe)
    assert opened(found) == [(False, reason)]
    assert found.unverified == (("k3-b300-0", reason, probe.words),)


def test_what_is_unclear_closes_nothing():
    assert judged(verified(), UNCLEAR) == Verification(verified=1)


def test_a_pod_that_was_taken_out_keeps_its_reason_until_it_answers_rightly():
    out = pod(gate="False", gate_reason="WrongAnswer", gate_message="the answer to a sum is empty")
    for probe in (None, WRONG):
        found = judged(out, probe)
        assert found.gates == ()
        assert found.unverified[0][1:] == ("WrongAnswer", "the answer to a sum is empty")
    assert opened(judged(out, RIGHT)) == [(True, "Verified")]


def test_checks_take_no_more_than_the_allowance_out_and_say_that_they_are_suspect():
    pods = [verified(f"k3-b300-{i}-x") for i in range(10)]
    found = verify(pods, {p.uid: WRONG for p in pods}, allowance=2)
    assert [gate.pod for gate in found.gates] == ["k3-b300-0-x", "k3-b300-1-x"]
    assert len(found.suspect) == found.verified == 8
    out = [pod(f"k3-b300-{i}-x", gate="False", gate_reason="WrongAnswer") for i in range(2)]
    again = verify([*out, *pods[2:]], {p.uid: WRONG for p in pods}, allowance=2)
    assert again.gates == ()
    assert len(again.suspect) == 8


def test_each_pool_has_an_allowance_of_its_own():
    pods = [verified("k3-a-0-x", pool="a"), verified("k3-b-0-x", pool="b")]
    assert len(verify_all(pods, {p.uid: WRONG for p in pods}, allowance=1).gates) == 2


def test_without_a_gate_checks_only_report():
    ungated = pod(gated=False)
    assert judged(ungated, RIGHT) == Verification(verified=1)
    found = judged(ungated, WRONG)
    assert (found.gates, found.unverified[0][1]) == ((), "WrongAnswer")


@pytest.mark.parametrize("more", [{"terminating": True}, {"containers_ready": False}, {"serves_http": False}])
def test_pods_that_go_load_or_serve_nothing_are_not_judged(more: dict[str, Any]):
    assert judged(verified(**more), WRONG) == Verification()


STATES = st.sampled_from([None, RIGHT, WRONG, FROZEN, UNCLEAR, replace(WRONG, wrong=1)])


@given(st.lists(st.tuples(st.booleans(), STATES), max_size=12), st.integers(1, 4))
def test_gates_closed_by_checks_never_exceed_the_allowance(states: list[tuple[bool, Probe | None]], allowance: int):
    pods = [verified(f"k3-b300-{i}-x") if up else pod(f"k3-b300-{i}-x") for i, (up, _) in enumerate(states)]
    probes = {one.uid: probe for one, (_, probe) in zip(pods, states, strict=True) if probe}
    found = verify(pods, probes, allowance=allowance)
    serving = {one.name for one in pods if one.gate == "True"}
    closed = {gate.pod for gate in found.gates if not gate.open} & serving
    assert len(closed) <= allowance
    for gate in found.gates:
        assert not gate.open or probes[gate.uid].passed
    for name in closed:
        assert probes[name].wrong >= 3 or probes[name].frozen
