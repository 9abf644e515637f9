"""One execution of a container: start it, run commands in it, signal it, await its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness.kubelet.volumes import Mount

LAUNCH = Path(__file__).with_name("launch.py")


class StartError(Exception):
    """The program could not be started; the message is that of the kernel."""


@dataclass(frozen=True)
class Order:
    """What to run; `network` is the path of a network namespace, empty for the host's."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    hostname: str
    network: str
    mounts: Sequence[Mount] = ()
    devices: Sequence[str] = ()
    scripts: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, Path] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """The order as a file that only its owner reads, for it holds secrets."""
        root = folder / "root"
        root.mkdir(parents=True, exist_ok=True)
        path = folder / "order.json"
        path.touch(mode=0o600)
        content = {
            "argv": list(self.argv),
            "env": dict(self.env),
            "cwd": self.cwd,
            "hostname": self.hostname,
            "network": self.network,
            "mounts": [mount.order() for mount in self.mounts],
            "devices": list(self.devices),
            "scripts": dict(self.scripts),
            "links": {path: str(program) for path, program in self.links.items()},
            "root": str(root),
            "parent": os.getpid(),
        }
        path.write_text(json.dumps(content))
        return path


class ContainerProcess:
    """A running container. `ended` is its exit code, 128 + n for signal n."""

    def __init__(self, launcher: subprocess.Popen[bytes], pid: int, env: Mapping[str, str]) -> None:
        self.pid = pid
        """Of the container's first process, as the host counts."""
        self._launcher = launcher
        self._env = dict(env)
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._pidfd = os.pidfd_open(launcher.pid)
        self._loop.add_reader(self._pidfd, self._end)

    @classmethod
    async def start(cls, order: Order, folder: Path, log: Path) -> ContainerProcess:
        """Returns when the program runs; its output is appended to `log`. Raises StartError."""
        path = order.write(folder)
        reading, writing = os.pipe()
        try:
            with log.open("ab") as output:
                # forked by this thread: the container is killed when it ends
                launcher = subprocess.Popen(  # noqa: ASYNC220 - takes a millisecond
                    [sys.executable, "-I", "-S", str(LAUNCH), str(path), str(writing)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[writing],
                    start_new_session=True,
                    env={},
                    cwd="/",
                )
        finally:
            os.close(writing)
        try:
            said = await _read_all(reading)
        except asyncio.CancelledError:
            launcher.kill()
            launcher.wait()
            raise
        pid, _, problem = said.partition("\n")
        if problem or not pid:
            code = await asyncio.to_thread(launcher.wait)
            raise StartError(problem or f"the container's launcher ended with code {code}")
        return cls(launcher, int(pid), order.env)

    def _end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = self._launcher.wait()
        if not self.ended.done():
            self.ended.set_result(code)

    def signal(self, number: signal.Signals) -> None:
        """To the first process, which as in any container ignores what it has no handler for, SIGKILL aside."""
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def wait(self, seconds: float) -> bool:
        """Whether it ended within `seconds`."""
        done, _ = await asyncio.wait([self.ended], timeout=max(0.0, seconds))
        return bool(done)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await asyncio.wait([self.ended])

    def kill_now(self) -> None:
        """As `kill`, for a loop that is about to end: blocks until it is gone."""
        self.signal(signal.SIGKILL)
        if not self.ended.done():
            self._end()

    async def run(self, command: Sequence[str], seconds: float) -> tuple[int, str]:
        """(exit code, output) of a command inside; code 124 when it took longer than `seconds` and was killed."""
        spaces = ["--mount", "--uts", "--ipc", "--net", "--pid"]
        child = await asyncio.create_subprocess_exec(
            *("nsenter", f"--target={self.pid}", *spaces, "--", *command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"PATH": os.defpath, **self._env},
            start_new_session=True,
        )
        try:
            output, _ = await asyncio.wait_for(child.communicate(), seconds)
        except TimeoutError:
            return 124, f"command timed out after {seconds:g} s"
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                await child.wait()
        return int(child.returncode or 0), output.decode(errors="replace")


async def _read_all(descriptor: int) -> str:
    """Everything until the other end is closed."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    parts: list[bytes] = []

    def read() -> None:
        part = os.read(descriptor, 4096)
        parts.append(part)
        if not part and not done.done():
            done.set_result(None)

    loop.add_reader(descriptor, read)
    try:
        await done
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return b"".join(parts).decode(errors="replace")
