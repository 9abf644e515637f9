"""The LeaderWorkerSet API goes and comes.

On a cluster of its own: kube-controller-manager's garbage collector is slow for half a minute after such a change.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.controlplane.site import Site, pool
from tests.harness import binaries, external_crds
from tests.harness.kube import eventually
from tests.harness.operator_process import OperatorProcess
from tests.harness.practice import PracticeCluster


@pytest.fixture(scope="module")
def practice_cluster() -> Iterator[PracticeCluster]:
    if (reason := binaries.missing()) is not None:
        pytest.skip(reason)
    with PracticeCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def operator_process(practice_cluster: PracticeCluster) -> Iterator[OperatorProcess]:
    with OperatorProcess(practice_cluster) as process:
        yield process


async def test_a_missing_api_is_a_condition_that_heals_with_its_watch(site: Site) -> None:
    site.cluster.stop_leader_worker_sets()
    await external_crds.remove(site.kube, (external_crds.LWS,))
    try:
        await site.apply("k3", pool("b300", 1), pool("gb300", 1))
        condition = await site.until("k3", "Stalled", "True", reason="APIMissing")
        assert "LeaderWorkerSet (leaderworkerset.x-k8s.io/v1)" in condition["message"]

        async def others_serve() -> bool:
            return [entry["phase"] for entry in await site.replicas("k3", "b300")] == ["Ready"]

        await eventually(others_serve, what="the other pool serves all the same")
    finally:
        await external_crds.install(site.kube, (external_crds.LWS,))
        site.cluster.start_leader_worker_sets()
    await site.ready("k3")
    await site.kube.delete("leaderworkerset.x-k8s.io/v1", "leaderworkersets", "k3-gb300-0", site.namespace)

    async def back() -> bool:
        found = (await site.children()).get(("leaderworkersets", "k3-gb300-0"))
        return found is not None and "deletionTimestamp" not in found["metadata"]

    await eventually(back, what="a group deleted by hand comes back: the new API is watched")


async def test_deletion_ends_although_the_group_api_has_vanished(site: Site) -> None:
    await site.apply("k3", pool("b300", 1), pool("gb300", 2))
    await site.ready("k3")
    site.cluster.stop_leader_worker_sets()
    await external_crds.remove(site.kube, (external_crds.LWS,))
    try:
        await site.delete("k3")
        await site.gone("k3")

        async def nothing_left() -> bool:
            return not await site.children() and not await site.pods("k3")

        await eventually(nothing_left, what="no child and no pod is left")
    finally:
        await external_crds.install(site.kube, (external_crds.LWS,))
        site.cluster.start_leader_worker_sets()
