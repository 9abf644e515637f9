from __future__ import annotations

from typing import Any

import pytest

from kimi_k3_operator.api import labels
from kimi_k3_operator.inventory.model import ComputeDomainView, DomainPlacement, PodView, Promise, Taint
from kimi_k3_operator.inventory.parse import (
    parse_compute_domain,
    parse_node,
    parse_pod,
    parse_promise,
    parse_snapshot,
)
from kimi_k3_operator.plan.snapshot import parse_child

MINE = labels.replica_labels("k3", "b300", "k3-b300-0") | {labels.REVISION: "abc", labels.SERVES_HTTP: "true"}


def node(**status: Any) -> dict[str, Any]:
    return {"kind": "Node", "metadata": {"name": "n"}, "status": status}


def gpus(count: int, resource: str = "nvidia.com/gpu", field: str = "limits") -> dict[str, Any]:
    return {"name": "c", "resources": {field: {resource: str(count)}}}


def pod(*containers: Any, mine: dict[str, str] | None = None, **status: Any) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ns", "labels": mine or {}, "uid": "u", "creationTimestamp": "t"},
        "spec": {"nodeName": "n", "containers": list(containers)},
        "status": status,
    }


def ours(**status: Any) -> PodView:
    found = parse_pod(pod(gpus(8), mine=MINE, **status))
    assert found is not None
    return found


def test_a_node_is_reduced_to_what_decisions_need():
    body = {
        "metadata": {"name": "n", "labels": {"a": "b"}},
        "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"nvidia.com/gpu": "8", "cpu": "100m", "amd.com/gpu": "x"},
        },
    }
    view = parse_node(body)
    assert (view.name, view.labels, view.ready, view.unschedulable) == ("n", {"a": "b"}, True, True)
    assert view.taints == (Taint("k", "", "NoSchedule"),)
    assert view.gpus == {"nvidia.com/gpu": 8}


@pytest.mark.parametrize("status", [{}, {"conditions": [{"type": "Ready", "status": "Unknown"}]}])
def test_a_node_that_does_not_say_that_it_is_ready_is_not(status: dict[str, Any]):
    view = parse_node(node(**status))
    assert not view.ready
    assert view.gpus == {}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_is_passed_over(phase: str):
    assert parse_pod(pod(gpus(8), mine=MINE, phase=phase)) is None


def test_a_pod_of_others_counts_only_if_it_asks_for_gpus():
    assert parse_pod(pod({"name": "c"})) is None
    assert parse_pod(pod(gpus(4))) == PodView("ns", "p", "n", 4)


def test_gpus_are_those_of_all_containers_or_of_the_largest_init_container():
    body = pod(gpus(2), gpus(2, "amd.com/gpu", "requests"))
    assert parse_pod(body).gpus == 4  # type: ignore[union-attr]
    body["spec"]["initContainers"] = [gpus(1), gpus(8)]
    assert parse_pod(body).gpus == 8  # type: ignore[union-attr]


def test_a_pod_of_ours_tells_what_it_belongs_to():
    view = ours(phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    assert (view.deployment, view.pool, view.role, view.replica, view.revision) == (
        "k3",
        "b300",
        "",
        "k3-b300-0",
        "abc",
    )
    assert (view.serves_http, view.ready, view.phase, view.uid, view.since) == (True, True, "Running", "u", "t")
    assert (view.terminating, view.unschedulable, view.trouble, view.image) == (False, False, "", "")


def test_a_pod_of_ours_without_gpus_is_still_seen():
    found = parse_pod(pod({"name": "engine"}, mine=MINE))
    assert found is not None
    assert found.gpus == 0


def test_a_pod_with_a_deletion_timestamp_is_terminating():
    body = pod(gpus(8), mine=MINE)
    body["metadata"]["deletionTimestamp"] = "t"
    assert parse_pod(body).terminating  # type: ignore[union-attr]


def test_an_unschedulable_pod_says_so_in_the_schedulers_words():
    view = ours(
        conditions=[
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
        ]
    )
    assert (view.unschedulable, view.trouble) == (True, "0/3 nodes are available")
    gated = ours(conditions=[{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}])
    assert not gated.unschedulable


def engine(**state: Any) -> dict[str, Any]:
    return {"name": "engine", "imageID": "vllm@sha256:1", "restartCount": 2, **state}


def exited(code: int, **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, **more}}


@pytest.mark.parametrize(
    ("container", "trouble"),
    [
        (engine(state={"running": {}}), ""),
        (engine(state={"waiting": {"reason": "ContainerCreating"}}), ""),
        (engine(state={"waiting": {"reason": "PodInitializing"}}), ""),
        (
            engine(state={"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}),
            "engine: ImagePullBackOff: not found",
        ),
        (engine(state={"waiting": {"reason": "ErrImagePull"}}), "engine: ErrImagePull"),
        (
            engine(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=exited(1, message="no GPU\n")),
            "engine: CrashLoopBackOff: no GPU",
        ),
        (
            engine(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=exited(137)),
            "engine: CrashLoopBackOff: exit code 137",
        ),
        (engine(state=exited(1, message="no shard", reason="Error")), "engine: Error: no shard"),
        (engine(state=exited(0, message="done")), ""),
        (engine(state={"running": {}}, lastState=exited(1, message="earlier")), "engine: Error: earlier"),
    ],
)
def test_what_keeps_a_container_from_running_is_told(container: dict[str, Any], trouble: str):
    assert ours(containerStatuses=[container]).trouble == trouble


def test_an_init_container_is_looked_at_first_and_restarts_add_up():
    check = {"name": "preflight", "restartCount": 3, "state": exited(1, message="no weights")}
    view = ours(initContainerStatuses=[check], containerStatuses=[engine()])
    assert view.trouble == "preflight: Error: no weights"
    assert (view.restarts, view.image) == (5, "vllm@sha256:1")


def group(placement: str | None = "clique=a.1", size: int | None = 2) -> dict[str, Any]:
    notes = {labels.PLACEMENT: placement} if placement is not None else {}
    mine = labels.replica_labels("k3", "gb300", "k3-gb300-0")
    template = {"size": size} if size is not None else {}
    return {
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "w", "namespace": "ns", "annotations": notes, "labels": mine},
        "spec": {"leaderWorkerTemplate": template},
    }


def test_a_pinned_group_is_a_promise():
    expected = Promise("ns", "k3", "k3-gb300-0", DomainPlacement("clique", "a.1"), 2)
    assert parse_promise(group()) == expected
    assert parse_promise(group(size=None)).nodes == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("placement", [None, "", "clique", "clique="])
def test_a_group_without_a_domain_promises_nothing(placement: str | None):
    assert parse_promise(group(placement)) is None


def compute_domain() -> dict[str, Any]:
    return {
        "kind": "ComputeDomain",
        "metadata": {"name": "d", "namespace": "ns", "uid": "u"},
        "spec": {"channel": {"resourceClaimTemplate": {"name": "t"}}},
    }


def test_a_compute_domain_tells_its_claim_template():
    assert parse_compute_domain(compute_domain()) == ComputeDomainView("ns", "d", "u", "t")
    assert parse_compute_domain({"metadata": {"name": "d"}}).claim_template == ""


def test_a_list_of_objects_becomes_an_inventory():
    found = parse_snapshot(
        [node(), pod(gpus(8)), pod({"name": "c"}), group(), group(None), compute_domain(), {"kind": "Service"}]
    )
    assert list(found.nodes) == ["n"]
    assert [view.gpus for view in found.pods] == [8]
    assert [p.replica for p in found.promises] == ["k3-gb300-0"]
    assert [d.name for d in found.compute_domains] == ["d"]
    assert found.busy_nodes() == {"n"}


def test_a_child_keeps_what_passes_compare_and_no_more():
    body = {
        "kind": "Service",
        "metadata": {
            "name": "s",
            "uid": "u",
            "resourceVersion": "7",
            "labels": MINE,
            "annotations": {"a": "b"},
            "managedFields": [{}],
            "deletionTimestamp": "t",
            "ownerReferences": [{"uid": "o"}, {}],
        },
        "spec": {"x": 1},
        "status": {"y": 2},
    }
    child = parse_child(body, "Service")
    assert (child.identity, child.uid, child.resource_version) == (("Service", "s"), "u", "7")
    assert (child.terminating, child.owners) == (True, ("o", ""))
    assert (child.pool, child.role, child.replica) == ("b300", "", "k3-b300-0")
    assert (child.annotation("a"), child.annotation("z")) == ("b", "")
    assert set(child.body) == {"kind", "metadata", "spec"}
    assert "managedFields" not in child.body["metadata"]
    assert child.status == {}
    assert parse_child(body, "KimiK3Pool").status == {"y": 2}
