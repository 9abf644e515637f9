#!/usr/bin/env python3
"""Prepare vLLM's own argument parser, without a GPU, once, in a cache of the user.

Needs Python 3.11 or later and nothing else. The cache gets one virtual environment with what the newest supported
release imports, and of each release the Python files of its wheel; the wheels themselves are not kept.

    python3 tools/engine_venv.py                      everything that is missing (5 to 10 minutes, about 6 GB)
    python3 tools/engine_venv.py --versions 0.33.0    the files of some releases only
    python3 tools/engine_venv.py --print-dir          only say where it is (or will be)

Environment: KIMI_K3_ENGINE_CACHE moves the cache.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from email.parser import Parser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DRIVER = ROOT / "tests" / "engine" / "driver.py"

VERSIONS = ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
"""Supported releases, ascending. Add one here, then run tools/engine_tables.py."""

NOT_NEEDED = re.compile(
    r"(torchaudio|torchvision|torchcodec|pynvvideocodec|flashinfer-python|tilelang|nvidia-|quack-kernels|tokenspeed-mla"
    r"|humming-kernels|instanttensor|fastsafetensors|nvtx|apache-tvm-ffi|numba|opencv)"
)
"""Requirements that only kernels, media or weight loading import."""

WHEEL_PLATFORM = ("--only-binary=:all:", "--platform", "manylinux_2_28_x86_64", "--python-version", "3.12")
"""Of a wheel only its Python files are used, so one platform serves every machine."""

HEARTBEAT_SECONDS = 15.0


class EngineError(Exception):
    """A step failed; the message says which and shows the end of its output."""


def cache() -> Path:
    """The cache folder; it may not exist yet."""
    named = os.environ.get("KIMI_K3_ENGINE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(named or Path(base) / "kimi-k3-operator" / "engines").expanduser().absolute()


def tree(version: str) -> Path:
    """Where the Python files of a release are, to be put first on PYTHONPATH."""
    return cache() / version


def environment() -> Path:
    """The virtual environment; its name follows from what goes into it."""
    recipe = f"{VERSIONS[-1]} {sys.version_info[:2]} {NOT_NEEDED.pattern}"
    return cache() / f"venv-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def python() -> Path:
    return environment() / "bin" / "python"


def missing(versions: Sequence[str] = VERSIONS) -> list[str]:
    """Releases whose files are not there, and `environment` while it is not complete."""
    absent = [version for version in versions if not tree(version).is_dir()]
    return absent if (environment() / "complete").exists() else [*absent, "environment"]


class Engine:
    """The driver of one release, kept running; starting it takes 15 s or more, an answer well under one."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._home = tempfile.TemporaryDirectory(prefix="kimi-k3-engine-")
        self._log = open(Path(self._home.name) / "stderr", "w+")  # noqa: SIM115 - closed with the process
        clean = {"PATH": os.defpath, "HOME": self._home.name, "LANG": "C.UTF-8", "PYTHONPATH": str(tree(version))}
        self._process = subprocess.Popen(
            [str(python()), str(DRIVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=clean,
            cwd=self._home.name,
            text=True,
        )

    def ask(self, request: Mapping[str, Any], *, timeout: float = 300) -> dict[str, Any]:
        """The driver's answer within `timeout` seconds. Raises EngineError when the driver itself fails.

        The process sees no variable of the caller that could change what the engine decides.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        deadline = threading.Timer(timeout, self._process.kill)
        deadline.start()
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            deadline.cancel()
        if not line:
            said = Path(self._log.name).read_text(encoding="utf-8", errors="replace")[-4000:]
            raise EngineError(f"the driver of vLLM {self.version} failed or took over {timeout:.0f} s:\n{said}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()
        self._home.cleanup()


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def run(label: str, command: Sequence[str]) -> None:
    """Run one step with a sign of life every 15 s; raises EngineError with the last lines it said."""
    started = time.monotonic()
    say(label)
    with tempfile.TemporaryFile("w+") as log:
        step = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            while True:
                try:
                    code = step.wait(timeout=HEARTBEAT_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    say(f"{label}: {time.monotonic() - started:.0f} s")
        finally:
            if step.poll() is None:
                step.terminate()
                step.wait()
        if code != 0:
            log.seek(0)
            raise EngineError(f"{label} failed:\n" + "".join(log.readlines()[-20:]))


def pip(label: str, *arguments: str) -> None:
    run(label, [str(python()), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments])


def unpack(version: str, label: str) -> None:
    """Python and JSON files of the release's wheel and its metadata, whole or not at all."""
    with tempfile.TemporaryDirectory(dir=cache(), prefix="unpacking-") as scratch:
        which = ("--no-deps", *WHEEL_PLATFORM, "--dest", scratch, f"vllm=={version}")
        pip(f"{label} downloading the wheel", "download", *which)
        (wheel,) = Path(scratch).glob("*.whl")
        target = Path(scratch) / "tree"
        with zipfile.ZipFile(wheel) as archive:
            wanted = [n for n in archive.namelist() if n.endswith((".py", ".json", "/METADATA", "/entry_points.txt"))]
            archive.extractall(target, wanted)
        os.replace(target, tree(version))


def requirements(version: str) -> list[str]:
    """What the release requires and its parser and configuration import, in pip's notation."""
    (metadata,) = tree(version).glob("vllm-*.dist-info/METADATA")
    stated = Parser().parsestr(metadata.read_text(encoding="utf-8"), headersonly=True).get_all("Requires-Dist") or []
    return [line for line in stated if "extra ==" not in line and not NOT_NEEDED.match(line.lower())]


def prepare(versions: Sequence[str] = VERSIONS) -> None:
    """Make what is missing. Raises EngineError."""
    cache().mkdir(parents=True, exist_ok=True)
    with locked(cache() / "lock"):
        todo = missing((*versions, VERSIONS[-1]))
        if not todo:
            return
        begin = time.monotonic()
        say(f"preparing {', '.join(dict.fromkeys(todo))} in {cache()} (once; about 6 GB and 5 to 10 minutes in all)")
        if "environment" in todo:
            shutil.rmtree(environment(), ignore_errors=True)
            run("creating the virtual environment", [sys.executable, "-m", "venv", str(environment())])
        absent = [version for version in dict.fromkeys(todo) if version != "environment"]
        for done, version in enumerate(absent):
            unpack(version, f"[{done + 1}/{len(absent)}] vLLM {version}:")
        if "environment" in todo:
            pip("installing what vLLM imports", "install", "--no-cache-dir", *requirements(VERSIONS[-1]))
            (environment() / "complete").touch()
        say(f"ready after {time.monotonic() - begin:.0f} s")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file; a second preparation waits here, then finds everything done."""
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another preparation is running; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Prepare vLLM's argument parser in the user's cache.")
    parser.add_argument("--print-dir", action="store_true", help="print the cache folder and prepare nothing")
    parser.add_argument("--versions", default=",".join(VERSIONS), help="comma-separated (default: %(default)s)")
    options = parser.parse_args(arguments)
    versions = [version.strip() for version in options.versions.split(",") if version.strip()]
    unknown = sorted(set(versions) - set(VERSIONS))
    if unknown:
        parser.error(f"not supported: {', '.join(unknown)}; supported are {', '.join(VERSIONS)}")
    try:
        if not options.print_dir:
            prepare(versions)
    except EngineError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("stopped; what was finished stays")
        return 130
    sys.stdout.write(f"{cache()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
