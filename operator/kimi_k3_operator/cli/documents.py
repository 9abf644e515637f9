"""Reading YAML as a user wrote it. Everything that cannot be read is one sentence that names the file and the line."""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.errors import KimiK3Error

KIND = "KimiK3Deployment"
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_WRITTEN_METADATA = frozenset({"name", "namespace", "labels", "annotations"})
_TIMESTAMP = "tag:yaml.org,2002:timestamp"


class InputError(KimiK3Error):
    """Something the user named cannot be read; the message is one sentence."""


class _Loader(yaml.CSafeLoader):
    """What the API server would read: text keys, each once, and no dates."""

    yaml_implicit_resolvers = {  # noqa: RUF012  the name is PyYAML's
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag not in (
            "tag:yaml.org,2002:str",
            "tag:yaml.org,2002:merge",
        ):
            text = key.value if isinstance(key, yaml.ScalarNode) else "of several values"
            raise yaml.constructor.ConstructorError(None, None, f"the key {text} is not text", key.start_mark)
        if key.value in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key.value} appears twice", key.start_mark)
        seen.add(key.value)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def named(source: str) -> str:
    """How messages name a source."""
    return "standard input" if source == "-" else source


def read_objects(source: str) -> list[Manifest]:
    """The objects in a file, or on standard input for `-`: several documents, sequences and Lists are laid flat.

    Raises InputError.
    """
    label = named(source)
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        text = data.decode("utf-8")
    except OSError as error:
        raise InputError(f"{label}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{label}: not UTF-8 text (byte {error.start})") from error
    try:
        documents = list(yaml.load_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        raise InputError(f"{label}: {_where(error)}not readable as YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{label}: not readable as YAML: {' '.join(str(error).split())}") from error
    found: list[Manifest] = []
    for number, document in enumerate(documents, start=1):
        for item in _flat(document):
            if not isinstance(item, Mapping) or not isinstance(item.get("kind"), str):
                raise InputError(f"{label}: document {number} is not a Kubernetes object (it has no kind)")
            found.append(dict(item))
    return found


def read_deployments(source: str, namespace: str | None) -> tuple[list[Manifest], list[str]]:
    """(the KimiK3Deployments of a file, a note for each object that is passed over).

    An object without a namespace gets `namespace`. Raises InputError when there is no KimiK3Deployment, and when an
    object names another namespace.
    """
    objects = read_objects(source)
    label = named(source)
    wanted = [body for body in objects if body["kind"] == KIND]
    others = [f"{body['kind']} {_name(body)}" for body in objects if body["kind"] != KIND]
    if not wanted:
        seen = f"found: {', '.join(others)}" if others else "it is empty"
        raise InputError(f"{label}: there is no {KIND} in it ({seen})")
    return [_as_written(body, namespace) for body in wanted], [f"note: passed over {other}" for other in others]


def _as_written(body: Manifest, namespace: str | None) -> Manifest:
    """Without what only the API server writes, and with a namespace."""
    metadata = body.get("metadata")
    if not isinstance(metadata, Mapping):
        return body
    own = str(metadata.get("namespace") or "")
    if own and namespace and own != namespace:
        raise InputError(f"{KIND} {_name(body)} is in namespace {own}, not in {namespace} as --namespace says")
    home = own or namespace or "default"
    if not _NAMESPACE.fullmatch(home):
        raise InputError(f"{KIND} {_name(body)}: {home!r} cannot be the name of a namespace")
    kept = {key: value for key, value in metadata.items() if key in _WRITTEN_METADATA}
    return {key: value for key, value in body.items() if key != "status"} | {"metadata": kept | {"namespace": home}}


def _flat(document: Any) -> Iterator[Any]:
    if document is None:
        return
    if isinstance(document, list):
        for item in document:
            yield from _flat(item)
    elif isinstance(document, Mapping) and _is_list(document):
        kind = str(document["kind"]).removesuffix("List")
        for item in _items(document):
            yield {"kind": kind, **item} if kind and isinstance(item, Mapping) else item
    else:
        yield document


def _is_list(document: Mapping[str, Any]) -> bool:
    return str(document.get("kind", "")).endswith("List") and isinstance(document.get("items"), list)


def _items(document: Mapping[str, Any]) -> Iterable[Any]:
    return [item for item in document["items"] if item is not None]


def _name(body: Mapping[str, Any]) -> str:
    metadata = body.get("metadata")
    return str(metadata.get("name", "without a name")) if isinstance(metadata, Mapping) else "without a name"


def _where(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
