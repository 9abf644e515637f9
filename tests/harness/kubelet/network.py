"""Addresses for pods: one network namespace of the harness with a bridge, one namespace per pod, one link to the host.

Up to SLOTS kubelets run at the same time on a machine. Each holds the lock of its slot for as long as it lives, and its
slot names everything it makes: so what carries the name of a slot that could be locked belongs to nobody alive.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import ipaddress
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

SLOTS = 16
FIRST_NETWORK = 224
"""Slot n has the pod addresses 10.(224 + n).0.0/16."""
BRIDGE = "pods"
NAMESPACES = Path("/run/netns")
PROGRAMS = ("ip", "nsenter")
CLONE_NEWNET = 0x40000000


class NetworkError(RuntimeError):
    """A step of setting up the network failed; the message is that of iproute2."""


def ip(*words: str) -> str:
    """Run iproute2; raises NetworkError."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _batch(namespace: str | None, *lines: str) -> None:
    """Several commands in one process, inside `namespace`."""
    inside = ["-n", namespace] if namespace else []
    done = subprocess.run(
        ["ip", *inside, "-batch", "-"], input="\n".join(lines), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NetworkError(f"ip {' '.join(inside)} -batch: {done.stderr.strip()} of {'; '.join(lines)}")


@cache
def missing() -> str | None:
    """Why pods cannot run as processes here; None if they can."""
    if not sys.platform.startswith("linux"):
        return "the process kubelet needs Linux"
    if os.geteuid() != 0:
        return "the process kubelet needs root"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"the process kubelet needs {' and '.join(absent)} (packages iproute2 and util-linux)"
    if "overlay" not in Path("/proc/filesystems").read_text().split():
        return "the process kubelet needs overlayfs in the kernel"
    trial = f"kimik3-trial-{os.getpid()}"
    try:
        ip("netns", "add", trial)
        try:
            ip("-n", trial, "link", "add", BRIDGE, "type", "bridge")
        finally:
            ip("netns", "delete", trial)
    except NetworkError as error:
        return f"the process kubelet cannot make network namespaces: {error}"
    used = _routes()
    if all(any(addresses_of(slot).overlaps(route) for route in used) for slot in range(SLOTS)):
        return "the process kubelet finds no unused addresses: the host has routes to all of its ranges"
    return None


def addresses_of(slot: int) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network(f"10.{FIRST_NETWORK + slot}.0.0/16")


@dataclass(frozen=True)
class PodNetwork:
    """The network namespace of a pod; `name` is empty for a pod on the host's network."""

    name: str
    address: str

    @property
    def path(self) -> str:
        return str(NAMESPACES / self.name) if self.name else ""


class Network:
    """All addresses of one kubelet. Make it with `claim`; `stop` removes everything and frees the slot."""

    def __init__(self, slot: int, lock: IO[str]) -> None:
        self._lock = lock
        self.slot = slot
        self.name = f"kimik3-{slot}"
        self.link = f"k3pods{slot}"
        self.folder = Path(tempfile.gettempdir()) / f"kimi-k3-kubelet-{slot}"
        self.range = addresses_of(slot)
        self.gateway = str(self.range[1])
        self.host_address = str(self.range[2])
        """The host's own address in the pods' network."""
        self._next = 256
        self._taken: dict[str, str] = {}

    @classmethod
    def claim(cls) -> Network:
        """Take a free slot and remove what its last owner left. Raises NetworkError when there is none."""
        used = _routes()
        for slot in range(SLOTS):
            lock = (Path(tempfile.gettempdir()) / f"kimi-k3-kubelet-{slot}.lock").open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                continue
            network = cls(slot, lock)
            network._sweep()
            if not any(network.range.overlaps(other) for other in used - {network.range}):
                return network
            lock.close()
        raise NetworkError(f"no free slot of {SLOTS} for the addresses of pods")

    def start(self) -> None:
        self.folder.mkdir(mode=0o700)
        ip("netns", "add", self.name)
        _batch(
            self.name,
            f"link add {BRIDGE} type bridge",
            f"addr add {self.gateway}/16 dev {BRIDGE}",
            f"link set {BRIDGE} up",
            "link set lo up",
        )
        ip("link", "add", self.link, "type", "veth", "peer", "name", "host", "netns", self.name)
        _batch(self.name, f"link set host master {BRIDGE} up")
        _batch(None, f"addr add {self.host_address}/16 dev {self.link}", f"link set {self.link} up")

    def stop(self) -> None:
        self._sweep()
        self._lock.close()

    def _sweep(self) -> None:
        """Remove what carries this slot's name. A namespace takes its links along, but only after a while."""
        if Path("/sys/class/net", self.link).exists():
            with contextlib.suppress(NetworkError):
                ip("link", "delete", self.link)
        for name in _namespaces():
            if name == self.name or name.startswith(f"{self.name}-"):
                ip("netns", "delete", name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def add_pod(self) -> PodNetwork:
        """A new namespace with an address that no running pod has. Raises NetworkError."""
        while (address := str(self.range[self._next])) in self._taken.values():
            self._step()
        name, link = f"{self.name}-{self._next}", f"pod{self._next}"
        self._taken[name] = address
        self._step()
        ip("netns", "add", name)
        ip("-n", self.name, "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        _batch(self.name, f"link set {link} master {BRIDGE} up")
        _batch(
            name,
            f"addr add {address}/16 dev eth0",
            "link set lo up",
            "link set eth0 up",
            f"route add default via {self.gateway}",
        )
        return PodNetwork(name, address)

    def _step(self) -> None:
        self._next = self._next + 1 if self._next + 2 < self.range.num_addresses else 256

    def remove_pod(self, pod: PodNetwork) -> None:
        if self._taken.pop(pod.name, None) is not None:
            ip("netns", "delete", pod.name)

    def add_service(self, address: str) -> None:
        ip("-n", self.name, "addr", "add", f"{address}/32", "dev", BRIDGE)

    def remove_service(self, address: str) -> None:
        ip("-n", self.name, "addr", "delete", f"{address}/32", "dev", BRIDGE)

    def listen(self, address: str, port: int) -> socket.socket:
        """A listening socket among the pods, used from here: a socket stays in the namespace of its making."""
        made: list[socket.socket | OSError] = []

        def make() -> None:  # in a thread of its own, because a thread is what changes its namespace
            try:
                with (NAMESPACES / self.name).open() as file:
                    if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), "setns")
                made.append(socket.create_server((address, port), backlog=128))
            except OSError as error:
                made.append(error)

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if isinstance(made[0], OSError):
            raise made[0]
        return made[0]


def _namespaces() -> Sequence[str]:
    return sorted(path.name for path in NAMESPACES.iterdir()) if NAMESPACES.is_dir() else []


def _routes() -> set[ipaddress.IPv4Network]:
    """Networks that the host already reaches, the default route aside."""
    routes = json.loads(ip("-json", "-4", "route", "show") or "[]")
    return {ipaddress.IPv4Network(route["dst"]) for route in routes if route["dst"] != "default"}
