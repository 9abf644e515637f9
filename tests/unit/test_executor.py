from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.fakes import Call, FakeKubeApi

from kimi_k3_operator.api import labels
from kimi_k3_operator.apply.executor import Outcome, Parent, carry_out
from kimi_k3_operator.apply.port import ApiError, ConflictError, InvalidError, NotFoundError
from kimi_k3_operator.plan.actions import Action, Apply, Create, Delete, Scale

PARENT = Parent("serving", "k3", born="2026-01-01T00:00:00Z")
BEFORE, AFTER = "2025-12-31T23:59:59Z", "2026-01-01T00:00:05Z"


def service(name: str = "s", mine: bool = True, **spec: Any) -> dict[str, Any]:
    marks = {"labels": {labels.DEPLOYMENT: "k3"}} if mine else {}
    metadata = {"name": name, "namespace": "serving", **marks}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec or {"type": "ClusterIP"}}


def pool(**more: Any) -> dict[str, Any]:
    return service("p", **more) | {"kind": "KimiK3Pool", "apiVersion": "kimik3.dev/v1alpha1"}


@pytest.fixture
def api() -> FakeKubeApi:
    return FakeKubeApi()


async def run(api: FakeKubeApi, *stages: tuple[Action, ...]) -> tuple[Outcome, list[str]]:
    """The outcome, and the names of what is said to be done."""
    done: list[str] = []

    def note(action: Action, stored: Any) -> None:
        done.append(stored["metadata"]["name"] if stored else getattr(action, "name", ""))

    return await carry_out(stages, PARENT, api, note), done


async def test_stages_run_one_after_the_other(api: FakeKubeApi):
    outcome, done = await run(api, (Apply(service("a"), False), Create(pool())), (Apply(service("b"), False),))
    assert (outcome.conflicts, outcome.failures) == ([], [])
    assert done == ["a", "p", "b"]


async def test_an_owned_object_is_taken_back_by_force(api: FakeKubeApi):
    api.there(service(type="NodePort"), born=AFTER)
    outcome, done = await run(api, (Apply(service(), owned=True),))
    assert outcome.failures == []
    assert done == ["s"]
    assert api.objects["Service", "s"]["spec"] == {"type": "ClusterIP"}


async def test_a_name_that_somebody_else_holds_is_a_conflict_and_stays_untouched(api: FakeKubeApi):
    before = api.there(service(mine=False, type="NodePort"), born=BEFORE)
    outcome, done = await run(api, (Apply(service(), owned=False),))
    assert outcome.conflicts == [
        "Service s exists and is not this deployment's: rename or remove it, or rename the deployment"
    ]
    assert (outcome.failures, done) == ([], [])
    assert api.objects["Service", "s"] == before


async def test_an_object_older_than_the_deployment_is_let_go_as_it_was(api: FakeKubeApi):
    before = api.there(service(mine=False), born=BEFORE)
    outcome, done = await run(api, (Apply(service(), owned=False),))
    assert len(outcome.conflicts) == 1
    assert done == []
    after = copy.deepcopy(api.objects["Service", "s"])
    assert after["metadata"].pop("labels", None) is None
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert api.verbs() == ["apply", "apply"]


async def test_an_object_that_could_not_be_let_go_is_a_failure(api: FakeKubeApi):
    api.there(service(mine=False), born=BEFORE)
    api.refuse = lambda call: ApiError(503, "busy") if len(api.calls) == 2 else None
    outcome, done = await run(api, (Apply(service(), owned=False),))
    assert (len(outcome.conflicts), len(outcome.failures), done) == (1, 1, [])


async def test_a_conflict_does_not_stop_the_stages_that_follow(api: FakeKubeApi):
    api.there(service("taken", mine=False, type="NodePort"), born=BEFORE)
    outcome, done = await run(api, (Apply(service("taken"), False), Apply(service("a"), False)), (Create(pool()),))
    assert len(outcome.conflicts) == 1
    assert done == ["a", "p"]


async def test_a_taken_name_in_a_creation_is_a_conflict(api: FakeKubeApi):
    api.there(pool(mine=False), born=BEFORE)
    outcome, _ = await run(api, (Create(pool()),))
    assert outcome.conflicts[0].startswith("KimiK3Pool p exists and is not this deployment's")


async def test_our_own_object_in_the_way_of_a_creation_is_only_tried_again(api: FakeKubeApi):
    api.there(pool(), born=AFTER)
    outcome, done = await run(api, (Create(pool()),))
    assert (outcome.conflicts, done) == ([], [])
    assert [type(failure) for failure in outcome.failures] == [ConflictError]


async def test_a_lost_answer_is_a_failure_and_the_next_try_finds_it_done(api: FakeKubeApi):
    api.lose = lambda call: call[0] == "apply"
    outcome, done = await run(api, (Apply(service(), owned=False),))
    assert [failure.status for failure in outcome.failures] == [0]
    assert done == []
    api.lose = lambda call: False
    outcome, done = await run(api, (Apply(service(), owned=False),))
    assert (outcome.failures, outcome.conflicts, done) == ([], [], ["s"])


async def test_a_failure_ends_with_its_stage(api: FakeKubeApi):
    api.refuse = lambda call: ApiError(503, "busy", 7.0) if call[2] == "bad" else None
    outcome, done = await run(api, (Apply(service("bad"), False), Apply(service("a"), False)), (Create(pool()),))
    assert done == ["a"]
    assert [str(failure) for failure in outcome.failures] == ["busy"]
    assert outcome.retry_after == 7.0
    assert ("create", "KimiK3Pool", "p") not in api.calls


async def test_the_longest_wait_that_was_asked_for_counts(api: FakeKubeApi):
    waits = {"a": 2.0, "b": 9.0, "c": None}
    api.refuse = lambda call: ApiError(429, "slow down", waits[call[2]])
    outcome, _ = await run(api, tuple(Apply(service(name), False) for name in waits))
    assert outcome.retry_after == 9.0
    assert Outcome().retry_after is None


async def test_an_object_that_the_server_finds_invalid_is_a_failure(api: FakeKubeApi):
    api.refuse = lambda call: InvalidError(422, "spec is wrong") if call[0] == "apply" else None
    outcome, _ = await run(api, (Apply(service(), owned=False),))
    assert [type(failure) for failure in outcome.failures] == [InvalidError]
    assert outcome.conflicts == []


async def test_a_second_owner_that_the_server_refuses_is_a_conflict(api: FakeKubeApi):
    api.there(service(), born=BEFORE)
    api.refuse = lambda call: InvalidError(422, "only one controller") if call[0] == "apply" else None
    outcome, _ = await run(api, (Apply(service(), owned=False),))
    assert len(outcome.conflicts) == 1


async def test_a_refused_update_of_our_own_object_is_no_conflict(api: FakeKubeApi):
    api.there(service(mine=False), born=BEFORE)
    api.refuse = lambda call: InvalidError(422, "immutable") if call[0] == "apply" else None
    outcome, _ = await run(api, (Apply(service(), owned=True),))
    assert (outcome.conflicts, len(outcome.failures)) == ([], 1)


async def test_an_api_that_vanished_is_a_failure(api: FakeKubeApi):
    api.refuse = lambda call: NotFoundError(404, "no such API")
    outcome, _ = await run(api, (Apply(service(), owned=True),))
    assert [type(failure) for failure in outcome.failures] == [NotFoundError]


async def test_what_is_gone_need_not_be_deleted_or_scaled(api: FakeKubeApi):
    api.refuse = lambda call: NotFoundError(404, "gone") if call[0] == "delete" else None
    outcome, done = await run(api, (Delete("Service", "s", "u"), Scale("p", 3)))
    assert (outcome.failures, done) == ([], [])


async def test_only_the_object_that_was_seen_is_deleted(api: FakeKubeApi):
    uid = api.there(service(), born=AFTER)["metadata"]["uid"]
    await run(api, (Delete("Service", "s", "another"),))
    assert ("Service", "s") in api.objects
    outcome, done = await run(api, (Delete("Service", "s", uid, resource_version="77"),))
    assert [type(failure) for failure in outcome.failures] == [ConflictError]
    assert done == []
    assert (await run(api, (Delete("Service", "s", uid),)))[1] == ["s"]
    assert ("Service", "s") not in api.objects


async def test_a_pool_is_scaled_through_its_subresource(api: FakeKubeApi):
    api.there(pool(replicas=1), born=AFTER)
    _, done = await run(api, (Scale("p", 3),))
    assert done == ["p"]
    assert api.objects["KimiK3Pool", "p"]["spec"] == {"replicas": 3}
    assert api.verbs() == ["scale"]


async def test_nobody_can_be_asked_whose_name_it_is(api: FakeKubeApi):
    errors: dict[str, ApiError] = {"create": ConflictError(409, "taken"), "get": ApiError(503, "busy")}

    def refuse(call: Call) -> ApiError | None:
        return errors.get(call[0])

    api.refuse = refuse
    outcome, _ = await run(api, (Create(pool()),))
    assert (outcome.conflicts, [str(failure) for failure in outcome.failures]) == ([], ["taken"])
