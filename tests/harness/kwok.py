"""KWOK plays the kubelets of all nodes annotated `kwok.x-k8s.io/node: fake`.

What its pods and nodes do is written in `stages/*.yaml`; the pod annotations that steer it are listed in
`stages/pod.yaml`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.harness import binaries
from tests.harness.processes import Process, free_ports

STAGES = Path(__file__).parent / "stages"
NODE_ANNOTATION = ("kwok.x-k8s.io/node", "fake")

STARTUP_SECONDS = "harness.kimik3.dev/startup-seconds"
CRASH = "harness.kimik3.dev/crash"
CRASH_LOOP = "harness.kimik3.dev/crash-loop"
CRASH_CONTAINER = "harness.kimik3.dev/crash-container"
FAIL = "harness.kimik3.dev/fail"
RUN_SECONDS = "harness.kimik3.dev/run-seconds"
TERMINATION_SECONDS = "harness.kimik3.dev/termination-seconds"

READY_SECONDS = 30.0
LEASE_SECONDS = 40
PARALLELISM = 16


def flatten(documents: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """The objects of YAML documents; a List (whatever its kind's prefix) gives its items."""
    for document in documents:
        if not document:
            continue
        if str(document.get("kind", "")).endswith("List") and "items" in document:
            yield from flatten(iter(document["items"]))
        else:
            yield document


def stages() -> list[dict[str, Any]]:
    """All stages of the harness."""
    found: list[dict[str, Any]] = []
    for path in sorted(STAGES.glob("*.yaml")):
        found += flatten(yaml.safe_load_all(path.read_text()))
    return found


class Kwok:
    """The kwok controller; `folder` holds its configuration and log and must exist.

    `pod_cidr` gives the pods' addresses. The default lies in 127.0.0.0/8, so that one server on this machine that
    listens on 0.0.0.0 answers for every pod and can tell them apart by its local address. The price: the API server
    refuses such addresses in EndpointSlices, so those of Services stay empty; a test of those needs another range.
    """

    def __init__(self, kubeconfig: Path, folder: Path, *, pod_cidr: str = "127.64.0.1/16") -> None:
        self.kubeconfig = kubeconfig
        self.folder = folder
        self.pod_cidr = pod_cidr
        self.process: Process | None = None

    def start(self) -> Self:
        """Returns when kwok answers /healthz. Raises BinariesMissingError or ProcessError."""
        options = {
            "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
            "kind": "KwokConfiguration",
            "metadata": {"name": "kwok"},
            "options": {
                "podPlayStageParallelism": PARALLELISM,
                "nodePlayStageParallelism": PARALLELISM,
                "nodeLeaseParallelism": PARALLELISM,
            },
        }
        config = self.folder / "kwok.yaml"
        # JSON is YAML; kwok wants one document per object.
        config.write_text("\n---\n".join(json.dumps(document) for document in (options, *stages())))
        (port,) = free_ports(1)
        self.process = Process(
            "kwok",
            [
                binaries.path("kwok"),
                f"--kubeconfig={self.kubeconfig}",
                f"--config={config}",
                f"--manage-nodes-with-annotation-selector={'='.join(NODE_ANNOTATION)}",
                f"--node-lease-duration-seconds={LEASE_SECONDS}",
                f"--cidr={self.pod_cidr}",
                "--node-ip=127.0.0.1",
                f"--server-address=127.0.0.1:{port}",
            ],
            self.folder / "kwok.log",
        )
        self.process.start()
        self.process.wait_ready(f"http://127.0.0.1:{port}/healthz", READY_SECONDS)
        return self

    def stop(self) -> None:
        """The kubelets fall silent: pods stay as they are, nodes become NotReady when their leases run out."""
        if self.process is not None:
            self.process.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
