from __future__ import annotations

import copy

import pytest
import yaml
from tests.factories import b300, b300_node, condition, deployment, domain, gb300, summary
from tests.scene import Scene

from kimi_k3_operator.compile.picker import picker_config
from kimi_k3_operator.plan.actions import Apply, Delete

NODES = (b300_node("b1"), b300_node("b2"), domain("a", free=4))


def routed(*pools, **routing) -> Scene:
    return Scene(deployment(*(pools or (b300(1), gb300(1))), routing=routing), *NODES)


def fronts(scene: Scene) -> set[tuple[str, str]]:
    return {key for key in scene.objects if "picker" in key[1] or "entrance" in key[1]}


def available(scene: Scene) -> None:
    for name in ("k3-picker", "k3-entrance"):
        scene.objects["Deployment", name]["status"] = {"availableReplicas": 1}


def test_without_routing_there_is_no_entrance_and_no_condition():
    scene = Scene(deployment(b300(1)), *NODES)
    plan = scene.step()
    assert not fronts(scene)
    assert "Routed" not in {c["type"] for c in plan.status["conditions"]}
    assert "endpoint" not in plan.status


def test_an_entrance_and_a_picker_stand_before_all_pools():
    scene = routed()
    plan = scene.step()
    assert plan.status["endpoint"] == "http://k3-entrance.serving.svc/v1"
    assert {kind for kind, _ in fronts(scene)} >= {
        "ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Deployment", "Service", "PodDisruptionBudget",
    }  # fmt: skip
    (container,) = scene.objects["Deployment", "k3-picker"]["spec"]["template"]["spec"]["containers"]
    selector = container["args"][container["args"].index("--endpoint-selector") + 1]
    assert selector == "kimik3.dev/deployment=k3,kimik3.dev/serves-http=true"
    assert not scene.step().actions or all(isinstance(a, Apply) for a in scene.plan().actions)


def test_it_is_available_and_ready_only_with_its_entrance():
    scene = routed(b300(1))
    scene.settle()
    plan = scene.plan()
    assert summary(plan) == ("False", "EntranceStarting")
    assert condition(plan, "Available")["reason"] == "EntranceNotAvailable"
    assert condition(plan, "Routed")["message"] == (
        "the endpoint picker k3-picker is not available; the entrance k3-entrance is not available"
    )
    available(scene)
    plan = scene.plan()
    assert summary(plan) == ("True", "AllReplicasReady")
    assert condition(plan, "Routed")["message"].endswith("no API key is asked for, whoever reaches it may use it")


def test_keys_and_tls_come_from_secrets_by_name_alone():
    scene = routed(b300(1), auth={"apiKeys": {"secretRef": {"name": "keys"}}}, tls={"secretRef": {"name": "cert"}})
    plan = scene.step()
    available(scene)
    assert plan.status["endpoint"] == "https://k3-entrance.serving.svc/v1"
    assert "no API key" not in condition(scene.plan(), "Routed")["message"]
    volumes = scene.objects["Deployment", "k3-entrance"]["spec"]["template"]["spec"]["volumes"]
    assert {v["secret"]["secretName"] for v in volumes if "secret" in v} == {"keys", "cert"}


def test_a_newer_rendering_of_the_same_inputs_restarts_neither_picker_nor_entrance():
    scene = routed(b300(1))
    scene.settle()
    (name,) = [n for k, n in scene.objects if k == "ControllerRevision" and n.startswith("k3.routing-")]
    older = scene.objects["ControllerRevision", name]
    for manifest in older["data"]["objects"]:
        if manifest["kind"] == "Deployment":
            manifest["spec"]["template"]["metadata"]["annotations"] = {"older": "rendering"}
            live = scene.objects["Deployment", manifest["metadata"]["name"]]
            live["spec"]["template"]["metadata"] = copy.deepcopy(manifest["spec"]["template"]["metadata"])
    scene.step()
    for deployed in ("k3-picker", "k3-entrance"):
        found = scene.objects["Deployment", deployed]["spec"]["template"]["metadata"]["annotations"]
        assert found == {"older": "rendering"}


def test_a_scale_touches_neither_picker_nor_entrance():
    scene = routed(b300(1))
    scene.settle()
    scene.edit(pools=[b300(2)])
    touched = {a.manifest["metadata"]["name"] for a in scene.plan().actions if isinstance(a, Apply)}
    assert not any("picker" in name or "entrance" in name or "routing" in name for name in touched)


def test_an_entrance_that_is_not_asked_for_any_more_goes_with_everything():
    scene = routed(b300(1))
    scene.settle()
    scene.edit(routing=None)
    scene.body["spec"].pop("routing")
    gone = {(a.kind, a.name) for a in scene.plan().actions if isinstance(a, Delete)}
    assert fronts(scene) <= gone
    assert any(name.startswith("k3.routing-") for _, name in gone)
    scene.settle()
    assert not fronts(scene)
    assert ("Deployment", "k3-b300-0") in scene.objects


@pytest.mark.parametrize("name", ["picker", "entrance", "routing"])
def test_a_pool_may_have_the_name_of_a_part(name: str):
    scene = routed(b300(1, name=name))
    scene.settle()
    available(scene)
    assert summary(scene.plan()) == ("True", "AllReplicasReady")
    assert not scene.plan().actions


def test_pools_that_differ_in_what_clients_notice_are_refused_behind_one_entrance():
    shorter = b300(1, overrides={"args": {"max-model-len": "262144"}})
    plan = routed(shorter, gb300(1)).plan()
    refused = condition(plan, "Accepted")
    assert refused["reason"] == "UnifiedContract"
    assert "pools differ in max-model-len: b300 has 262144, gb300 has 1048576" in refused["message"]
    assert not plan.actions
    assert condition(Scene(deployment(shorter, gb300(1)), *NODES).plan(), "Accepted")["status"] == "True"


def test_the_pickers_configuration_names_each_plugin_it_uses_once():
    config = yaml.safe_load(yaml.safe_dump(picker_config().model_dump(mode="json", by_alias=True, exclude_none=True)))
    types = [plugin["type"] for plugin in config["plugins"]]
    assert len(types) == len(set(types))
    (profile,) = config["schedulingProfiles"]
    assert {ref["pluginRef"] for ref in profile["plugins"]} <= set(types)
