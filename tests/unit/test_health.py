from __future__ import annotations

import asyncio

import pytest
from tests.fakes import FakeKubeApi

from kimi_k3_operator.runtime.health import LOOP_SECONDS, WATCH_SECONDS, Pulse
from kimi_k3_operator.runtime.lease import RENEW_SECONDS, PlanningLease


def pulse(*, loop: float = 0, watch: float = 0, lease: float = 0) -> Pulse:
    """A pulse whose parts were last felt at these seconds."""
    made = Pulse()
    made.loop, made.watch, made.lease = loop, watch, lease
    return made


def test_a_fresh_process_lives():
    made = Pulse()
    assert made.dead(made.loop) is None


def test_a_blocked_event_loop_is_dead():
    assert pulse().dead(LOOP_SECONDS) is None
    assert pulse().dead(LOOP_SECONDS + 1) == "the event loop has been blocked for 31 s"


def test_a_watch_that_is_silent_while_the_api_server_answers_is_dead():
    now = WATCH_SECONDS + 1
    assert pulse(loop=now, lease=now).dead(now) == "no watch has said anything for 181 s"


def test_a_watch_that_is_silent_in_an_outage_is_no_reason_to_restart():
    now = WATCH_SECONDS + 1
    assert pulse(loop=now, lease=now - LOOP_SECONDS).dead(now) is None


@pytest.mark.looptime
async def test_each_round_of_the_lease_says_when_the_api_server_answered():
    lease = PlanningLease(FakeKubeApi(), namespace="kimi", identity="me", scope="*", changed=lambda: None)
    assert lease.answered == float("-inf")
    task = asyncio.create_task(lease.run())
    await asyncio.sleep(RENEW_SECONDS * 2 + 0.1)
    task.cancel()
    await asyncio.wait({task})
    assert lease.answered == pytest.approx(asyncio.get_running_loop().time(), abs=0.2)
