"""Pods of the process kubelet: addresses, names, variables, files, readiness."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.harness.kube import Kube, eventually
from tests.harness.kubelet import missing
from tests.harness.kubelet.site import (
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

GATE = "example.com/verified"


@pytest.fixture(scope="module", autouse=True)
def able() -> None:
    if reason := missing():
        pytest.skip(reason)


@pytest_asyncio.fixture
async def site(able: None, practice_cluster: PracticeCluster, kube: Kube, namespace: str) -> AsyncIterator[KubeletSite]:
    kubeconfig = practice_cluster.kubeconfig_for("harness")
    async with kubelet_site(kubeconfig, kube, namespace, process_node("process-0")) as found:
        yield found


async def test_pods_that_share_a_port_reach_each_other_by_address_and_by_name(site: KubeletSite):
    for name in ("one", "two"):
        await site.run(name, server(), labels={"app": name})
        await site.service(name)
    one, two = await site.until_ready("one"), await site.until_ready("two")
    assert one["status"]["podIP"] != two["status"]["podIP"]
    assert await site.ask("one", f"http://{two['status']['podIP']}:8000") == "two"
    for url in ("http://two:8000", f"http://two.{site.namespace}.svc.cluster.local:8000"):

        async def answered(url: str = url) -> bool:
            return await site.ask("one", url) == "two"

        await eventually(answered, what=f"{url} is answered", seconds=10)


async def test_a_headless_service_gives_each_pod_a_name(site: KubeletSite):
    await site.service("group", headless=True, publishNotReadyAddresses=True)
    await site.run("leader", server(), labels={"app": "group"}, hostname="leader", subdomain="group")
    await site.run("worker", server(), labels={"app": "group"}, hostname="worker", subdomain="group")
    leader = await site.until_ready("leader")

    async def known() -> bool:
        hosts = await site.sh("worker", f"getent hosts leader.group.{site.namespace}")
        return hosts.startswith(leader["status"]["podIP"])

    await eventually(known, seconds=10)
    assert "worker.group" in await site.sh("worker", "getent hosts $(hostname)")


async def test_the_node_is_ready_and_keeps_its_lease(site: KubeletSite):
    node = await site.kube.get("v1", "nodes", site.node)
    assert condition(node, "Ready") == "True"
    lease = await site.kube.get("coordination.k8s.io/v1", "leases", site.node, "kube-node-lease")
    assert lease["spec"]["holderIdentity"] == site.node


async def test_ready_waits_for_a_gate_that_only_others_open(site: KubeletSite):
    await site.run("gated", server(), readinessGates=[{"conditionType": GATE}])
    pod = await site.until("gated", lambda pod: condition(pod, "ContainersReady") == "True")
    assert (condition(pod, "Ready"), condition(pod, GATE)) == ("False", "")
    for state in ("True", "False"):
        gate = {"status": {"conditions": [{"type": GATE, "status": state}]}}
        await site.kube.patch("v1", "pods", "gated", gate, site.namespace, subresource="status", strategic=True)
        pod = await site.until("gated", lambda pod, state=state: condition(pod, "Ready") == state)
        assert condition(pod, GATE) == state
    ready = next(one for one in pod["status"]["conditions"] if one["type"] == "Ready")
    assert ready["reason"] == "ReadinessGatesNotReady"


async def test_a_pod_whose_server_fails_is_unready_and_recovers(site: KubeletSite):
    await site.run("moody", server())
    await site.until_ready("moody")
    await site.sh("moody", "touch /tmp/broken")
    await site.until("moody", lambda pod: condition(pod, "Ready") == "False")
    await site.sh("moody", "rm /tmp/broken")
    assert status_of(await site.until_ready("moody"))["restartCount"] == 0


async def test_variables_come_from_all_their_sources(site: KubeletSite):
    await site.config_map("settings", mode="fast", WORD="plain")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub", "namespace": site.namespace}}
    await site.kube.create({**secret, "stringData": {"token": "s3cret"}})
    env = [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
        {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "mode"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
        {"name": "BOTH", "value": "$(NAME)-$(MODE)-$$(NAME)-$(ABSENT)"},
    ]
    one = container("main", "sh", "-c", "echo $0; env; exec sleep 60", args=["$(BOTH)"], env=env)
    one["envFrom"] = [{"prefix": "ALL_", "configMapRef": {"name": "settings"}}]
    await site.run("vars", one, labels={"app": "x"})
    pod = await site.until_ready("vars")

    def written() -> str:
        return site.kubelet.log(site.namespace, "vars")

    lines = (await eventually(lambda: "PATH=" in written() and written(), every=0.02)).splitlines()
    assert lines[0] == "vars-fast-$(NAME)-$(ABSENT)"
    expected = {"NAME": "vars", "LABEL": "x", "ADDRESS": pod["status"]["podIP"], "NODE": site.node, "MODE": "fast"}
    expected |= {"TOKEN": "s3cret", "ALL_WORD": "plain"}
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    assert expected.items() <= found.items()


async def test_a_missing_secret_is_waited_for(site: KubeletSite):
    reference = {"secretKeyRef": {"name": "late", "key": "token"}}
    await site.run("waits", server(env=[{"name": "TOKEN", "valueFrom": reference}]))
    pod = await site.until("waits", lambda pod: "reason" in status_of(pod)["state"].get("waiting", {}))
    pod = await site.until("waits", lambda pod: "message" in status_of(pod)["state"].get("waiting", {}))
    assert status_of(pod)["state"]["waiting"] == {
        "reason": "CreateContainerConfigError",
        "message": 'secret "late" not found',
    }
    meta = {"name": "late", "namespace": site.namespace}
    await site.kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": {"token": "x"}})
    await site.until_ready("waits")


async def test_volumes_are_mounted_where_the_pod_says_and_nowhere_else(site: KubeletSite):
    await site.config_map("files", **{"a.txt": "A", "b.txt": "B"})
    volumes = [
        {"name": "files", "configMap": {"name": "files", "items": [{"key": "a.txt", "path": "deep/a"}]}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "disk", "hostPath": {"path": "/mnt/nvme", "type": "DirectoryOrCreate"}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "weights"}},
        {"name": "about", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ]
    mounts = [
        {"name": "files", "mountPath": "/etc/files"},
        {"name": "scratch", "mountPath": "/dev/shm"},
        {"name": "disk", "mountPath": "/disk"},
        {"name": "claim", "mountPath": "/weights", "readOnly": True, "subPath": "k3"},
        {"name": "about", "mountPath": "/about"},
    ]
    fake = site.kubelet.claim_path(site.namespace, "weights") / "k3"
    fake.mkdir(parents=True)
    (fake / "config.json").write_text("{}")
    pair = [server(volumeMounts=mounts), container("other", "sleep", "60", volumeMounts=mounts[1:2])]
    await site.run("files", *pair, volumes=volumes)
    await site.until_ready("files")
    read = await site.sh(
        "files", "cat /etc/files/deep/a /about/name; ls /weights; echo x > /dev/shm/x; echo y > /disk/y"
    )
    assert read == "Afiles" + "config.json"
    assert await site.sh("files", "touch /weights/x 2>/dev/null; echo $?") != "0"
    assert await site.sh("files", "cat /dev/shm/x", "other") == "x"
    assert (site.kubelet.host_path(site.node, "/mnt/nvme") / "y").read_text() == "y\n"
    token = "/var/run/secrets/kubernetes.io/serviceaccount"
    asked = f"cat {token}/namespace; cut -d. -f2 {token}/token | wc -l"
    assert await site.sh("files", asked) == f"{site.namespace}1"


async def test_a_pod_can_ask_the_api_server_with_its_token(site: KubeletSite):
    await site.run("client", server())
    await site.until_ready("client")
    code = """
import json, os, ssl, urllib.request
at = "/var/run/secrets/kubernetes.io/serviceaccount/"
headers = {"Authorization": "Bearer " + open(at + "token").read(), "Content-Type": "application/json"}
review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
url = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}/apis/authentication.k8s.io/v1/selfsubjectreviews"
request = urllib.request.Request(url, json.dumps(review).encode(), headers)
answer = urllib.request.urlopen(request, context=ssl.create_default_context(cafile=at + "ca.crt"), timeout=5)
print(answer.read().decode())
"""
    _, output = await site.kubelet.exec(site.namespace, "client", ["python3", "-c", code])
    assert json.loads(output)["status"]["userInfo"]["username"] == f"system:serviceaccount:{site.namespace}:default"


GRPC_SERVER = """
import grpc, os
from concurrent.futures import ThreadPoolExecutor
def check(request, context):
    if request != b"\\x0a\\x05ready":
        context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
    return b"\\x08\\x01" if os.path.exists("/tmp/serving") else b"\\x08\\x02"
method = grpc.unary_unary_rpc_method_handler(check)
server = grpc.server(ThreadPoolExecutor(2))
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": method})])
server.add_insecure_port("[::]:9003")
server.start()
server.wait_for_termination()
"""


async def test_grpc_probes_ask_the_health_service_by_name(site: KubeletSite):
    for name, service in (("known", "ready"), ("unknown", "other")):
        probe = {"grpc": {"port": 9003, "service": service}, "periodSeconds": 1, "timeoutSeconds": 5}
        await site.run(name, container("main", "python3", "-c", GRPC_SERVER, readinessProbe=probe))
        await site.until(name, lambda pod: "running" in status_of(pod)["state"])
        await site.sh(name, "touch /tmp/serving")
    await site.until_ready("known")
    await site.sh("known", "rm /tmp/serving")
    await site.until("known", lambda pod: condition(pod, "Ready") == "False")
    assert condition(await site.pod("unknown"), "Ready") == "False"


async def test_tcp_and_exec_probes(site: KubeletSite):
    tcp = {"tcpSocket": {"port": "http"}, "periodSeconds": 1}
    file = {"exec": {"command": ["test", "-e", "/tmp/go"]}, "periodSeconds": 1}
    port = [{"name": "http", "containerPort": 8000}]
    await site.run("probed", server(ports=port, readinessProbe=file, startupProbe=tcp, livenessProbe=HTTP))
    pod = await site.until("probed", lambda pod: status_of(pod).get("started"))
    assert condition(pod, "Ready") == "False"
    await site.sh("probed", "touch /tmp/go")
    await site.until_ready("probed")
