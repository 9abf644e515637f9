from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.factories import NOW, a_pod, b300, b300_node, condition, deployment, domain, gb300, gb300_node, seen
from tests.scene import Scene, with_nodes

from kimi_k3_operator.api import labels
from kimi_k3_operator.plan.status import failure


def replicas(scene: Scene, pool: str = "k3-b300") -> dict[str, dict[str, Any]]:
    entries = scene.plan().pool_statuses[pool].get("replicaStatuses", ())
    return {entry["name"]: entry for entry in entries}


def phase(scene: Scene, name: str = "k3-b300-0") -> tuple[str, str]:
    entry = replicas(scene)[name]
    return entry["phase"], entry.get("message", "")


def running(count: int = 1) -> Scene:
    scene = Scene(deployment(b300(count)), *(b300_node(f"b{i}") for i in range(count)))
    scene.settle()
    return scene


def test_the_life_of_a_replica():
    scene = Scene(deployment(), b300_node("b0"))
    assert phase(scene) == ("Pending", "its workload is being made")
    scene.step()
    assert phase(scene) == ("Scheduling", "its pods are being made and bound")
    scene.schedule()
    assert phase(scene) == ("Starting", "the engine has up to 3600 s from its start to answer")
    scene.ready()
    assert phase(scene) == ("Ready", "")
    scene.step()
    scene.ready(value=False)
    assert phase(scene) == ("NotReady", "its readiness probe fails")


def test_a_pod_that_no_node_takes_says_so():
    scene = Scene(deployment())
    scene.step()
    scene.schedule()
    assert phase(scene) == ("Scheduling", "no node fits")


def broken(scene: Scene, reason: str = "CrashLoopBackOff") -> None:
    waiting = {"name": "engine", "state": {"waiting": {"reason": reason, "message": "back-off 5m0s"}}}
    for pod in scene.pods.values():
        pod["status"] |= {"conditions": [], "containerStatuses": [waiting]}


def test_a_failing_engine_is_told_in_the_kubelets_words():
    scene = running()
    broken(scene)
    name, message = phase(scene)
    assert name == "Failed"
    assert message.endswith(": engine: CrashLoopBackOff: back-off 5m0s")
    assert "engine: CrashLoopBackOff" in condition(scene.plan(), "Ready")["message"]


def test_a_pod_that_goes_away_or_only_waits_is_no_failure():
    crashing = a_pod("p", trouble="engine: CrashLoopBackOff: x")
    replica = replace(seen(0), pods=(crashing,))
    assert failure(replica) == "p: engine: CrashLoopBackOff: x"
    assert failure(replace(replica, pods=(replace(crashing, terminating=True),))) is None
    assert failure(replace(replica, pods=(replace(crashing, unschedulable=True),))) is None
    assert failure(replace(replica, pods=(a_pod("p", trouble="engine: Error: x"),))) is None
    assert len(failure(replace(replica, pods=(replace(crashing, trouble="CrashLoopBackOff " * 99),))) or "") == 400


def test_a_pod_that_restarted_twice_fails_also_while_it_runs_for_a_moment():
    replica = replace(seen(0), pods=(a_pod("p", restarts=2),))
    assert failure(replica) == "p: restarted 2 times"
    assert failure(replace(replica, pods=(a_pod("p", restarts=1),))) is None
    assert failure(replace(replica, pods=(a_pod("p", restarts=2, ready=True),))) is None


def test_a_draining_engine_of_the_previous_revision_is_an_update():
    scene = running()
    scene.edit(pools=[b300(1, drainSeconds=60)])
    scene.step()
    assert phase(scene) == ("Updating", "the engine of the previous revision is draining")


def test_a_replica_of_the_previous_revision_waits_for_its_turn():
    scene = running(2)
    scene.edit(pools=[b300(2, drainSeconds=60)])
    scene.step()
    assert phase(scene) == ("Ready", "waits for its turn in the rollout")


def test_a_replica_that_is_given_up_is_terminating():
    scene = running(2)
    scene.objects["Deployment", "k3-b300-1"]["metadata"]["deletionTimestamp"] = NOW
    assert phase(scene, "k3-b300-1")[0] == "Terminating"


def test_since_is_when_the_replica_entered_its_phase():
    scene = running()
    then = "2026-01-01T00:30:00Z"
    scene.objects["KimiK3Pool", "k3-b300"]["status"]["replicaStatuses"][0]["since"] = then
    assert replicas(scene)["k3-b300-0"]["since"] == then
    scene.ready(value=False)
    assert replicas(scene)["k3-b300-0"]["since"] == NOW


def test_replicas_are_listed_by_ordinal_with_node_revision_and_image():
    scene = running(11)
    for pod in scene.pods.values():
        pod["status"]["containerStatuses"] = [{"name": "engine", "imageID": "vllm@sha256:1"}]
    found = replicas(scene)
    assert list(found) == [f"k3-b300-{i}" for i in range(11)]
    entry = found["k3-b300-10"]
    assert (entry["nodes"], entry["image"]) == (["b10"], "vllm@sha256:1")
    assert entry["revision"] == scene.revisions()["k3-b300-10"]


def test_groups_tell_their_domain_and_what_is_free_in_each():
    scene = Scene(deployment(gb300(1)), domain("a", free=3), domain("b", free=1, busy=1))
    scene.settle()
    status = scene.plan().pool_statuses["k3-gb300"]
    assert status["replicaStatuses"][0]["domain"] == "a"
    assert status["replicaStatuses"][0]["nodes"] == ["a-00", "a-01"]
    assert status["domains"] == [
        {"name": "a", "freeNodes": 1, "nodes": 3},
        {"name": "b", "freeNodes": 1, "nodes": 2},
    ]


def test_the_pool_status_carries_what_an_autoscaler_reads():
    status = running(2).plan().pool_statuses["k3-b300"]
    assert (status["replicas"], status["readyReplicas"]) == (2, 2)
    assert status["selector"] == f"{labels.DEPLOYMENT}=k3,{labels.POOL}=b300,{labels.SERVES_HTTP}=true"


def test_a_deployment_status_sums_up_each_pool():
    (pool,) = running().plan().status["pools"]
    assert (pool["name"], pool["profile"], pool["desired"], pool["ready"]) == ("b300", "b300/1", 1, 1)
    assert pool["speculation"].startswith("off: ")


def test_two_pools_of_one_hardware_are_counted_together():
    scene = Scene(deployment(b300(1, name="one"), b300(2, name="two")))
    assert scene.plan().status["hardware"] == "3 x B300"


def test_a_long_reason_is_cut_to_what_a_status_holds():
    names = [f"{i}" + "x" * 62 for i in range(9)]
    scene = Scene(deployment(gb300(1)), *(gb300_node(f"n{i}", name) for i, name in enumerate(names)))
    assert len(replicas(scene, "k3-gb300")["k3-gb300-0"]["message"]) == 512


def test_a_cordoned_node_takes_no_replica_from_its_pool():
    scene = running()
    with_nodes(scene, "b0", unschedulable=True)
    assert phase(scene) == ("Ready", "")
