from __future__ import annotations

from dataclasses import replace

from tests.factories import GROUP_APIS, UID, a_pod, child, deployment

from kimi_k3_operator.plan.snapshot import Snapshot
from kimi_k3_operator.plan.teardown import Teardown, teardown

GROUP, POOL, DOMAIN = (child(kind, kind.lower()) for kind in ("LeaderWorkerSet", "KimiK3Pool", "ComputeDomain"))


def world(*children, pods=(), finalizers=("kimik3.dev/teardown",), apis=GROUP_APIS) -> Snapshot:
    body = deployment()
    body["metadata"] |= {"deletionTimestamp": "2026-01-01T02:00:00Z", "finalizers": list(finalizers)}
    return Snapshot(body=body, children=children, pods=tuple(pods), apis=apis)


def deleted(step: Teardown) -> list[str]:
    return [deletion.kind for deletion in step.deletions]


def test_everything_but_the_compute_domain_goes_first():
    step = teardown(world(GROUP, POOL, DOMAIN))
    assert deleted(step) == ["LeaderWorkerSet", "KimiK3Pool"]
    assert step.waits_for == "2 children and 0 pods"


def test_the_compute_domain_waits_for_the_pods():
    draining = teardown(world(DOMAIN, pods=[a_pod("p", terminating=True)]))
    assert deleted(draining) == []
    assert draining.waits_for == "0 children and 1 pods"
    assert not draining.leftover_groups
    last = teardown(world(DOMAIN))
    assert deleted(last) == ["ComputeDomain"]
    assert last.waits_for == "the ComputeDomain"


def test_a_child_that_is_going_is_waited_for_and_not_deleted_again():
    step = teardown(world(replace(GROUP, terminating=True), POOL))
    assert deleted(step) == ["KimiK3Pool"]
    assert step.waits_for == "2 children and 0 pods"
    assert teardown(world(replace(DOMAIN, terminating=True))) == Teardown((), "the ComputeDomain")


def test_nothing_left_ends_it():
    assert teardown(world()) == Teardown((), "")


def test_a_deletion_names_the_very_object_it_has_seen():
    (deletion,) = teardown(world(POOL)).deletions
    assert (deletion.name, deletion.uid, deletion.resource_version) == ("kimik3pool", POOL.uid, "5")


def test_only_children_of_this_very_deployment_are_deleted():
    foreign = child("Service", "s", owner="another"), child("Service", "t", owner=None)
    assert teardown(world(*foreign, pods=[a_pod("p")])) == Teardown((), "")
    assert deleted(teardown(world(*foreign, child("Service", "u", owner=UID)))) == ["Service"]


def test_an_orphan_deletion_waits_for_the_garbage_collector():
    step = teardown(world(GROUP, finalizers=("orphan", "kimik3.dev/teardown")))
    assert step.deletions == ()
    assert "garbage collector" in step.waits_for


def test_pods_that_remain_without_the_group_api_are_told():
    assert teardown(world(DOMAIN, pods=[a_pod("p")], apis=frozenset())).leftover_groups
    assert not teardown(world(DOMAIN, apis=frozenset())).leftover_groups
