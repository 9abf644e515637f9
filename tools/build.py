#!/usr/bin/env python3
"""Build the programs of the practice cluster from pinned Go modules, once, into a cache of the user.

Needs Python 3.11, Go 1.26 and nothing else. Each folder beside this file that holds a go.mod is one group. The cache
folder is named by a hash of what goes into the build, so a changed version never meets an old binary, and branches
share one build.

    python3 tools/build.py                        build what is missing
    python3 tools/build.py --only helm,kwok       some groups only
    python3 tools/build.py --print-dir            only say where the programs are (or will be)

Environment: KIMI_K3_TOOLS_CACHE moves the cache; KUBEBUILDER_ASSETS, a folder that holds all programs of the group
controlplane, is used in place of that group.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent

GROUPS: dict[str, dict[str, str]] = {
    "controlplane": {
        "etcd": "go.etcd.io/etcd/server/v3",
        "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
        "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
        "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
        "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    },
    "kwok": {"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
    "helm": {"helm": "helm.sh/helm/v4/cmd/helm"},
}
"""Per group (a folder with a go.mod): binary name and the Go package of its main function."""

VERSIONED = {
    "controlplane": ("k8s.io/kubernetes", ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")),
    "kwok": ("sigs.k8s.io/kwok", ()),
    "helm": ("helm.sh/helm/v4", ()),
}
"""Per group: the module whose version the programs must report, and the Kubernetes-style version packages to write it
to.
"""

HEARTBEAT_SECONDS = 15.0


class BuildError(Exception):
    """A program could not be built; the message says which and shows the end of the compiler's output."""


def module_version(group: str) -> str:
    """The version, such as v1.37.2, that the go.mod of `group` requires of its main module."""
    module = VERSIONED[group][0]
    for line in (HERE / group / "go.mod").read_text().splitlines():
        words = line.removeprefix("require").split()
        if len(words) >= 2 and words[0] == module and words[1].startswith("v"):
            return words[1]
    raise BuildError(f"tools/{group}/go.mod does not require {module}")


def linker_flags(group: str) -> str:
    """Strip symbols; say the version, without which an API server built from a module calls itself v0.0.0-master."""
    version = module_version(group)
    major, minor, _ = version.removeprefix("v").split(".", 2)
    flags = ["-s", "-w"]
    for package in VERSIONED[group][1]:
        values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
        flags += [f"-X {package}.{name}={value}" for name, value in values.items()]
    if group == "kwok":
        flags.append(f"-X sigs.k8s.io/kwok/pkg/consts.Version={version}")
    if group == "helm":
        flags.append(f"-X helm.sh/helm/v4/internal/version.version={version}")
    return " ".join(flags)


def tools_dir() -> Path:
    """The folder of this version's programs; it may not exist yet."""
    cache = os.environ.get("KIMI_K3_TOOLS_CACHE")
    if not cache:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        cache = str(Path(base) / "kimi-k3-operator" / "tools")
    digest = hashlib.sha256(f"{sys.platform} {platform.machine()}\n".encode())
    for group, packages in GROUPS.items():
        for name in ("go.mod", "go.sum"):
            digest.update((HERE / group / name).read_bytes())
        digest.update(f"{packages} {linker_flags(group)}\n".encode())
    return Path(cache).expanduser().absolute() / digest.hexdigest()[:16]


def is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def kubebuilder_assets() -> Path | None:
    """The folder that KUBEBUILDER_ASSETS names, if it holds every control-plane program; else None."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if folder and all(is_program(Path(folder) / name) for name in GROUPS["controlplane"]):
        return Path(folder).absolute()
    return None


def program(name: str) -> Path:
    """Where the program `name` is, or will be once built."""
    assets = kubebuilder_assets()
    if assets is not None and name in GROUPS["controlplane"]:
        return assets / name
    return tools_dir() / name


def missing(groups: Sequence[str] = tuple(GROUPS)) -> list[tuple[str, str]]:
    """(group, program) for all programs of `groups` that are not there yet, in build order."""
    return [(group, name) for group in groups for name in GROUPS[group] if not is_program(program(name))]


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the build lock of `folder`; a second build waits here, then finds everything done."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build of the same programs is running; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def compile_program(group: str, name: str, output: Path, label: str) -> None:
    """Run the Go compiler; raises BuildError with the last lines it said."""
    command = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", linker_flags(group)]
    command += ["-o", str(output), GROUPS[group][name]]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        try:
            compiler = subprocess.Popen(
                command, cwd=HERE / group, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        except FileNotFoundError:
            raise BuildError("the Go compiler `go` is not on the PATH; install Go 1.26 or later") from None
        try:
            while True:
                try:
                    code = compiler.wait(timeout=HEARTBEAT_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    say(f"{label} still building, {time.monotonic() - started:.0f} s")
        finally:
            if compiler.poll() is None:
                compiler.terminate()
                compiler.wait()
        if code != 0:
            log.seek(0)
            raise BuildError(f"building {name} failed:\n" + "".join(log.readlines()[-20:]))


def build(groups: Sequence[str] = tuple(GROUPS)) -> Path:
    """Build what is missing of `groups`; returns the folder. Raises BuildError.

    Each program appears in the folder by a rename, so what is there is always whole.
    """
    folder = tools_dir()
    if not missing(groups):
        return folder
    with locked(folder):
        todo = missing(groups)
        if todo:
            say(f"building {len(todo)} programs into {folder} (once per version; 6 to 10 minutes when all are cold)")
        begin = time.monotonic()
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as scratch:
            for done, (group, name) in enumerate(todo):
                label = f"[{100 * done // len(todo):3d} %] {name}:"
                say(f"{label} building")
                started = time.monotonic()
                output = Path(scratch) / name
                compile_program(group, name, output, label)
                size = output.stat().st_size / 1e6
                os.replace(output, folder / name)
                say(f"{label} built in {time.monotonic() - started:.0f} s, {size:.0f} MB")
        if todo:
            say(f"[100 %] all built in {time.monotonic() - begin:.0f} s")
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the programs of the practice cluster into the user's cache.")
    parser.add_argument("--print-dir", action="store_true", help="print the folder of the programs and build nothing")
    parser.add_argument(
        "--only", default=",".join(GROUPS), metavar="GROUPS", help="comma-separated groups (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    groups = [group.strip() for group in options.only.split(",") if group.strip()]
    unknown = sorted(set(groups) - set(GROUPS))
    if unknown:
        parser.error(f"no such group: {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    if options.print_dir:
        sys.stdout.write(f"{tools_dir()}\n")
        return 0
    try:
        folder = build(groups)
    except BuildError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("stopped; what was finished stays")
        return 130
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
