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
    negatable: frozenset[str] = frozenset()
    """The versions that also take a flag with `no-` in front."""


@dataclass(frozen=True)
class FlagTable:
    versions: tuple[str, ...]
    """Supported engine versions, ascending."""
    flags: Mapping[str, Entry]
    env: Mapping[str, Entry]
    libraries: Mapping[str, str]
    """Variables that libraries under the engine read, to the library's name."""
    former: frozenset[str]
    """Variables without the prefix VLLM_ that only releases before the supported ones read."""

    @classmethod
    def load(cls) -> FlagTable:
        """The table of this package, read once."""
        return _packaged()

    def supports(self, version: str) -> bool:
        return version in self.versions

    def knows_flag(self, name: str, version: str) -> bool:
        """Whether `vllm serve` of that version takes `--name`.

        Dashes in front and underscores are allowed, and `no-` where the parser has a negation of the flag.
        """
        return version in self._flag(name)[1]

    def knows_env(self, name: str, version: str) -> bool:
        """Whether the engine of that version, or a library under it, is known to read the variable."""
        if name in self.libraries:
            return self.supports(version)
        entry = self.env.get(name)
        return entry is not None and version in entry.versions

    def owns_env(self, name: str) -> bool:
        """Whether only the engine can give the variable a meaning, so that an unknown one is certainly a mistake."""
        return name.startswith("VLLM_") or name in self.former

    def flag_versions(self, name: str) -> tuple[str, ...]:
        """Supported versions that know the flag, ascending; empty when none does."""
        return tuple(v for v in self.versions if self.knows_flag(name, v))

    def env_versions(self, name: str) -> tuple[str, ...]:
        """Supported versions that know the variable, ascending; empty when none does."""
        return tuple(v for v in self.versions if self.knows_env(name, v))

    def default_of(self, name: str, version: str) -> Any:
        """The flag's default in that version; None when the engine decides or the default is no plain value.

        Raises KeyError when that version does not know the flag.
        """
        if not self.knows_flag(name, version):
            raise KeyError(f"vLLM {version} has no flag --{_canonical(name)}")
        at = self.versions.index(version)
        known = [value for first, value in self._flag(name)[0].defaults if self.versions.index(first) <= at]
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

    def _flag(self, name: str) -> tuple[Entry, frozenset[str]]:
        """The entry of a flag in any spelling, and the versions that take that spelling."""
        canonical = _canonical(name)
        if canonical in self.flags:
            return self.flags[canonical], self.flags[canonical].versions
        entry = self.flags.get(canonical.removeprefix("no-"), Entry(frozenset()))
        return entry, entry.negatable


def _canonical(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _entry(raw: Mapping[str, Any], versions: tuple[str, ...]) -> Entry:
    defaults: Mapping[str, Any] = raw.get("defaults") or ({versions[0]: raw["default"]} if "default" in raw else {})
    negatable = _span(raw["negatable"], versions) if "negatable" in raw else frozenset()
    return Entry(_span(raw["known"], versions), tuple(defaults.items()), negatable)


def _span(text: str, versions: tuple[str, ...]) -> frozenset[str]:
    """The versions that `all` or a list such as `0.28.0, 0.30.0..0.32.0` names."""
    if text == "all":
        return frozenset(versions)
    named: set[str] = set()
    for part in text.split(", "):
        first, _, last = part.partition("..")
        named.update(versions[versions.index(first) : versions.index(last or first) + 1])
    return frozenset(named)


@cache
def _packaged() -> FlagTable:
    raw = yaml.load(DATA.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    versions = tuple(raw["versions"])
    return FlagTable(
        versions=versions,
        flags=MappingProxyType({name: _entry(value, versions) for name, value in raw["flags"].items()}),
        env=MappingProxyType({name: _entry(value, versions) for name, value in raw["env"].items()}),
        libraries=MappingProxyType(dict(raw["libraries"])),
        former=frozenset(raw["former"]),
    )
