"""Child processes that end with their parent, free loopback ports, and waiting for a URL."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PR_SET_PDEATHSIG = 1
STOP_SECONDS = 8.0

# Linux sends the death signal when the *thread* that forked ends, so one thread that lives as long as this process
# forks all.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")


class ProcessError(RuntimeError):
    """A process did not start or did not become ready; the message ends with the last lines of its log."""


def free_ports(count: int) -> list[int]:
    """`count` different TCP ports on 127.0.0.1 that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _die_with_parent() -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask


class Process:
    """One child process with a log file; `name` is for messages."""

    def __init__(
        self, name: str, command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.command = [str(word) for word in command]
        self.log = log
        self._environment = {**os.environ, **(environment or {})}
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    def start(self) -> None:
        """Start it; the log is appended to."""
        if self.running:
            return
        self._child = _spawner.submit(self._spawn).result()

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                preexec_fn=_die_with_parent(),
                # a Ctrl-C in the terminal reaches the parent only, which stops children in order
                start_new_session=True,
            )

    def terminate(self) -> None:
        """Send SIGTERM and return at once."""
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """SIGTERM, then SIGKILL after `seconds`; returns when the process is gone."""
        if self._child is None:
            return
        self.terminate()
        try:
            self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child = None

    def tail(self, lines: int = 15) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def memory(self) -> int:
        """Resident memory in bytes (Linux; 0 where it cannot be told)."""
        try:
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        except OSError:
            pass
        return 0

    def wait_ready(self, url: str, seconds: float) -> None:
        """Until `url` answers 200. Raises ProcessError when the process ends or `seconds` have passed."""
        deadline = time.monotonic() + seconds
        last = ""
        while True:
            if not self.running:
                raise ProcessError(f"{self.name} ended while starting:\n{self.tail()}")
            last = probe(url)
            if last == "200":
                return
            if time.monotonic() > deadline:
                raise ProcessError(f"{self.name} not ready after {seconds} s ({url}: {last}):\n{self.tail()}")
            time.sleep(0.05)


def probe(url: str) -> str:
    """The status code that a GET of `url` has, or the error; certificates are not checked."""
    context = ssl.SSLContext(
        ssl.PROTOCOL_TLS_CLIENT
    )  # unlike the default context it reads no CA files, which takes long
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(url, timeout=10.0) as response:
            return str(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code} {error.read(500).decode(errors='replace')}"
    except (OSError, ValueError) as error:
        return str(error)
