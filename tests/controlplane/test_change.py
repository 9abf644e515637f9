"""Changes of a running deployment: scale, update, pools that come and go, APIs that are missing."""

from __future__ import annotations

import asyncio

from kimi_k3_operator.api.base import API_VERSION
from tests.controlplane.site import POOLS, Site, pool
from tests.harness.kube import Object, eventually


def _image(reference: str) -> Object:
    return {"image": {"reference": reference, "engineVersion": "0.30.0"}}


async def test_scaling_up_and_down_restarts_no_other_replica(site: Site) -> None:
    await site.apply("k3", pool("gb300", 2))
    await site.ready("k3")
    before = await site.pod_uids("k3")
    await site.apply("k3", pool("gb300", 4))
    await site.ready("k3")
    assert before < await site.pod_uids("k3")
    await site.apply("k3", pool("gb300", 2))

    async def down() -> bool:
        return await site.pod_uids("k3") == before

    await eventually(down, what="the two new replicas are gone, the old ones untouched")
    await site.ready("k3")


async def test_an_autoscaler_writes_the_pool_and_the_way_back_loses_no_pod(site: Site) -> None:
    await site.apply("k3", pool("b300", 2))
    await site.ready("k3")
    before = await site.pod_uids("k3")
    await site.apply("k3", pool("b300", autoscaling={"minReplicas": 1, "maxReplicas": 3}))
    await site.ready("k3")
    assert await site.pod_uids("k3") == before, "the pool keeps the count it had"
    three = {"spec": {"replicas": 3}}
    await site.kube.patch(API_VERSION, POOLS, "k3-b300", three, site.namespace, subresource="scale")

    async def third() -> bool:
        return before < await site.pod_uids("k3")

    await eventually(third, what="the third replica")
    await site.ready("k3")

    async def counted() -> bool:
        path = f"/apis/{API_VERSION}/namespaces/{site.namespace}/{POOLS}/k3-b300/scale"
        status = (await site.kube.request("GET", path))["status"]
        assert "kimik3.dev/serves-http=true" in status["selector"]
        return bool(status["replicas"] == 3)

    await eventually(counted, what="the scale subresource shows three replicas and their selector")
    await site.apply("k3", pool("b300", 3))
    await site.ready("k3")
    assert before < await site.pod_uids("k3")


async def test_a_new_image_rolls_one_replica_at_a_time(site: Site) -> None:
    await site.apply("k3", pool("b300", 3))
    await site.ready("k3")
    lowest = {"ready": 3}

    async def watch() -> None:
        async for _, pod in site.kube.watch("v1", "pods", site.namespace, selector="kimik3.dev/deployment=k3"):
            if pod.get("kind") == "Pod":
                pods = await site.pods("k3")
                lowest["ready"] = min(lowest["ready"], sum(_serves(found) for found in pods))

    watching = asyncio.create_task(watch())
    before = await site.pod_uids("k3")
    await site.apply("k3", pool("b300", 3, **_image("registry.example/vllm:tuned")))
    await site.ready("k3")
    watching.cancel()
    pods = await site.pods("k3")
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"registry.example/vllm:tuned"}
    assert before.isdisjoint(pod["metadata"]["uid"] for pod in pods)
    assert lowest["ready"] >= 2, "maxUnavailable is 1"


def _serves(pod: Object) -> bool:
    conditions = {c["type"]: c["status"] for c in pod.get("status", {}).get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


async def test_a_removed_pool_drains_and_leaves_nothing(site: Site) -> None:
    await site.apply("k3", pool("b300", 1), pool("gb300", 1))
    await site.ready("k3")
    kept = {pod["metadata"]["uid"] for pod in await site.pods("k3", "b300")}
    await site.apply("k3", pool("b300", 1))

    async def only_b300() -> bool:
        children = {name for _, name in await site.children()}
        return await site.pod_uids("k3") == kept and not any("gb300" in name or "nvlink" in name for name in children)

    await eventually(only_b300, what="the gb300 pool and its ComputeDomain are gone")
    await site.ready("k3")


async def test_a_paused_deployment_is_only_reported(site: Site) -> None:
    await site.apply("k3", pool("b300", 1))
    await site.ready("k3")
    await site.apply("k3", pool("b300", 2), paused=True)
    condition = await site.until("k3", "Reconciling", "False", reason="Paused")
    assert "nothing is changed" in condition["message"]
    assert len(await site.pods("k3")) == 1
    await site.apply("k3", pool("b300", 2), paused=False)
    await site.ready("k3")
    assert len(await site.pods("k3")) == 2


async def test_five_replica_counts_in_a_row_end_on_the_last_one(site: Site) -> None:
    await site.apply("k3", pool("b300", 1))
    await site.ready("k3")
    first = await site.pod_uids("k3")
    for count in (3, 2, 4, 1, 3):
        await site.apply("k3", pool("b300", count))
    await site.ready("k3")

    async def three() -> bool:
        return len(await site.pods("k3")) == 3

    await eventually(three, what="three replicas")
    assert first < await site.pod_uids("k3"), "the serving replica was never touched"
