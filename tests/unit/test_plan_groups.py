"""Passes over deployments with GB300 groups: places, promises and the ComputeDomain."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import (
    CLIQUE,
    b300,
    b300_node,
    condition,
    deployment,
    domain,
    gb300,
    gb300_node,
    mi350x,
    mi350x_node,
    planner,
    promise,
    summary,
)
from tests.scene import Scene, kinds, with_nodes

from kimi_k3_operator.api import labels
from kimi_k3_operator.inventory.model import ComputeDomainView
from kimi_k3_operator.inventory.selection import COMPUTE_DOMAIN_LABEL
from kimi_k3_operator.plan.actions import Apply

NEW_IMAGE = {"reference": "registry.example/vllm:v2", "engineVersion": "0.30.0"}


SHARED = ComputeDomainView("serving", "shared", "shared-uid", "shared-claims")


def test_the_compute_domain_goes_after_the_last_pod_of_a_group_though_other_pods_stay():
    scene = Scene(deployment(b300(1), gb300(1)), b300_node("b1"), domain("a", free=2))
    scene.settle()
    scene.edit(pools=[b300(1)])
    scene.step()
    assert ("Delete", "ComputeDomain") not in kinds(scene.step().actions)
    scene.schedule()
    assert kinds(scene.step().actions) == [("Delete", "ComputeDomain")]
    assert scene.step().actions == ()


def test_a_missing_api_stalls_its_pool_and_no_other():
    nodes = b300_node("b1"), domain("a", free=2)
    scene = Scene(deployment(b300(1), gb300(1)), *nodes, apis=frozenset({"ComputeDomain"}))
    last = scene.settle()[-1]
    assert scene.replicas() == ("k3-b300-0",)
    assert summary(last, "Stalled") == ("True", "APIMissing")
    assert "LeaderWorkerSet (leaderworkerset.x-k8s.io/v1)" in condition(last, "Ready")["message"]
    assert summary(last, "CapacityAvailable") == ("Unknown", "APIMissing")
    scene.apis = scene.apis | {"LeaderWorkerSet"}
    assert summary(scene.settle()[-1]) == ("True", "AllReplicasReady")


def test_groups_are_not_placed_while_another_instance_plans():
    scene = Scene(deployment(b300(1), gb300(1)), b300_node("b1"), domain("a", free=2))
    scene.planned_by = "operator other-1"
    last = scene.settle()[-1]
    assert scene.replicas() == ("k3-b300-0",)
    assert last.promises == ()
    assert summary(last) == ("False", "PlannedElsewhere")
    assert "waits for placement by operator other-1" in condition(last, "CapacityAvailable")["message"]
    scene.planned_by = ""
    scene.settle()
    scene.planned_by = "operator other-1"
    assert summary(scene.step()) == ("True", "AllReplicasReady")


def test_other_hardware_of_the_same_kind_of_workload_is_an_update_in_place():
    scene = Scene(deployment(b300(1, name="main")), b300_node("b1"), mi350x_node("m1"))
    scene.settle()
    scene.edit(pools=[mi350x(1, name="main")])
    assert summary(scene.settle()[-1]) == ("True", "AllReplicasReady")
    assert scene.replicas() == ("k3-main-0",)
    assert {pod["spec"]["nodeName"] for pod in scene.pods.values()} == {"m1"}


def test_other_hardware_of_another_kind_of_workload_makes_new_replicas():
    scene = Scene(deployment(b300(2, name="main")), b300_node("b1"), b300_node("b2"), domain("a", free=4))
    scene.settle()
    scene.edit(pools=[gb300(2, name="main")])
    scene.step()
    assert len([key for key in scene.objects if key[0] == "Deployment"]) == 1
    assert summary(scene.settle()[-1]) == ("True", "AllReplicasReady")
    workloads = [key for key in scene.objects if key[0] in ("Deployment", "LeaderWorkerSet")]
    assert {kind for kind, _ in workloads} == {"LeaderWorkerSet"}
    scene.edit(pools=[b300(2, name="main")])
    assert summary(scene.settle()[-1]) == ("True", "AllReplicasReady")
    assert ("ComputeDomain", "k3-nvlink") not in scene.objects


def test_other_hardware_takes_no_replica_away_while_its_api_is_missing():
    scene = Scene(deployment(b300(2, name="main")), b300_node("b1"), b300_node("b2"), domain("a", free=4))
    scene.settle()
    scene.apis = frozenset()
    scene.edit(pools=[gb300(2, name="main")])
    scene.step()
    assert len([kind for kind, _ in scene.objects if kind == "Deployment"]) == 2


def test_a_full_rack_rolls_though_more_replicas_are_asked_for_than_fit():
    scene = Scene(deployment(gb300(3)), domain("a", free=4))
    scene.settle()
    old = scene.revisions()
    scene.edit(pools=[gb300(3, drainSeconds=60)])
    scene.settle()
    assert set(scene.revisions()) == set(old)
    assert not set(scene.revisions().values()) & set(old.values())


def test_a_placed_group_stays_where_it_is_whatever_becomes_free():
    scene = Scene(deployment(gb300(1)), domain("a", free=4), domain("b", free=3))
    scene.settle()
    before = scene.objects["LeaderWorkerSet", "k3-gb300-0"]["metadata"]["annotations"][labels.PLACEMENT]
    assert before.endswith("=b")
    with_nodes(scene, *scene.world.nodes, unschedulable=True)
    scene.pods.clear()
    last = scene.settle()[-1]
    assert scene.objects["LeaderWorkerSet", "k3-gb300-0"]["metadata"]["annotations"][labels.PLACEMENT] == before
    assert summary(last) == ("False", "InsufficientCapacity")


def test_two_pools_of_one_deployment_are_never_promised_the_same_nodes():
    scene = Scene(deployment(gb300(2, name="one"), gb300(2, name="two")), domain("a", free=6))
    plan = scene.step()
    assert len(plan.promises) == 3
    assert "k3-two-1: no NVLink domain has 2 free nodes (a: 0)" in condition(plan, "CapacityAvailable")["message"]


def test_promises_to_other_deployments_are_respected():
    scene = Scene(deployment(gb300(2)), domain("a", free=4))
    scene.foreign_promises = (promise("k4-gb300-0", "a"),)
    assert [p.replica for p in scene.step().promises] == ["k3-gb300-0"]


def shared_domain_scene(*parts) -> Scene:
    return Scene(deployment(gb300(1), placement={"computeDomain": {"existing": "shared"}}), *parts)


def test_an_existing_compute_domain_is_waited_for():
    plan = shared_domain_scene(domain("a", free=2)).plan()
    assert "waits for ComputeDomain shared" in condition(plan, "CapacityAvailable")["message"]


def test_an_existing_compute_domain_is_used_and_none_is_made():
    scene = shared_domain_scene(domain("a", free=2))
    scene.world = replace(scene.world, compute_domains=(SHARED,))
    plan = scene.plan()
    assert ("Apply", "ComputeDomain") not in kinds(plan.actions)
    (group,) = [a.manifest for a in plan.actions if isinstance(a, Apply) and a.manifest["kind"] == "LeaderWorkerSet"]
    pod = group["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]
    assert pod["resourceClaims"][0]["resourceClaimTemplateName"] == "shared-claims"


def test_nodes_that_an_existing_compute_domain_holds_count_as_our_own():
    ours = {COMPUTE_DOMAIN_LABEL: SHARED.uid}
    scene = shared_domain_scene(*(gb300_node(f"a{i}", "a", marks=ours) for i in range(2)))
    scene.world = replace(scene.world, compute_domains=(SHARED,))
    assert [p.domain.value for p in scene.plan().promises] == ["a"]


def test_without_a_common_domain_label_the_reason_names_the_labels():
    scene = Scene(deployment(gb300(1)), domain("a", free=2), gb300_node("odd"))
    message = condition(scene.plan(), "CapacityAvailable")["message"]
    assert message.startswith("k3-gb300-0: none of the labels nvidia.com/gpu.clique, ")
    assert message.endswith("is on all 3 nodes of this hardware")
    assert "no node of the cluster fits profile gb300" in condition(Scene(scene.body).plan(), "Ready")["message"]


@given(
    sizes=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 7), max_size=4),
    pools=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    owed=st.lists(st.sampled_from("abcd"), max_size=2),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_in_no_world_is_a_node_promised_twice_or_a_group_split(sizes, pools, owed, seed):
    wanted = [gb300(count, name=f"p{i}") for i, count in enumerate(pools)]
    free = {name: count - 2 * owed.count(name) for name, count in sizes.items()}
    scene = Scene(deployment(*wanted), *(domain(name, free=count) for name, count in sizes.items()))
    scene.foreign_promises = tuple(promise(f"k4-gb300-{i}", name) for i, name in enumerate(owed))
    assert planner().plan(scene.snapshot(shuffle=seed)) == scene.plan()
    first = scene.step()
    for name, count in free.items():
        assert 2 * sum(p.domain.value == name for p in first.promises) <= max(0, count)
    placed = {p.replica: p.domain for p in first.promises}
    said = {r["name"]: r for status in first.pool_statuses.values() for r in status.get("replicaStatuses", ())}
    assert len(said) == sum(pools)
    for replica in set(said) - set(placed):
        assert "NVLink domain" in said[replica]["message"] or "no node of the cluster" in said[replica]["message"]
    scene.schedule()
    assert all(len(nodes) == 1 for nodes in cliques(scene).values())
    again = scene.step()
    assert not again.promises
    assert {name: place_of(scene, name) for name in placed} == {n: f"{d.label}={d.value}" for n, d in placed.items()}


def cliques(scene: Scene) -> dict[str, set[str]]:
    """Replica to the domains of the nodes that its pods are bound to."""
    found: dict[str, set[str]] = {}
    for pod in scene.pods.values():
        node = scene.world.nodes[pod["spec"]["nodeName"]]
        found.setdefault(pod["metadata"]["labels"][labels.REPLICA], set()).add(node.labels[CLIQUE])
    return found


def place_of(scene: Scene, replica: str) -> str:
    return scene.objects["LeaderWorkerSet", replica]["metadata"]["annotations"][labels.PLACEMENT]
