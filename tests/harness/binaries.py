"""Where the programs of the practice cluster are, and why tests cannot run without them."""

from __future__ import annotations

from pathlib import Path

from tools import build


class BinariesMissingError(RuntimeError):
    """A program that is needed has not been built; the message says how to build it."""


def path(name: str) -> Path:
    """The program `name` (such as "kube-apiserver", "kwok", "helm"); raises BinariesMissingError if it is not there."""
    program = build.program(name)
    if not build.is_program(program):
        raise BinariesMissingError(f"{name} is not at {program}; build it with `make controlplane`")
    return program


def missing(*groups: str) -> str | None:
    """Why tests that need `groups` ("controlplane", "kwok", "helm"; default the first two) must skip; None if they
    can run.
    """
    absent = [name for _, name in build.missing(groups or ("controlplane", "kwok"))]
    if not absent:
        return None
    return f"not built: {', '.join(absent)} (make controlplane builds them into {build.tools_dir()})"
