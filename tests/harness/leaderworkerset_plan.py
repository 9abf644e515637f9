"""What the LeaderWorkerSet controller would do next: a pure function from observed objects to writes and a status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.harness.kube import Object
from tests.harness.leaderworkerset_admission import GROUP_INDEX, NAME, SIZE, WORKER_INDEX
from tests.harness.leaderworkerset_objects import (
    API_VERSION,
    GROUP_KEY,
    REVISION,
    UNIQUE,
    controller_revision,
    group_key,
    headless_service,
    leader_set,
    owned_by,
    revision_content,
    revision_hash,
    worker_set,
)


@dataclass(frozen=True)
class Observed:
    """One LeaderWorkerSet with all that carries its name label.

    Among `revisions` are those of the StatefulSet controller too, which copies the labels of the pod template.
    `departed` are pods that were terminating when last seen and are gone now.
    """

    lws: Object
    sets: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    departed: Sequence[Object] = ()
    revisions: Sequence[Object] = ()
    services: Sequence[Object] = ()


@dataclass(frozen=True)
class Recreation:
    """A group whose leader is to be deleted in the foreground, and the pod that is to blame."""

    leader: Object
    blame: Object


@dataclass
class Plan:
    """Writes in the order of their execution: create, apply, label, recreate, prune, status."""

    create: list[Object] = field(default_factory=list)
    apply: list[Object] = field(default_factory=list)
    label: list[tuple[Object, dict[str, str]]] = field(default_factory=list)
    recreate: list[Recreation] = field(default_factory=list)
    prune: list[Object] = field(default_factory=list)
    status: Object | None = None


@dataclass(frozen=True)
class Group:
    """One group as the rollout and the status count it."""

    index: int
    ready: bool
    updated: bool


def plan(seen: Observed, *, now: str) -> Plan:
    """The writes that one reconcile makes; none for an object that is being deleted. `now` is RFC 3339."""
    lws = seen.lws
    result = Plan()
    if "deletionTimestamp" in lws["metadata"]:
        return result
    content = revision_content(lws)
    digest = revision_hash(content)
    mine = [revision for revision in seen.revisions if _controller_uid(revision) == lws["metadata"]["uid"]]
    revisions = {revision["metadata"]["labels"].get(REVISION): revision for revision in mine}
    if digest not in revisions:
        number = max((revision["revision"] for revision in mine), default=0) + 1
        result.create.append(controller_revision(lws, content, number=number))
    _plan_shared_service(seen, content, result)
    groups = observed_groups(seen, digest)
    leaders = _named(seen.sets, lws["metadata"]["name"])
    _plan_leader_set(lws, leaders, groups, content, digest, result)
    for leader in leader_pods(seen):
        if "deletionTimestamp" not in leader["metadata"]:
            _plan_group(seen, leader, revisions, result)
    result.status = status(lws, leaders, groups, now=now)
    if leaders and _label(leaders, REVISION) == digest and all(group.updated for group in groups):
        result.prune = [revision for name, revision in revisions.items() if name != digest]
    return result


def leader_pods(seen: Observed) -> list[Object]:
    return [pod for pod in seen.pods if _label(pod, WORKER_INDEX) == "0"]


def observed_groups(seen: Observed, digest: str) -> list[Group]:
    """Each group that has a leader, by index."""
    groups = []
    for leader in leader_pods(seen):
        alone = leader["metadata"].get("annotations", {}).get(SIZE) == "1"
        workers = None if alone else _named(seen.sets, leader["metadata"]["name"])
        available = alone or (
            workers is not None and workers.get("status", {}).get("availableReplicas", 0) == workers["spec"]["replicas"]
        )
        updated = _label(leader, REVISION) == digest and (
            alone or (workers is not None and _label(workers, REVISION) == digest)
        )
        groups.append(Group(group_index(leader), ready=available and running_and_ready(leader), updated=updated))
    return sorted(groups, key=lambda group: group.index)


def partition(lws: Object, current: Object | None, groups: Sequence[Group], digest: str) -> int:
    """The lowest group index that may have the new template now; walks down from the highest index."""
    replicas = lws["spec"].get("replicas", 1)
    wanted = _rolling(lws).get("partition", 0)
    if current is None:
        return 0
    if _label(current, REVISION) != digest:
        return int(min(replicas, current["spec"]["replicas"]))
    done = {group.index for group in groups if group.updated and group.ready}
    tail = 0
    while replicas - 1 - tail in done:
        tail += 1
    present = current["spec"].get("updateStrategy", {}).get("rollingUpdate", {}).get("partition", 0)
    return int(min(present, max(wanted, replicas - tail - max_unavailable(lws), 0)))


def max_unavailable(lws: Object) -> int:
    """How many groups may be down during a rollout; a percentage is rounded down, and at least one."""
    value = _rolling(lws).get("maxUnavailable", 1)
    if isinstance(value, str):
        value = lws["spec"].get("replicas", 1) * int(value.removesuffix("%")) // 100
    return max(int(value), 1)


def status(lws: Object, leaders: Object | None, groups: Sequence[Group], *, now: str) -> Object:
    """The status to store; counts of 0 are absent, as the real one omits them."""
    replicas = lws["spec"].get("replicas", 1)
    wanted = [group for group in groups if group.index < replicas]
    above = [group for group in wanted if group.index >= _rolling(lws).get("partition", 0)]
    updating = not all(group.updated for group in above)
    available = not updating and sum(group.ready for group in wanted) == replicas
    generation = lws["metadata"].get("generation", 1)
    counts = {
        "replicas": (leaders or {}).get("status", {}).get("replicas", 0),
        "readyReplicas": sum(group.ready for group in groups),
        "updatedReplicas": sum(group.updated for group in groups),
    }
    name = lws["metadata"]["name"]
    return {
        **{key: value for key, value in counts.items() if value},
        "hpaPodSelector": f"{NAME}={name},{WORKER_INDEX}=0",
        "observedGeneration": generation,
        "conditions": conditions(
            lws.get("status", {}).get("conditions", []), updating=updating, available=available, now=now
        ),
    }


CONDITIONS = {
    "Available": ("AllGroupsReady", "every group is ready"),
    "Progressing": ("GroupsProgressing", "groups are being made or wait for their pods"),
    "UpdateInProgress": ("GroupsUpdating", "groups are being moved to the present template"),
}


def conditions(before: Sequence[Object], *, updating: bool, available: bool, now: str) -> list[Object]:
    """The condition list: Available excludes the other two, and what turned false stays in the list."""
    rising = ["UpdateInProgress", "Progressing"] if updating else ["Available"] if available else ["Progressing"]
    falling = ["Progressing", "UpdateInProgress"] if available else ["Available"]
    result = {condition["type"]: dict(condition) for condition in before}
    for kind in rising:
        if result.get(kind, {}).get("status") != "True":
            reason, message = CONDITIONS[kind]
            result[kind] = {
                "type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now,
            }  # fmt: skip
    for kind in falling:
        if result.get(kind, {}).get("status") == "True":
            result[kind] |= {"status": "False", "lastTransitionTime": now}
    return list(result.values())


def running_and_ready(pod: Object) -> bool:
    """Phase Running and condition Ready; a pod that is terminating may still be both."""
    state = pod.get("status", {})
    return state.get("phase") == "Running" and any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in state.get("conditions", [])
    )


def restarted(pod: Object) -> bool:
    """Whether any container or init container of a Pending or Running pod was restarted."""
    state = pod.get("status", {})
    containers = [*state.get("initContainerStatuses", []), *state.get("containerStatuses", [])]
    return state.get("phase") in ("Pending", "Running") and any(one.get("restartCount", 0) for one in containers)


def group_index(pod: Object) -> int:
    """The index in a leader's name."""
    return int(pod["metadata"]["name"].rpartition("-")[2])


def _plan_shared_service(seen: Observed, content: Object, result: Plan) -> None:
    lws, name = seen.lws, seen.lws["metadata"]["name"]
    if content["spec"]["networkConfig"]["subdomainPolicy"] != UNIQUE and not _named(seen.services, name):
        owner = owned_by(lws, API_VERSION, "LeaderWorkerSet")
        result.create.append(headless_service(lws, name=name, selector={NAME: name}, owner=owner))


def _plan_leader_set(
    lws: Object, current: Object | None, groups: Sequence[Group], content: Object, digest: str, result: Plan
) -> None:
    if current is not None and "deletionTimestamp" in current["metadata"]:
        return
    lowest, down = partition(lws, current, groups, digest), max_unavailable(lws)
    wanted = leader_set(lws, content, digest, partition=lowest, max_unavailable=down)
    if (
        current is None
        or not _holds(wanted["metadata"], current["metadata"])
        or any(not _holds(wanted["spec"][name], current["spec"].get(name)) for name in ("replicas", "updateStrategy"))
    ):
        result.apply.append(wanted)


def _plan_group(seen: Observed, leader: Object, revisions: dict[str, Object], result: Plan) -> None:
    lws, meta = seen.lws, leader["metadata"]
    index = str(group_index(leader))
    labels = {GROUP_INDEX: index, GROUP_KEY: group_key(meta["namespace"], meta["name"])}
    if any(_label(leader, key) != value for key, value in labels.items()):
        result.label.append((leader, labels))
    if blame := _failed_pod(seen, leader, index):
        result.recreate.append(Recreation(leader, blame))
        return
    revision = revisions.get(_label(leader, REVISION) or "")
    if revision is None:
        return
    content = revision["data"]
    if content["spec"]["networkConfig"]["subdomainPolicy"] == UNIQUE and not _named(seen.services, meta["name"]):
        selector = {NAME: lws["metadata"]["name"], GROUP_INDEX: index}
        owner = owned_by(leader, "v1", "Pod")
        result.create.append(headless_service(lws, name=meta["name"], selector=selector, owner=owner))
    waits = lws["spec"].get("startupPolicy") == "LeaderReady" and not running_and_ready(leader)
    if content["spec"]["leaderWorkerTemplate"]["size"] > 1 and not waits and not _named(seen.sets, meta["name"]):
        result.create.append(worker_set(lws, leader, content))


def _failed_pod(seen: Observed, leader: Object, index: str) -> Object | None:
    """The first pod of this generation of the group that was deleted or restarted, where the policy minds that."""
    policy = revision_content(seen.lws)["spec"]["leaderWorkerTemplate"]["restartPolicy"]
    members = [pod for pod in seen.pods if _label(pod, GROUP_INDEX) == index]
    if policy == "None":
        return None
    if policy == "RecreateGroupAfterStart":
        size = int(leader["metadata"].get("annotations", {}).get(SIZE, "1"))
        if len(members) < size or any(pod.get("status", {}).get("phase") == "Pending" for pod in members):
            return None
    workers = _named(seen.sets, leader["metadata"]["name"])
    for pod in [*members, *(pod for pod in seen.departed if _label(pod, GROUP_INDEX) == index)]:
        mine = pod is leader or (
            workers is not None
            and _controller_uid(workers) == leader["metadata"]["uid"]
            and _controller_uid(pod) == workers["metadata"]["uid"]
            and _label(pod, REVISION) == _label(leader, REVISION)
        )
        if mine and ("deletionTimestamp" in pod["metadata"] or restarted(pod)):
            return pod
    return None


def _rolling(lws: Object) -> Object:
    return dict(lws["spec"].get("rolloutStrategy", {}).get("rollingUpdateConfiguration") or {})


def _label(obj: Object, key: str) -> str | None:
    value: str | None = obj["metadata"].get("labels", {}).get(key)
    return value


def _named(objects: Sequence[Object], name: str) -> Object | None:
    return next((obj for obj in objects if obj["metadata"]["name"] == name), None)


def _controller_uid(obj: Object) -> str | None:
    owners = obj["metadata"].get("ownerReferences", [])
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), None)


def _holds(wanted: object, present: object) -> bool:
    """Whether everything wanted is present; what is there in addition does not matter."""
    if isinstance(wanted, dict):
        return isinstance(present, dict) and all(_holds(value, present.get(key)) for key, value in wanted.items())
    return wanted == present
