"""The hardware profiles that this installation knows: the packaged ones and those of a platform team."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from kimi_k3_operator.errors import ProfileError
from kimi_k3_operator.profiles.checks import violations
from kimi_k3_operator.profiles.documents import ProfileFile, read_directory, resolve
from kimi_k3_operator.profiles.model import Profile

Key = tuple[str, str]


def packaged_directory() -> Path:
    """Where the shipped profiles lie: inside the wheel, or `profiles/` of a checkout."""
    inside = Path(__file__).with_name("data")
    return inside if inside.is_dir() else Path(__file__).resolve().parents[3] / "profiles"


@dataclass(frozen=True)
class Catalog:
    """Validated profiles by name and version. Immutable."""

    profiles: Mapping[Key, Profile]

    @classmethod
    def load(cls, *directories: Path, packaged: bool = True) -> Catalog:
        """Reads `<directory>/<name>/<version>.yaml` of each directory on top of the packaged profiles.

        A directory adds names and versions. Raises ProfileError, one sentence a line, when a file is invalid or its
        name and version exist already.
        """
        shipped = _packaged_files() if packaged else ()
        profiles = dict(_packaged_profiles()) if packaged else {}
        added = [file for directory in directories for file in read_directory(directory)]
        known = _by_key((*shipped, *added))
        profiles.update(_parse(added, known))
        return cls(MappingProxyType(profiles))

    def names(self) -> tuple[str, ...]:
        return tuple(sorted({name for name, _ in self.profiles}))

    def versions(self, name: str) -> tuple[str, ...]:
        """Versions of a profile, oldest first; empty for an unknown name."""
        return tuple(sorted((version for known, version in self.profiles if known == name), key=int))

    def get(self, name: str, version: str) -> Profile:
        """The profile of that name and version. Raises ProfileError with the known ones when there is none."""
        profile = self.profiles.get((name, version))
        if profile is None:
            self._require(name)
            raise ProfileError(f"profile {name} has no version {version} (known: {', '.join(self.versions(name))})")
        return profile

    def newest_stable(self, name: str) -> Profile:
        """The highest version whose channel is stable. Raises ProfileError when there is none."""
        self._require(name)
        stable = [v for v in self.versions(name) if self.profiles[name, v].channel == "stable"]
        if not stable:
            known = ", ".join(self.versions(name))
            raise ProfileError(f"profile {name} has only candidate versions ({known}); name one")
        return self.profiles[name, stable[-1]]

    def _require(self, name: str) -> None:
        if name not in self.names():
            close = get_close_matches(name, self.names(), n=1)
            hint = f"; did you mean {close[0]}" if close else ""
            raise ProfileError(f"there is no profile {name} (known: {', '.join(self.names()) or 'none'}){hint}")


@cache
def _packaged_files() -> tuple[ProfileFile, ...]:
    return tuple(read_directory(packaged_directory()))


@cache
def _packaged_profiles() -> Mapping[Key, Profile]:
    return MappingProxyType(_parse(_packaged_files(), _by_key(_packaged_files())))


def _by_key(files: Iterable[ProfileFile]) -> dict[Key, ProfileFile]:
    known: dict[Key, ProfileFile] = {}
    for file in files:
        if file.key in known:
            first = known[file.key].path
            raise ProfileError(f"{file.path}: {'/'.join(file.key)} exists already in {first}; add a new version")
        known[file.key] = file
    return known


def _parse(files: Iterable[ProfileFile], known: Mapping[Key, ProfileFile]) -> dict[Key, Profile]:
    profiles: dict[Key, Profile] = {}
    problems: list[str] = []
    for file in files:
        try:
            document = resolve(file, known)
            profile = Profile.model_validate(document)
        except ProfileError as error:
            problems.append(str(error))
            continue
        except ValidationError as error:
            problems += [f"{file.label}: {sentence}" for sentence in _sentences(error)]
            continue
        if (profile.name, profile.version) != file.key:
            problems.append(f"{file.label}: field name: the file says {profile.name}/{profile.version}")
        problems += [f"{file.label}: {sentence}" for sentence in violations(profile, document)]
        profiles[file.key] = profile
    if problems:
        raise ProfileError("\n".join(problems))
    return profiles


def _sentences(error: ValidationError) -> list[str]:
    """One sentence for each wrong field; a union reports once however many of its members refused."""
    return list(dict.fromkeys(f"field {path}: {text}" for path, text in map(_sentence, error.errors())))


def _sentence(detail: Any) -> tuple[str, str]:
    parts = [str(part) for part in detail["loc"]]
    if "args" in parts and len(parts) > parts.index("args") + 2:
        return ".".join(parts[: parts.index("args") + 2]), "expected text, a number, true, false or a mapping"
    texts = {"missing": "is required", "extra_forbidden": "there is no such field"}
    return ".".join(parts), texts.get(detail["type"], detail["msg"][:1].lower() + detail["msg"][1:])
