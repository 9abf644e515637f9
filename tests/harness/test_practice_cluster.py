"""The practice cluster behaves as the tests that use it assume."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.harness import external_crds, kwok
from tests.harness.audit import writes
from tests.harness.kube import Kube, KubeError, Object, eventually
from tests.harness.node_files import expand
from tests.harness.practice import PracticeCluster

pytestmark = pytest.mark.controlplane

GATE = "kimik3.dev/verified"


def pod(namespace: str, name: str, *, node: str | None = "do-b300-0", **spec: object) -> Object:
    """A pod bound to a node already, unless `node` is None."""
    body: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": {}},
        "spec": {
            "containers": [{"name": "engine", "image": "vllm:1"}, {"name": "metrics", "image": "metrics:1"}],
            **spec,
        },
    }
    if node is not None:
        body["spec"]["nodeName"] = node
    return body


def annotated(body: Object, **annotations: str) -> Object:
    body["metadata"]["annotations"] |= {
        f"harness.kimik3.dev/{key.replace('_', '-')}": v for key, v in annotations.items()
    }
    return body


def condition(obj: Object, kind: str) -> Object:
    return next((one for one in obj.get("status", {}).get("conditions", []) if one["type"] == kind), {"status": ""})


def container(obj: Object, name: str = "engine") -> Object:
    found = obj["status"].get("containerStatuses", [])
    return next((one for one in found if one["name"] == name), {"restartCount": 0})


class Pods:
    """The pods of one namespace."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace

    async def get(self, name: str) -> Object:
        return await self.kube.get("v1", "pods", name, self.namespace)

    async def until(self, name: str, check, what: str, seconds: float = 20) -> Object:
        async def see() -> Object | None:
            found = await self.get(name)
            return found if check(found) else None

        return await eventually(see, seconds=seconds, what=what)

    async def until_ready(self, name: str) -> Object:
        return await self.until(name, lambda found: condition(found, "Ready")["status"] == "True", f"{name} Ready")

    async def annotate(self, name: str, key: str, value: str | None) -> None:
        await self.kube.patch("v1", "pods", name, {"metadata": {"annotations": {key: value}}}, self.namespace)


@pytest_asyncio.fixture
async def pods(kube: Kube, namespace: str) -> AsyncIterator[Pods]:
    yield Pods(kube, namespace)


async def test_a_deployment_with_eight_gpus_runs_on_a_b300_node(kube: Kube, namespace: str):
    container = {"name": "engine", "image": "vllm:1", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    template = {
        "metadata": {"labels": {"app": "k3"}},
        "spec": {"containers": [container], "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
    }
    await kube.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "k3", "namespace": namespace},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "k3"}}, "template": template},
        }
    )

    async def available() -> bool:
        found = await kube.get("apps/v1", "deployments", "k3", namespace)
        return found.get("status", {}).get("availableReplicas") == 1

    await eventually(available, what="the deployment is available")
    (found,) = await kube.list("v1", "pods", namespace)
    node = await kube.get("v1", "nodes", found["spec"]["nodeName"])
    assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-B300-SXM6-AC"
    assert found["status"]["podIP"].startswith("127.")
    assert container_fields(found) == [("engine", True, True, 0)]


def container_fields(obj: Object) -> list[tuple[str, bool, bool, int]]:
    return [
        (one["name"], one["ready"], one["started"], one["restartCount"]) for one in obj["status"]["containerStatuses"]
    ]


async def test_gpus_that_no_node_has_leave_the_pod_pending(pods: Pods):
    body = pod(pods.namespace, "p", node=None, tolerations=[{"operator": "Exists"}])
    body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "16"}}
    await pods.kube.create(body)
    await pods.until(
        "p", lambda found: condition(found, "PodScheduled").get("reason") == "Unschedulable", "unschedulable"
    )


async def test_a_pod_with_a_readiness_gate_is_ready_only_while_the_gate_is_true(pods: Pods):
    await pods.kube.create(pod(pods.namespace, "p", readinessGates=[{"conditionType": GATE}]))

    async def set_gate(status: str) -> None:
        patch = {"status": {"conditions": [{"type": GATE, "status": status}]}}
        await pods.kube.patch("v1", "pods", "p", patch, pods.namespace, subresource="status", strategic=True)

    def waits(found: Object) -> bool:
        return condition(found, "Ready").get("reason") == "ReadinessGatesNotReady"

    found = await pods.until("p", waits, "waits for its gate")
    assert condition(found, "ContainersReady")["status"] == "True"
    assert condition(found, GATE)["status"] == "", "no stage writes the gate's condition"
    await set_gate("False")
    await pods.until("p", lambda found: waits(found) and condition(found, GATE)["status"] == "False", "still waits")
    await set_gate("True")
    found = await pods.until_ready("p")
    assert "reason" not in condition(found, "Ready")
    await set_gate("False")
    found = await pods.until("p", waits, "not ready again")
    assert condition(found, "Ready")["status"] == "False"


async def test_a_pod_starts_as_slowly_as_asked_whatever_else_changes(pods: Pods):
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await pods.kube.create(annotated(pod(pods.namespace, "slow"), startup_seconds="2.5"))
    found = await pods.until("slow", lambda found: found["status"]["phase"] == "Running", "runs")
    assert container_fields(found) == [("engine", False, False, 0), ("metrics", False, False, 0)]
    await pods.annotate("slow", "unrelated", "change")
    await pods.until_ready("slow")
    assert 2.4 < loop.time() - begin < 6


async def test_init_containers_are_completed_and_sidecars_run(pods: Pods):
    containers = [{"name": "fetch", "image": "f:1"}, {"name": "proxy", "image": "p:1", "restartPolicy": "Always"}]
    await pods.kube.create(annotated(pod(pods.namespace, "p", initContainers=containers), startup_seconds="0"))
    found = await pods.until_ready("p")
    fetch, proxy = found["status"]["initContainerStatuses"]
    assert fetch["state"]["terminated"]["reason"] == "Completed"
    assert "running" in proxy["state"]
    assert proxy["started"]


async def test_a_crash_restarts_one_container_once(pods: Pods):
    await pods.kube.create(annotated(pod(pods.namespace, "p"), startup_seconds="0.3"))
    before = await pods.until_ready("p")
    await pods.annotate("p", kwok.CRASH, "1")
    await pods.until("p", lambda found: container(found)["restartCount"] == 1, "one restart")
    after = await pods.until_ready("p")
    assert container_fields(after) == [("engine", True, True, 1), ("metrics", True, True, 0)]
    assert container(after)["containerID"] != container(before)["containerID"]
    assert container(after)["lastState"]["terminated"]["containerID"] == container(before)["containerID"]
    assert container(after, "metrics") == container(before, "metrics")
    await pods.annotate("p", kwok.CRASH, "2")
    await pods.until("p", lambda found: container(found)["restartCount"] == 2, "a second restart, asked for")


async def test_a_crash_loop_goes_on_until_its_annotation_is_removed(pods: Pods):
    await pods.kube.create(annotated(pod(pods.namespace, "p"), startup_seconds="0.3", crash_loop="yes"))
    found = await pods.until("p", lambda found: container(found)["restartCount"] >= 2, "restarts grow")
    assert container(found)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert condition(found, "Ready")["status"] == "False"
    await pods.annotate("p", kwok.CRASH_LOOP, None)
    found = await pods.until_ready("p")
    assert "running" in container(found)["state"]


async def test_a_pod_fails_for_the_reason_asked_for(pods: Pods):
    await pods.kube.create(annotated(pod(pods.namespace, "p"), startup_seconds="0", fail="UnexpectedAdmissionError"))
    found = await pods.until("p", lambda found: found["status"]["phase"] == "Failed", "failed")
    assert found["status"]["reason"] == "UnexpectedAdmissionError"


async def test_a_deleted_pod_takes_the_time_asked_for(pods: Pods):
    await pods.kube.create(annotated(pod(pods.namespace, "quick"), startup_seconds="0"))
    await pods.kube.create(annotated(pod(pods.namespace, "slow"), startup_seconds="0", termination_seconds="600"))
    for name in ("quick", "slow"):
        await pods.until_ready(name)
        await pods.kube.delete("v1", "pods", name, pods.namespace)

    async def names() -> list[str]:
        return [found["metadata"]["name"] for found in await pods.kube.list("v1", "pods", pods.namespace)]

    async def only_slow() -> bool:
        return await names() == ["slow"]

    await eventually(only_slow, what="the quick pod is gone, the slow one is not")
    await pods.kube.delete("v1", "pods", "slow", pods.namespace, grace=0)


async def test_a_job_completes(kube: Kube, namespace: str):
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "warm", "image": "w:1"}]}}
    template["metadata"] = {"annotations": {kwok.STARTUP_SECONDS: "0", kwok.RUN_SECONDS: "0.2"}}
    template["spec"]["tolerations"] = [{"operator": "Exists"}]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": namespace}}
    await kube.create({**job, "spec": {"template": template}})

    async def done() -> bool:
        return (await kube.get("batch/v1", "jobs", "j", namespace)).get("status", {}).get("succeeded") == 1

    await eventually(done, what="the job succeeded")


async def test_nodes_report_what_their_file_says(kube: Kube):
    node = await kube.get("v1", "nodes", "cw-gb300-a-03")
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "4"
    assert node["status"]["nodeInfo"]["architecture"] == "arm64"
    assert condition(node, "Ready")["status"] == "True"


async def test_a_node_added_later_becomes_ready_and_one_without_the_annotation_does_not(kube: Kube):
    (managed, foreign) = expand(
        {"kind": "NodeGroup", "name": "late-{index}", "count": 2, "capacity": {"cpu": 1, "pods": 9}}
    )
    del foreign["metadata"]["annotations"]
    try:
        await kube.create(managed)
        await kube.create(foreign)

        async def ready() -> bool:
            return condition(await kube.get("v1", "nodes", "late-0"), "Ready")["status"] == "True"

        await eventually(ready, what="late-0 Ready")
        assert condition(await kube.get("v1", "nodes", "late-1"), "Ready")["status"] != "True"
    finally:
        for node in (managed, foreign):
            await kube.delete("v1", "nodes", node["metadata"]["name"])


async def test_all_external_crds_are_established(kube: Kube, practice_cluster: PracticeCluster):
    assert set(practice_cluster.external) == {f"{kind.plural}.{kind.group}" for kind in external_crds.KINDS}
    for name in practice_cluster.external:
        assert await external_crds.is_established(kube, name)


async def test_a_group_of_crds_can_be_absent_and_come_later(kube: Kube, practice_cluster: PracticeCluster):
    await external_crds.remove(kube, [external_crds.KEDA])
    with pytest.raises(KubeError):
        await kube.list("keda.sh/v1alpha1", "scaledobjects")
    await external_crds.install(kube, [external_crds.KEDA])

    async def served() -> bool:
        return await kube.list("keda.sh/v1alpha1", "scaledobjects") == []

    await eventually(served, what="scaledobjects are served")


async def test_an_outage_of_the_api_server_keeps_its_data_and_the_cluster_goes_on(
    practice_cluster: PracticeCluster, pods: Pods
):
    control_plane = practice_cluster.control_plane
    await pods.kube.create(pod(pods.namespace, "before"))
    before = await pods.until_ready("before")
    await asyncio.to_thread(control_plane.stop_apiserver)
    try:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", int(control_plane.server.rsplit(":", 1)[1]))
    finally:
        await asyncio.to_thread(control_plane.start_apiserver)
    assert (await pods.get("before"))["metadata"]["uid"] == before["metadata"]["uid"]
    await pods.kube.create(pod(pods.namespace, "after"))
    await pods.until_ready("after")


async def test_the_audit_log_tells_who_wrote_what(practice_cluster: PracticeCluster, namespace: str):
    since = practice_cluster.control_plane.now()
    async with Kube(practice_cluster.kubeconfig_for("kimi-k3-operator", groups=["system:masters"])) as operator:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": namespace}}
        await operator.create(body)
        await operator.get("v1", "configmaps", "c", namespace)
        with pytest.raises(KubeError):
            await operator.create(body)
    mine = [entry for entry in practice_cluster.audit(since) if entry.user == "kimi-k3-operator"]
    seen = [(entry.verb, entry.resource, entry.name, entry.namespace, entry.code) for entry in mine]
    # The name of an object that was refused is not in the log: it is in the body only.
    assert [(verb, resource, code) for verb, resource, _, _, code in seen] == [
        ("create", "configmaps", 201),
        ("get", "configmaps", 200),
        ("create", "configmaps", 409),
    ]
    assert len(writes(mine)) == 2
    assert all(entry.user_agent for entry in mine)
    assert all(entry.timestamp >= since for entry in mine)


async def test_a_service_account_has_the_rights_that_rbac_gives_it(practice_cluster: PracticeCluster, namespace: str):
    path = await asyncio.to_thread(practice_cluster.control_plane.kubeconfig_for_service_account, namespace, "default")
    async with Kube(path) as client:
        with pytest.raises(KubeError) as refused:
            await client.list("v1", "pods", namespace)
    assert refused.value.code == 403


def test_an_unknown_user_is_refused(practice_cluster: PracticeCluster):
    with pytest.raises(ValueError, match="no user 'eve'"):
        practice_cluster.kubeconfig_for("eve")
