"""A real Kubernetes control plane as plain processes on loopback: etcd, API server, controller manager, scheduler."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import ssl
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.harness import audit, binaries
from tests.harness.audit import AuditEntry, AuditLog
from tests.harness.credentials import p256_private_key, write_kubeconfig
from tests.harness.processes import Process, ProcessError, free_ports

MASTERS = "system:masters"

USERS: dict[str, tuple[str, ...]] = {
    "admin": (MASTERS,),
    "kimi-k3-operator": (MASTERS,),
    "harness": (MASTERS,),
    "kwok": (MASTERS,),
    "nobody-in-particular": (),
    "system:kube-controller-manager": (),
    "system:kube-scheduler": (),
}
"""The users that every control plane knows, and their groups. The operator under test has a name of its own in the
audit log.
"""

READY_SECONDS = 120.0
OUTAGE_SECONDS = 1.0
CLIENT_QPS = 2000
CLIENT_BURST = 4000


class ControlPlane:
    """Etcd, kube-apiserver (RBAC on), kube-controller-manager and kube-scheduler on free ports of 127.0.0.1.

    `users` adds users to USERS: name to groups. They must be named here, for the API server reads its tokens at its
    start. All files are below a temporary folder that `stop` removes. Use as a context manager, or call `start` and
    `stop`.
    """

    def __init__(self, users: Mapping[str, Iterable[str]] | None = None, *, feature_gates: str = "") -> None:
        self.users = {**USERS, **{name: tuple(groups) for name, groups in (users or {}).items()}}
        self.feature_gates = feature_gates
        self.timings: dict[str, float] = {}
        """Seconds that each step of `start` took."""
        self._tokens = {name: secrets.token_hex(16) for name in self.users}
        self._folder: Path | None = None
        self._processes: dict[str, Process] = {}
        self._ready: dict[str, str] = {}
        self._audit: AuditLog | None = None
        self.server = ""

    @property
    def folder(self) -> Path:
        """The temporary folder: logs, keys, kubeconfigs. Raises RuntimeError before `start`."""
        if self._folder is None:
            raise RuntimeError("the control plane is not started")
        return self._folder

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of an administrator."""
        return self.kubeconfig_for("admin")

    @property
    def logs(self) -> dict[str, Path]:
        return {name: process.log for name, process in self._processes.items()}

    def memory(self) -> dict[str, int]:
        """Resident bytes per process."""
        return {name: process.memory() for name, process in self._processes.items()}

    # Start and stop

    def start(self) -> Self:
        """Returns when all four answer /readyz. Raises BinariesMissingError or ProcessError; nothing is left running
        then.
        """
        programs = {
            name: binaries.path(name)
            for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
        }
        self._folder = Path(tempfile.mkdtemp(prefix="kimi-k3-controlplane-"))
        try:
            self._prepare(programs)
            begin = time.monotonic()
            self._processes["etcd"].start()
            self.start_apiserver()
            self.timings["etcd and kube-apiserver"] = time.monotonic() - begin
            begin = time.monotonic()
            others = ("kube-controller-manager", "kube-scheduler")
            for name in others:
                self.kubeconfig_for(f"system:{name}")
                self._processes[name].start()
            for name in others:
                self._processes[name].wait_ready(self._ready[name], READY_SECONDS)
            self.timings["kube-controller-manager and kube-scheduler"] = time.monotonic() - begin
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End all processes and remove the folder. May be called twice."""
        for name in ("kube-scheduler", "kube-controller-manager"):
            if name in self._processes:
                self._processes[name].terminate()
        for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
            if name in self._processes:
                self._processes[name].stop()
        self._processes.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def start_apiserver(self) -> None:
        """Start the API server on its port with its data; returns when it is ready."""
        self._processes["kube-apiserver"].start()
        self._processes["kube-apiserver"].wait_ready(self._ready["kube-apiserver"], READY_SECONDS)

    def stop_apiserver(self) -> None:
        """An outage: connections are refused until `start_apiserver`. Etcd and the controllers go on running.

        Open watches keep it from ending politely, so it gets OUTAGE_SECONDS; what it answered is in etcd by then.
        """
        self._processes["kube-apiserver"].stop(OUTAGE_SECONDS)

    def stop_scheduler(self) -> None:
        self._processes["kube-scheduler"].stop()

    def start_scheduler(self) -> None:
        self._processes["kube-scheduler"].start()
        self._processes["kube-scheduler"].wait_ready(self._ready["kube-scheduler"], READY_SECONDS)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Users

    def kubeconfig_for(self, user: str, groups: Iterable[str] | None = None) -> Path:
        """The kubeconfig of a user of `users`.

        Raises ValueError for an unknown user, or where `groups` is given and is not what the user has.
        """
        if user not in self.users:
            raise ValueError(f"no user {user!r}; pass users={{...}} to ControlPlane (known: {', '.join(self.users)})")
        if groups is not None and set(groups) != set(self.users[user]):
            raise ValueError(f"user {user!r} was set up with groups {self.users[user]}, not {tuple(groups)}")
        path = self._kubeconfig_path(user)
        return path if path.exists() else self._write_kubeconfig(user, self._tokens[user])

    def kubeconfig_for_service_account(self, namespace: str, name: str, *, seconds: int = 3600) -> Path:
        """The kubeconfig of an existing service account, with a token from the API server that lasts `seconds` (600
        or more).
        """
        body = json.dumps(
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"expirationSeconds": seconds},
            }
        )
        request = urllib.request.Request(
            f"{self.server}/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            data=body.encode(),
            headers={"Authorization": f"Bearer {self._tokens['admin']}", "Content-Type": "application/json"},
        )
        token: dict[str, Any] = json.loads(self._open(request))
        return self._write_kubeconfig(f"system:serviceaccount:{namespace}:{name}", token["status"]["token"])

    def _open(self, request: urllib.request.Request) -> bytes:
        context = ssl.create_default_context(cafile=str(self.folder / "certs" / "apiserver.crt"))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(request, timeout=30) as response:
            return bytes(response.read())

    def _write_kubeconfig(self, user: str, token: str) -> Path:
        """Needs the certificate that the API server makes at its first start."""
        certificate = (self.folder / "certs" / "apiserver.crt").read_bytes()
        return write_kubeconfig(self._kubeconfig_path(user), self.server, certificate, user, token)

    def _kubeconfig_path(self, user: str) -> Path:
        return self.folder / f"kubeconfig-{re.sub('[^A-Za-z0-9.-]', '-', user)}"

    def _own_kubeconfig_flags(self, user: str) -> list[str]:
        path = self._kubeconfig_path(user)
        return [f"--{kind}kubeconfig={path}" for kind in ("", "authentication-", "authorization-")]

    # Audit

    def audit(self, since: datetime | None = None) -> list[AuditEntry]:
        """What the API server answered, from `since` (aware datetime, e.g. `datetime.now(UTC)` taken before) to now."""
        if self._audit is None:
            raise RuntimeError("the control plane is not started")
        return self._audit.read(since)

    @staticmethod
    def now() -> datetime:
        """A mark for `audit(since=...)`."""
        return datetime.now(UTC)

    # Command lines

    def _prepare(self, programs: Mapping[str, Path]) -> None:
        folder = self.folder
        client, peer, api, manager, scheduler = free_ports(5)
        self.server = f"https://127.0.0.1:{api}"
        self._audit = AuditLog(folder / "audit.log")
        key = folder / "service-account.key"
        for path in (key, folder / "tokens.csv"):
            path.touch(mode=0o600)
        key.write_text(p256_private_key())
        rows = [f'{self._tokens[name]},"{name}","{name}","{",".join(groups)}"' for name, groups in self.users.items()]
        (folder / "tokens.csv").write_text("\n".join(rows) + "\n")
        (folder / "audit-policy.yaml").write_text(yaml.safe_dump(audit.POLICY))
        (folder / "certs").mkdir()
        gates = [f"--feature-gates={self.feature_gates}"] if self.feature_gates else []
        self._add(
            "etcd",
            programs,
            f"http://127.0.0.1:{client}/readyz",
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{client}",
            f"--advertise-client-urls=http://127.0.0.1:{client}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        self._add(
            "kube-apiserver",
            programs,
            f"{self.server}/readyz",
            f"--etcd-servers=http://127.0.0.1:{client}",
            "--bind-address=127.0.0.1",
            f"--secure-port={api}",
            f"--cert-dir={folder / 'certs'}",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--allow-privileged=true",
            "--max-requests-inflight=3000",
            "--max-mutating-requests-inflight=2000",
            f"--audit-policy-file={folder / 'audit-policy.yaml'}",
            f"--audit-log-path={folder / 'audit.log'}",
            "--audit-log-mode=blocking",
            "--audit-log-maxsize=100000",
            "--profiling=false",
            *gates,
        )
        self._add(
            "kube-controller-manager",
            programs,
            f"https://127.0.0.1:{manager}/healthz",
            *self._own_kubeconfig_flags("system:kube-controller-manager"),
            f"--root-ca-file={folder / 'certs' / 'apiserver.crt'}",
            f"--service-account-private-key-file={key}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            # It refuses the API server's self-signed certificate, again and again.
            "--controllers=*,-kube-apiserver-serving-clustertrustbundle-publisher-controller",
            "--bind-address=127.0.0.1",
            f"--secure-port={manager}",
            f"--cert-dir={folder / 'manager-certs'}",
            f"--kube-api-qps={CLIENT_QPS}",
            f"--kube-api-burst={CLIENT_BURST}",
            "--concurrent-gc-syncs=30",
            "--concurrent-deployment-syncs=20",
            "--concurrent-replicaset-syncs=20",
            "--concurrent-namespace-syncs=20",
            "--profiling=false",
            *gates,
        )
        scheduler_config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {
                "kubeconfig": str(self._kubeconfig_path("system:kube-scheduler")),
                "qps": CLIENT_QPS,
                "burst": CLIENT_BURST,
            },
        }
        (folder / "scheduler.yaml").write_text(yaml.safe_dump(scheduler_config))
        self._add(
            "kube-scheduler",
            programs,
            f"https://127.0.0.1:{scheduler}/healthz",
            f"--config={folder / 'scheduler.yaml'}",
            *self._own_kubeconfig_flags("system:kube-scheduler")[1:],
            "--bind-address=127.0.0.1",
            f"--secure-port={scheduler}",
            f"--cert-dir={folder / 'scheduler-certs'}",
            *gates,
        )

    def _add(self, name: str, programs: Mapping[str, Path], ready: str, *flags: str) -> None:
        self._ready[name] = ready
        self._processes[name] = Process(name, [programs[name], *flags], self.folder / f"{name}.log")


__all__ = ["USERS", "AuditEntry", "ControlPlane", "ProcessError"]
