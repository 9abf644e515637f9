"""Passes that may not or cannot do what the spec says: refused, paused, in conflict."""

from __future__ import annotations

from dataclasses import replace

from tests.factories import (
    b300,
    b300_node,
    condition,
    deployment,
    mi350x,
    planner,
    summary,
)
from tests.scene import Scene, kinds

NEW_IMAGE = {"reference": "registry.example/vllm:v2", "engineVersion": "0.30.0"}


def b300_scene(replicas: int, *, nodes: int | None = None, **more) -> Scene:
    count = replicas if nodes is None else nodes
    scene = Scene(deployment(b300(replicas, **more)), *(b300_node(f"b{i}") for i in range(count)))
    scene.settle()
    return scene


def test_a_refused_spec_changes_nothing_and_keeps_what_was_said_of_the_pools():
    scene = b300_scene(2)
    said = scene.step().status
    scene.edit(pools=[b300(1, overrides={"args": {"tensor-parallel-size": "4"}})])
    plan = scene.step()
    assert plan.actions == ()
    assert summary(plan, "Accepted") == ("False", "ReservedOverride")
    assert summary(plan, "Stalled") == ("True", "ReservedOverride")
    assert summary(plan, "Available")[0] == "Unknown"
    assert (plan.status["pools"], plan.status["replicas"]) == (said["pools"], said["replicas"])
    assert plan.status["observedGeneration"] == 2


def test_a_malformed_spec_is_refused_with_the_field():
    plan = Scene(deployment(b300(1, replica=2))).plan()
    assert plan.actions == ()
    assert "spec.pools[b300].replica: unknown field; did you mean replicas?" in condition(plan, "Ready")["message"]


def test_an_unknown_profile_is_refused_with_the_known_ones():
    plan = Scene(deployment({"name": "x", "profile": {"name": "b30"}, "replicas": 1})).plan()
    assert summary(plan) == ("False", "UnknownProfile")
    assert "did you mean b300" in condition(plan, "Accepted")["message"]


def test_refusals_of_all_pools_are_reported_together():
    bad = {"args": {"port": "1"}}
    message = condition(Scene(deployment(b300(overrides=bad), mi350x(overrides=bad))).plan(), "Accepted")["message"]
    assert "spec.pools[b300]" in message
    assert "spec.pools[mi350x]" in message


def test_a_paused_deployment_is_only_reported_on():
    scene = b300_scene(1)
    scene.edit(pools=[b300(3, image=NEW_IMAGE)], paused=True)
    plan = scene.step()
    assert plan.actions == ()
    assert plan.promises == ()
    assert summary(plan, "Reconciling") == ("False", "Paused")
    assert plan.status["replicas"] == "1/3"


def test_conflicts_are_reported_as_what_stalls():
    scene = b300_scene(1)
    sentence = "Service k3-b300-engines exists and is not this deployment's"
    plan = planner().plan(replace(scene.snapshot(), conflicts=(sentence,)))
    assert summary(plan, "Stalled") == ("True", "NameConflict")
    assert condition(plan, "Ready")["message"] == f"1 of 1 replicas ready; {sentence}"


def test_the_adopted_profile_version_is_kept_and_an_unknown_one_is_not():
    scene = b300_scene(1)
    assert scene.objects["KimiK3Pool", "k3-b300"]["spec"]["profile"] == "b300/1"
    scene.objects["KimiK3Pool", "k3-b300"]["spec"]["profile"] = "b300/77"
    assert ("Apply", "KimiK3Pool") in kinds(scene.step().actions)
    assert scene.settle()[-1].status["pools"][0]["profile"] == "b300/1"


def test_a_named_profile_version_must_exist():
    pool = {"name": "b300", "profile": {"name": "b300", "version": "9"}, "replicas": 1}
    assert "has no version 9" in condition(Scene(deployment(pool)).plan(), "Accepted")["message"]
