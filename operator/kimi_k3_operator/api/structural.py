"""From pydantic models to structural OpenAPI v3 schemas, as the API server demands them of a CRD."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_DROPPED = ("title", "examples", "discriminator", "$defs", "propertyNames")
# propertyNames: the API server has no keyword for key patterns, the operator refuses odd keys itself.
_KEPT = (
    "description", "type", "format", "pattern", "enum", "default", "items", "properties", "required", "nullable",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minLength", "maxLength", "minItems", "maxItems", "maxProperties", "additionalProperties",
)  # fmt: skip


class SchemaError(ValueError):
    """A model that has no structural form."""


def structural_schema(model: type[BaseModel]) -> Schema:
    """The structural schema of `model`; raises SchemaError for recursion and for unions without a structural form."""
    document = model.model_json_schema(by_alias=True, mode="validation")
    return _convert(document, document.get("$defs", {}), ())


def _convert(node: Schema, definitions: dict[str, Schema], open_refs: tuple[str, ...]) -> Schema:
    if "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[-1]
        if name in open_refs:
            raise SchemaError(f"{name} refers to itself")
        siblings = {key: value for key, value in node.items() if key != "$ref"}
        return _convert({**definitions[name], **siblings}, definitions, (*open_refs, name))
    if "anyOf" in node:
        return _convert(_without_null(node), definitions, open_refs)
    schema: Schema = {}
    for key, value in node.items():
        if key in _DROPPED:
            continue
        if key == "const":
            schema["enum"] = [value]
        elif key in ("exclusiveMinimum", "exclusiveMaximum"):
            schema["minimum" if key == "exclusiveMinimum" else "maximum"] = value
            schema[key] = True
        elif key == "properties":
            schema[key] = {name: _convert(child, definitions, open_refs) for name, child in value.items()}
        elif key == "items":
            schema[key] = _convert(value, definitions, open_refs)
        elif key == "additionalProperties":
            if value is not False:
                schema["x-kubernetes-preserve-unknown-fields"] = True
        elif key == "patternProperties":
            (value_schema,) = value.values()
            schema["additionalProperties"] = _convert(value_schema, definitions, open_refs)
        elif key == "default":
            if isinstance(value, str | int | float | bool):
                schema[key] = value
        elif key.startswith("x-kubernetes-"):
            if value:
                schema[key] = value
        elif key in _KEPT:
            schema[key] = " ".join(value.split()) if key == "description" else value
        else:
            raise SchemaError(f"no structural form for {key}: {value!r}")
    return schema


def _without_null(node: Schema) -> Schema:
    """`anyOf [T, null]` is T: an absent field and null mean the same, and the server drops nulls."""
    kinds = [option for option in node["anyOf"] if option.get("type") != "null"]
    rest = {key: value for key, value in node.items() if key != "anyOf" and not (key == "default" and value is None)}
    if len(kinds) == 1:
        return {**kinds[0], **rest}
    if sorted(option.get("type", "") for option in kinds) == ["integer", "string"]:
        return {"x-kubernetes-int-or-string": True, **rest}
    raise SchemaError(f"a union has no structural form: {node['anyOf']!r}")
