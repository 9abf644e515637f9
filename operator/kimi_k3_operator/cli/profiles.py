"""The hardware profiles as tables and data."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from kimi_k3_operator.profiles.catalog import Catalog
from kimi_k3_operator.profiles.documents import leaves, nearest
from kimi_k3_operator.profiles.model import Profile, Source


def every_profile(catalog: Catalog) -> list[Profile]:
    """By name, then by version, oldest first."""
    return [catalog.get(name, version) for name in catalog.names() for version in catalog.versions(name)]


def named_profile(catalog: Catalog, reference: str) -> Profile:
    """The profile `NAME/VERSION`, or the newest stable one of `NAME`. Raises ProfileError."""
    name, _, version = reference.partition("/")
    return catalog.get(name, version) if version else catalog.newest_stable(name)


def summaries(profiles: Iterable[Profile]) -> list[dict[str, str]]:
    return [
        {
            "name": profile.name,
            "version": profile.version,
            "channel": profile.channel,
            "engine": f"vLLM {profile.engine.version}",
            "hardware": profile.hardware.display_name,
        }
        for profile in profiles
    ]


def document(profile: Profile) -> dict[str, Any]:
    """The profile as its file would say it, `extends` resolved."""
    return profile.model_dump(mode="json", by_alias=True, exclude_none=True)


def sourced(profile: Profile) -> str:
    """Every value as `path: value`, with its source on the line below."""
    plain = document(profile)
    lines = [f"{profile.name}/{profile.version} ({profile.channel}): {profile.summary}", ""]
    for path in leaves(plain):
        lines.append(f"{path}: {_shown(_at(plain, path))}")
        entry = nearest(path, profile.provenance)
        if entry is not None:
            lines.append(f"    {_said(profile.provenance[entry])}")
    return "".join(f"{line}\n" for line in lines)


def _said(source: Source) -> str:
    """`measured on 0.30.0: ...`."""
    on = f" on {source.engine}" if source.engine else ""
    carried = ", carried over" if source.carried_over else ""
    note = f" ({source.note})" if source.note else ""
    return f"{source.kind}{on}{carried}: {source.source}{note}"


def _at(document: Any, path: str) -> Any:
    """The value at a dotted path; a key may hold dots itself, so the longest key that fits is taken."""
    if not path:
        return document
    if isinstance(document, list):
        index, _, rest = path.partition(".")
        return _at(document[int(index)], rest)
    key = max((key for key in document if path == key or path.startswith(f"{key}.")), key=len)
    return _at(document[key], path[len(key) + 1 :])


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
