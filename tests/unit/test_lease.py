from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.fakes import FakeKubeApi

from kimi_k3_operator.apply.port import ApiError, ConflictError
from kimi_k3_operator.runtime.lease import LEASE_NAME, PlanningLease, Standing

pytestmark = pytest.mark.looptime
PLANS = Standing("", stand_by=False)
NAMED = "Lease", LEASE_NAME


class Instance(PlanningLease):
    """One operator; `changes` counts how often its passes were told of a new standing."""

    def __init__(self, api: FakeKubeApi, identity: str = "me", scope: str = "*") -> None:
        self.changes = 0
        super().__init__(api, namespace="kimi", identity=identity, scope=scope, changed=self._count)

    def _count(self) -> None:
        self.changes += 1


@asynccontextmanager
async def running(instance: PlanningLease, seconds: float = 0.1) -> AsyncIterator[PlanningLease]:
    task = asyncio.create_task(instance.run())
    await asyncio.sleep(seconds)
    try:
        yield instance
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.fixture
def api() -> FakeKubeApi:
    return FakeKubeApi()


def held_by_other(api: FakeKubeApi, *, ago: float = 0, scope: str | None = "*", **spec: Any) -> None:
    renewed = (datetime.now(UTC) - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    metadata: dict[str, Any] = {"name": LEASE_NAME, "namespace": "kimi"}
    if scope is not None:
        metadata["annotations"] = {"kimik3.dev/scope": scope}
    written = {"holderIdentity": "other", "renewTime": renewed, "leaseDurationSeconds": 15, "leaseTransitions": 4}
    api.there({"kind": "Lease", "metadata": metadata, "spec": written | spec}, born="2026-01-01T00:00:00Z")


async def test_before_anything_is_known_it_stands_by(api: FakeKubeApi):
    assert Instance(api).standing == Standing("nobody yet", stand_by=True)


async def test_a_lease_that_nobody_has_is_taken(api: FakeKubeApi):
    async with running(instance := Instance(api, scope="a,b")):
        assert instance.standing == PLANS
        assert instance.changes == 1
        lease = api.objects[NAMED]
        assert lease["spec"]["holderIdentity"] == "me"
        assert lease["metadata"]["annotations"] == {"kimik3.dev/scope": "a,b"}


async def test_it_is_renewed_while_the_instance_runs(api: FakeKubeApi):
    async with running(instance := Instance(api), seconds=60):
        assert instance.standing == PLANS
        assert api.verbs().count("replace") >= 11
        assert api.objects[NAMED]["spec"]["leaseTransitions"] == 1
        assert instance.changes == 1


async def test_it_is_given_back_at_the_end(api: FakeKubeApi):
    async with running(Instance(api)):
        pass
    assert api.objects[NAMED]["spec"]["holderIdentity"] == ""
    async with running(after := Instance(api, "next")):
        assert after.standing == PLANS
        assert api.objects[NAMED]["spec"]["leaseTransitions"] == 2


async def test_a_lease_that_another_holds_is_left_to_it(api: FakeKubeApi):
    held_by_other(api)
    async with running(instance := Instance(api)):
        assert instance.standing == Standing("operator other", stand_by=True)
    assert api.objects[NAMED]["spec"]["holderIdentity"] == "other"


async def test_a_lease_that_was_given_back_is_taken_at_once(api: FakeKubeApi):
    held_by_other(api, holderIdentity="")
    async with running(instance := Instance(api)):
        assert instance.standing == PLANS
        assert api.objects[NAMED]["spec"]["leaseTransitions"] == 5


@pytest.mark.parametrize("ago", [-3600, 0, 3600])
@pytest.mark.parametrize("renewed", [{}, {"renewTime": "nonsense"}])
async def test_a_lease_is_taken_when_it_was_not_renewed_for_its_time_whatever_the_holders_clock_says(
    api: FakeKubeApi, ago: float, renewed: dict[str, str]
):
    held_by_other(api, ago=ago, **renewed)
    async with running(instance := Instance(api)):
        await asyncio.sleep(15)
        assert instance.standing == Standing("operator other", stand_by=True)
        await asyncio.sleep(6)
        assert instance.standing == PLANS


@pytest.mark.parametrize(
    ("theirs", "ours", "stand_by"),
    [
        ("*", "a", True),
        ("a", "*", True),
        ("a,b", "b,c", True),
        ("a,b", "c", False),
        ("a", "aa", False),
        (None, "a", True),
    ],
)
async def test_it_stands_by_only_where_the_holder_serves_its_namespaces(
    api: FakeKubeApi, theirs: str | None, ours: str, stand_by: bool
):
    held_by_other(api, scope=theirs)
    async with running(instance := Instance(api, scope=ours)):
        assert instance.standing == Standing("operator other", stand_by=stand_by)


async def test_who_is_slower_sees_in_the_next_round_who_was_faster(api: FakeKubeApi):
    api.refuse = lambda call: ConflictError(409, "taken") if call[0] == "create" else None
    async with running(instance := Instance(api)):
        assert instance.standing.planned_by == "nobody yet"
        held_by_other(api)
        await asyncio.sleep(5)
        assert instance.standing.planned_by == "operator other"


async def test_an_instance_that_cannot_renew_stops_planning_before_the_lease_runs_out(api: FakeKubeApi):
    async with running(instance := Instance(api)):
        api.refuse = lambda call: ApiError(503, "away")
        await asyncio.sleep(9)
        assert instance.standing == PLANS
        await asyncio.sleep(2)
        assert instance.standing.planned_by.startswith("nobody for sure")
        assert not instance.standing.stand_by
        told = instance.changes
        api.refuse = lambda call: None
        await asyncio.sleep(5)
        assert instance.standing == PLANS
        assert instance.changes == told + 1, "passes that found nobody planning look again"


async def test_the_time_of_a_renewal_is_when_it_was_asked_for(api: FakeKubeApi):
    class SlowApi(FakeKubeApi):
        async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
            stored = await super().create(manifest)
            await asyncio.sleep(9)
            return stored

        async def replace(self, manifest: dict[str, Any]) -> dict[str, Any]:
            await asyncio.sleep(60)
            return manifest

    async with running(instance := Instance(SlowApi()), seconds=9.5):
        assert instance.standing == PLANS
        await asyncio.sleep(1)
        assert instance.standing.planned_by.startswith("nobody for sure")


async def test_a_lease_that_was_taken_over_is_not_given_back(api: FakeKubeApi):
    async with running(Instance(api)):
        api.objects[NAMED]["spec"]["holderIdentity"] = "other"
    assert api.objects[NAMED]["spec"]["holderIdentity"] == "other"


async def test_an_end_without_the_server_is_an_end_all_the_same(api: FakeKubeApi, caplog: pytest.LogCaptureFixture):
    async with running(Instance(api)):
        api.refuse = lambda call: ApiError(0, "away")
    assert "runs out by itself" in caplog.text
