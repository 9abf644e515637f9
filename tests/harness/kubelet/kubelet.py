"""The kubelet of some nodes: follows their pods, keeps the nodes Ready, and everybody's names up to date."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import aiohttp
import httpx

from tests.harness.controller import Controller, Key, Source, key_of, own_key, rfc3339
from tests.harness.kube import Kube, KubeError, Object
from tests.harness.kubelet.container import Container
from tests.harness.kubelet.images import Image, default_images
from tests.harness.kubelet.machine import Machine, Timing
from tests.harness.kubelet.network import Network
from tests.harness.kubelet.pod import PodWorker
from tests.harness.kubelet.services import ServiceProxies, hosts_lines

log = logging.getLogger(__name__)

LEASE_SECONDS = 40
RENEW_SECONDS = 10.0
NAMES: Key = ("", "names")
"""The reconcile key of everything that follows from Services."""
CAPACITY: Mapping[str, str] = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "110"}


def _names(obj: Object) -> list[Key]:
    return [NAMES]


class ProcessKubelet(Controller):
    """Runs the pods bound to `nodes`: names of existing Nodes, or Nodes to create where they are missing.

    Use `async with`, or `run` as a task of a loop that lives as long as the pods: containers are killed when its thread
    ends. Raises NetworkError where the machine cannot (see `missing`). A Node whose name is given must not be
    annotated for kwok.
    """

    sources = (
        Source("v1", "pods", own_key),
        Source("v1", "services", _names),
        Source("discovery.k8s.io/v1", "endpointslices", _names),
    )

    def __init__(
        self,
        kubeconfig: Path,
        nodes: Iterable[str | Object],
        *,
        images: Mapping[str, Image] | None = None,
        timing: Timing | None = None,
    ) -> None:
        super().__init__(kubeconfig)
        given = list(nodes)
        self._bodies = {key_of(one)[1]: one for one in given if not isinstance(one, str)}
        self.nodes = [one if isinstance(one, str) else key_of(one)[1] for one in given]
        self._images = default_images() if images is None else images
        self._timing = timing or Timing()
        self.machine: Machine | None = None
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._proxies: ServiceProxies | None = None
        self._running: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def run(self) -> None:
        network = Network.claim()
        try:
            network.start()
            # a connection per probe, as a kubelet makes them: an old one would hide a closed port
            connector = aiohttp.TCPConnector(force_close=True, limit=0)
            async with aiohttp.ClientSession(connector=connector) as http, Kube(self._kubeconfig) as kube:
                self.machine = Machine(kube, http, network, self._images, self._timing, self)
                api = urlsplit(kube.server)
                self._proxies = ServiceProxies(network, (api.hostname or "", api.port or 443))
                try:
                    await super().run()
                finally:
                    await self._end()
        finally:
            network.stop()

    async def _end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._proxies is not None:
            await self._proxies.stop()

    async def __aenter__(self) -> Self:
        """Returns when all nodes are Ready."""
        self._running = asyncio.create_task(self.run())
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait({self._running, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._running.done():
            await self._running
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    # What tests ask

    def worker(self, namespace: str, name: str) -> PodWorker:
        """The running pod of that name; KeyError when there is none."""
        for worker in self._workers.values():
            if worker.key == (namespace, name):
                return worker
        raise KeyError(f"{namespace}/{name}")

    def _container(self, namespace: str, pod: str, container: str | None) -> Container:
        worker = self.worker(namespace, pod)
        if container is None:
            return worker.mains[0]
        return next(one for one in worker.containers if one.name == container)

    def log(self, namespace: str, pod: str, container: str | None = None, *, previous: bool = False) -> str:
        """What a container of a running pod has written; with `previous` the execution before."""
        one = self._container(namespace, pod, container)
        path = one.log(one.record.restart_count - previous)
        return path.read_text(errors="replace") if path.exists() else ""

    async def exec(
        self, namespace: str, pod: str, command: Sequence[str], container: str | None = None, seconds: float = 30
    ) -> tuple[int, str]:
        """(exit code, output) of a command in a running container, by default the first."""
        process = self._container(namespace, pod, container).process
        assert process is not None, f"{namespace}/{pod} does not run"
        return await process.run(command, seconds)

    def host_path(self, node: str, path: str) -> Path:
        """Where a hostPath of a node is on this machine."""
        return self._machine().host_path(node, path)

    def claim_path(self, namespace: str, claim: str) -> Path:
        """Where the files of a claim are on this machine."""
        return self._machine().claim_path(namespace, claim)

    def hide_gpus(self, node: str, count: int) -> None:
        """Containers that start on `node` from now on see so many GPUs too few."""
        self._machine().hidden_gpus[node] = count

    def _machine(self) -> Machine:
        if self.machine is None:
            raise RuntimeError("the kubelet is not started")
        return self.machine

    # Nodes

    async def prepare(self, kube: Kube) -> None:
        for name in self.nodes:
            if name in self._bodies and await kube.find("v1", "nodes", name) is None:
                await kube.create(self._bodies[name])
            await self._heartbeat(kube, name)
            await self._report_node(kube, name)
        assert self._proxies is not None
        await self._proxies.update((), ())
        if "heartbeat" not in self._tasks:
            self._tasks["heartbeat"] = asyncio.create_task(self._heartbeats(kube))
        self._ready.set()

    async def _heartbeats(self, kube: Kube) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            for name in self.nodes:
                with contextlib.suppress(KubeError, httpx.HTTPError):
                    await self._heartbeat(kube, name)

    async def _heartbeat(self, kube: Kube, name: str) -> None:
        await kube.apply(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name, "namespace": "kube-node-lease"},
                "spec": {
                    "holderIdentity": name,
                    "leaseDurationSeconds": LEASE_SECONDS,
                    "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                },
            },
            manager="kubelet",
        )

    async def _report_node(self, kube: Kube, name: str) -> None:
        node = await kube.get("v1", "nodes", name)
        status, now = node.get("status", {}), rfc3339()
        pressures = ("MemoryPressure", "DiskPressure", "PIDPressure")
        conditions = [{"type": one, "status": "False", "reason": "KubeletHasSufficient"} for one in pressures]
        conditions.append({"type": "Ready", "status": "True", "reason": "KubeletReady"})
        capacity = dict(CAPACITY) | (status.get("capacity") or {})
        body = {
            "status": {
                "conditions": [{**one, "lastHeartbeatTime": now, "lastTransitionTime": now} for one in conditions],
                "addresses": [
                    {"type": "InternalIP", "address": self._machine().network.host_address},
                    {"type": "Hostname", "address": name},
                ],
                "capacity": capacity,
                "allocatable": capacity | (status.get("allocatable") or {}),
            }
        }
        await kube.patch("v1", "nodes", name, body, subresource="status", strategic=True)

    # Pods

    def hosts(self, namespace: str) -> str:
        return hosts_lines(self.mirror("services").all(), self.mirror("endpointslices").all(), namespace)

    async def reconcile(self, kube: Kube, key: Key) -> None:
        if key == NAMES:
            assert self._proxies is not None
            for worker in self._workers.values():
                worker.write_hosts()
            await self._proxies.update(self.mirror("services").all(), self.mirror("endpointslices").all())
            return
        pod = self.mirror("pods").get(key)
        uid = pod["metadata"]["uid"] if pod is not None else ""
        for other, worker in self._workers.items():
            if worker.key == key and other != uid:
                worker.vanish()
        if pod is None or pod["spec"].get("nodeName") not in self.nodes:
            return
        if uid in self._workers:
            self._workers[uid].update(pod)
        elif uid not in self._tasks:
            self._start(pod)

    def _start(self, pod: Object) -> None:
        meta = pod["metadata"]
        if pod.get("status", {}).get("phase") in ("Succeeded", "Failed") and "deletionTimestamp" not in meta:
            return
        machine = self._machine()
        worker = self._workers[meta["uid"]] = PodWorker(machine, pod, machine.network.host_address)
        task = asyncio.create_task(worker.run(), name=f"pod {meta['namespace']}/{meta['name']}")
        self._tasks[meta["uid"]] = task
        task.add_done_callback(lambda task: self._ended(meta["uid"], task))

    def _ended(self, uid: str, task: asyncio.Task[None]) -> None:
        self._workers.pop(uid, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s ended: %r", task.get_name(), error, exc_info=error)
