"""Deletion in all its forms, and an API server that goes away."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.controlplane.site import Site, pool
from tests.harness.kube import KubeError, eventually

ALL = (pool("b300", 2), pool("mi350x", 1), pool("gb300", 4))


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
async def test_deletion_removes_every_child_within_five_seconds(site: Site, propagation: str) -> None:
    await site.apply("k3", *ALL)
    await site.ready("k3")
    loop = asyncio.get_running_loop()
    began = loop.time()
    await site.delete("k3", propagation)
    await site.gone("k3")

    async def nothing_left() -> bool:
        return not await site.children() and not await site.pods("k3")

    await eventually(nothing_left, what="no child and no pod is left")
    assert loop.time() - began < 5 * _slowness(), "pods of the practice cluster end at once"


def _slowness() -> float:
    """Processes that wait for a processor, per processor; at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


async def test_the_compute_domain_goes_after_the_last_pod(site: Site) -> None:
    await site.apply("k3", pool("gb300", 2))
    await site.ready("k3")
    since = site.now()
    await site.delete("k3")
    await site.gone("k3")
    deleted = {entry.resource: entry.timestamp for entry in site.writes(since) if entry.verb == "delete"}
    assert deleted["computedomains"] > deleted["leaderworkersets"]
    assert not await site.pods("k3")


async def test_orphans_keep_running_and_the_same_file_takes_them_over(site: Site) -> None:
    await site.apply("k3", *ALL)
    await site.ready("k3")
    await site.settled()
    pods, children = await site.pod_uids("k3"), set(await site.children())
    await site.delete("k3", "Orphan")
    await site.gone("k3")
    assert set(await site.children()) == children
    assert await site.pod_uids("k3") == pods
    since = site.now()
    await site.apply("k3", *ALL)
    await site.ready("k3")
    await site.settled()
    assert await site.pod_uids("k3") == pods, "no pod was restarted"
    uid = (await site.get("k3"))["metadata"]["uid"]
    for child in (await site.children()).values():
        assert [owner["uid"] for owner in child["metadata"]["ownerReferences"]] == [uid]
    assert not [entry for entry in site.writes(since) if entry.verb == "delete"]


async def test_a_deletion_that_was_missed_is_finished_after_a_restart(site: Site) -> None:
    await site.apply("k3", pool("b300", 1), pool("gb300", 1))
    await site.ready("k3")
    site.operator.kill()
    await site.delete("k3")
    assert await site.get("k3"), "the finalizer holds it"
    site.operator.start()
    await site.gone("k3")
    assert not await site.pods("k3")


async def test_an_outage_of_the_api_server_is_ridden_out_and_nothing_is_missed(site: Site) -> None:
    await site.apply("k3", pool("b300", 1), pool("gb300", 2))
    await site.ready("k3")
    pods = await site.pod_uids("k3")
    site.cluster.control_plane.stop_apiserver()
    await asyncio.sleep(30)  # the outage itself
    site.cluster.control_plane.start_apiserver()

    async def answers() -> bool:
        try:
            await site.apply("k3", pool("b300", 2), pool("gb300", 2))
        except (KubeError, OSError):
            return False
        return True

    await eventually(answers, what="the API server is back")
    await site.ready("k3", seconds=180)
    assert site.operator.running
    assert pods < await site.pod_uids("k3"), "the new replica is there, the old ones run on"
