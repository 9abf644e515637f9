"""The rendered picker and entrance as they are: llm-d's endpoint picker, real Envoy, fake engines of two speeds.

Needs LLMD_BIN_DIR with the picker's binary `epp`. It runs with the rendered arguments, configuration and Role, and
finds the pods of an operator that runs on a practice cluster.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from kimi_k3_operator.compile.entrance import PickerAddress
from tests.controlplane.site import Site, pool
from tests.dataplane.sessions import Identity, load_shares, run_sessions, warm_share
from tests.harness import entrance as envoy
from tests.harness.engine import EngineSettings, Pace
from tests.harness.kube import Object, eventually
from tests.harness.processes import Process, free_ports

BINARY = Path(os.environ.get("LLMD_BIN_DIR", "")) / "epp"
pytestmark = pytest.mark.skipif(
    not os.environ.get("LLMD_BIN_DIR") or not BINARY.is_file() or envoy.missing() is not None,
    reason="LLMD_BIN_DIR names no folder with llm-d's endpoint picker `epp`, or there is no Envoy",
)

FAST = Pace(prefill=50_000.0, decode=500.0)
SLOW = Pace(prefill=10_000.0, decode=100.0)


def _paced(pod: Object, settings: EngineSettings) -> EngineSettings:
    """MI350X engines are five times slower than the others, with half the cache."""
    slow = pod["metadata"]["labels"]["kimik3.dev/pool"] == "mi350x"
    return replace(settings, pace=SLOW if slow else FAST, kv_blocks=200 if slow else 400)


@contextmanager
def _running_picker(site: Site, folder: Path, container: Object, config: str) -> Iterator[PickerAddress]:
    """The picker with its rendered arguments; files and ports are those of this machine."""
    grpc, health, metrics = free_ports(3)
    (folder / "picker.yaml").write_text(config)
    places = {"/config/picker.yaml": str(folder / "picker.yaml"), "9002": str(grpc), "9003": str(health)}
    args = [{**places, "9090": str(metrics)}.get(word, word) for word in container["args"]]
    kubeconfig = site.cluster.control_plane.kubeconfig_for_service_account(site.namespace, "k3-picker")
    environment = {
        "KUBECONFIG": str(kubeconfig), "NAMESPACE": site.namespace, "POD_NAME": "k3-picker-5d5f6c7b8-x2x4z",
    }  # fmt: skip
    process = Process("picker", [BINARY, *args], folder / "picker.log", environment)
    process.start()
    try:
        process.wait_ready(f"http://127.0.0.1:{metrics}/metrics", 60)
        yield PickerAddress("127.0.0.1", grpc, health)
    finally:
        process.stop()


@pytest_asyncio.fixture
async def url(site: Site, tmp_path: Path) -> AsyncIterator[str]:
    """The address of an entrance before two fast and two slow replicas."""
    site.cluster.engines.adjust = _paced
    try:
        await site.apply("k3", pool("b300", 2), pool("mi350x", 2), routing={})
        await site.ready("k3")
        files = await site.kube.get("v1", "configmaps", "k3-picker", site.namespace)
        deployed = await site.kube.get("apps/v1", "deployments", "k3-picker", site.namespace)
        container = deployed["spec"]["template"]["spec"]["containers"][0]
        with (
            _running_picker(site, tmp_path, container, files["data"]["picker.yaml"]) as picker,
            envoy.running_entrance(tmp_path, picker) as running,
        ):
            await eventually(lambda: _answers(running.url), seconds=30, what="an answer through the entrance")
            yield running.url
    finally:
        site.cluster.engines.adjust = None


async def _answers(url: str) -> bool:
    try:
        found = await run_sessions(url, sessions=1, turns=1, shared_tokens=10, turn_tokens=10, seed=0)
    except AssertionError:
        return False
    return len(found) == 1


@pytest.mark.parametrize("identity", ["header", "prompt_cache_key", "none"])
@pytest.mark.parametrize(("shared", "turn"), [(6000, 1300), (16000, 500)])
async def test_sessions_stay_on_their_warm_engine_whoever_names_them(
    url: str, identity: Identity, shared: int, turn: int
) -> None:
    found = await run_sessions(url, shared_tokens=shared, turn_tokens=turn, identity=identity)
    shares = load_shares(found)
    print(f"{identity}, {shared} shared: warm {warm_share(found):.1%}, shares {shares}")  # noqa: T201 - for the reader
    assert warm_share(found) >= 0.95
    assert len(shares) == 4, "no replica idles"
    assert max(shares.values()) <= 0.45, "and none takes all"
