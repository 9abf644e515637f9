"""Which options and environment variables each supported vLLM release knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

DATA = Path(__file__).with_name("flags.yaml")


@dataclass(frozen=True)
class Entry:
    """One name: the versions that know it and, by first version, its default."""

    versions: frozenset[str]
    defaults: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class FlagTable:
    versions: tuple[str, ...]
    """Supported engine versions, ascending."""
    flags: Mapping[str, Entry]
    env: Mapping[str, Entry]
    libraries: Mapping[str, str]
    """Variables that libraries under the engine read, to the library's name."""

    @classmethod
    def load(cls) -> FlagTable:
        """The table of this package, read once."""
        return _packaged()

    def supports(self, version: str) -> bool:
        return version in self.versions

    def knows_flag(self, name: str, version: str) -> bool:
        """Whether `vllm serve` of that version takes `--name`; dashes in front, underscores and `no-` are allowed."""
        entry = self.flags.get(_canonical(name)) or self.flags.get(_canonical(name).removeprefix("no-"))
        return entry is not None and version in entry.versions

    def knows_env(self, name: str, version: str) -> bool:
        """Whether the engine of that version, or a library under it, is known to read the variable."""
        if name in self.libraries:
            return self.supports(version)
        entry = self.env.get(name)
        return entry is not None and version in entry.versions

    def owns_env(self, name: str) -> bool:
        """Whether only the engine can give the variable a meaning, so that an unknown one is certainly a mistake."""
        return name.startswith("VLLM_") or name in self.env

    def flag_versions(self, name: str) -> tuple[str, ...]:
        """Supported versions that know the flag, ascending; empty when none does."""
        entry = self.flags.get(_canonical(name)) or self.flags.get(_canonical(name).removeprefix("no-"))
        return tuple(v for v in self.versions if entry and v in entry.versions)

    def env_versions(self, name: str) -> tuple[str, ...]:
        """Supported versions that know the variable, ascending; empty when none does."""
        return tuple(v for v in self.versions if self.knows_env(name, v))

    def default_of(self, name: str, version: str) -> Any:
        """The flag's default in that version; None when the engine decides or no default is recorded.

        Raises KeyError when that version does not know the flag.
        """
        if not self.knows_flag(name, version):
            raise KeyError(f"vLLM {version} has no flag --{_canonical(name)}")
        canonical = _canonical(name)
        entry = self.flags.get(canonical) or self.flags[canonical.removeprefix("no-")]
        at = self.versions.index(version)
        known = [value for first, value in entry.defaults if self.versions.index(first) <= at]
        return known[-1] if known else None

    def suggest(self, name: str, version: str | None = None) -> str | None:
        """The known name closest to a misspelt flag or variable, if any is close; of that version alone if given."""
        upper = name.isupper() or name.startswith("VLLM_")
        wanted = name if upper else _canonical(name)
        candidates = [*self.env, *self.libraries] if upper else list(self.flags)
        knows = self.knows_env if upper else self.knows_flag
        versions = self.versions if version is None else (version,)
        usable = [c for c in candidates if any(knows(c, v) for v in versions)]
        return next(iter(get_close_matches(wanted, usable, n=1, cutoff=0.7)), None)


def _canonical(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _entry(raw: Mapping[str, Any], versions: tuple[str, ...]) -> Entry:
    defaults: Mapping[str, Any] = raw.get("defaults") or ({versions[0]: raw["default"]} if "default" in raw else {})
    return Entry(versions=_range(raw["known"], versions), defaults=tuple(defaults.items()))


def _range(known: str, versions: tuple[str, ...]) -> frozenset[str]:
    if known == "all":
        return frozenset(versions)
    if known == "none":
        return frozenset()
    first, last = known.split("..")
    return frozenset(versions[versions.index(first) : versions.index(last) + 1])


@cache
def _packaged() -> FlagTable:
    raw = yaml.load(DATA.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    versions = tuple(raw["versions"])
    return FlagTable(
        versions=versions,
        flags=MappingProxyType({name: _entry(value, versions) for name, value in raw["flags"].items()}),
        env=MappingProxyType({name: _entry(value, versions) for name, value in raw["env"].items()}),
        libraries=MappingProxyType(dict(raw["libraries"])),
    )
