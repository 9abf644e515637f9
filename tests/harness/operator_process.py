"""The operator under test as a process of its own, as it runs outside of a cluster."""

from __future__ import annotations

import re
import socket
import sys
import urllib.error
import urllib.request
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness.audit import AuditEntry, writes
from tests.harness.practice import PracticeCluster
from tests.harness.processes import Process

READY_SECONDS = 60.0
NOT_COUNTED = frozenset({"leases", "events"})
"""Renewals of the planning Lease go on for ever, and events are counted apart."""


class OperatorProcess:
    """One `python -m kimi_k3_operator`. `name` is its user in the audit log and tells instances apart."""

    def __init__(self, cluster: PracticeCluster, *flags: str, name: str = "kimi-k3-operator") -> None:
        self._cluster, self._flags, self.name = cluster, flags, name
        self._process: Process | None = None
        self._url = ""

    def start(self) -> Self:
        """Returns when all its watches are filled."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "kimi_k3_operator", "--listen", f"127.0.0.1:{port}", *self._flags]
        kubeconfig = self._cluster.kubeconfig_for(self.name, ["system:masters"])
        self._process = Process(self.name, command, self.log, {"KUBECONFIG": str(kubeconfig)})
        self._process.start()
        try:
            self._process.wait_ready(f"{self._url}/readyz", READY_SECONDS)
        except BaseException:
            self.kill()
            raise
        return self

    @property
    def log(self) -> Path:
        return self._cluster.control_plane.folder / f"{self.name}.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def stop(self) -> None:
        """SIGTERM, and wait."""
        if self._process is not None:
            self._process.stop(30)
            self._process = None

    def kill(self) -> None:
        """SIGKILL: it has no chance to tidy up."""
        if self._process is not None:
            self._process.stop(0)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of an answer of its health server."""
        try:
            with urllib.request.urlopen(self._url + path, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        """Sum of a metric over its labels; 0 where it is not there."""
        found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? ([-+.0-9e]+)$", self.get("/metrics")[1], re.MULTILINE)
        return sum(map(float, found))

    def writes(self, since: datetime, namespace: str | None = None) -> list[AuditEntry]:
        """Its writes, Lease renewals and events apart, of one namespace where given."""
        found = writes(self._cluster.audit(since), user=self.name)
        return [
            entry
            for entry in found
            if entry.resource not in NOT_COUNTED and (namespace is None or entry.namespace == namespace)
        ]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
