"""One container of a pod over all its executions: start, probes, hooks, restarts with back-off, end."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.controller import rfc3339
from tests.harness.kube import Object
from tests.harness.kubelet.environment import environment, expand
from tests.harness.kubelet.images import PATH, Image, devices, find_image
from tests.harness.kubelet.machine import HeldBackError, Machine
from tests.harness.kubelet.network import PodNetwork
from tests.harness.kubelet.probes import attempt, follow
from tests.harness.kubelet.process import ContainerProcess, Order, StartError
from tests.harness.kubelet.status import Record
from tests.harness.kubelet.volumes import Mount, mounts_of

FIRST_BACK_OFF, LAST_BACK_OFF, FORGET_SECONDS = 10.0, 300.0, 600.0
SHORTEST_GRACE_SECONDS = 2.0
"""What a container gets after SIGTERM when its preStop hook has used up the grace period."""
MESSAGE_BYTES, FALLBACK_BYTES = 4096, 2048
CANNOT_START = 128


@dataclass
class Sandbox:
    """What the containers of a pod have in common."""

    machine: Machine
    pod: Object
    network: PodNetwork
    host_address: str
    volumes: Mapping[str, Path]
    changed: Callable[[], None]
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the pod is to end: nothing is started any more."""

    @property
    def addresses(self) -> dict[str, str]:
        address, host = self.network.address, self.host_address
        return {"status.podIP": address, "status.podIPs": address, "status.hostIP": host, "status.hostIPs": host}

    @property
    def grace_seconds(self) -> float:
        return float(self.pod["spec"].get("terminationGracePeriodSeconds", 30))

    @property
    def hostname(self) -> str:
        return str(self.pod["spec"].get("hostname") or self.pod["metadata"]["name"])[:63]

    async def pause(self, seconds: float) -> None:
        """Sleep, but no longer than until the pod is to end."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), seconds)


@dataclass
class BackOff:
    """How long to wait before the next restart: nothing at first, then 10 s and double each time up to 300 s."""

    factor: float = 1.0
    _next: float = 0.0

    def after(self, ran_seconds: float) -> float:
        """Unscaled seconds to wait after an execution of `ran_seconds`."""
        if ran_seconds >= FORGET_SECONDS:
            self._next = 0.0
        wait, self._next = self._next, min(max(self._next * 2, FIRST_BACK_OFF), LAST_BACK_OFF)
        return wait


class Container:
    def __init__(self, sandbox: Sandbox, spec: Object, *, init: bool = False) -> None:
        self.spec = spec
        self.record = Record.of(spec, init=init)
        self.process: ContainerProcess | None = None
        self.started = asyncio.Event()
        """Set when it first counts as started: for a sidecar the next container may start."""
        self.dismissed = False
        """It is not restarted whatever its policy: the pod's work is done."""
        self._sandbox = sandbox
        self._folder = sandbox.machine.pod_folder(sandbox.pod) / "containers" / spec["name"]
        self._stop: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self.record.name

    def log(self, restart: int) -> Path:
        return self._sandbox.machine.log_folder(self._sandbox.pod) / self.name / f"{restart}.log"

    # Executions

    async def keep(self) -> int:
        """Run it, again and again as its policy says; returns the last exit code."""
        sandbox, loop = self._sandbox, asyncio.get_running_loop()
        back_off = BackOff()
        while True:
            began = loop.time()
            code = await self._once()
            if sandbox.stopping.is_set() or self.dismissed or not self._again(code):
                return code
            self.record.last_state = self.record.state
            if wait := back_off.after(loop.time() - began):
                meta = sandbox.pod["metadata"]
                where = f"{self.name} pod={meta['name']}_{meta['namespace']}({meta['uid']})"
                self._waiting("CrashLoopBackOff", f"back-off {wait:.0f}s restarting failed container={where}")
                await sandbox.pause(wait * sandbox.machine.timing.back_off)
                if sandbox.stopping.is_set():
                    return code
            self.record.restart_count += 1

    def _again(self, code: int) -> bool:
        policy = self.spec.get("restartPolicy") or self._sandbox.pod["spec"].get("restartPolicy", "Always")
        if policy == "Always" and self.record.init and not self.record.sidecar:
            policy = "OnFailure"
        return policy == "Always" or (policy == "OnFailure" and code != 0)

    async def _once(self) -> int:
        record = self.record
        try:
            process = await self._start()
        except StartError as error:
            record.container_id = f"process://{secrets.token_hex(32)}"
            self._terminated(CANNOT_START, "StartError", rfc3339(), str(error))
            return CANNOT_START
        if process is None:
            return 0
        self.process = process
        began = rfc3339()
        record.container_id = f"process://{secrets.token_hex(32)}"
        record.state = {"running": {"startedAt": began}}
        self._sandbox.changed()
        watch = asyncio.create_task(self._watch(process))
        try:
            if self._sandbox.stopping.is_set():
                await self.stop(self._sandbox.grace_seconds)
            await asyncio.wait([process.ended])
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        code = process.ended.result()
        if self._stop is not None:
            await asyncio.gather(self._stop, return_exceptions=True)
            self._stop = None
        record.ready = record.started = False
        self._terminated(code, "Completed" if code == 0 else "Error", began, self._message(code))
        return code

    async def _start(self) -> ContainerProcess | None:
        """Start it as soon as nothing holds it back; None when the pod is to end before."""
        while not self._sandbox.stopping.is_set():
            try:
                return await ContainerProcess.start(await self._order(), self._folder, self._fresh_log())
            except HeldBackError as problem:
                self._waiting(problem.reason, str(problem))
                await self._sandbox.pause(self._sandbox.machine.timing.retry_seconds)
        return None

    def _fresh_log(self) -> Path:
        path = self.log(self.record.restart_count)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    async def _order(self) -> Order:
        sandbox, spec, machine = self._sandbox, self.spec, self._sandbox.machine
        image = find_image(machine.images, spec["image"])
        if image.missing:
            raise HeldBackError("ErrImagePull", f"{spec['image']}: {image.missing}")
        own = {"PATH": PATH, "HOME": "/root", "HOSTNAME": sandbox.hostname, **image.env}
        env = await environment(machine.kube, sandbox.pod, spec, own, sandbox.addresses)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._message_file.write_text("")
        shared = machine.pod_folder(sandbox.pod)
        mounts = [
            Mount(shared / "hosts", "/etc/hosts"),
            Mount(shared / "resolv.conf", "/etc/resolv.conf"),
            Mount(self._message_file, spec.get("terminationMessagePath", "/dev/termination-log")),
            *mounts_of(spec, sandbox.volumes, env),
        ]
        return Order(
            argv=self._argv(image, env),
            env=env,
            cwd=spec.get("workingDir") or "/",
            hostname=sandbox.hostname,
            network=sandbox.network.path,
            mounts=mounts,
            devices=devices(spec, machine.hidden_gpus.get(sandbox.pod["spec"]["nodeName"], 0)),
            scripts=image.scripts,
            links=image.links,
        )

    def _argv(self, image: Image, env: Mapping[str, str]) -> list[str]:
        command, args = self.spec.get("command"), self.spec.get("args")
        given = [expand(word, env) for word in (*(command or ()), *(args or ()))]
        if command:
            return given
        return [*image.entrypoint, *(given if args else image.cmd)] or ["no-command"]

    # Probes

    async def _watch(self, process: ContainerProcess) -> None:
        """Hooks and probes of one execution; cancelled at its end."""
        spec, record = self.spec, self.record
        if hook := spec.get("lifecycle", {}).get("postStart"):
            problem = await self._hook(hook, process)
            if problem:
                self._restart(self._sandbox.grace_seconds)
                return
        if startup := spec.get("startupProbe"):
            await self._follow(startup, process, self._on_startup)
        record.started = True
        record.ready = "readinessProbe" not in spec
        self.started.set()
        self._sandbox.changed()
        async with asyncio.TaskGroup() as tasks:
            if readiness := spec.get("readinessProbe"):
                tasks.create_task(self._follow(readiness, process, self._on_readiness))
            if liveness := spec.get("livenessProbe"):
                tasks.create_task(self._follow(liveness, process, self._on_liveness))

    async def _follow(
        self, probe: Object, process: ContainerProcess, react: Callable[[Object, bool, str], bool]
    ) -> None:
        machine, address = self._sandbox.machine, self._sandbox.network.address

        async def ask(action: Object) -> str | None:
            return await attempt(action, self.spec, process, address, machine.http)

        async def tell(value: bool, problem: str) -> bool:
            return react(probe, value, problem)

        await follow(probe, machine.timing.probe_period, ask, tell)
        if react == self._on_startup and not self._passed:
            await asyncio.get_running_loop().create_future()  # the execution is being ended

    _passed = False

    def _on_startup(self, probe: Object, value: bool, problem: str) -> bool:
        self._passed = value
        if not value:
            self._unhealthy(probe)
        return False

    def _on_liveness(self, probe: Object, value: bool, problem: str) -> bool:
        if not value:
            self._unhealthy(probe)
        return value

    def _on_readiness(self, probe: Object, value: bool, problem: str) -> bool:
        if self.record.ready != value:
            self.record.ready = value
            self._sandbox.changed()
        return True

    def _unhealthy(self, probe: Object) -> None:
        if not self._sandbox.stopping.is_set():
            self._restart(float(probe.get("terminationGracePeriodSeconds", self._sandbox.grace_seconds)))

    def _restart(self, grace: float) -> None:
        if self._stop is None:
            self._stop = asyncio.create_task(self.stop(grace))

    # End

    async def stop(self, grace: float) -> None:
        """preStop, SIGTERM, and SIGKILL once `grace` seconds have passed since the call. Returns when it has ended."""
        process, loop = self.process, asyncio.get_running_loop()
        if process is None or process.ended.done():
            return
        deadline = loop.time() + grace
        if (hook := self.spec.get("lifecycle", {}).get("preStop")) and grace > 0:
            running = asyncio.create_task(self._hook(hook, process))
            either: list[asyncio.Future[Any]] = [running, process.ended]
            await asyncio.wait(either, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        process.signal(signal.SIGTERM)
        if not await process.wait(max(deadline - loop.time(), SHORTEST_GRACE_SECONDS if grace > 0 else 0)):
            await process.kill()

    def abandon(self) -> None:
        """End it at once, without a word in the pod's status."""
        if self._stop is not None:
            self._stop.cancel()
        if self.process is not None:
            self.process.kill_now()

    async def _hook(self, hook: Object, process: ContainerProcess) -> str | None:
        if "sleep" in hook:
            await asyncio.sleep(hook["sleep"]["seconds"] * self._sandbox.machine.timing.pre_stop_sleep)
            return None
        patient = {**hook, "timeoutSeconds": self._sandbox.grace_seconds}
        sandbox = self._sandbox
        return await attempt(patient, self.spec, process, sandbox.network.address, sandbox.machine.http)

    # Report

    @property
    def _message_file(self) -> Path:
        return Path(self._folder, "termination-log")

    def _message(self, code: int) -> str:
        message = self._message_file.read_bytes()[:MESSAGE_BYTES]
        if not message and code and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            message = self.log(self.record.restart_count).read_bytes()[-FALLBACK_BYTES:]
        return message.decode(errors="replace")

    def _waiting(self, reason: str, message: str) -> None:
        state = {"waiting": {"reason": reason, "message": message}}
        if self.record.state != state:
            self.record.state = state
            self._sandbox.changed()

    def _terminated(self, code: int, reason: str, began: str, message: str) -> None:
        ended: Object = {"exitCode": code, "reason": reason, "startedAt": began, "finishedAt": rfc3339()}
        if message:
            ended["message"] = message
        self.record.state = {"terminated": {**ended, "containerID": self.record.container_id}}
        self._sandbox.changed()
