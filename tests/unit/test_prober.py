from __future__ import annotations

from dataclasses import replace

from kimi_k3_operator.apply.probe import Finding
from kimi_k3_operator.plan.snapshot import Probe
from kimi_k3_operator.runtime.prober import FROZEN_SECONDS, History, fold, pause

NEW = History(Probe("c1"))
RIGHT = Finding("right", "Verified", "", (1.0, 1.0, 0.0, 0.0, 0.0))
WRONG = Finding("wrong", "WrongAnswer", "empty", (1.0, 1.0, 0.0, 0.0, 0.0))
AWAY = Finding("unclear", "NotReachable", "ConnectError")


def hanging(kv_usage: float = 0.5) -> Finding:
    return Finding("unclear", "NoAnswer", "ReadTimeout", (9.0, 9.0, kv_usage, 2.0, 0.0), running=2.0)


def test_a_right_answer_is_remembered_and_clears_the_rest():
    wrong = fold(fold(NEW, WRONG, 1), WRONG, 2)
    assert wrong.probe.wrong == 2
    right = fold(wrong, RIGHT, 3).probe
    assert (right.passed, right.wrong, right.words) == (True, 0, "")
    later = fold(fold(wrong, RIGHT, 3), AWAY, 4).probe
    assert (later.passed, later.reason, later.words) == (True, "NotReachable", "ConnectError")


def test_an_unclear_finding_neither_adds_to_wrong_answers_nor_forgives_them():
    assert fold(fold(NEW, WRONG, 1), AWAY, 2).probe.wrong == 1


def test_requests_that_do_not_move_for_five_minutes_are_frozen():
    history = fold(NEW, hanging(), 10)
    assert not fold(history, hanging(), 10 + FROZEN_SECONDS - 1).probe.frozen
    frozen = fold(history, hanging(), 10 + FROZEN_SECONDS)
    assert frozen.probe.frozen
    assert frozen.probe.words == "2 requests run and nothing has moved for 300 s"
    assert fold(frozen, AWAY, 400).probe.frozen, "an engine that cannot be reached has not recovered"
    assert not fold(frozen, hanging(0.6), 400).probe.frozen
    assert not fold(frozen, RIGHT, 400).probe.frozen


def test_a_lone_long_prefill_moves_the_kv_usage_alone_and_is_not_frozen():
    history = NEW
    for step in range(80):
        history = fold(history, hanging(kv_usage=step / 100), 10.0 * step)
        assert not history.probe.frozen


def test_after_a_completion_without_an_answer_only_counters_are_read_until_they_move():
    idle = replace(hanging(), running=0.0, timed_out=True)
    first = fold(NEW, idle, 0)
    assert first.quiet == 1
    own = fold(first, hanging(), 10)  # the question itself is among the running requests now
    assert own.quiet == 2
    still = fold(own, hanging(), 10 + FROZEN_SECONDS)
    assert (still.quiet, still.probe.frozen) == (2, True)
    assert fold(still, AWAY, 400).quiet == 2
    assert fold(own, hanging(0.7), 20).quiet == 0
    assert fold(own, replace(hanging(), running=0.0), 20).quiet == 0


def test_requests_that_only_queue_up_are_no_progress():
    history = fold(NEW, hanging(), 0)
    for step in range(1, 31):
        waiting = Finding("unclear", "NoAnswer", "", (9.0, 9.0, 0.5, 2.0, float(step)), running=2.0)
        history = fold(history, waiting, 10.0 * step)
    assert history.probe.frozen


def test_a_wrong_answer_is_repeated_at_once():
    assert pause(fold(NEW, WRONG, 0).probe) < pause(NEW.probe) < pause(fold(NEW, RIGHT, 0).probe)
    three = fold(fold(fold(fold(NEW, RIGHT, 0), WRONG, 1), WRONG, 2), WRONG, 3)
    assert pause(three.probe) == pause(fold(NEW, RIGHT, 0).probe)


def test_an_idle_engine_is_not_frozen():
    idle = replace(hanging(), running=0.0)
    history = fold(NEW, idle, 0)
    assert not fold(history, idle, 10 * FROZEN_SECONDS).probe.frozen
