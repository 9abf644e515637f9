"""The whole pass, pass after pass, in a cluster that does what it is told."""

from __future__ import annotations

import pytest
from tests.factories import (
    autoscaled,
    b300,
    b300_node,
    condition,
    deployment,
    domain,
    gb300,
    mi350x,
    mi350x_node,
    planner,
    summary,
)
from tests.scene import Scene, kinds

from kimi_k3_operator.api import labels
from kimi_k3_operator.plan.actions import Apply, Create, Delete, Scale
from kimi_k3_operator.plan.diff import marked
from kimi_k3_operator.plan.engine import owner_reference

NEW_IMAGE = {"reference": "registry.example/vllm:v2", "engineVersion": "0.30.0"}


def three_kinds() -> Scene:
    pools = b300(2), gb300(2), mi350x(1)
    return Scene(deployment(*pools), b300_node("b1"), b300_node("b2"), mi350x_node("m1"), domain("a", free=4))


def b300_scene(replicas: int, *, nodes: int | None = None, **more) -> Scene:
    count = replicas if nodes is None else nodes
    scene = Scene(deployment(b300(replicas, **more)), *(b300_node(f"b{i}") for i in range(count)))
    scene.settle()
    return scene


def test_a_new_deployment_gets_its_objects_in_order():
    stages = three_kinds().plan().stages
    workloads = [kind for _, kind in kinds(stages[1])]
    assert workloads == ["Deployment", "Deployment", "LeaderWorkerSet", "LeaderWorkerSet", "Deployment"]
    first = {kind for _, kind in kinds(stages[0])}
    assert first == {
        "ServiceAccount",
        "ComputeDomain",
        "ControllerRevision",
        "KimiK3Pool",
        "Service",
        "PodDisruptionBudget",
    }
    assert len(stages) == 2


def test_the_second_pass_over_what_the_first_made_changes_nothing():
    scene = three_kinds()
    scene.step()
    assert scene.step().actions == ()


def test_a_deployment_becomes_ready_and_stays_untouched():
    scene = three_kinds()
    last = scene.settle()[-1]
    assert summary(last) == ("True", "AllReplicasReady")
    assert last.status["replicas"] == "5/5"
    assert last.status["hardware"] == "2 x B300, 2 x GB300, 1 x MI350X"
    again = scene.step()
    assert (again.actions, again.events, again.status) == ((), (), last.status)


def test_every_object_is_owned_labelled_and_marked():
    scene = three_kinds()
    scene.settle()
    for body in scene.objects.values():
        metadata = body["metadata"]
        assert metadata["ownerReferences"] == [owner_reference(scene.body)]
        assert labels.deployment_labels("k3").items() <= metadata["labels"].items()
        assert metadata["annotations"][labels.APPLIED_HASH]


def test_the_pool_object_is_posted_with_its_replicas_and_applied_without():
    scene = b300_scene(2)
    fresh = Scene(scene.body).plan()
    (created,) = [a for a in fresh.actions if isinstance(a, Create)]
    assert created.manifest["spec"]["replicas"] == 2
    scene.objects["KimiK3Pool", "k3-b300"]["spec"]["profile"] = "edited"
    (applied,) = scene.plan().actions
    assert isinstance(applied, Apply)
    assert "replicas" not in applied.manifest["spec"]


def test_scaling_up_fills_gaps_lowest_first():
    scene = b300_scene(3, nodes=4)
    scene.delete("Deployment", "k3-b300-1")
    scene.edit(pools=[b300(4)])
    scene.settle()
    assert scene.replicas() == ("k3-b300-0", "k3-b300-1", "k3-b300-2", "k3-b300-3")
    assert scene.objects["KimiK3Pool", "k3-b300"]["spec"]["replicas"] == 4


def test_scaling_down_gives_up_those_that_do_not_serve_then_the_highest():
    scene = b300_scene(4)
    scene.ready("k3-b300-1", value=False)
    scene.edit(pools=[b300(2)])
    plan = scene.step()
    assert {a.name for a in plan.actions if isinstance(a, Delete) and a.kind == "Deployment"} == {
        "k3-b300-1",
        "k3-b300-3",
    }
    assert [a.replicas for a in plan.actions if isinstance(a, Scale)] == [2]
    assert scene.replicas() == ("k3-b300-0", "k3-b300-2")
    assert summary(scene.settle()[-1]) == ("True", "AllReplicasReady")


def test_scaling_to_zero_keeps_the_pool_and_its_revision():
    scene = b300_scene(1)
    scene.edit(pools=[b300(0)])
    last = scene.settle()[-1]
    assert scene.replicas() == ()
    assert ("KimiK3Pool", "k3-b300") in scene.objects
    assert summary(last) == ("True", "ScaledToZero")
    assert summary(last, "Available") == ("False", "ScaledToZero")


def test_a_removed_pool_goes_with_all_its_objects():
    scene = three_kinds()
    scene.settle()
    scene.edit(pools=[b300(2)])
    scene.settle()
    pools = {body["metadata"]["labels"].get(labels.POOL) for body in scene.objects.values()}
    assert pools == {None, "b300"}


def test_a_changed_image_rolls_one_replica_at_a_time():
    scene = b300_scene(3)
    before = scene.revisions()
    scene.edit(pools=[b300(3, image=NEW_IMAGE)])
    updated = []
    for _ in range(3):
        scene.step()
        changed = {name for name, revision in scene.revisions().items() if revision != before[name]}
        updated.append(sorted(changed))
        scene.schedule()
        assert scene.step().actions == ()
        scene.ready()
    assert updated == [["k3-b300-2"], ["k3-b300-1", "k3-b300-2"], ["k3-b300-0", "k3-b300-1", "k3-b300-2"]]
    assert summary(scene.settle()[-1]) == ("True", "AllReplicasReady")


def test_a_failing_first_replica_stops_the_rollout():
    scene = b300_scene(3)
    before = scene.revisions()
    scene.edit(pools=[b300(3, image=NEW_IMAGE)])
    last = scene.settle(healthy=lambda name: name != "k3-b300-2")[-1]
    assert [name for name, revision in scene.revisions().items() if revision == before[name]] == [
        "k3-b300-0",
        "k3-b300-1",
    ]
    assert condition(last, "Ready")["message"].startswith(
        "2 of 3 replicas ready; pool b300: 2 of 3 replicas still run the previous revision"
    )
    assert summary(last, "Available")[0] == "True"


def test_a_rollout_that_is_taken_back_reuses_the_old_revision():
    scene = b300_scene(2)
    before = scene.revisions()
    scene.edit(pools=[b300(2, image=NEW_IMAGE)])
    scene.settle()
    assert scene.revisions() != before
    scene.edit(pools=[b300(2)])
    scene.settle()
    assert scene.revisions() == before
    assert len([key for key in scene.objects if key[0] == "ControllerRevision"]) == 2


def test_ten_older_revisions_are_kept():
    scene = b300_scene(1)
    for seconds in range(100, 114):
        scene.edit(pools=[b300(1, drainSeconds=seconds)])
        scene.settle()
    numbers = sorted(body["revision"] for (kind, _), body in scene.objects.items() if kind == "ControllerRevision")
    assert numbers == list(range(6, 16))


def other_operator(scene: Scene) -> None:
    """Make the stored revision and its workloads those of an operator that rendered another variable."""
    owner = owner_reference(scene.body)
    for kind, name in [key for key in scene.objects if key[0] in ("ControllerRevision", "Deployment")]:
        body = scene.objects[kind, name]
        if kind == "ControllerRevision":
            body["data"]["render"] = "another"
            pod = body["data"]["leader"]["spec"]
        else:
            pod = body["spec"]["template"]["spec"]
        pod["containers"][0]["env"].append({"name": "OLDER", "value": "1"})
        metadata = {key: body["metadata"][key] for key in ("name", "namespace", "labels")}
        notes = {k: v for k, v in body["metadata"]["annotations"].items() if k != labels.APPLIED_HASH}
        sent = {k: v for k, v in body.items() if k not in ("metadata", "status")}
        again = marked({**sent, "metadata": metadata | ({"annotations": notes} if notes else {})}, owner)
        body["metadata"]["annotations"] = again["metadata"]["annotations"]


def test_an_operator_upgrade_changes_no_workload_and_says_that_an_update_is_there():
    scene = b300_scene(2, nodes=3)
    other_operator(scene)
    versions = scene.workload_versions()
    plan = scene.step()
    assert plan.actions == ()
    assert summary(plan, "UpdateAvailable") == ("True", "RenderingChanged")
    assert summary(plan) == ("True", "AllReplicasReady")
    scene.edit(pools=[b300(3)])
    scene.settle()
    assert versions.items() <= scene.workload_versions().items()
    env = scene.objects["Deployment", "k3-b300-2"]["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "OLDER", "value": "1"} in env


@pytest.mark.parametrize(
    ("kind", "name", "damage"),
    [
        ("Deployment", "k3-b300-0", lambda body: body["spec"].update(replicas=0)),
        ("Service", "k3-b300-engines", lambda body: body["spec"]["selector"].clear()),
        ("PodDisruptionBudget", "k3-b300", lambda body: body["spec"].update(minAvailable=0)),
        ("ServiceAccount", "k3-engine", lambda body: body.update(automountServiceAccountToken=True)),
        ("KimiK3Pool", "k3-b300", lambda body: body["metadata"]["labels"].pop(labels.POOL)),
    ],
)
def test_a_child_that_was_edited_by_hand_is_put_right(kind: str, name: str, damage):
    scene = b300_scene(2)
    damage(scene.objects[kind, name])
    assert ("Apply", kind) in kinds(scene.step().actions)
    assert scene.settle()[-1].actions == ()
    assert labels.POOL in scene.objects["KimiK3Pool", "k3-b300"]["metadata"]["labels"]


def test_every_child_that_is_deleted_by_hand_comes_back():
    scene = three_kinds()
    scene.settle()
    for kind, name in list(scene.objects):
        scene.delete(kind, name)
        scene.settle()
        assert (kind, name) in scene.objects


def test_a_child_that_is_going_away_is_made_again_after_it_is_gone():
    scene = b300_scene(1)
    scene.objects["Deployment", "k3-b300-0"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    plan = scene.plan()
    assert [a.manifest["metadata"]["name"] for a in plan.actions] == ["k3-b300-1"]


def test_the_autoscalers_count_is_kept_within_the_bounds():
    scene = Scene(deployment(autoscaled("b300", 1, 3)), *(b300_node(f"b{i}") for i in range(4)))
    scene.settle()
    counts = []
    for written in (2, 9, 0, None):
        scene.objects["KimiK3Pool", "k3-b300"]["spec"]["replicas"] = written
        plans = scene.settle()
        assert not [a for plan in plans for a in plan.actions if isinstance(a, Scale)]
        counts.append(len(scene.replicas()))
    assert counts == [2, 3, 1, 1]


def test_fixed_to_autoscaling_to_fixed_loses_no_pod():
    scene = b300_scene(4)
    pods, versions = set(scene.pods), scene.workload_versions()
    for pool in (autoscaled("b300", 1, 8), b300(4)):
        scene.edit(pools=[pool])
        scene.settle()
        assert set(scene.pods) == pods
        assert scene.workload_versions() == versions


def test_children_without_an_owner_are_adopted_without_a_restart():
    scene = three_kinds()
    scene.settle()
    pods = dict(scene.pods)
    for body in scene.objects.values():
        del body["metadata"]["ownerReferences"]
    scene.body["metadata"]["uid"] = "22222222-2222-2222-2222-222222222222"
    scene.body.pop("status")
    adopted = scene.step().actions
    assert {kind for kind, _ in kinds(adopted)} == {"Apply"}
    assert all(a.owned for a in adopted if isinstance(a, Apply))
    assert len(adopted) == len(scene.objects)
    scene.schedule()
    assert scene.pods == pods
    assert scene.step().actions == ()


def test_children_of_another_uid_are_not_touched():
    scene = b300_scene(1)
    scene.body["metadata"]["uid"] = "22222222-2222-2222-2222-222222222222"
    plan = scene.plan()
    assert not [a for a in plan.actions if isinstance(a, Delete | Scale)]
    assert not [a for a in plan.actions if isinstance(a, Apply) and a.owned]


@pytest.mark.parametrize("seed", range(5))
def test_the_order_in_which_things_are_listed_changes_nothing(seed: int):
    scene = three_kinds()
    scene.settle()
    scene.edit(pools=[b300(1, image=NEW_IMAGE), gb300(1)])
    scene.delete("LeaderWorkerSet", "k3-gb300-0")
    expected = planner().plan(scene.snapshot())
    assert len(expected.actions) > 4
    assert planner().plan(scene.snapshot(shuffle=seed)) == expected
