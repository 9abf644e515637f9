"""Becomes one container: `python launch.py ORDER STATUS` with an order as JSON and the number of an open pipe.

Runs as a program of its own, on the standard library alone. To the pipe goes the process id of the container's first
process in one line, then what prevented its start; the pipe is closed when the program runs. This process stays, waits
for the first one and ends with its code (128 + n for signal n).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
OWN = ("/proc", "/sys", "/dev", "/run/netns")
"""Mounts of the machine that a container does not get as they are."""
CANNOT_START = 128
LONGEST_CHAIN = 40
"""Symbolic links in one path, as in Linux."""

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: Any) -> None:
    if getattr(libc, name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}{arguments}: {os.strerror(error)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    call("mount", source.encode(), target.encode(), kind.encode(), flags, data.encode())


def die_with(parent: int) -> None:
    """Be killed when the thread that made this process ends."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent and os.getppid() != parent:
        os._exit(1)


def bind(source: str, target: str, *, read_only: bool = False, recursive: bool = False) -> None:
    """Mount a file or folder on `target`, which is made where it is missing."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "w").close()
    mount(source, target, flags=MS_BIND | (MS_REC if recursive else 0))
    if read_only:
        mount("", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)


def inside(root: str, path: str) -> str:
    """`path` of the container as a path of the machine, with links followed as the container would."""
    rest, found = [part for part in path.split("/") if part], root
    followed = 0
    while rest:
        part = rest.pop(0)
        if part == "..":
            found = root if found == root else os.path.dirname(found)
        elif os.path.islink(os.path.join(found, part)) and followed < LONGEST_CHAIN:
            target = os.readlink(os.path.join(found, part))
            found = root if target.startswith("/") else found
            rest = [piece for piece in target.split("/") if piece] + rest
            followed += 1
        elif part != ".":
            found = os.path.join(found, part)
    return found


def other_mounts() -> list[str]:
    """Where the machine has mounted more than its root, parents first, without what lies below another of them."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        points = sorted({line.split()[4].encode().decode("unicode_escape") for line in file})
    found: list[str] = []
    for point in points:
        if point != "/" and not any(point == top or point.startswith(top + "/") for top in (*OWN, *found)):
            found.append(point)
    return found


def build_root(order: dict[str, Any]) -> str:
    """The container's files: the machine's own under a layer that only this container sees."""
    base = order["root"]
    mounted = other_mounts()
    mount("container", base, "tmpfs")
    upper, work, root = (f"{base}/{name}" for name in ("upper", "work", "root"))
    for folder in (upper, work, root):
        os.mkdir(folder)
    mount("container", root, "overlay", data=f"lowerdir=/,upperdir={upper},workdir={work}")
    for point in mounted:
        bind(point, inside(root, point), recursive=True)
    mount("/sys", inside(root, "sys"), flags=MS_BIND | MS_REC)
    devices(inside(root, "dev"), order["devices"])
    for path, text in order["scripts"].items():
        write_program(inside(root, path), text)
    for path, program in order["links"].items():
        bind(program, inside(root, path))
    for one in sorted(order["mounts"], key=lambda one: len(one["target"])):
        bind(one["source"], inside(root, one["target"]), read_only=one["readOnly"])
    return root


def devices(folder: str, more: list[str]) -> None:
    mount("devices", folder, "tmpfs", data="mode=755")
    for name in DEVICES:
        bind(f"/dev/{name}", f"{folder}/{name}")
    os.mkdir(f"{folder}/pts")
    if os.path.isdir("/dev/pts"):
        mount("/dev/pts", f"{folder}/pts", flags=MS_BIND)
    for name, target in (("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd")):
        os.symlink(target, f"{folder}/{name}")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{folder}/{name}")
    os.mkdir(f"{folder}/shm")
    mount("shm", f"{folder}/shm", "tmpfs", data="mode=1777")
    for path in more:
        target = folder + path.removeprefix("/dev")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "w").close()


def write_program(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(path):
        os.unlink(path)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, 0o755)


def become(order: dict[str, Any], root: str) -> None:
    """Enter the new root and run the program. Only raises, never returns."""
    mount("proc", inside(root, "proc"), "proc")
    os.chdir(root)
    call("pivot_root", b".", b".")
    call("umount2", b".", MNT_DETACH)
    os.chdir(order["cwd"])
    os.execvpe(order["argv"][0], order["argv"], order["env"])


def main() -> int:
    with open(sys.argv[1], encoding="utf-8") as file:
        order = json.load(file)
    status = int(sys.argv[2])
    os.set_inheritable(status, False)
    die_with(order["parent"])
    os.umask(0o022)
    try:
        if order["network"]:
            with open(order["network"]) as file:
                call("setns", file.fileno(), CLONE_NEWNET)
        call("unshare", CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID)
        mount("", "/", flags=MS_REC | MS_PRIVATE)
        name = order["hostname"].encode()
        call("sethostname", name, len(name))
        root = build_root(order)
    except OSError as error:
        os.write(status, f"0\n{error}".encode())
        return CANNOT_START
    named, naming = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            die_with(0)
            os.read(named, 1)  # what goes wrong here is told after the process id
            become(order, root)
        except OSError as error:
            os.write(status, f"exec: {json.dumps(order['argv'][0])}: {error.strerror}".encode())
        finally:
            os._exit(CANNOT_START)
    os.write(status, f"{child}\n".encode())
    os.close(status)
    os.write(naming, b".")
    _, code = os.waitpid(child, 0)
    return os.WEXITSTATUS(code) if os.WIFEXITED(code) else 128 + os.WTERMSIG(code)


if __name__ == "__main__":
    sys.exit(main())
