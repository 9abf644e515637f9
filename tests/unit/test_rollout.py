from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.factories import seen

from kimi_k3_operator.plan.rollout import Roll, roll

OLD, NEW = "k3-b300-old", "k3-b300-new"


def old(ordinal: int, *, ready: bool = True):
    return seen(ordinal, OLD, ready=ready)


def new(ordinal: int, *, ready: bool = True):
    return seen(ordinal, NEW, ready=ready)


def names(*ordinals: int) -> frozenset[str]:
    return frozenset(f"k3-b300-{ordinal}" for ordinal in ordinals)


def test_nothing_outdated_nothing_rolls():
    assert roll([new(0), new(1)], NEW, desired=2, max_unavailable=1) == Roll(names(), names())


def test_the_highest_ordinal_goes_first_and_alone():
    assert roll([old(0), old(1), old(2)], NEW, desired=3, max_unavailable=1) == Roll(names(2), names(0, 1))


def test_the_next_one_waits_for_the_one_before():
    assert roll([old(0), old(1), new(2, ready=False)], NEW, desired=3, max_unavailable=1).update == names()
    assert roll([old(0), old(1), new(2)], NEW, desired=3, max_unavailable=1).update == names(1)


def test_a_replica_that_does_not_serve_is_updated_at_once_and_uses_up_the_allowance():
    assert roll([old(0), old(1, ready=False)], NEW, desired=2, max_unavailable=1) == Roll(names(1), names(0))


def test_all_that_do_not_serve_are_updated_together():
    assert roll([old(i, ready=False) for i in range(4)], NEW, desired=4, max_unavailable=1).update == names(0, 1, 2, 3)


def test_a_larger_allowance_rolls_several():
    assert roll([old(i) for i in range(4)], NEW, desired=4, max_unavailable=2).update == names(2, 3)


def test_the_allowance_may_be_larger_than_the_pool():
    assert roll([old(0)], NEW, desired=1, max_unavailable=5).update == names(0)


def test_a_replica_with_only_one_ready_pod_of_two_does_not_serve():
    group = seen(0, OLD, group=True)
    half = type(group)(group.replica, group.workload, OLD, None, group.pods[:1])
    assert roll([half], NEW, desired=1, max_unavailable=1).update == {"k3-gb300-0"}
    assert not half.ready


@given(
    states=st.lists(st.tuples(st.booleans(), st.booleans()), max_size=12),
    more=st.integers(0, 3),
    max_unavailable=st.integers(1, 4),
)
def test_never_more_than_max_unavailable_are_taken_down(states, more, max_unavailable):
    staying = [seen(i, NEW if current else OLD, ready=ready) for i, (current, ready) in enumerate(states)]
    desired = len(staying) + more
    decided = roll(staying, NEW, desired=desired, max_unavailable=max_unavailable)
    outdated = {s.name for s in staying if s.revision == OLD}
    taken_down = {s.name for s in staying if s.ready and s.name in decided.update}
    serving = sum(s.ready for s in staying)
    assert decided.update | decided.waiting == outdated
    assert not decided.update & decided.waiting
    assert {s.name for s in staying if s.revision == OLD and not s.ready} <= decided.update
    if taken_down:
        assert desired - (serving - len(taken_down)) <= max_unavailable
