"""What the LeaderWorkerSet stand-in decides, one rule at a time."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.harness.kube import Object
from tests.harness.leaderworkerset_objects import (
    GROUP_KEY,
    REVISION,
    controller_revision,
    leader_set,
    revision_content,
    revision_hash,
    worker_set,
)
from tests.harness.leaderworkerset_plan import Observed, Plan, plan

PREFIX = "leaderworkerset.sigs.k8s.io/"
NOW = "2026-11-30T20:00:00Z"


def lws(*, name: str = "k3", replicas: int = 1, size: int = 2, image: str = "engine:1", **spec: Any) -> Object:
    """A LeaderWorkerSet as the API server returns it."""
    pod = {"metadata": {"labels": {"role": "decode"}}, "spec": {"containers": [{"name": "vllm", "image": image}]}}
    restart = spec.pop("restart", "RecreateGroupOnPodRestart")
    subdomain = spec.pop("subdomain", "Shared")
    rolling = {"partition": 0, "maxUnavailable": 1, "maxSurge": 0, **spec.pop("rolling", {})}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "namespace": "llm", "uid": f"uid-{name}", "generation": 1, "labels": {"team": "a"}},
        "spec": {
            "replicas": replicas,
            "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdateConfiguration": rolling},
            "networkConfig": {"subdomainPolicy": subdomain},
            "leaderWorkerTemplate": {
                "size": size,
                "restartPolicy": restart,
                "leaderTemplate": copy.deepcopy(pod),
                "workerTemplate": copy.deepcopy(pod),
            },
            **spec,
        },
    }


def digest_of(obj: Object) -> str:
    return revision_hash(revision_content(obj))


def running(pod: Object, *, ready: bool = True, restarts: int = 0, phase: str = "Running") -> Object:
    pod["status"] = {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        "containerStatuses": [{"name": "vllm", "restartCount": restarts}],
    }
    return pod


def terminating(obj: Object) -> Object:
    obj = copy.deepcopy(obj)
    obj["metadata"]["deletionTimestamp"] = NOW
    return obj


def pods_of(template: Object, owner: Object, names: list[str], **labels: str) -> list[Object]:
    pods = []
    for name in names:
        pod: Object = copy.deepcopy(template)
        reference = {"kind": owner["kind"], "uid": owner["metadata"]["uid"], "controller": True}
        pod["metadata"] |= {"name": name, "namespace": "llm", "uid": f"uid-{name}", "ownerReferences": [reference]}
        pod["metadata"]["labels"] |= labels
        pods.append(running(pod))
    return pods


def settled(obj: Object) -> Observed:
    """The world in which `obj` is fully rolled out and ready."""
    name, size, replicas = obj["metadata"]["name"], obj["spec"]["leaderWorkerTemplate"]["size"], obj["spec"]["replicas"]
    content = revision_content(copy.deepcopy(obj))
    leaders = leader_set(obj, content, revision_hash(content), partition=0, max_unavailable=1)
    leaders["metadata"]["uid"] = f"uid-{name}-leaders"
    leaders["status"] = {"replicas": replicas}
    seen = Observed(obj, sets=[leaders], pods=[], revisions=[controller_revision(obj, content, number=1)])
    for index in range(replicas):
        leader_name = f"{name}-{index}"
        (leader,) = pods_of(leaders["spec"]["template"], leaders, [leader_name])
        workers = worker_set(obj, leader, content)
        workers["metadata"]["uid"] = f"uid-set-{leader_name}"
        workers["status"] = {"availableReplicas": size - 1}
        group = {key: workers["metadata"]["labels"][key] for key in (PREFIX + "group-index", GROUP_KEY)}
        leader["metadata"]["labels"] |= group
        seen.pods.append(leader)
        if size > 1:
            seen.sets.append(workers)
            names = [f"{leader_name}-{number}" for number in range(1, size)]
            seen.pods.extend(pods_of(workers["spec"]["template"], workers, names))
    first = plan(seen, now=NOW)
    obj["status"] = first.status
    return Observed(**{**vars(seen), "services": first.create})


def pod_named(seen: Observed, name: str) -> Object:
    return next(pod for pod in seen.pods if pod["metadata"]["name"] == name)


def set_named(seen: Observed, name: str) -> Object:
    return next(one for one in seen.sets if one["metadata"]["name"] == name)


def created(todo: Plan) -> dict[str, Object]:
    return {f"{body['kind']} {body['metadata']['name']}": body for body in todo.create}


def blamed(todo: Plan) -> list[tuple[str, str]]:
    return [(one.leader["metadata"]["name"], one.blame["metadata"]["name"]) for one in todo.recreate]


def truths(status: Object | None) -> dict[str, str]:
    assert status is not None
    return {condition["type"]: condition["status"] for condition in status["conditions"]}


def test_a_new_object_gets_a_revision_a_headless_service_and_the_leaders():
    obj = lws()
    todo = plan(Observed(obj), now=NOW)
    assert list(created(todo)) == [f"ControllerRevision k3-{digest_of(obj)}-1", "Service k3"]
    service = created(todo)["Service k3"]
    assert service["spec"] == {
        "clusterIP": "None", "selector": {PREFIX + "name": "k3"}, "publishNotReadyAddresses": True,
    }  # fmt: skip
    (leaders,) = todo.apply
    assert leaders["spec"]["updateStrategy"]["rollingUpdate"]["partition"] == 0
    assert leaders["metadata"]["labels"] == {"team": "a", PREFIX + "name": "k3", REVISION: digest_of(obj)}
    assert leaders["spec"]["template"]["metadata"] == {
        "labels": {"role": "decode", PREFIX + "name": "k3", PREFIX + "worker-index": "0", REVISION: digest_of(obj)},
        "annotations": {PREFIX + "size": "2"},
    }
    assert truths(todo.status) == {"Progressing": "True"}


def test_a_settled_object_needs_nothing():
    seen = settled(lws(replicas=2))
    assert plan(seen, now="2027-01-01T00:00:00Z") == Plan(status=seen.lws["status"])
    assert seen.lws["status"] == {
        "replicas": 2,
        "readyReplicas": 2,
        "updatedReplicas": 2,
        "hpaPodSelector": f"{PREFIX}name=k3,{PREFIX}worker-index=0",
        "observedGeneration": 1,
        "conditions": seen.lws["status"]["conditions"],
    }
    assert truths(seen.lws["status"]) == {"Available": "True"}


def test_the_workers_belong_to_the_leader_pod_and_start_at_one():
    seen = settled(lws(size=3))
    seen.sets.remove(set_named(seen, "k3-0"))
    workers = created(plan(seen, now=NOW))["StatefulSet k3-0"]
    (owner,) = workers["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "v1", "kind": "Pod", "name": "k3-0", "uid": "uid-k3-0",
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    assert (workers["spec"]["replicas"], workers["spec"]["ordinals"]) == (2, {"start": 1})
    assert workers["spec"]["selector"]["matchLabels"] == {
        PREFIX + "name": "k3",
        PREFIX + "group-index": "0",
        GROUP_KEY: pod_named(seen, "k3-0")["metadata"]["labels"][GROUP_KEY],
    }
    assert workers["spec"]["template"]["metadata"]["annotations"] == {
        PREFIX + "size": "3", PREFIX + "leader-name": "k3-0",
    }  # fmt: skip


def test_the_worker_template_is_that_of_the_leaders_revision():
    seen = settled(lws(image="engine:1"))
    seen.sets.remove(set_named(seen, "k3-0"))
    seen.lws["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]["image"] = "engine:2"
    workers = created(plan(seen, now=NOW))["StatefulSet k3-0"]
    assert workers["spec"]["template"]["spec"]["containers"][0]["image"] == "engine:1"
    assert not created(plan(Observed(seen.lws, sets=seen.sets, pods=seen.pods), now=NOW)).get("StatefulSet k3-0")


def test_leader_ready_holds_the_workers_back():
    seen = settled(lws(startupPolicy="LeaderReady"))
    seen.sets.remove(set_named(seen, "k3-0"))
    running(pod_named(seen, "k3-0"), ready=False)
    assert not plan(seen, now=NOW).create
    running(pod_named(seen, "k3-0"))
    assert list(created(plan(seen, now=NOW))) == ["StatefulSet k3-0"]


def test_a_group_of_one_has_no_worker_set():
    seen = settled(lws(size=1))
    assert plan(seen, now=NOW) == Plan(status=seen.lws["status"])
    assert seen.lws["status"]["readyReplicas"] == 1


def test_each_group_has_a_service_of_its_own_where_the_policy_says_so():
    seen = settled(lws(replicas=2, subdomain="UniquePerReplica"))
    services = {service["metadata"]["name"]: service for service in seen.services}
    assert list(services) == ["k3-0", "k3-1"]
    assert services["k3-1"]["spec"]["selector"] == {PREFIX + "name": "k3", PREFIX + "group-index": "1"}
    assert services["k3-1"]["metadata"]["ownerReferences"][0]["kind"] == "Pod"
    assert set_named(seen, "k3-1")["spec"]["serviceName"] == "k3-1"
    assert set_named(seen, "k3")["spec"]["serviceName"] == "k3"


@pytest.mark.parametrize("pod", ["k3-1", "k3-1-1"])
@pytest.mark.parametrize("phase", ["Running", "Pending"])
def test_a_restart_anywhere_in_the_group_recreates_it(pod: str, phase: str):
    seen = settled(lws(replicas=2))
    running(pod_named(seen, pod), restarts=1, phase=phase)
    assert blamed(plan(seen, now=NOW)) == [("k3-1", pod)]


def test_an_init_container_counts_like_any_other():
    seen = settled(lws())
    pod_named(seen, "k3-0-1")["status"]["initContainerStatuses"] = [{"name": "fetch", "restartCount": 1}]
    assert blamed(plan(seen, now=NOW)) == [("k3-0", "k3-0-1")]


def test_a_deleted_worker_recreates_the_group_even_where_it_is_gone_already():
    seen = settled(lws())
    gone = terminating(pod_named(seen, "k3-0-1"))
    seen.pods.remove(pod_named(seen, "k3-0-1"))
    assert blamed(plan(seen, now=NOW)) == []
    assert blamed(plan(Observed(**{**vars(seen), "departed": [gone]}), now=NOW)) == [("k3-0", "k3-0-1")]


def test_pods_of_an_older_generation_of_the_group_do_not_matter():
    seen = settled(lws())
    old = terminating(pod_named(seen, "k3-0-1"))
    old["metadata"]["ownerReferences"][0]["uid"] = "uid-of-a-set-before"
    assert blamed(plan(Observed(**{**vars(seen), "departed": [old]}), now=NOW)) == []


def test_a_group_on_its_way_out_is_not_deleted_again():
    seen = settled(lws())
    running(pod_named(seen, "k3-0-1"), restarts=3)
    seen.pods[:] = [terminating(pod) if pod["metadata"]["name"] == "k3-0" else pod for pod in seen.pods]
    todo = plan(seen, now=NOW)
    assert blamed(todo) == []
    assert truths(todo.status) == {"Available": "True"}, "the status is late, as the real one's"


def test_policy_none_leaves_restarts_to_kubernetes():
    seen = settled(lws(restart="None"))
    running(pod_named(seen, "k3-0-1"), restarts=1)
    assert blamed(plan(seen, now=NOW)) == []


def test_recreate_after_start_waits_for_pending_pods():
    seen = settled(lws(restart="RecreateGroupAfterStart"))
    running(pod_named(seen, "k3-0"), restarts=1)
    running(pod_named(seen, "k3-0-1"), phase="Pending", ready=False)
    assert blamed(plan(seen, now=NOW)) == []
    running(pod_named(seen, "k3-0-1"))
    assert blamed(plan(seen, now=NOW)) == [("k3-0", "k3-0")]


@pytest.mark.parametrize(
    "change", [{"image": "engine:2"}, {"restart": "None"}, {"size": 3}, {"subdomain": "UniquePerReplica"}]
)
def test_any_change_of_the_template_is_a_revision_and_starts_with_all_groups_held(change: dict[str, Any]):
    seen = settled(lws(replicas=3))
    changed = lws(replicas=3, **change)
    changed["status"] = seen.lws["status"]
    todo = plan(Observed(**{**vars(seen), "lws": changed}), now=NOW)
    assert f"ControllerRevision k3-{digest_of(changed)}-2" in created(todo)
    assert todo.apply[0]["spec"]["updateStrategy"]["rollingUpdate"]["partition"] == 3
    assert truths(todo.status) == {"Available": "False", "UpdateInProgress": "True", "Progressing": "True"}


@pytest.mark.parametrize("change", [{"startupPolicy": "LeaderReady"}, {"rolling": {"maxUnavailable": 2}}])
def test_other_changes_are_no_revision(change: dict[str, Any]):
    assert digest_of(lws()) == digest_of(lws(**change))


def rolling_world(obj: Object, *, partition: int, done: set[int]) -> Observed:
    """`obj` on its way from another image: the groups of `done` have the present template and are ready."""
    seen = settled(obj)
    old = digest_of(lws(image="engine:0"))
    set_named(seen, "k3")["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = partition
    for pod in seen.pods:
        if int(pod["metadata"]["name"].split("-")[1]) not in done:
            pod["metadata"]["labels"][REVISION] = old
    for index in set(range(obj["spec"]["replicas"])) - done:
        set_named(seen, f"k3-{index}")["metadata"]["labels"][REVISION] = old
    return seen


@pytest.mark.parametrize(
    ("done", "before", "rolling", "after"),
    [
        (set(), 4, {}, 3),
        ({3}, 3, {}, 2),
        ({3, 2}, 2, {"maxUnavailable": 2}, 0),
        (set(), 4, {"maxUnavailable": "50%"}, 2),
        ({3}, 3, {"partition": 3}, 3),
        ({2}, 3, {}, 3),
        ({0, 1, 2, 3}, 0, {"partition": 2}, 0),
    ],
)
def test_a_rollout_walks_down_from_the_highest_index(done: set[int], before: int, rolling: Object, after: int):
    seen = rolling_world(lws(replicas=4, rolling=rolling), partition=before, done=done)
    applied = plan(seen, now=NOW).apply
    leaders = applied[0] if applied else set_named(seen, "k3")
    assert leaders["spec"]["updateStrategy"]["rollingUpdate"]["partition"] == after


def test_revisions_of_the_stateful_sets_are_not_its_own():
    seen = settled(lws())
    foreign = copy.deepcopy(seen.revisions[0])
    foreign["metadata"] |= {"name": "k3-7d9f", "ownerReferences": [{"uid": "uid-k3-leaders", "controller": True}]}
    foreign["data"] = {"spec": {"template": {}}}
    assert plan(Observed(**{**vars(seen), "revisions": [*seen.revisions, foreign]}), now=NOW).prune == []
    todo = plan(Observed(**{**vars(seen), "revisions": [foreign]}), now=NOW)
    assert list(created(todo)) == [f"ControllerRevision k3-{digest_of(seen.lws)}-1"]


def test_old_revisions_go_when_all_groups_have_the_new_one():
    seen = settled(lws())
    old = controller_revision(seen.lws, revision_content(lws(image="engine:0")), number=1)
    seen = Observed(**{**vars(seen), "revisions": [*seen.revisions, old]})
    assert plan(seen, now=NOW).prune == [old]
    pod_named(seen, "k3-0")["metadata"]["labels"][REVISION] = old["metadata"]["labels"][REVISION]
    assert plan(seen, now=NOW).prune == []


def test_at_zero_replicas_the_counts_are_absent_and_available_stays():
    seen = settled(lws())
    seen.lws["spec"]["replicas"] = 0
    leaders = set_named(seen, "k3")
    leaders["status"] = {"replicas": 0}
    todo = plan(Observed(**{**vars(seen), "sets": [leaders], "pods": []}), now=NOW)
    assert todo.apply[0]["spec"]["replicas"] == 0
    assert todo.status is not None
    assert set(todo.status) == {"hpaPodSelector", "observedGeneration", "conditions"}
    assert truths(todo.status) == {"Available": "True"}


def test_a_group_is_ready_only_with_all_its_workers():
    seen = settled(lws(replicas=2))
    set_named(seen, "k3-1")["status"] = {}
    todo = plan(seen, now=NOW)
    assert todo.status is not None
    assert todo.status["readyReplicas"] == 1
    assert truths(todo.status) == {"Available": "False", "Progressing": "True"}


def test_nothing_is_made_for_an_object_in_deletion():
    assert plan(Observed(terminating(lws())), now=NOW) == Plan()
