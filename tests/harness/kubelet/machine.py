"""What all pods of one kubelet share, and what may hold a pod back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import aiohttp

from tests.harness.kube import Kube, Object
from tests.harness.kubelet.images import Image
from tests.harness.kubelet.network import Network

KUBERNETES_ADDRESS = "10.96.0.1"
"""The cluster address of the API server: the first of the practice cluster's range."""


class HeldBackError(Exception):
    """A container or pod cannot start yet; `reason` and the message are those of a kubelet's waiting state."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Timing:
    """How fast time passes, as factors of what the pod asks for. Timeouts, grace and thresholds stay as they are."""

    probe_period: float = 1.0
    """Factor of initialDelaySeconds and periodSeconds of probes."""
    back_off: float = 1.0
    """Factor of the waits before restarts: 10 s, doubled up to 300 s, forgotten after 600 s without an end."""
    pre_stop_sleep: float = 1.0
    """Factor of the seconds of `preStop.sleep`."""
    retry_seconds: float = 0.5
    """Until what held a pod back (a missing Secret, folder or image) is looked at again."""


class Cluster(Protocol):
    """What a pod sees of the other pods."""

    def hosts(self, namespace: str) -> str:
        """The lines of /etc/hosts for the names of Services, as pods of `namespace` see them."""


@dataclass
class Machine:
    kube: Kube
    http: aiohttp.ClientSession
    network: Network
    images: Mapping[str, Image]
    timing: Timing
    cluster: Cluster
    hidden_gpus: dict[str, int] = field(default_factory=dict)
    """Node name to the number of GPUs that containers there do not see although they were given them."""

    @property
    def folder(self) -> Path:
        return self.network.folder

    def host_path(self, node: str, path: str) -> Path:
        """Where a path of a node is on this machine."""
        return self.folder / "nodes" / node / path.lstrip("/")

    def claim_path(self, namespace: str, claim: str) -> Path:
        """Where the files of a PersistentVolumeClaim are; all nodes share them."""
        return self.folder / "claims" / namespace / claim

    def pod_folder(self, pod: Object) -> Path:
        return self.folder / "pods" / str(pod["metadata"]["uid"])

    def log_folder(self, pod: Object) -> Path:
        """Logs stay until the kubelet stops."""
        meta = pod["metadata"]
        return self.folder / "logs" / f"{meta['namespace']}_{meta['name']}_{meta['uid']}"


async def content(kube: Kube, plural: str, namespace: str, name: str, *, optional: bool) -> Object | None:
    """A ConfigMap or Secret. Raises HeldBackError when it is missing and not optional."""
    found = await kube.find("v1", plural, name, namespace)
    if found is None and not optional:
        kind = plural.removesuffix("s")
        raise HeldBackError("CreateContainerConfigError", f'{kind} "{name}" not found')
    return found
