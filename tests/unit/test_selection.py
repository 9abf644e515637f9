from __future__ import annotations

import pytest
from tests.factories import (
    CLIQUE,
    NAMESPACE,
    a_pod,
    b300_node,
    cluster,
    domain,
    gb300_node,
    mi350x_node,
    planner,
    pool,
    promise,
    taint,
)

from kimi_k3_operator.api.v1alpha1 import Pool
from kimi_k3_operator.inventory.model import Inventory, NodeView
from kimi_k3_operator.inventory.selection import (
    COMPUTE_DOMAIN_LABEL,
    DRIVER_UPGRADE,
    NodeNeeds,
    domain_label,
    domains,
    free_nodes,
    needs_of,
)


def needs(profile: str = "gb300", **scheduling) -> NodeNeeds:
    written = pool(profile, scheduling=scheduling) if scheduling else pool(profile)
    return needs_of(Pool.model_validate(written), planner().catalog.newest_stable(profile).hardware)


def free(inventory: Inventory, own: str | None = None, wanted: NodeNeeds | None = None) -> dict[str, int]:
    states = domains(inventory, wanted or needs(), CLIQUE, own)
    return {found.placement.value: found.free for found in states}


def test_free_nodes_are_counted_by_domain():
    assert free(cluster(domain("b", free=1, busy=1), domain("a", free=2, cordoned=1))) == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    ("why", "node"),
    [
        ("not ready", gb300_node("n", "a", ready=False)),
        ("cordoned", gb300_node("n", "a", unschedulable=True)),
        ("3 of 4 GPUs", gb300_node("n", "a", gpus=3)),
        ("0 of 4 GPUs", gb300_node("n", "a", gpus=0)),
        ("driver upgrade", gb300_node("n", "a", marks={DRIVER_UPGRADE: "drain-required"})),
        ("taint maintenance", gb300_node("n", "a", taints=(taint("maintenance"),))),
        ("taint maintenance", gb300_node("n", "a", taints=(taint("maintenance", "NoExecute"),))),
    ],
)
def test_an_obstacle_is_said_and_the_node_counts_as_taken(why: str, node: NodeView):
    assert needs().is_candidate(node)
    assert needs().obstacle(node) == why
    assert free(cluster(node)) == {"a": 0}


@pytest.mark.parametrize(
    "node",
    [
        gb300_node("n", "a", taints=(taint("nvidia.com/gpu", value="present"),)),
        gb300_node("n", "a", taints=(taint("kubernetes.io/arch", value="arm64"),)),
        gb300_node("n", "a", taints=(taint("maintenance", "PreferNoSchedule"),)),
        gb300_node("n", "a", marks={DRIVER_UPGRADE: "upgrade-done"}),
    ],
)
def test_what_the_profile_tolerates_is_no_obstacle(node: NodeView):
    assert needs().obstacle(node) is None


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "team", "operator": "Exists"}, True),
        ({"key": "team", "value": "k3"}, True),
        ({"key": "team", "value": "k3", "effect": "NoSchedule"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "team", "value": "other"}, False),
        ({"key": "team", "value": "k3", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_a_pool_tolerates_what_its_scheduling_says(toleration: dict, tolerated: bool):
    node = gb300_node("n", "a", taints=(taint("team", value="k3"),))
    assert (needs(tolerations=[toleration]).obstacle(node) is None) is tolerated


@pytest.mark.parametrize(
    "node",
    [
        gb300_node("n", marks={"nvidia.com/gpu.product": "NVIDIA-GB300-MIG-1g.34gb"}),
        gb300_node("n", marks={"nvidia.com/gpu.product": "NVIDIA-GB300-WS"}),
        gb300_node("n", marks={"kubernetes.io/arch": "amd64"}),
        b300_node("n"),
        mi350x_node("n"),
        NodeView("n", {}, True, False, (), {}),
    ],
)
def test_other_hardware_is_no_candidate(node: NodeView):
    assert not needs().is_candidate(node)


def test_a_node_selector_narrows_the_candidates():
    wanted = needs(nodeSelector={"zone": "x"})
    nodes = cluster(gb300_node("in", "a", marks={"zone": "x"}), gb300_node("out", "a"))
    assert free(nodes, wanted=wanted) == {"a": 1}


def test_a_node_is_known_by_any_of_the_profiles_labels():
    droplet = {"doks.digitalocean.com/gpu-brand": "nvidia", "doks.digitalocean.com/gpu-model": "b300"}
    assert needs("b300").is_candidate(NodeView("n", {"kubernetes.io/arch": "amd64"} | droplet, True, False, (), {}))
    half = {"kubernetes.io/arch": "amd64", "doks.digitalocean.com/gpu-brand": "nvidia"}
    assert not needs("b300").is_candidate(NodeView("n", half, True, False, (), {}))


def test_whole_free_nodes_of_single_node_hardware_are_counted():
    inventory = cluster(b300_node("b1"), b300_node("b2"), b300_node("b3", ready=False), mi350x_node("m"))
    held = cluster(inventory, pods=[a_pod("p", "k3-b300-0", node="b1")])
    assert (free_nodes(inventory, needs("b300")), free_nodes(held, needs("b300"))) == (2, 1)


def test_a_node_that_a_foreign_compute_domain_holds_is_not_free_and_its_domain_is_shared():
    node = gb300_node("n", "a", marks={COMPUTE_DOMAIN_LABEL: "theirs"})
    (found,) = domains(cluster(node, gb300_node("m", "a")), needs(), CLIQUE, "ours")
    assert (found.free, found.nodes, found.shared) == (1, 2, True)


def test_a_node_that_our_own_compute_domain_holds_is_free():
    node = gb300_node("n", "a", marks={COMPUTE_DOMAIN_LABEL: "ours"})
    (found,) = domains(cluster(node), needs(), CLIQUE, "ours")
    assert (found.free, found.shared) == (1, False)


def test_a_terminating_pod_still_holds_its_node():
    going = a_pod("p", "k3-gb300-0", node="a-00", terminating=True)
    assert free(cluster(domain("a", free=4), pods=[going])) == {"a": 3}


def test_a_pod_without_gpus_holds_nothing():
    assert free(cluster(domain("a", free=2), pods=[a_pod("p", node="a-00", gpus=0)])) == {"a": 2}


def test_a_promise_counts_until_its_pods_are_bound():
    owed = promise("k4-gb300-0", "a")
    world = cluster(domain("a", free=6), promises=[owed])
    assert free(world) == {"a": 4}
    leader = a_pod("l", "k4-gb300-0", node="a-00")
    assert free(cluster(world, pods=[leader], promises=[owed])) == {"a": 4}
    worker = a_pod("w", "k4-gb300-0", node="a-01")
    assert free(cluster(world, pods=[leader, worker], promises=[owed])) == {"a": 4}


def test_a_promise_in_another_domain_takes_nothing():
    assert free(cluster(domain("a", free=2), domain("b", free=2), promises=[promise("k3-gb300-0", "b")])) == {
        "a": 2,
        "b": 0,
    }


def test_pods_of_a_namesake_that_is_going_away_do_not_bind_the_new_replicas_promise():
    old = [a_pod(f"p{i}", "k3-gb300-0", node=f"a-0{i}", terminating=True) for i in range(2)]
    world = cluster(domain("a", free=2), domain("b", free=2), pods=old, promises=[promise("k3-gb300-0", "b")])
    assert free(world) == {"a": 0, "b": 0}


def test_a_promise_counts_also_where_another_label_names_its_domain():
    nodes = [gb300_node(f"n{i}", "a", marks={"rack": "r1"}) for i in range(4)]
    world = cluster(*nodes, promises=[promise("k4-gb300-0", "r1", label="rack")])
    assert free(world) == {"a": 2}
    bound = [a_pod(f"p{i}", "k4-gb300-0", node=f"n{i}") for i in range(2)]
    assert free(cluster(world, pods=bound, promises=world.promises)) == {"a": 2}


def test_a_promise_bound_in_one_domain_owes_nothing_in_another_that_its_label_spans():
    nodes = [gb300_node(f"{d}{i}", d, marks={"row": "1"}) for d in "ab" for i in range(2)]
    bound = [a_pod(f"p{i}", "k4-gb300-0", node=f"a{i}") for i in range(2)]
    world = cluster(*nodes, pods=bound, promises=[promise("k4-gb300-0", "1", label="row")])
    assert free(world) == {"a": 0, "b": 2}


def test_pods_of_a_namesake_in_another_namespace_do_not_bind_a_promise():
    foreign = [a_pod(f"p{i}", "k3-gb300-0", node=f"a-0{i}", namespace="elsewhere") for i in range(2)]
    assert free(cluster(domain("a", free=4), pods=foreign, promises=[promise("k3-gb300-0", "a")])) == {"a": 0}


def test_the_same_promise_given_twice_counts_once():
    owed = promise("k3-gb300-0", "a")
    world = cluster(domain("a", free=6), promises=[owed]).with_promises([owed, promise("k3-gb300-1", "a")])
    assert free(world) == {"a": 2}
    assert {p.namespace for p in world.promises} == {NAMESPACE}


def test_the_domain_label_is_the_first_that_all_candidate_nodes_carry():
    second = "cloud.google.com/gce-topology-subblock"
    both = [gb300_node(f"n{i}", "a", marks={second: "s"}) for i in range(2)]
    assert domain_label(cluster(*both, b300_node("b")), needs(), None) == CLIQUE
    assert domain_label(cluster(*both, gb300_node("x", marks={second: "s"})), needs(), None) == second
    assert domain_label(cluster(*both, gb300_node("x")), needs(), None) is None
    assert domain_label(cluster(), needs(), None) is None
    assert domain_label(cluster(*both), needs(), "rack") == "rack"


def test_a_domain_has_only_the_nodes_that_carry_its_label():
    inventory = cluster(gb300_node("n", "a"), gb300_node("m"))
    assert [(d.placement.value, d.nodes) for d in domains(inventory, needs(), CLIQUE)] == [("a", 1)]
