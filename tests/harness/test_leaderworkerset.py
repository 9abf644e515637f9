"""The LeaderWorkerSet and ComputeDomain stand-ins together, against the real control plane and KWOK's nodes."""

from __future__ import annotations

import pytest
import pytest_asyncio

from tests.harness import leaderworkerset_admission as admission
from tests.harness.computedomain import CLIQUE, DOMAIN
from tests.harness.gb300_site import Site
from tests.harness.kube import Kube, KubeError, Object, eventually
from tests.harness.kwok import CRASH
from tests.harness.leaderworkerset_objects import API_VERSION, GROUP_KEY

pytestmark = pytest.mark.controlplane

LWS = "leaderworkersets"


@pytest_asyncio.fixture
async def site(kube: Kube, namespace: str) -> Site:
    return await Site.of(kube, namespace)


def conditions(lws: Object) -> dict[str, str]:
    return {one["type"]: one["status"] for one in lws.get("status", {}).get("conditions", [])}


def environment(pod: Object) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in pod["spec"]["containers"][0]["env"]}


async def available(site: Site, *, besides: set[str] | None = None) -> dict[str, Object]:
    """The two pods of group 0 once the set is Available and none of the pods is one of `besides`."""

    async def check() -> dict[str, Object] | None:
        lws = await site.kube.get(API_VERSION, LWS, "k3", site.namespace)
        pods = await site.pods()
        fresh = not {pod["metadata"]["uid"] for pod in pods.values()} & (besides or set())
        settled = conditions(lws).get("Available") == "True" and lws["status"].get("readyReplicas") == 1
        return pods if settled and fresh and set(pods) == {"k3-0", "k3-0-1"} else None

    found: dict[str, Object] = await eventually(check, what="k3 available with two pods")
    return found


async def labelled(site: Site, node: str, uid: str) -> None:
    async def check() -> bool:
        return await site.node_label(node, DOMAIN) == uid

    await eventually(check, what=f"{node} carries the domain's uid")


def uids(pods: dict[str, Object]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods.values()}


async def test_a_group_lands_on_two_nodes_of_one_clique_and_is_recreated_as_one(site: Site):
    await site.create_domain("k3")
    await site.create_group("k3", channel="k3-channel")
    pods = await available(site)

    nodes = {pod["spec"]["nodeName"] for pod in pods.values()}
    assert len(nodes) == 2
    assert {(await site.kube.get("v1", "nodes", name))["metadata"]["labels"][CLIQUE] for name in nodes} == {site.clique}
    assert environment(pods["k3-0-1"]) == {
        "LWS_LEADER_ADDRESS": f"k3-0.k3.{site.namespace}", "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1",
    }  # fmt: skip
    assert environment(pods["k3-0"])["LWS_WORKER_INDEX"] == "0"
    keys = {pod["metadata"]["labels"][GROUP_KEY] for pod in pods.values()}
    assert len(keys) == 1
    domain = await site.kube.get("resource.nvidia.com/v1beta1", "computedomains", "k3", site.namespace)
    for name in nodes:
        await labelled(site, name, domain["metadata"]["uid"])

    patch = {"metadata": {"annotations": {CRASH: "1"}}}
    await site.kube.patch("v1", "pods", "k3-0-1", patch, site.namespace)
    again = await available(site, besides=uids(pods))
    assert {pod["metadata"]["labels"][GROUP_KEY] for pod in again.values()} == keys
    events = await site.kube.list("v1", "events", site.namespace)
    assert [one["involvedObject"]["name"] for one in events if one["reason"] == "RecreateGroup"] == ["k3"]

    await site.kube.delete("v1", "pods", "k3-0-1", site.namespace)
    await available(site, besides=uids(again))


async def test_a_template_change_rolls_and_zero_replicas_leave_no_pod(site: Site):
    await site.create_group("k3")
    before = await available(site)

    await site.create_group("k3", image="engine:2")
    after = await available(site, besides=uids(before))
    assert {pod["spec"]["containers"][0]["image"] for pod in after.values()} == {"engine:2"}
    lws = await site.kube.get(API_VERSION, LWS, "k3", site.namespace)
    assert conditions(lws) == {"Available": "True", "Progressing": "False", "UpdateInProgress": "False"}

    await site.kube.patch(API_VERSION, LWS, "k3", {"spec": {"replicas": 0}}, site.namespace, subresource="scale")

    async def empty() -> bool:
        status = (await site.kube.get(API_VERSION, LWS, "k3", site.namespace))["status"]
        return not await site.pods() and not status.keys() & {"replicas", "readyReplicas", "updatedReplicas"}

    await eventually(empty, what="no pods and no counts")
    lws = await site.kube.get(API_VERSION, LWS, "k3", site.namespace)
    assert conditions(lws)["Available"] == "True"

    await site.kube.patch(API_VERSION, LWS, "k3", {"spec": {"replicas": 1}}, site.namespace, subresource="scale")
    await available(site, besides=uids(after))


@pytest.mark.parametrize("propagation", ["Foreground", "Background"])
async def test_deletion_leaves_nothing(site: Site, propagation: str):
    await site.create_group("k3", subdomain="UniquePerReplica")
    pods = await available(site)
    assert pods["k3-0"]["spec"]["subdomain"] == pods["k3-0-1"]["spec"]["subdomain"] == "k3-0"
    await site.kube.delete(API_VERSION, LWS, "k3", site.namespace, propagation=propagation)

    async def left() -> list[str]:
        kinds = [("v1", "pods"), ("v1", "services"), ("apps/v1", "statefulsets"), ("apps/v1", "controllerrevisions")]
        found = [obj for kind in kinds for obj in await site.kube.list(*kind, site.namespace)]
        return [obj["metadata"]["name"] for obj in found]

    async def nothing() -> bool:
        names = await left()
        assert names == []
        return await site.kube.find(API_VERSION, LWS, "k3", site.namespace) is None

    await eventually(nothing, what="nothing left")


async def test_what_the_webhook_refuses_is_refused(site: Site):
    with pytest.raises(KubeError) as refused:
        await site.create_group("k3", rolling={"maxUnavailable": 0, "maxSurge": 0})
    assert refused.value.code == 403
    assert "maxUnavailable" in str(refused.value)
    assert admission.REFUSALS in str(refused.value)
