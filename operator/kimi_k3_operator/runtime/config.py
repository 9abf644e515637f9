"""What an operator process is told at its start: flags, else environment, else defaults."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_LEASE_HELP = "namespace of the planning Lease, one for the whole cluster"


@dataclass(frozen=True)
class Config:
    namespaces: frozenset[str]
    """Served namespaces; empty: all."""
    lease_namespace: str
    """Holds the planning Lease: the same one for every operator of a cluster."""
    identity: str
    """Name of this instance in the Lease."""
    listen: tuple[str, int]
    profiles: tuple[Path, ...]
    log_level: str
    log_format: str

    def serves(self, namespace: str) -> bool:
        return not self.namespaces or namespace in self.namespaces

    @property
    def scope(self) -> str:
        """The served namespaces as text, `*` for all."""
        return ",".join(sorted(self.namespaces)) or "*"


def parse_config(arguments: Sequence[str], environment: Mapping[str, str]) -> Config:
    """Exits with a usage message where a flag is wrong."""
    parser = argparse.ArgumentParser("kimi_k3_operator", description="Run the Kimi K3 operator.")
    env = environment.get
    parser.add_argument("--namespaces", default=env("KIMI_K3_NAMESPACES", ""), help="served namespaces, by comma")
    parser.add_argument("--lease-namespace", default=env("KIMI_K3_LEASE_NAMESPACE", "kube-system"), help=_LEASE_HELP)
    parser.add_argument("--listen", default=env("KIMI_K3_LISTEN", "0.0.0.0:8080"), help="address of /livez, /metrics")
    parser.add_argument("--profiles", action="append", default=None, help="directory with more profiles (repeatable)")
    parser.add_argument("--log-level", default=env("KIMI_K3_LOG_LEVEL", "INFO"), choices=("DEBUG", "INFO", "WARNING"))
    parser.add_argument("--log-format", default=env("KIMI_K3_LOG_FORMAT", "json"), choices=("json", "text"))
    given = parser.parse_args(arguments)
    host, _, port = given.listen.rpartition(":")
    if not port.isdigit():
        parser.error(f"--listen wants HOST:PORT, not {given.listen!r}")
    directories = given.profiles if given.profiles is not None else env("KIMI_K3_PROFILES", "").split(":")
    return Config(
        namespaces=frozenset(filter(None, given.namespaces.split(","))),
        lease_namespace=given.lease_namespace,
        identity=f"{socket.gethostname()}-{os.getpid()}",
        listen=(host, int(port)),
        profiles=tuple(Path(directory) for directory in directories if directory),
        log_level=given.log_level,
        log_format=given.log_format,
    )
