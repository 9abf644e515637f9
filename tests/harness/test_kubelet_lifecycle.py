"""Pods of the process kubelet: restarts, back-off, init containers and sidecars, orderly and forced ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.harness.kube import Kube, Object, eventually
from tests.harness.kubelet import ProcessKubelet, missing
from tests.harness.kubelet.network import NAMESPACES
from tests.harness.kubelet.site import (
    HASTY,
    HTTP,
    KubeletSite,
    condition,
    container,
    kubelet_site,
    process_node,
    server,
    status_of,
)
from tests.harness.practice import PracticeCluster

pytestmark = pytest.mark.kubelet

JOURNAL = {"name": "journal", "hostPath": {"path": "/journal", "type": "DirectoryOrCreate"}}
MOUNT = [{"name": "journal", "mountPath": "/journal"}]


@pytest.fixture(scope="module", autouse=True)
def able() -> None:
    if reason := missing():
        pytest.skip(reason)


@pytest_asyncio.fixture
async def site(able: None, practice_cluster: PracticeCluster, kube: Kube, namespace: str) -> AsyncIterator[KubeletSite]:
    kubeconfig = practice_cluster.kubeconfig_for("harness")
    async with kubelet_site(kubeconfig, kube, namespace, process_node("process-1")) as found:
        yield found


def writing(name: str, script: str, **fields: object) -> Object:
    """A container whose script can `say` words to the journal of the node."""
    say = "say() { echo $1 >> /journal/lines; }; "
    return container(name, "sh", "-c", say + script, volumeMounts=MOUNT, **fields)


def journal(site: KubeletSite) -> list[str]:
    path = site.kubelet.host_path(site.node, "/journal") / "lines"
    return path.read_text().split() if path.exists() else []


def exists(path: Path) -> bool:
    return path.exists()


def waiting(pod: Object, reason: str) -> bool:
    return bool(status_of(pod)["state"].get("waiting", {}).get("reason") == reason)


async def test_a_failed_liveness_probe_restarts_the_container_with_fresh_files(site: KubeletSite):
    await site.run("sick", server(livenessProbe=HTTP))
    before = status_of(await site.until_ready("sick"))
    await site.sh("sick", "touch /tmp/broken")
    pod = await site.until("sick", lambda pod: status_of(pod)["restartCount"] == 1 and status_of(pod)["ready"])
    after = status_of(pod)
    assert after["containerID"] != before["containerID"]
    assert after["lastState"]["terminated"]["containerID"] == before["containerID"]
    assert pod["status"]["podIP"]


async def test_a_startup_probe_holds_back_the_others_and_restarts_what_does_not_start(site: KubeletSite):
    startup = {"exec": {"command": ["test", "-e", "/journal/go"]}, "periodSeconds": 1, "failureThreshold": 3}
    await site.run("slow", server(volumeMounts=MOUNT, startupProbe=startup), volumes=[JOURNAL])
    pod = await site.until("slow", lambda pod: status_of(pod)["restartCount"] >= 1)
    assert (status_of(pod)["started"], status_of(pod)["ready"]) == (False, False)
    (site.kubelet.host_path(site.node, "/journal") / "go").touch()
    await site.until_ready("slow")


async def test_a_crashing_container_waits_longer_each_time_and_tells_why(site: KubeletSite):
    await site.run("crash", container("main", "sh", "-c", "echo no weights > /dev/termination-log; exit 3"))
    pod = await site.until("crash", lambda pod: waiting(pod, "CrashLoopBackOff"))
    found = status_of(pod)
    assert found["state"]["waiting"]["message"].startswith("back-off 10s restarting failed container=main")
    ended = found["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (3, "Error", "no weights\n")
    await site.until("crash", lambda pod: "back-off 20s" in str(status_of(pod)["state"]))
    assert condition(await site.pod("crash"), "Ready") == "False"


async def test_a_program_that_is_not_there_is_a_start_error(site: KubeletSite):
    await site.run("typo", container("main", "no-such-program"), restartPolicy="Never")
    pod = await site.until("typo", lambda pod: pod["status"]["phase"] == "Failed")
    ended = status_of(pod)["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("StartError", 128)
    assert "no-such-program" in ended["message"]


async def test_an_image_that_nobody_has_is_waited_for(site: KubeletSite):
    await site.run("unknown", {"name": "main", "image": "example.com/unknown:v1"})
    pod = await site.until("unknown", lambda pod: waiting(pod, "ErrImagePull"))
    assert "example.com/unknown" in status_of(pod)["state"]["waiting"]["message"]


async def test_pre_stop_comes_before_sigterm_and_sigkill_after_the_grace_period(site: KubeletSite):
    script = "trap 'say term' TERM; touch /tmp/up; while true; do sleep 0.05; done"
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo pre-stop >> /journal/lines"]}}}
    up = {"exec": {"command": ["test", "-e", "/tmp/up"]}, "periodSeconds": 1}
    await site.run("stubborn", writing("main", script, lifecycle=hook, readinessProbe=up), volumes=[JOURNAL])
    await site.until_ready("stubborn")
    began = asyncio.get_running_loop().time()
    await site.delete("stubborn")
    pod = await site.until("stubborn", lambda pod: "deletionTimestamp" in pod["metadata"])
    assert condition(pod, "Ready") == "True"
    await site.until_gone("stubborn")
    assert journal(site) == ["pre-stop", "term"]
    assert 2.0 <= asyncio.get_running_loop().time() - began < 6


async def test_a_container_that_heeds_sigterm_ends_at_once_after_the_sleep_of_its_hook(site: KubeletSite):
    await site.run(
        "polite", server(lifecycle={"preStop": {"sleep": {"seconds": 15}}}), terminationGracePeriodSeconds=60
    )
    await site.until_ready("polite")
    await site.delete("polite")
    await site.until_gone("polite", seconds=10)


async def test_a_forced_deletion_takes_process_and_address_away(site: KubeletSite):
    await site.run("forced", container("main", "sleep", "600"), terminationGracePeriodSeconds=600)
    await site.until_ready("forced")
    worker = site.kubelet.worker(site.namespace, "forced")
    network, process = worker.network, worker.mains[0].process
    assert network is not None
    assert process is not None
    assert exists(Path(network.path))
    await site.delete("forced", grace=0)
    await eventually(process.ended.done, every=0.02, seconds=5)
    await eventually(lambda: not exists(Path(network.path)), every=0.02, seconds=5)


async def test_init_containers_run_in_order_and_again_until_they_succeed(site: KubeletSite):
    fails_once = "say second; test -e /journal/seen || { touch /journal/seen; exit 1; }"
    inits = [writing("first", "say first"), writing("second", fails_once)]
    await site.run("init", writing("main", "say main; exec sleep 60"), initContainers=inits, volumes=[JOURNAL])
    pod = await site.until_ready("init")
    await eventually(lambda: journal(site) == ["first", "second", "second", "main"], every=0.02, seconds=5)
    assert status_of(pod, "second", "initContainerStatuses")["restartCount"] == 1
    assert status_of(pod, "first", "initContainerStatuses")["state"]["terminated"]["reason"] == "Completed"


async def test_a_sidecar_starts_first_restarts_by_itself_and_ends_last(site: KubeletSite):
    sidecar = writing("sidecar", "trap 'say sidecar-ends; exit' TERM; say sidecar; while true; do sleep 0.05; done")
    started = {"exec": {"command": ["grep", "-q", "sidecar", "/journal/lines"]}, "periodSeconds": 1}
    main = "say main; trap 'say main-ends; exit' TERM; while true; do sleep 0.05; done"
    sidecar |= {"restartPolicy": "Always", "startupProbe": started}
    await site.run("with", writing("main", main), initContainers=[sidecar], volumes=[JOURNAL])
    await site.until_ready("with")
    await eventually(lambda: journal(site) == ["sidecar", "main"], every=0.02, seconds=5)
    assert status_of(await site.pod("with"), "sidecar", "initContainerStatuses")["ready"]
    await site.delete("with")
    await site.until_gone("with")
    assert journal(site) == ["sidecar", "main", "main-ends", "sidecar-ends"]


async def test_a_job_succeeds_though_its_sidecar_would_run_for_ever(site: KubeletSite):
    sidecar = container("sidecar", "sleep", "600", restartPolicy="Always")
    await site.run("job", container("main", "true"), initContainers=[sidecar], restartPolicy="Never")
    pod = await site.until("job", lambda pod: pod["status"]["phase"] == "Succeeded")
    assert status_of(pod)["state"]["terminated"]["exitCode"] == 0
    assert next(one for one in pod["status"]["conditions"] if one["type"] == "Ready")["reason"] == "PodCompleted"
    await site.delete("job")
    await site.until_gone("job")


async def test_what_an_init_container_that_failed_for_good_leaves_is_a_failed_pod(site: KubeletSite):
    broken = container("check", "sh", "-c", "exit 4")
    await site.run("broken", container("main", "sleep", "60"), initContainers=[broken], restartPolicy="Never")
    pod = await site.until("broken", lambda pod: pod["status"]["phase"] == "Failed")
    assert status_of(pod, "check", "initContainerStatuses")["state"]["terminated"]["exitCode"] == 4


async def test_a_kubelet_that_stops_leaves_nothing_and_the_next_one_runs_its_pods_again(
    able: None, practice_cluster: PracticeCluster, kube: Kube, namespace: str
):
    kubeconfig, node = practice_cluster.kubeconfig_for("harness"), process_node("process-2")
    async with ProcessKubelet(kubeconfig, [node], timing=HASTY) as first:
        site = KubeletSite(first, kube, namespace, "process-2")
        await site.run("left", container("main", "sleep", "600"))
        await site.run("other", server())
        before = status_of(await site.until_ready("left"))
        process, machine = first.worker(namespace, "left").mains[0].process, first.machine
    assert process is not None
    assert process.ended.done()
    assert machine is not None
    assert not exists(machine.folder)
    assert not any(exists(NAMESPACES / f"{machine.network.name}{end}") for end in ("", "-256", "-257"))
    async with kubelet_site(kubeconfig, kube, namespace, node) as site:
        pod = await site.until("left", lambda pod: status_of(pod)["restartCount"] == 1 and status_of(pod)["ready"])
        assert status_of(pod)["containerID"] != before["containerID"]
        assert status_of(pod)["lastState"]["terminated"]["containerID"] == before["containerID"]
