"""The entrance as objects of a real API server; its programs are run in tests/dataplane."""

from __future__ import annotations

from tests.controlplane.site import Site, pool
from tests.harness.kube import eventually

FRONTS = ("k3-picker", "k3-entrance")


async def _front_pods(site: Site) -> dict[str, str]:
    """Pod UID to the component it is of."""
    selector = "kimik3.dev/deployment=k3,app.kubernetes.io/component"
    pods = await site.kube.list("v1", "pods", site.namespace, selector)
    return {p["metadata"]["uid"]: p["metadata"]["labels"]["app.kubernetes.io/component"] for p in pods}


async def test_an_entrance_comes_up_stays_through_a_scale_and_a_restart_and_goes_with_its_field(site: Site) -> None:
    await site.apply("k3", pool("b300", 1), pool("mi350x", 1), routing={})
    await site.ready("k3")
    routed = await site.until("k3", "Routed", "True")
    endpoint = f"http://k3-entrance.{site.namespace}.svc/v1"
    assert routed["message"] == f"clients use {endpoint}; no API key is asked for, whoever reaches it may use it"
    assert (await site.get("k3"))["status"]["endpoint"] == endpoint
    fronts = await _front_pods(site)
    assert sorted(fronts.values()) == ["entrance", "entrance", "picker"]
    await site.settled()

    since = site.now()
    await site.one_more_pass()
    site.operator.restart()
    await site.one_more_pass()
    assert site.writes(since) == []
    await site.apply("k3", pool("b300", 2), pool("mi350x", 1), routing={})
    await site.ready("k3")
    assert await _front_pods(site) == fronts, "neither an operator restart nor a scale touches them"

    engines = await site.pod_uids("k3") - set(fronts)
    await site.apply("k3", pool("b300", 2), pool("mi350x", 1))

    async def gone() -> bool:
        left = {name for _, name in await site.children()}
        return not any(front in name for front in FRONTS for name in left) and not await _front_pods(site)

    await eventually(gone, what="picker and entrance are gone")
    assert await site.pod_uids("k3") == engines, "no engine was touched"

    async def unsaid() -> bool:
        return (await site.condition("k3", "Routed"))["status"] == "" and "endpoint" not in (await site.get("k3"))[
            "status"
        ]

    await eventually(unsaid, what="the status says nothing of an entrance any more")


async def test_pools_that_clients_could_tell_apart_are_refused_behind_one_address(site: Site) -> None:
    shorter = pool("b300", 1, overrides={"args": {"max-model-len": "262144"}})
    await site.apply("k3", shorter, pool("mi350x", 1), routing={})
    condition = await site.until("k3", "Accepted", "False", reason="UnifiedContract")
    assert "pools differ in max-model-len: b300 has 262144, mi350x has 1048576" in condition["message"]
    assert not await site.children()
