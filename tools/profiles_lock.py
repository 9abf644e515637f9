"""Keeps `profiles/lock.yaml`, the SHA-256 of every published profile version.

    python tools/profiles_lock.py           adds versions that are not in the lock yet
    python tools/profiles_lock.py --check   exit code 1 when a version is missing, changed or gone

A published version is never edited: an existing entry is never rewritten, so a new tuning is a new version.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

import yaml

PROFILES = Path(__file__).resolve().parents[1] / "profiles"
HEADER = "# SHA-256 of each published profile version. Written by tools/profiles_lock.py; entries never change.\n"


def published(directory: Path) -> dict[str, str]:
    """`<name>/<version>` to the SHA-256 of the file's bytes, sorted."""
    files = sorted(directory.glob("*/*.yaml"))
    return {f"{f.parent.name}/{f.stem}": hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def locked(directory: Path) -> dict[str, str]:
    """What the lock file says; empty when there is none."""
    path = directory / "lock.yaml"
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.exists() else {}


def broken(directory: Path) -> list[str]:
    """One sentence for each locked version whose file was edited or removed."""
    now = published(directory)
    return [
        f"{key}: a published profile version was {'edited; add a new version' if key in now else 'removed'}"
        for key, digest in sorted(locked(directory).items())
        if now.get(key) != digest
    ]


def unlocked(directory: Path) -> list[str]:
    """Versions that the lock does not hold yet."""
    return sorted(set(published(directory)) - set(locked(directory)))


def write(directory: Path) -> None:
    """Adds the unlocked versions. Raises ValueError, changing nothing, when a locked one was edited or removed."""
    if problems := broken(directory):
        raise ValueError("\n".join(problems))
    text = "".join(f"{key}: {digest}\n" for key, digest in published(directory).items())
    (directory / "lock.yaml").write_text(HEADER + text, encoding="utf-8")


def main(arguments: list[str] | None = None, directory: Path = PROFILES) -> int:
    parser = argparse.ArgumentParser(description="Lock published profile versions.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 when the lock is not current")
    options = parser.parse_args(arguments)
    problems = broken(directory)
    if options.check:
        problems += [f"{key}: not locked; run tools/profiles_lock.py" for key in unlocked(directory)]
    if problems:
        sys.stderr.write("\n".join(problems) + "\n")
        return 1
    if not options.check:
        write(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
