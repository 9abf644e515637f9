"""Does a live object already say what we want it to say? A no-op apply costs the server as much as a real one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from kimi_k3_operator.api import labels
from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.compile.revision import digest
from kimi_k3_operator.plan.snapshot import Child

_SUFFIXES = {
    "m": Decimal("0.001"), "": Decimal(1), "k": Decimal(10) ** 3, "M": Decimal(10) ** 6, "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12, "Ki": Decimal(2) ** 10, "Mi": Decimal(2) ** 20, "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
}  # fmt: skip
_QUANTITY = re.compile(r"(?P<digits>[+-]?[0-9]+(\.[0-9]*)?)(?P<suffix>m|k|M|G|T|Ki|Mi|Gi|Ti|)", re.ASCII)
_LIST_KEYS = ("name", "mountPath", "containerPort", "key", "uid", "type")


def marked(manifest: Manifest, owner: Manifest) -> Manifest:
    """`manifest` with its owner and the hash of what is applied."""
    metadata = dict(manifest["metadata"])
    metadata["ownerReferences"] = [owner]
    annotations = dict(metadata.get("annotations") or {})
    bare = {**manifest, "metadata": metadata}
    metadata["annotations"] = annotations | {labels.APPLIED_HASH: digest(bare)}
    return bare


def needs_apply(manifest: Manifest, live: Child | None) -> bool:
    """True where the object is missing, was last applied from something else, or differs in a field that we declare."""
    if live is None:
        return True
    wanted = manifest["metadata"]["annotations"][labels.APPLIED_HASH]
    return live.annotation(labels.APPLIED_HASH) != wanted or not covers(live.body, manifest)


def covers(live: Any, declared: Any) -> bool:
    """Every field of `declared` has an equal value in `live`, which may have more."""
    if isinstance(declared, Mapping):
        return isinstance(live, Mapping) and all(
            covers(live[key], value) if key in live else _is_empty(value) for key, value in declared.items()
        )
    if isinstance(declared, list | tuple):
        return isinstance(live, list | tuple) and _list_covers(live, declared)
    return bool(live == declared) or _same_quantity(live, declared)


def _list_covers(live: Any, declared: Any) -> bool:
    key = _list_key(declared)
    if key is None:
        return len(live) == len(declared) and all(map(covers, live, declared))
    found = {str(item[key]): item for item in live if isinstance(item, Mapping) and key in item}
    return all(covers(found.get(str(item[key])), item) for item in declared)


def _list_key(items: Any) -> str | None:
    """The field that identifies the items of a list, as the API server merges such lists."""
    if not items or not all(isinstance(item, Mapping) for item in items):
        return None
    for key in _LIST_KEYS:
        if all(key in item for item in items) and len({str(item[key]) for item in items}) == len(items):
            return key
    return None


def _is_empty(value: Any) -> bool:
    """The server drops empty maps and lists, and false and zero where they are the default."""
    return value in ({}, [], (), None, "", False, 0)


def _same_quantity(live: Any, declared: Any) -> bool:
    first, second = quantity(live), quantity(declared)
    return first is not None and first == second


def quantity(value: Any) -> Decimal | None:
    """The number that a Kubernetes quantity such as `64Gi` or `8` is; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    found = _QUANTITY.fullmatch(str(value))
    return Decimal(found["digits"]) * _SUFFIXES[found["suffix"]] if found else None
