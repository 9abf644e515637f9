"""One pod from its binding to its removal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from typing import Any

import httpx

from tests.harness.controller import rfc3339
from tests.harness.kube import KubeError, Object
from tests.harness.kubelet.container import Container, Sandbox
from tests.harness.kubelet.machine import HeldBackError, Machine
from tests.harness.kubelet.network import NetworkError, PodNetwork
from tests.harness.kubelet.status import Facts, pod_status
from tests.harness.kubelet.volumes import make_volumes

log = logging.getLogger(__name__)

RESOLVER = "options timeout:1 attempts:1\n"
"""Without a name server: what /etc/hosts does not know fails at once."""
REPORT_RETRY_SECONDS = 0.2


class PodWorker:
    """Runs one pod. `update` brings news of its object, `vanish` says that the object is gone."""

    def __init__(self, machine: Machine, pod: Object, host_address: str) -> None:
        self.pod = pod
        self.network: PodNetwork | None = None
        self._machine = machine
        self._host_address = host_address
        self._dirty = asyncio.Event()
        self._gone = asyncio.Event()
        self._ended = False
        self._failed = False
        self._over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        """It had ended before this kubelet came; only the removal of its object is left to do."""
        self._start_time = pod.get("status", {}).get("startTime") or rfc3339()
        self._sent: Object | None = None
        self._sandbox = Sandbox(machine, pod, PodNetwork("", ""), host_address, {}, self._dirty.set)
        spec = pod["spec"]
        self.inits = [Container(self._sandbox, one, init=True) for one in spec.get("initContainers", ())]
        self.mains = [Container(self._sandbox, one) for one in spec["containers"]]
        self._continue_counts()
        self.update(pod)

    def _continue_counts(self) -> None:
        """Containers that an earlier kubelet ran have ended with it."""
        status = self.pod.get("status", {})
        before = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
        known = {one["name"]: one for one in before if one.get("containerID")}
        for container in self.containers:
            if container.name in known:
                container.record.follow(known[container.name], rfc3339())

    @property
    def containers(self) -> list[Container]:
        return [*self.inits, *self.mains]

    @property
    def key(self) -> tuple[str, str]:
        return self.pod["metadata"]["namespace"], self.pod["metadata"]["name"]

    def update(self, pod: Object) -> None:
        if int(pod["metadata"]["resourceVersion"]) >= int(self.pod["metadata"]["resourceVersion"]):
            self.pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            self._sandbox.stopping.set()
        self._dirty.set()

    def vanish(self) -> None:
        self._gone.set()
        self._sandbox.stopping.set()

    async def run(self) -> None:
        """Returns when the pod object is gone or about to be. Cancelled, it ends all containers at once."""
        report = asyncio.create_task(self._report())
        try:
            life = asyncio.create_task(self._live())
            stopping = asyncio.create_task(self._sandbox.stopping.wait())
            try:
                await asyncio.wait({life, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if life.done():
                    await life
                await stopping
                await self._stop_all()
                await life
            finally:
                life.cancel()
                stopping.cancel()
                await asyncio.gather(life, stopping, return_exceptions=True)
            report.cancel()
            await asyncio.gather(report, return_exceptions=True)
            self._clean()
            if not self._gone.is_set():
                await self._say_farewell()
        finally:
            report.cancel()
            await asyncio.gather(report, return_exceptions=True)
            self._clean()

    # Life

    async def _live(self) -> None:
        try:
            await self._prepare()
            if not self._sandbox.stopping.is_set():
                await self._run_containers()
        finally:
            self._ended = True
            self._dirty.set()

    async def _prepare(self) -> None:
        """Address and volumes; what is missing is waited for."""
        sandbox, machine = self._sandbox, self._machine
        folder = machine.pod_folder(self.pod)
        while not sandbox.stopping.is_set():
            try:
                if self.network is None:
                    self.network = await self._make_network()
                    sandbox.network = self.network
                sandbox.volumes = await make_volumes(machine, self.pod, sandbox.addresses)
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "resolv.conf").write_text(RESOLVER)
                self.write_hosts()
                self._dirty.set()
                return
            except (HeldBackError, NetworkError, KubeError, httpx.HTTPError) as problem:
                log.info("pod %s waits: %s", self.key, problem)
                for container in self.containers:
                    container.record.state = {"waiting": {"reason": "ContainerCreating", "message": str(problem)}}
                self._dirty.set()
                await sandbox.pause(machine.timing.retry_seconds)

    async def _make_network(self) -> PodNetwork:
        if self.pod["spec"].get("hostNetwork"):
            return PodNetwork("", self._host_address)
        return self._machine.network.add_pod()

    def write_hosts(self) -> None:
        """The file is rewritten in place, for containers have it mounted."""
        if self.network is None:
            return
        spec, (namespace, _) = self.pod["spec"], self.key
        names = [self._sandbox.hostname]
        if subdomain := spec.get("subdomain"):
            names.insert(0, f"{names[0]}.{subdomain}.{namespace}.svc.cluster.local")
        own = f"127.0.0.1\tlocalhost\n{self.network.address}\t{' '.join(names)}\n"
        aliases = [f"{one['ip']}\t{' '.join(one['hostnames'])}\n" for one in spec.get("hostAliases", ())]
        text = own + "".join(aliases) + self._machine.cluster.hosts(namespace)
        path = self._machine.pod_folder(self.pod) / "hosts"
        if path.parent.is_dir() and not (path.exists() and path.read_text() == text):
            path.write_text(text)

    async def _run_containers(self) -> None:
        sandbox = self._sandbox
        sidecars: list[asyncio.Task[int]] = []
        try:
            for container in self.inits:
                if container.record.sidecar:
                    sidecars.append(asyncio.create_task(container.keep()))
                    await self._until_started(container)
                elif await container.keep() != 0 and not sandbox.stopping.is_set():
                    self._failed = True
                    break
                if sandbox.stopping.is_set():
                    break
            if not self._failed and not sandbox.stopping.is_set():
                await asyncio.gather(*(container.keep() for container in self.mains))
            await self._stop_sidecars(sandbox.grace_seconds)
            await asyncio.gather(*sidecars)
        finally:
            for task in sidecars:
                task.cancel()
            await asyncio.gather(*sidecars, return_exceptions=True)
            for container in self.containers:
                container.abandon()

    async def _until_started(self, container: Container) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (container.started, self._sandbox.stopping)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    # End

    async def _stop_all(self) -> None:
        """Containers together, then sidecars from the last to the first, all within the one grace period."""
        loop = asyncio.get_running_loop()
        seconds = self.pod["metadata"].get("deletionGracePeriodSeconds", self._sandbox.grace_seconds)
        deadline = loop.time() + (0 if self._gone.is_set() else float(seconds))
        stops = asyncio.gather(*(one.stop(deadline - loop.time()) for one in self.containers if not one.record.sidecar))
        gone = asyncio.create_task(self._gone.wait())
        either: list[asyncio.Future[Any]] = [stops, gone]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if self._gone.is_set():
            deadline = 0
            for container in self.containers:
                if container.process is not None:
                    await container.process.kill()
        await stops
        await self._stop_sidecars(max(0.0, deadline - loop.time()))

    async def _stop_sidecars(self, grace: float) -> None:
        for container in reversed(self.inits):
            if container.record.sidecar:
                container.dismissed = True
                await container.stop(grace)

    def _clean(self) -> None:
        if self.network is not None and self.network.name:
            with contextlib.suppress(NetworkError):
                self._machine.network.remove_pod(self.network)
        self.network = None
        shutil.rmtree(self._machine.pod_folder(self.pod), ignore_errors=True)

    async def _say_farewell(self) -> None:
        """The last status, then the removal of the object, both for this uid only."""
        meta = self.pod["metadata"]
        while not self._gone.is_set():
            try:
                with contextlib.suppress(KubeError):
                    await self._send()
                await self._machine.kube.delete(
                    "v1", "pods", meta["name"], meta["namespace"], grace=0, uid=meta["uid"], propagation="Background"
                )
                return
            except KubeError as error:
                if error.code in (404, 409):
                    return
                log.info("pod %s: %s", self.key, error)
            except httpx.HTTPError as error:
                log.info("pod %s: %r", self.key, error)
            await asyncio.sleep(REPORT_RETRY_SECONDS)

    # Report

    async def _report(self) -> None:
        """Send the status whenever it has changed; changes of one moment go together."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._send()
            except KubeError as error:
                if error.code != 404:
                    log.info("status of pod %s: %s", self.key, error)
                    await self._again()
            except httpx.HTTPError as error:
                log.info("status of pod %s: %r", self.key, error)
                await self._again()

    async def _again(self) -> None:
        await asyncio.sleep(REPORT_RETRY_SECONDS)
        self._dirty.set()

    async def _send(self) -> None:
        facts = Facts(
            address=self._sandbox.network.address,
            host_address=self._host_address,
            start_time=self._start_time,
            now=rfc3339(),
            failed=self._failed,
            ended=self._ended,
        )
        status = pod_status(self.pod, [container.record for container in self.containers], facts)
        if status == self._sent or self._over:
            return
        meta = self.pod["metadata"]
        body = {"metadata": {"uid": meta["uid"]}, "status": status}
        answer = await self._machine.kube.patch(
            "v1", "pods", meta["name"], body, meta["namespace"], subresource="status", strategic=True
        )
        self._sent = status
        if int(answer["metadata"]["resourceVersion"]) > int(self.pod["metadata"]["resourceVersion"]):
            self.pod = answer
