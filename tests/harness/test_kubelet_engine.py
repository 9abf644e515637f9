"""Images of the process kubelet: the operator's own engine pods with the fake engine, and Envoy."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kimi_k3_operator.api import labels
from kimi_k3_operator.compile.objects import service_account
from kimi_k3_operator.compile.replica import PoolKey, Replica
from kimi_k3_operator.compile.workloads import workload
from tests import factories
from tests.harness.engine.client import client
from tests.harness.kube import Kube, Object, eventually
from tests.harness.kubelet import default_images, fake_checkpoint, missing
from tests.harness.kubelet.images import find_image
from tests.harness.kubelet.site import HTTP, KubeletSite, condition, kubelet_site, process_node, status_of
from tests.harness.practice import PracticeCluster

pytestmark = pytest.mark.kubelet

HERE = "harness.kimik3.dev/runs"
MARKS = {"kubernetes.io/arch": "amd64", "nvidia.com/gpu.product": "NVIDIA-B300-SXM6-AC", HERE: "processes"}
TOLERATION = {"key": "harness.kimik3.dev/process", "operator": "Exists", "effect": "NoSchedule"}
ENVOY = "envoyproxy/envoy:distroless-v1.33.2"
WEIGHTS = "/mnt/nvme/kimi-k3"


@pytest_asyncio.fixture
async def site(practice_cluster: PracticeCluster, kube: Kube, namespace: str) -> AsyncIterator[KubeletSite]:
    if reason := missing():
        pytest.skip(reason)
    node = process_node("process-b300", labels=MARKS, gpus={"nvidia.com/gpu": "8"})
    kubeconfig = practice_cluster.kubeconfig_for("harness")
    async with kubelet_site(kubeconfig, kube, namespace, node) as found:
        yield found


def rendered(namespace: str) -> tuple[Object, Object]:
    """(service account, Deployment) of one replica of a b300 pool whose weights are on the node."""
    scheduling = {"nodeSelector": {HERE: "processes"}, "tolerations": [TOLERATION]}
    body = factories.deployment(factories.b300(scheduling=scheduling), weights={"hostPath": {"path": WEIGHTS}})
    revision = factories.revision_of(body)
    replica = Replica(PoolKey(namespace, "k3", "b300"), 0)
    return service_account(namespace, "k3"), workload(replica, revision, None)


async def start(site: KubeletSite) -> None:
    account, deployment = rendered(site.namespace)
    await site.kube.create(account)
    await site.kube.create(deployment)


async def only_pod(site: KubeletSite) -> Object | None:
    found = await site.kube.list("v1", "pods", site.namespace, f"{labels.POOL}=b300")
    return found[0] if found else None


async def test_a_rendered_engine_passes_its_checks_and_answers_at_its_own_address(site: KubeletSite):
    fake_checkpoint(site.kubelet.host_path(site.node, WEIGHTS))
    await start(site)

    async def containers_ready() -> Object | None:
        pod = await only_pod(site)
        return pod if pod and condition(pod, "ContainersReady") == "True" else None

    pod = await eventually(containers_ready, seconds=30)
    async with client(f"http://{pod['status']['podIP']}:8000") as asker:
        answer = await asker.chat("What is 17 + 4?", reasoning_effort="none", max_tokens=64)
        assert answer.status == 200
        assert "21" in answer.message["content"]
        assert answer.headers["x-fake-engine"] == pod["metadata"]["name"]


@pytest.mark.parametrize("hidden", [0, 1])
async def test_the_check_before_the_start_says_what_is_wrong(site: KubeletSite, hidden: int):
    folder = site.kubelet.host_path(site.node, WEIGHTS)
    if hidden:
        fake_checkpoint(folder)
        site.kubelet.hide_gpus(site.node, hidden)
    else:
        folder.mkdir(parents=True)
    await start(site)

    async def message() -> str:
        pod = await only_pod(site)
        check = status_of(pod or {}, "preflight", "initContainerStatuses")
        return str(check["lastState"].get("terminated", {}).get("message", ""))

    expected = "7 of 8 GPUs are visible" if hidden else "the weights folder /weights is empty"
    assert (await eventually(message, seconds=20)).startswith(expected)


def answering(text: str) -> Object:
    """An Envoy configuration that answers every request on port 8000 with `text`."""
    route = {"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": text}}}
    filters = "type.googleapis.com/envoy.extensions.filters"
    manager = {
        "@type": f"{filters}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "http",
        "http_filters": [
            {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{filters}.http.router.v3.Router"}}
        ],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    address = {"socket_address": {"address": "0.0.0.0", "port_value": 8000}}
    return {"static_resources": {"listeners": [{"name": "http", "address": address, "filter_chains": [chain]}]}}


async def test_envoy_runs_as_the_program_of_its_wheel(site: KubeletSite):
    if reason := find_image(default_images(), ENVOY).missing:
        pytest.skip(reason)
    await site.config_map("envoy", **{"envoy.yaml": json.dumps(answering("hello"))})
    envoy = {"name": "envoy", "image": ENVOY, "args": ["-c", "/etc/envoy/envoy.yaml", "--concurrency", "1"]}
    envoy |= {"readinessProbe": HTTP, "volumeMounts": [{"name": "config", "mountPath": "/etc/envoy"}]}
    await site.run("entrance", envoy, volumes=[{"name": "config", "configMap": {"name": "envoy"}}])
    pod = await site.until_ready("entrance", seconds=30)
    async with client(f"http://{pod['status']['podIP']}:8000") as asker:
        assert (await asker.get("/")).text == "hello"
