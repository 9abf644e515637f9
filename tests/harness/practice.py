"""A practice cluster: a real control plane, imitated kubelets, GPU nodes, CRDs and stand-in controllers.

    python -m tests.harness.practice [--nodes FILE ...] [--kubeconfig .cluster/kubeconfig]

runs one in the foreground until Ctrl-C or SIGTERM. `PracticeCluster` is the same for tests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import yaml

from tests.harness import binaries, external_crds
from tests.harness.audit import AuditEntry
from tests.harness.computedomain import FakeComputeDomainController
from tests.harness.controlplane import ControlPlane
from tests.harness.kube import Kube, Object, eventually
from tests.harness.kwok import Kwok, flatten
from tests.harness.leaderworkerset import FakeLeaderWorkerSetController
from tests.harness.node_files import SITES, NodeFileError, read_nodes
from tests.harness.pod_engines import PodEngines
from tests.harness.processes import ProcessError

REPOSITORY = Path(__file__).resolve().parents[2]
NODES_READY_SECONDS = 60.0

T = TypeVar("T")


def own_crds() -> list[Object]:
    """The operator's CRDs, from `crds/*.yaml`."""
    found: list[Object] = []
    for path in sorted((REPOSITORY / "crds").glob("*.yaml")):
        found += flatten(yaml.safe_load_all(path.read_text()))
    return [body for body in found if body.get("kind") == "CustomResourceDefinition"]


def is_schedulable(node: Object) -> bool:
    """Ready, and without the taint that the controller manager lifts a moment later."""
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"].get("conditions", []))
    return ready and not any(taint["key"] == "node.kubernetes.io/not-ready" for taint in node["spec"].get("taints", []))


class Background:
    """An asyncio loop in a thread of its own, for the stand-in controllers and for asynchronous setup from plain
    code.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="practice-cluster", daemon=True)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` there and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` there until `cancel(name)` or `close`."""

        async def start() -> None:
            self._tasks[name] = asyncio.create_task(work, name=name)

        self.call(start())

    def cancel(self, name: str) -> None:
        task = self._tasks.pop(name, None)

        async def stop() -> None:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        self.call(stop())

    def failures(self) -> dict[str, BaseException]:
        """What ended a task that should still run."""
        ended = {name: task for name, task in self._tasks.items() if task.done() and not task.cancelled()}
        return {name: error for name, task in ended.items() if (error := task.exception()) is not None}

    def close(self) -> None:
        for name in list(self._tasks):
            self.cancel(name)
        self.call(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class PracticeCluster:
    """Starts everything; use as a context manager or with `start` and `stop`.

    `node_files` as in tests/harness/node_files.py, `external_groups` the API groups of tests/harness/external_crds.py
    to install, `stand_ins` whether the LeaderWorkerSet and ComputeDomain controllers are imitated, `users` as for
    ControlPlane. `control_plane` and `kwok` are there for outages; `timings` has the seconds of each step.
    """

    LEADER_WORKER_SET = "LeaderWorkerSet stand-in"
    COMPUTE_DOMAIN = "ComputeDomain stand-in"
    ENGINES = "fake engines"

    def __init__(
        self,
        node_files: Iterable[Path] = SITES,
        *,
        external_groups: Collection[str] = external_crds.GROUPS,
        stand_ins: bool = True,
        users: Mapping[str, Iterable[str]] | None = None,
        pod_cidr: str | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.node_files = tuple(node_files)
        self.external_groups = external_groups
        self.stand_ins = stand_ins
        self.pod_cidr = pod_cidr
        self.report = report
        self.control_plane = ControlPlane(users)
        self.kwok: Kwok | None = None
        self.external: dict[str, str] = {}
        """External CRD name to "real" or "stand-in"."""
        self.timings: dict[str, float] = {}
        self._background: Background | None = None
        self.engines: PodEngines

    @property
    def kubeconfig(self) -> Path:
        """Of an administrator."""
        return self.control_plane.kubeconfig

    def kubeconfig_for(self, user: str, groups: Iterable[str] | None = None) -> Path:
        return self.control_plane.kubeconfig_for(user, groups)

    def audit(self, since: datetime | None = None) -> list[AuditEntry]:
        return self.control_plane.audit(since)

    def start(self) -> Self:
        """Returns when all nodes are Ready and all CRDs Established.

        Raises BinariesMissingError, ProcessError, NodeFileError, KubeError or AssertionError; nothing is left running
        then.
        """
        nodes = [node for path in self.node_files for node in read_nodes(path)]
        begin = time.monotonic()
        try:
            self.control_plane.start()
            self._step("control plane", begin)
            port = int(self.control_plane.server.rsplit(":", 1)[1])
            # Clusters of one machine get different pod addresses, as far as the port tells them apart.
            cidr = self.pod_cidr or f"127.{64 + port % 128}.0.1/16"
            self.kwok = Kwok(self.kubeconfig_for("kwok"), self.control_plane.folder, pod_cidr=cidr)
            began = time.monotonic()
            self.kwok.start()
            self._step("kwok", began)
            self._background = Background()
            self.engines = PodEngines(self.kubeconfig_for("harness"))
            self._background.call(self._fill(nodes))
            if self.stand_ins:
                self.start_leader_worker_sets()
                self.start_compute_domains()
                self._loop().spawn(self.ENGINES, self.engines.run())
            self._step("all", begin)
        except BaseException:
            self.stop()
            raise
        return self

    def _step(self, name: str, since: float) -> None:
        self.timings[name] = time.monotonic() - since
        self.report(f"{name}: {self.timings[name]:.1f} s")

    async def _fill(self, nodes: Sequence[Object]) -> None:
        async with Kube(self.kubeconfig_for("harness")) as kube:
            await asyncio.gather(self._add_nodes(kube, nodes), self._add_crds(kube))

    async def _add_nodes(self, kube: Kube, nodes: Sequence[Object]) -> None:
        began = time.monotonic()
        await asyncio.gather(*(kube.create(node) for node in nodes))

        async def all_schedulable() -> bool:
            return sum(map(is_schedulable, await kube.list("v1", "nodes"))) >= len(nodes)

        await eventually(all_schedulable, seconds=NODES_READY_SECONDS, what=f"{len(nodes)} nodes Ready", every=0.3)
        self._step(f"{len(nodes)} nodes", began)

    async def _add_crds(self, kube: Kube) -> None:
        began = time.monotonic()
        self.external = await external_crds.install(kube, self.external_groups)
        await external_crds.install_crds(kube, own_crds())
        self._step("CRDs", began)

    def start_leader_worker_sets(self) -> None:
        """Run the LeaderWorkerSet stand-in."""
        controller = FakeLeaderWorkerSetController(self.kubeconfig_for("harness"))
        self._loop().spawn(self.LEADER_WORKER_SET, controller.run())

    def start_compute_domains(self) -> None:
        """Run the ComputeDomain stand-in."""
        controller = FakeComputeDomainController(self.kubeconfig_for("harness"))
        self._loop().spawn(self.COMPUTE_DOMAIN, controller.run())

    def stop_leader_worker_sets(self) -> None:
        """As if the LeaderWorkerSet controller were down."""
        self._loop().cancel(self.LEADER_WORKER_SET)

    def stop_compute_domains(self) -> None:
        self._loop().cancel(self.COMPUTE_DOMAIN)

    def failures(self) -> dict[str, BaseException]:
        """Stand-ins that ended with an error."""
        return self._background.failures() if self._background is not None else {}

    def _loop(self) -> Background:
        if self._background is None:
            raise RuntimeError("the practice cluster is not started")
        return self._background

    def stop(self) -> None:
        """End everything; may be called twice."""
        if self._background is not None:
            self._background.close()
            self._background = None
        if self.kwok is not None:
            self.kwok.stop()
            self.kwok = None
        self.control_plane.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def memory(self) -> dict[str, int]:
        """Resident bytes per process."""
        found = self.control_plane.memory()
        if self.kwok is not None and self.kwok.process is not None:
            found["kwok"] = self.kwok.process.memory()
        return found


def next_steps(cluster: PracticeCluster, kubeconfig: Path) -> str:
    real = sum(source == "real" for source in cluster.external.values())
    memory = sum(cluster.memory().values()) / 2**20
    return f"""
The practice cluster runs at {cluster.control_plane.server} ({memory:.0f} MiB).
External CRDs: {real} real, {len(cluster.external) - real} stand-ins. Logs: {cluster.control_plane.folder}

In another terminal:

    export KUBECONFIG={kubeconfig} PATH="$(make -s tools-dir):$PATH"
    kubectl get nodes -L nvidia.com/gpu.product,amd.com/gpu.product-name,nvidia.com/gpu.clique

Pods run nothing; annotations such as harness.kimik3.dev/startup-seconds steer them (tests/harness/stages/pod.yaml).
Ctrl-C ends the cluster and removes it.
"""


@contextlib.contextmanager
def published(source: Path, target: Path) -> Any:
    """A copy of the kubeconfig at `target`, readable by its owner only, for as long as the cluster runs."""
    target.parent.mkdir(parents=True, exist_ok=True)
    content = source.read_text()
    scratch = target.with_name(target.name + ".new")
    scratch.touch(mode=0o600)
    scratch.write_text(content)
    os.replace(scratch, target)
    try:
        yield target
    finally:
        if target.exists() and target.read_text() == content:  # else another practice cluster has taken the place
            target.unlink()


def interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="practice", description="Run a practice cluster until Ctrl-C.")
    parser.add_argument(
        "--nodes",
        nargs="+",
        type=Path,
        default=list(SITES),
        metavar="FILE",
        help="node files (default: a DigitalOcean-like and a CoreWeave-like site)",
    )
    parser.add_argument(
        "--kubeconfig", type=Path, default=Path(".cluster/kubeconfig"), help="written (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, interrupt)

    def report(text: str) -> None:
        print(text, flush=True)

    cluster = PracticeCluster(options.nodes, report=report)
    try:
        with cluster, published(cluster.kubeconfig, options.kubeconfig) as kubeconfig:
            print(next_steps(cluster, kubeconfig.resolve()), flush=True)
            reported: set[str] = set()
            while True:
                time.sleep(1)
                for name, error in cluster.failures().items():
                    if name not in reported:
                        reported.add(name)
                        print(f"{name} ended: {error!r}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("stopped", flush=True)
        return 0
    except (binaries.BinariesMissingError, ProcessError, NodeFileError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
