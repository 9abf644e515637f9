from __future__ import annotations

from dataclasses import replace

from tests.factories import NAMESPACE, a_pod, child, seen

from kimi_k3_operator.api import labels
from kimi_k3_operator.compile.replica import PoolKey, Replica
from kimi_k3_operator.inventory.model import DomainPlacement
from kimi_k3_operator.plan.replicas import new_replicas, observe, selector_text, victims

KEY = PoolKey(NAMESPACE, "k3", "b300")


def workload(name: str, kind: str = "Deployment", pool: str = "b300", **annotations: str):
    mine = {labels.POOL: pool, labels.REPLICA: name}
    return child(kind, name, mine=mine, metadata={"annotations": annotations, "labels": mine})


def test_gaps_in_the_ordinals_are_filled_lowest_first():
    taken = [Replica(KEY, 0), Replica(KEY, 3)]
    assert [replica.ordinal for replica in new_replicas(KEY, taken, 3)] == [1, 2, 4]
    assert new_replicas(KEY, taken, 0) == ()


def test_those_that_do_not_serve_are_given_up_first_then_the_highest_ordinals():
    pool = [seen(0), seen(1, ready=False), seen(2), seen(10)]
    assert [gone.replica.ordinal for gone in victims(pool, 3)] == [1, 10, 2]


def test_replicas_are_observed_in_the_order_of_their_ordinals():
    found = observe(KEY, [workload("k3-b300-10"), workload("k3-b300-2")], [])
    assert [s.name for s in found] == ["k3-b300-2", "k3-b300-10"]


def test_children_that_are_no_workload_of_the_pool_are_no_replica():
    others = [
        workload("k3-gb300-0", pool="gb300"),
        workload("k3-b300-x"),
        workload("k3-b300-0", kind="Service"),
        child("Deployment", "k3-b300-envoy", mine={labels.POOL: "b300"}),
    ]
    assert observe(KEY, others, []) == ()


def test_a_replica_is_ready_when_all_its_pods_of_its_revision_are():
    group = seen(0, "k3-gb300-new", group=True)
    leader, worker = group.pods
    assert group.ready
    assert not replace(group, pods=(leader,)).ready
    assert not replace(group, pods=(leader, replace(worker, ready=False))).ready
    assert not replace(group, pods=(leader, replace(worker, terminating=True))).ready
    assert not replace(group, pods=(leader, replace(worker, revision="old"))).ready
    assert not replace(group, workload=replace(group.workload, terminating=True)).ready


def test_a_replica_knows_its_nodes_revision_and_place():
    pods = [
        a_pod("p1", "k3-gb300-0", node="b"),
        a_pod("p0", "k3-gb300-0", node="a"),
        a_pod("px", "k3-gb300-0", node="c", terminating=True),
        a_pod("other", "k3-gb300-1", node="d"),
    ]
    made = workload(
        "k3-gb300-0", "LeaderWorkerSet", "gb300", **{labels.REVISION: "k3-gb300-r1", labels.PLACEMENT: "clique=a.1"}
    )
    (found,) = observe(PoolKey(NAMESPACE, "k3", "gb300"), [made], pods)
    assert found.nodes == ("a", "b")
    assert found.revision == "k3-gb300-r1"
    assert found.placement == DomainPlacement("clique", "a.1")
    assert (found.size, found.terminating) == (2, False)


def test_a_selector_is_written_in_the_order_of_its_keys():
    assert selector_text({"b": "2", "a": "1"}) == "a=1,b=2"
