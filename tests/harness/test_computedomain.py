"""The ComputeDomain stand-in: what it publishes, then a few runs against a real control plane."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_asyncio

from tests.harness.computedomain import (
    API_VERSION,
    CLIQUE,
    DOMAIN,
    DRA,
    channel_template,
    domain_of,
    domain_status,
    node_of,
    resource_slice,
)
from tests.harness.gb300_site import Site
from tests.harness.kube import Kube, Object, eventually

UID = "7f1c"


def domain(*, nodes: int = 0, status: Object | None = None) -> Object:
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": "k3", "namespace": "llm", "uid": UID},
        "spec": {"numNodes": nodes, "channel": {"resourceClaimTemplate": {"name": "k3-channel"}}},
        "status": status or {},
    }


def node(name: str, clique: str) -> Object:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": {CLIQUE: clique}},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.7"}]},
    }


def claim(on: str | None, *, reserved: bool = True) -> Object:
    """A claim made from the template of `domain`, allocated on a node where one is named."""
    body: Object = {
        "metadata": {"name": "c", "namespace": "llm"},
        "spec": channel_template(domain())["spec"]["spec"],
        "status": {},
    }
    if on:
        result = {"driver": "compute-domain.nvidia.com", "pool": on, "device": "channel-0", "request": "channel"}
        body["status"] = {"allocation": {"devices": {"results": [result]}}}
        if reserved:
            body["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "u"}]
    return body


def test_a_node_offers_channel_zero_and_a_daemon():
    spec = resource_slice(node("n1", "rack-a.1"))["spec"]
    assert (spec["nodeName"], spec["pool"]["name"]) == ("n1", "n1")
    assert [device["name"] for device in spec["devices"]] == ["channel-0", "daemon-0"]
    assert spec["devices"][0]["attributes"] == {"type": {"string": "channel"}, "id": {"int": 0}}


def test_the_template_ties_a_claim_to_its_domain():
    template = channel_template(domain())
    assert template["metadata"]["name"] == "k3-channel"
    assert template["metadata"]["labels"] == {
        "resource.nvidia.com/computeDomain": UID,
        "resource.nvidia.com/computeDomainTarget": "Workload",
    }
    assert domain_of(claim(None)) == UID
    assert domain_of({"spec": {"devices": {"requests": []}}}) is None


@pytest.mark.parametrize(
    ("held", "expected"), [(claim(None), None), (claim("n1", reserved=False), None), (claim("n1"), "n1")]
)
def test_a_claim_uses_a_node_once_it_is_reserved_for_a_pod(held: Object, expected: str | None):
    assert node_of(held) == expected


@pytest.mark.parametrize(
    ("wanted", "used", "expected"),
    [(0, [], "Ready"), (0, ["n1"], "Ready"), (2, ["n1"], "NotReady"), (2, ["n1", "n2"], "Ready")],
)
def test_a_domain_is_ready_with_as_many_nodes_as_it_names(wanted: int, used: list[str], expected: str):
    nodes = {name: node(name, "rack-a.1") for name in ("n1", "n2")}
    assert domain_status(domain(nodes=wanted), [claim(name) for name in used], nodes)["status"] == expected


def test_indexes_are_unique_within_a_clique_and_stay_with_their_node():
    nodes = {"n1": node("n1", "a"), "n2": node("n2", "a"), "n3": node("n3", "b"), "n0": node("n0", "a")}
    first = domain_status(domain(), [claim("n1"), claim("n2"), claim("n3")], nodes)
    assert indexes(first) == {"n1": 0, "n2": 1, "n3": 0}
    second = domain_status(domain(status=first), [claim("n0"), claim("n2"), claim("n3")], nodes)
    assert indexes(second) == {"n0": 0, "n2": 1, "n3": 0}


def indexes(status: Object) -> dict[str, Any]:
    return {entry["name"]: entry["index"] for entry in status["nodes"]}


@pytest_asyncio.fixture
async def site(kube: Kube, namespace: str) -> Site:
    return await Site.of(kube, namespace)


@pytest.mark.controlplane
async def test_a_node_gives_its_channel_to_one_pod_and_a_domain_waits_for_its_pods(site: Site):
    kube, ns, host = site.kube, site.namespace, site.nodes[-1]
    made = await site.create_domain("k3")
    await site.create_pod("first", channel="k3-channel", node=host)

    async def ready(name: str) -> bool:
        conditions = (await kube.get("v1", "pods", name, ns))["status"].get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    await eventually(lambda: ready("first"), what="first pod Ready")
    await site.create_pod("second", channel="k3-channel", node=host)

    async def refused() -> bool:
        conditions = (await kube.get("v1", "pods", "second", ns))["status"].get("conditions", [])
        return any(one.get("reason") == "Unschedulable" and "claims" in one["message"] for one in conditions)

    await eventually(refused, what="second pod Pending for want of a channel")

    async def used_nodes(count: int) -> bool:
        status = (await kube.get(API_VERSION, "computedomains", "k3", ns))["status"]
        return status["status"] == "Ready" and len(status.get("nodes", [])) == count

    await eventually(lambda: used_nodes(1), what="the domain shows its node")

    await kube.delete("v1", "pods", "second", ns)
    await kube.delete(API_VERSION, "computedomains", "k3", ns)

    async def template_gone() -> bool:
        return await kube.find(DRA, "resourceclaimtemplates", "k3-channel", ns) is None

    await eventually(template_gone, what="the template is gone at once")
    assert "deletionTimestamp" in (await kube.get(API_VERSION, "computedomains", "k3", ns))["metadata"]
    assert await site.node_label(host, DOMAIN) == made["metadata"]["uid"]

    await kube.delete("v1", "pods", "first", ns)

    async def domain_gone() -> bool:
        gone = await kube.find(API_VERSION, "computedomains", "k3", ns) is None
        return gone and await site.node_label(host, DOMAIN) is None

    await eventually(domain_gone, what="domain and node label are gone with the last pod")
