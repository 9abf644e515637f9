from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kimi_k3_operator.runtime.wakeups import Pass, Wakeups

pytestmark = pytest.mark.looptime
KEY = ("serving", "k3")
Act = Callable[[Pass], None]


@pytest.fixture(autouse=True)
def _no_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", lambda low, high: 1.0)


class Loop:
    """Runs passes in the background and notes when each begins; `acts` say how each goes."""

    def __init__(self, *acts: Act) -> None:
        self.wakeups = Wakeups()
        self.began: list[float] = []
        self._acts = list(acts)
        self._stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for current in self.wakeups.passes(KEY, self._stop):
            self.began.append(round(asyncio.get_running_loop().time(), 3))
            if self._acts:
                self._acts.pop(0)(current)

    async def until(self, seconds: float, *, wake: tuple[float, ...] = ()) -> list[float]:
        """When passes began in the first `seconds`, with a wake-up at each of the given times."""
        for at in wake:
            await asyncio.sleep(at - asyncio.get_running_loop().time())
            self.wakeups.wake(KEY)
        await asyncio.sleep(seconds - asyncio.get_running_loop().time())
        self._stop.set_result(None)
        await asyncio.wait_for(self._task, 1)
        return self.began


def failing(current: Pass) -> None:
    current.failed = True


def asked_to_wait(current: Pass) -> None:
    current.failed, current.retry_after = True, 30.0


def again_in(seconds: float) -> Act:
    def act(current: Pass) -> None:
        current.requeue_after = seconds

    return act


async def test_the_first_pass_is_due_at_once_and_the_next_much_later():
    assert await Loop().until(1300) == [0, 600, 1200]


async def test_a_wake_up_brings_a_pass():
    assert await Loop().until(20, wake=(10,)) == [0, 10.05]


async def test_a_burst_of_wake_ups_brings_one_pass():
    assert await Loop().until(20, wake=(10, 10.01, 10.02, 10.049)) == [0, 10.05]


async def test_a_wake_up_during_a_pass_brings_another():
    loop = Loop(lambda current: loop.wakeups.wake(KEY))
    assert await loop.until(20) == [0, 0.05]


async def test_a_pass_can_ask_for_the_next_one():
    assert await Loop(again_in(5), again_in(2)).until(20) == [0, 5, 7]


async def test_a_wake_up_comes_before_the_time_that_was_asked_for():
    assert await Loop(again_in(100)).until(20, wake=(3,)) == [0, 3.05]


async def test_failures_are_tried_again_after_growing_waits():
    assert await Loop(*[failing] * 8).until(200) == [0, 1, 3, 7, 15, 31, 63, 123, 183]


async def test_a_success_resets_the_wait():
    assert await Loop(failing, failing, again_in(10), failing).until(20) == [0, 1, 3, 13, 14]


async def test_a_wake_up_does_not_shorten_the_wait_after_a_failure():
    assert await Loop(failing, failing, failing).until(8, wake=(3.5, 4)) == [0, 1, 3, 7]


async def test_the_servers_own_wait_is_kept():
    assert await Loop(asked_to_wait).until(40) == [0, 30]


async def test_an_unknown_key_is_ignored():
    Wakeups().wake(("no", "body"))
    assert Wakeups()._events == {}


async def test_all_can_be_woken():
    loop = Loop()
    await asyncio.sleep(1)
    loop.wakeups.wake_all()
    assert await loop.until(20) == [0, 1.05]


async def test_a_stop_ends_every_wait_and_leaves_nothing_behind():
    for acts in ((), (failing,), (asked_to_wait,)):
        loop = Loop(*acts)
        began = asyncio.get_running_loop().time()
        await loop.until(began + 0.5)
        assert asyncio.get_running_loop().time() == pytest.approx(began + 0.5)
        assert loop.wakeups._events == {}
