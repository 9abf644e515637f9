"""Profile files as plain mappings: reading, `extends` and the dotted paths of their values."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kimi_k3_operator.errors import ProfileError

Document = dict[str, Any]

IDENTITY = frozenset({"name", "version", "channel", "summary", "extends", "provenance"})
"""Top-level keys that describe the file itself and need no source."""


@dataclass(frozen=True)
class ProfileFile:
    """One file `<name>/<version>.yaml` and what it says, before `extends` is resolved."""

    path: Path
    document: Document

    @property
    def key(self) -> tuple[str, str]:
        return self.path.parent.name, self.path.stem

    @property
    def label(self) -> str:
        """How messages name the file: `b300/1.yaml`."""
        return f"{self.path.parent.name}/{self.path.name}"


class _UniqueKeyLoader(yaml.CSafeLoader):
    """Refuses a mapping that names a key twice; plain YAML would keep the last one silently."""


def _unique_mapping(loader: _UniqueKeyLoader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value]
    for position, key in enumerate(keys):
        if key in keys[:position]:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} appears twice", node.start_mark)
    return loader.construct_mapping(node, deep=True)


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def read_directory(directory: Path) -> list[ProfileFile]:
    """Every `<name>/<version>.yaml` below the directory, sorted; hidden entries (a mounted volume's `..data`) skipped.

    Raises ProfileError when the directory is missing or a file is not a YAML mapping.
    """
    if not directory.is_dir():
        raise ProfileError(f"{directory}: no such directory of profiles")
    paths = sorted(p for p in directory.glob("*/*.yaml") if not p.parent.name.startswith(".") and p.name[0] != ".")
    return [ProfileFile(path, _read(path)) for path in paths]


def _read(path: Path) -> Document:
    label = f"{path.parent.name}/{path.name}"
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ProfileError(f"{label}: not readable as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise ProfileError(f"{label}: a profile is a YAML mapping")
    return document


def resolve(file: ProfileFile, files: Mapping[tuple[str, str], ProfileFile]) -> Document:
    """The document with its bases merged in, without the key `extends`.

    Mappings merge key by key, lists and scalars replace, null removes. A file that sets a value states its source too:
    an inherited one would speak of the old value. Raises ProfileError for an unknown base, a cycle or a missing source.
    """
    return _resolve(file, files, ())


def _resolve(file: ProfileFile, files: Mapping[tuple[str, str], ProfileFile], seen: tuple[str, ...]) -> Document:
    name = "/".join(file.key)
    if name in seen:
        raise ProfileError(f"{file.label}: field extends: the chain {' -> '.join((*seen, name))} never ends")
    base_name = file.document.get("extends")
    if base_name is None:
        return {key: value for key, value in file.document.items() if key != "extends"}
    base_key, _, base_version = str(base_name).partition("/")
    base = files.get((base_key, base_version))
    if base is None:
        known = ", ".join(sorted("/".join(key) for key in files if key != file.key))
        raise ProfileError(f"{file.label}: field extends: there is no profile {base_name!r} (known: {known or 'none'})")
    inherited = _resolve(base, files, (*seen, name))
    merged = merge(inherited, {key: value for key, value in file.document.items() if key != "extends"})
    merged["provenance"] = _merged_provenance(file, inherited, merged)
    return merged


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> Document:
    """A new mapping: `override` laid over `base`, neither of them changed."""
    result: Document = dict(base)
    for key, value in override.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            below = result.get(key)
            result[key] = merge(below if isinstance(below, Mapping) else {}, value)
        else:
            result[key] = value
    return result


def leaves(document: Mapping[str, Any]) -> Iterator[str]:
    """Dotted paths of the values that need a source, in document order.

    An engine argument or a Kubernetes-shaped list is one value, however deep it is.
    """
    for key, value in document.items():
        if key not in IDENTITY and value is not None:
            yield from _leaves(key, value)


def _leaves(path: str, value: Any) -> Iterator[str]:
    parts = path.split(".")
    whole = len(parts) > 1 and parts[-2] in {"args", "env"}
    if isinstance(value, Mapping) and value and not whole:
        for key, below in value.items():
            if below is not None:
                yield from _leaves(f"{path}.{key}", below)
    elif isinstance(value, list) and len(parts) == 1:
        for position, below in enumerate(value):
            yield from _leaves(f"{path}.{position}", below)
    else:
        yield path


def nearest(path: str, provenance: Mapping[str, Any]) -> str | None:
    """The entry that speaks for a value: its own path, or the closest subtree of at least two segments."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in provenance and (length >= 2 or length == len(parts)):
            return prefix
    return None


def speaks_for(entry: str, paths: list[str]) -> bool:
    """Whether the provenance entry names a value or a subtree that holds one."""
    return any(path == entry or path.startswith(f"{entry}.") for path in paths)


def _merged_provenance(file: ProfileFile, inherited: Document, merged: Document) -> Document:
    own = file.document.get("provenance") or {}
    if not isinstance(own, Mapping):
        raise ProfileError(f"{file.label}: field provenance: expected a mapping of paths to sources")
    sources: Document = {**(inherited.get("provenance") or {}), **own}
    for path in leaves(file.document):
        entry = nearest(path, own)
        if entry is None:
            raise ProfileError(f"{file.label}: field provenance: no source for {path}, which this file sets itself")
        sources[path] = own[entry]
    remaining = list(leaves(merged))
    pinned = (merged.get("engine") or {}).get("version")
    return {
        entry: source if entry in own else _carried(source, pinned)
        for entry, source in sources.items()
        if entry in own or speaks_for(entry, remaining)
    }


def _carried(source: Any, pinned: Any) -> Any:
    """An inherited source, with `carriedOver` true when the inheriting profile pins another engine build."""
    if not isinstance(source, Mapping) or source.get("engine") is None:
        return source
    return {**source, "carriedOver": source["engine"] != pinned}
