"""The parts of the process kubelet that need neither a cluster nor root, and its network alone."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.kube import Object
from tests.harness.kubelet import Image, missing  # noqa: F401 - in the condition of a mark
from tests.harness.kubelet.container import BackOff
from tests.harness.kubelet.environment import expand
from tests.harness.kubelet.images import REPOSITORY, devices, find_image
from tests.harness.kubelet.launch import inside
from tests.harness.kubelet.network import NAMESPACES, Network
from tests.harness.kubelet.probes import Verdict
from tests.harness.kubelet.services import endpoints_of, hosts_lines
from tests.harness.kubelet.status import Facts, Record, phase, pod_status

ENDED = {"terminated": {"exitCode": 0}}
CRASHED = {"terminated": {"exitCode": 1}}
RUNNING = {"running": {}}
ABLE = pytest.mark.skipif("missing() is not None", reason="needs Linux, root, iproute2 and overlayfs")
FACTS = Facts(address="10.0.0.1", host_address="10.0.0.2", start_time="", now="now")


def test_variables_are_expanded_as_kubernetes_does():
    known = {"A": "1", "B_C": "$(A)"}
    assert expand("$(A) $(B_C) $(X) $$(A) $A $$ $(", known) == "1 $(A) $(X) $(A) $A $ $("


def test_restarts_wait_nothing_then_ten_seconds_then_ever_longer_up_to_five_minutes():
    back_off = BackOff()
    assert [back_off.after(1) for _ in range(8)] == [0, 10, 20, 40, 80, 160, 300, 300]
    assert [back_off.after(600), back_off.after(1)] == [0, 10]


def test_a_probe_decides_after_as_many_results_in_a_row_as_its_thresholds_say():
    verdict = Verdict(success_threshold=1, failure_threshold=3)
    results = [False, True, False, False, True, False, False, False, True]
    assert [verdict.add(result) for result in results] == [None, True, True, True, True, True, True, False, True]


@pytest.mark.parametrize(
    ("state", "ended", "expected"),
    [
        (RUNNING, False, "Running"),
        ({"waiting": {}}, False, "Pending"),
        (ENDED, True, "Succeeded"),
        (CRASHED, True, "Failed"),
        (CRASHED, False, "Running"),
    ],
)
def test_the_phase_follows_from_the_containers(state: Object, ended: bool, expected: str):
    facts = Facts("", "", "", "", ended=ended)
    assert phase({}, [Record("main", "python", state=state)], facts) == expected


def test_a_condition_keeps_its_time_until_its_status_changes():
    old = [{"type": "Ready", "status": "False", "lastTransitionTime": "then"}]
    old.append({"type": "ContainersReady", "status": "True", "lastTransitionTime": "then"})
    pod = {"metadata": {}, "spec": {}, "status": {"conditions": old}}
    record = Record("main", "python", ready=True, started=True, state=RUNNING)
    found = pod_status(pod, [record], FACTS)["conditions"]
    times = {one["type"]: one["lastTransitionTime"] for one in found}
    assert (times["Ready"], times["ContainersReady"]) == ("now", "then")


def service(name: str, **spec: object) -> Object:
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": {"ports": [{"name": "http", "port": 80}], **spec}}


def endpoints(name: str, *found: Object) -> Object:
    meta = {"name": f"{name}-1", "namespace": "ns", "labels": {"kubernetes.io/service-name": name}}
    return {"metadata": meta, "ports": [{"name": "http", "port": 8000}], "endpoints": list(found)}


def test_names_lead_to_the_cluster_address_or_to_the_ready_endpoints():
    one = {"addresses": ["10.0.0.1"], "hostname": "one", "conditions": {"ready": True}}
    two = {"addresses": ["10.0.0.2"], "hostname": "two", "conditions": {"ready": False}}
    services = [service("web", clusterIP="10.96.0.9"), service("group", clusterIP="None")]
    lines = hosts_lines(services, [endpoints("group", one, two)], "other").splitlines()
    assert [line.split()[:2] for line in lines] == [["10.0.0.1", "one.group.ns"], ["10.96.0.9", "web.ns"]]
    assert " group.ns.svc.cluster.local" in lines[0]
    assert endpoints_of([endpoints("group", one, two)], services[1], "http") == [("10.0.0.1", 8000)]


@pytest.mark.parametrize(
    "reference", ["host:5000/a/vllm:v1", "host:5000/a/vllm@sha256:00", "host:5000/a/vllm:v1@sha256:00"]
)
def test_an_image_is_found_by_its_repository(reference: str):
    image = Image(cmd=("serve",))
    assert find_image({"*/vllm": image}, reference) is image
    assert find_image({"*/other": image}, reference).missing


def test_gpus_and_channels_become_device_files():
    nvidia = {"resources": {"limits": {"nvidia.com/gpu": "2"}, "claims": [{"name": "channel"}]}}
    found = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-caps-imex-channels/channel0"]
    assert devices(nvidia) == found
    assert devices({"resources": {"limits": {"amd.com/gpu": "2"}}}, hidden=1) == ["/dev/kfd", "/dev/dri/renderD128"]


def test_a_path_of_a_container_stays_below_its_root(tmp_path: Path):
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    (tmp_path / "var/up").symlink_to("../..")
    root = str(tmp_path)
    assert inside(root, "/var/run/secrets/token") == f"{root}/run/secrets/token"
    assert inside(root, "/var/up/../etc") == f"{root}/etc"


LONE_CONTAINER = """
import asyncio, sys
from pathlib import Path
from tests.harness.kubelet.process import ContainerProcess, Order
async def main():
    order = Order(["sleep", "600"], {"PATH": "/usr/bin:/bin"}, "/", "lone", "")
    process = await ContainerProcess.start(order, Path(sys.argv[1]), Path(sys.argv[1]) / "log")
    print(process.pid, flush=True)
    await process.ended
asyncio.run(main())
"""


@ABLE
def test_a_container_is_killed_with_its_kubelet(tmp_path: Path):
    sources = {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'operator'}"}
    command = [sys.executable, "-c", LONE_CONTAINER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=sources) as kubelet:
        assert kubelet.stdout is not None
        container = os.pidfd_open(int(kubelet.stdout.readline()))
        kubelet.kill()
    try:
        ended, _, _ = select.select([container], [], [], 10)
        assert ended
    finally:
        os.close(container)


@ABLE
def test_what_a_killed_kubelet_left_is_removed_by_the_next_and_nothing_of_a_living_one():
    dead, alive = Network.claim(), None
    try:
        dead.start()
        pod = dead.add_pod()
        alive = Network.claim()
        alive.start()
        assert alive.slot != dead.slot
        assert Path(pod.path).exists()
        dead._lock.close()  # as the kernel does for a process that was killed
        heir = Network.claim()
        try:
            assert heir.slot == dead.slot
            assert not Path(pod.path).exists()
            assert not dead.folder.exists()
            assert (NAMESPACES / alive.name).exists()
        finally:
            heir.stop()
    finally:
        if alive is not None:
            alive.stop()
        dead.stop()
