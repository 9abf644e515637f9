"""Fake engines behind the pods of a practice cluster: kwok runs nothing, so here each serving pod gets an answer.

Pods of the practice cluster have addresses of 127.0.0.0/8. A pod that serves HTTP gets the engine that its own command
line asks for, listening at its own address; a container that restarts gets a fresh one. Faults are ordered per pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import httpx

from tests.harness.engine import EngineFleet, EngineSettings, FakeEngine, Fault, FaultOrder, launch_from_command
from tests.harness.engine.fleet import listening
from tests.harness.kube import Kube, KubeError, Object

SERVING = "kimik3.dev/serves-http=true"
RELIST_SECONDS = 0.3
ENGINE_PORT = 8000

log = logging.getLogger(__name__)


class PodEngines:
    """`run` until cancelled. `engine` is the fake engine of a pod, for faults and counters."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._settings: dict[str, EngineSettings] = {}
        self._fleet = EngineFleet(self._settings.get)
        self._pods: dict[str, tuple[str, str]] = {}
        """Pod UID to (address, container ID)."""
        self._listeners: dict[str, AsyncExitStack] = {}
        self._bad_images: dict[str, Fault] = {}
        self.adjust: Callable[[Object, EngineSettings], EngineSettings] | None = None
        """Changes what a new pod's engine is, such as its speed."""

    async def run(self) -> None:
        async with Kube(self._kubeconfig) as kube:
            try:
                while True:
                    with contextlib.suppress(KubeError, httpx.HTTPError, ValueError):
                        await self._follow(kube)
                    await asyncio.sleep(RELIST_SECONDS)
            finally:
                for uid in list(self._pods):
                    await self._gone(uid)

    def engine(self, pod: Object) -> FakeEngine:
        """The engine of a running pod; raises LookupError where none runs."""
        found = self._fleet.engine(pod["status"]["podIP"])
        if found is None:
            raise LookupError(f"no engine at {pod['status']['podIP']}")
        return found

    def break_image(self, image: str, fault: Fault | None) -> None:
        """From now on each engine of this image starts with the fault; None ends that."""
        if fault is None:
            self._bad_images.pop(image, None)
        else:
            self._bad_images[image] = fault

    async def _follow(self, kube: Kube) -> None:
        listed = await kube.request("GET", "/api/v1/pods", params={"labelSelector": SERVING})
        present = {pod["metadata"]["uid"]: pod for pod in listed["items"]}
        for uid in set(self._pods) - set(present):
            await self._gone(uid)
        for pod in present.values():
            await self._seen(pod)
        version = listed["metadata"]["resourceVersion"]
        async for kind, pod in kube.watch("v1", "pods", selector=SERVING, resource_version=version):
            if kind == "DELETED":
                await self._gone(pod["metadata"]["uid"])
            elif kind in ("ADDED", "MODIFIED"):
                await self._seen(pod)

    async def _seen(self, pod: Object) -> None:
        uid, status = pod["metadata"]["uid"], pod.get("status") or {}
        containers = {c["name"]: c for c in status.get("containerStatuses") or ()}
        address, container = status.get("podIP", ""), containers.get("engine", {}).get("containerID", "")
        if not address.startswith("127.") or not container or self._pods.get(uid) == (address, container):
            return
        if uid in self._pods:
            await self._gone(uid)
        spec = next(c for c in pod["spec"]["containers"] if c["name"] == "engine")
        env = {entry["name"]: entry.get("value", "") for entry in spec.get("env", [])}
        settings = launch_from_command(spec["args"], env).settings
        self._settings[address] = self.adjust(pod, settings) if self.adjust else settings
        self._pods[uid] = (address, container)
        engine = self._fleet.engine(address)
        if engine is not None and (fault := self._bad_images.get(spec["image"])) is not None:
            engine.faults.replace([FaultOrder(fault)])
        stack = AsyncExitStack()
        await stack.enter_async_context(listening(self._fleet.handle, address, ENGINE_PORT))
        self._listeners[uid] = stack

    async def _gone(self, uid: str) -> None:
        if uid not in self._pods:
            return
        address, _ = self._pods.pop(uid)
        self._settings.pop(address, None)
        if (stack := self._listeners.pop(uid, None)) is not None:
            await stack.aclose()
        self._fleet.forget(address)
