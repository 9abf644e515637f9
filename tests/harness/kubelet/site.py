"""A node of the process kubelet on the practice cluster, and short ways to make and watch its pods."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.kube import Kube, Object, eventually
from tests.harness.kubelet.kubelet import ProcessKubelet
from tests.harness.kubelet.machine import Timing

TAINT = {"key": "harness.kimik3.dev/process", "effect": "NoSchedule"}
"""Keeps pods of other tests away; a pod that names its node does not ask."""

HASTY = Timing(probe_period=0.1, back_off=0.02, pre_stop_sleep=0.02, retry_seconds=0.1)
SERVER = """
import http.server, os, signal, socket
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if os.path.exists("/tmp/broken") else 200)
        self.end_headers()
        self.wfile.write(socket.gethostname().encode())
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
http.server.ThreadingHTTPServer(("", 8000), Answer).serve_forever()
"""
"""Answers with its host name on port 8000; with status 503 while the container has a file /tmp/broken."""
HTTP = {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1, "failureThreshold": 2}


def process_node(
    name: str, *, labels: Mapping[str, str] | None = None, gpus: Mapping[str, str] | None = None
) -> Object:
    """A Node to run pods on."""
    capacity = {"cpu": "224", "memory": "2400Gi", "ephemeral-storage": "1Ti", "pods": "110", **(gpus or {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {"taints": [TAINT]},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def container(name: str = "main", *command: str, **fields: Any) -> Object:
    return {"name": name, "image": "python", "command": list(command), **fields}


def server(name: str = "main", **fields: Any) -> Object:
    """A container that runs SERVER and is ready when it answers."""
    return container(name, "python3", "-c", SERVER, **{"readinessProbe": HTTP, **fields})


@dataclass
class KubeletSite:
    """One namespace whose pods run on one node."""

    kubelet: ProcessKubelet
    kube: Kube
    namespace: str
    node: str

    async def run(self, name: str, *containers: Object, labels: Mapping[str, str] | None = None, **spec: Any) -> Object:
        """Create a pod on the node; it has 2 s to end unless told otherwise."""
        return await self.kube.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": self.namespace, "labels": dict(labels or {})},
                "spec": {
                    "nodeName": self.node,
                    "terminationGracePeriodSeconds": 2,
                    "containers": list(containers),
                    **spec,
                },
            }
        )

    async def pod(self, name: str) -> Object:
        return await self.kube.get("v1", "pods", name, self.namespace)

    async def until(self, name: str, check: Callable[[Object], Any], *, seconds: float = 20) -> Object:
        """The pod once `check` holds for it."""

        async def look() -> Object | None:
            found = await self.pod(name)
            return found if check(found) else None

        found: Object = await eventually(look, seconds=seconds, every=0.05, what=f"pod {name}")
        return found

    async def until_ready(self, name: str, *, seconds: float = 20) -> Object:
        return await self.until(name, lambda pod: condition(pod, "Ready") == "True", seconds=seconds)

    async def delete(self, name: str, grace: int | None = None) -> None:
        await self.kube.delete("v1", "pods", name, self.namespace, grace=grace)

    async def until_gone(self, name: str, *, seconds: float = 20) -> None:
        async def gone() -> bool:
            return await self.kube.find("v1", "pods", name, self.namespace) is None

        await eventually(gone, seconds=seconds, every=0.05, what=f"pod {name} is gone")

    async def config_map(self, name: str, **data: str) -> None:
        meta = {"name": name, "namespace": self.namespace}
        await self.kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})

    async def sh(self, pod: str, script: str, name: str | None = None) -> str:
        """The output of a shell script in a container."""
        return (await self.kubelet.exec(self.namespace, pod, ["sh", "-c", script], name))[1].strip()

    async def service(self, name: str, *, headless: bool = False, **spec: Any) -> Object:
        """A Service of TCP port 8000 for the pods labelled app=NAME."""
        spec = {"selector": {"app": name}, "ports": [{"port": 8000}], **spec}
        if headless:
            spec["clusterIP"] = "None"
        meta = {"name": name, "namespace": self.namespace}
        return await self.kube.create({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec})

    async def ask(self, pod: str, url: str) -> str:
        """What a GET from within a pod gives, or the error."""
        code = f"import urllib.request as r; print(r.urlopen({url!r}, timeout=3).read().decode())"
        _, output = await self.kubelet.exec(self.namespace, pod, ["python3", "-c", code])
        return output.strip()


@asynccontextmanager
async def kubelet_site(
    kubeconfig: Path, kube: Kube, namespace: str, node: Object, *, timing: Timing = HASTY
) -> AsyncIterator[KubeletSite]:
    """A kubelet for one new node, which is removed afterwards."""
    name = node["metadata"]["name"]
    try:
        async with ProcessKubelet(kubeconfig, [node], timing=timing) as kubelet:
            yield KubeletSite(kubelet, kube, namespace, name)
    finally:
        await kube.delete("v1", "nodes", name)


def condition(pod: Object, name: str) -> str:
    """The status of a condition of a pod; empty where it has none."""
    for one in pod.get("status", {}).get("conditions", ()):
        if one["type"] == name:
            return str(one["status"])
    return ""


def status_of(pod: Object, name: str = "main", kind: str = "containerStatuses") -> Object:
    """The status of a container; an empty one where there is none yet."""
    found = [one for one in pod.get("status", {}).get(kind, ()) if one["name"] == name]
    empty: Object = {"state": {}, "lastState": {}, "restartCount": 0, "ready": False}
    return found[0] if found else empty
