from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from kimi_k3_operator.api.base import ApiModel, list_atomic, list_map, list_set, seconds
from kimi_k3_operator.api.structural import SchemaError, structural_schema


class Inner(ApiModel):
    name: str
    size: int = Field(3, gt=0, lt=9)


class Outer(ApiModel, json_schema_extra={"x-kubernetes-validations": [{"rule": "true"}]}):
    """What it is,
    in two lines."""

    inner: Inner | None = Field(None, description="The inner one.")
    mode: Literal["A"] = "A"
    choice: Literal["A", "B"] | None = None
    port_or_name: int | str | None = None
    items_by_name: Annotated[tuple[Inner, ...], list_map("name", max_items=4)] | None = None
    words: Annotated[tuple[str, ...], list_set(max_items=2)] | None = None
    all_at_once: Annotated[tuple[str, ...], list_atomic(max_items=2)] = ()
    free: dict[str, Any] | None = None
    texts: dict[Annotated[str, Field(pattern="^a")], str] | None = None
    flag: bool = False


SCHEMA = structural_schema(Outer)
FIELDS = SCHEMA["properties"]


def test_an_optional_object_is_the_object_with_the_fields_own_description():
    assert FIELDS["inner"]["type"] == "object"
    assert FIELDS["inner"]["description"] == "The inner one."
    assert FIELDS["inner"]["required"] == ["name"]


def test_bounds_are_in_the_form_of_version_3_0():
    assert FIELDS["inner"]["properties"]["size"] == {
        "type": "integer",
        "default": 3,
        "minimum": 0,
        "exclusiveMinimum": True,
        "maximum": 9,
        "exclusiveMaximum": True,
    }


def test_choices_are_enumerations():
    assert FIELDS["mode"]["enum"] == ["A"]
    assert FIELDS["choice"]["enum"] == ["A", "B"]
    assert "default" not in FIELDS["choice"]


def test_an_integer_or_text_is_marked():
    assert FIELDS["portOrName"] == {"x-kubernetes-int-or-string": True}


def test_lists_say_how_they_are_merged():
    assert FIELDS["itemsByName"]["x-kubernetes-list-type"] == "map"
    assert FIELDS["itemsByName"]["x-kubernetes-list-map-keys"] == ["name"]
    assert FIELDS["words"]["x-kubernetes-list-type"] == "set"
    assert FIELDS["allAtOnce"]["x-kubernetes-list-type"] == "atomic"
    assert "default" not in FIELDS["allAtOnce"]


def test_maps_keep_their_values_schema():
    assert FIELDS["free"]["x-kubernetes-preserve-unknown-fields"] is True
    assert FIELDS["texts"]["additionalProperties"] == {"type": "string"}


def test_rules_descriptions_and_scalar_defaults_are_kept_and_the_rest_is_dropped():
    assert SCHEMA["x-kubernetes-validations"] == [{"rule": "true"}]
    assert SCHEMA["description"] == "What it is, in two lines."
    assert FIELDS["flag"] == {"type": "boolean", "default": False}
    assert "$defs" not in SCHEMA
    assert "title" not in str(SCHEMA)


class Loop(BaseModel):
    again: Loop | None = None


class Union(BaseModel):
    field: Inner | int


class Fixed(BaseModel):
    pair: tuple[int, str]


@pytest.mark.parametrize(
    ("model", "reason"), [(Loop, "refers to itself"), (Union, "union"), (Fixed, "no structural form for prefixItems")]
)
def test_a_model_without_a_structural_form_is_refused(model: type[BaseModel], reason: str):
    with pytest.raises(SchemaError, match=reason):
        structural_schema(model)


@pytest.mark.parametrize(("text", "expected"), [("2h", 7200), ("90m", 5400), ("1h30m5s", 5405), ("0s", 0), ("", 0)])
def test_a_duration_is_seconds(text: str, expected: int):
    assert seconds(text) == expected
