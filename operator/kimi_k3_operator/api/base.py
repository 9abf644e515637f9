"""The base of every API model: frozen, camelCase on the wire, unknown fields refused."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

GROUP = "kimik3.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

Manifest = dict[str, Any]
"""A Kubernetes object as it goes over the wire."""


class ApiModel(BaseModel):
    """One object of the API; `from_wire` of a field may use its camelCase name or its Python name."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)

    def wire(self) -> dict[str, Any]:
        """The JSON form: camelCase keys, absent fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def list_map(*keys: str, max_items: int) -> Any:
    """A list that the API server merges by `keys`, with at most `max_items` items."""
    return Field(
        max_length=max_items,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)},
    )


def list_set(*, max_items: int) -> Any:
    """A list of distinct scalars with at most `max_items` items."""
    return Field(max_length=max_items, json_schema_extra={"x-kubernetes-list-type": "set"})


def list_atomic(*, max_items: int) -> Any:
    """A list that is replaced as a whole, with at most `max_items` items."""
    return Field(max_length=max_items, json_schema_extra={"x-kubernetes-list-type": "atomic"})


def text(pattern: str, *, most: int, least: int = 1) -> Any:
    return StringConstraints(pattern=pattern, min_length=least, max_length=most)


DnsLabel = Annotated[str, text(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", most=63)]
DnsSubdomain = Annotated[str, text(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", most=253)]
PoolName = Annotated[str, text(r"^[a-z][a-z0-9]{0,14}$", most=15)]
LabelKey = Annotated[
    str, text(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", most=317)
]
LabelValue = Annotated[str, text(r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", most=63, least=0)]
HubId = Annotated[str, text(r"^[A-Za-z0-9][-A-Za-z0-9_.]*/[A-Za-z0-9][-A-Za-z0-9_.]*$", most=193)]
HubRevision = Annotated[str, text(r"^[A-Za-z0-9][-A-Za-z0-9_./]*$", most=128)]
ServedName = Annotated[str, text(r"^[A-Za-z0-9][-A-Za-z0-9_./:]*$", most=128)]
ImageReference = Annotated[
    str, text(r"^[a-z0-9][-a-z0-9._:/]*[A-Za-z0-9][-A-Za-z0-9._]*(@sha256:[a-f0-9]{64})?$", most=500)
]
AbsolutePath = Annotated[str, text(r"^/[^\x00]*$", most=1024)]
RelativePath = Annotated[str, text(r"^[^/\x00][^\x00]*$", most=1024)]
Duration = Annotated[str, text(r"^([0-9]{1,4}h)?([0-9]{1,4}m)?([0-9]{1,6}s)?$", most=16, least=2)]
SecretKey = Annotated[str, text(r"^[-._a-zA-Z0-9]+$", most=253)]


def seconds(duration: str) -> int:
    """Seconds of a Go-style duration such as `2h`, `90m` or `1h30m`."""
    total, digits = 0, ""
    for character in duration:
        if character.isdigit():
            digits += character
        else:
            total += int(digits) * {"h": 3600, "m": 60, "s": 1}[character]
            digits = ""
    return total
