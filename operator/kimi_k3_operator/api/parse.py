"""From a stored or written object to typed models, or to refusals that name each bad field. Nothing here raises."""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kimi_k3_operator.api.base import API_VERSION, ApiModel
from kimi_k3_operator.api.names import MAX_DEPLOYMENT_NAME
from kimi_k3_operator.api.refusal import Refusal
from kimi_k3_operator.api.rules import rules_for
from kimi_k3_operator.api.v1alpha1 import KimiK3DeploymentSpec, LocalObjectReference, Pool

_NAME = re.compile(rf"^[a-z]([-a-z0-9]{{0,{MAX_DEPLOYMENT_NAME - 2}}}[a-z0-9])?$")


@dataclass(frozen=True)
class Deployment:
    """A KimiK3Deployment whose form is right."""

    name: str
    namespace: str
    spec: KimiK3DeploymentSpec
    uid: str = ""
    generation: int = 0


def parse_deployment(body: Mapping[str, Any]) -> Deployment | tuple[Refusal, ...]:
    """The typed deployment, or every refusal of its form, ordered by field."""
    refusals: list[Refusal] = []
    if body.get("kind") != "KimiK3Deployment" or body.get("apiVersion") != API_VERSION:
        found = f"{body.get('apiVersion')}/{body.get('kind')}"
        return (Refusal("wrong-kind", f"expected {API_VERSION} KimiK3Deployment, found {found}", "kind"),)
    unknown = sorted(set(body) - {"apiVersion", "kind", "metadata", "spec", "status"})
    refusals += [Refusal("unknown-field", f"unknown field{_meant(key, ('spec', 'metadata'))}", key) for key in unknown]
    metadata = body.get("metadata")
    if not isinstance(metadata, Mapping):
        return (Refusal("missing-field", "must be set", "metadata"),)
    name = str(metadata.get("name", ""))
    if not _NAME.fullmatch(name):
        form = (
            f"must begin with a letter, hold lower-case letters, digits and dashes, end with a letter or digit, and "
            f"have at most {MAX_DEPLOYMENT_NAME} characters"
        )
        sentence = f"{name!r} {form}" if name else f"must be set; it {form}"
        refusals.append(Refusal("deployment-name", sentence, "metadata.name"))
    try:
        # As JSON and strictly, because the API server takes neither "2" nor true for a number.
        spec = KimiK3DeploymentSpec.model_validate_json(json.dumps(body.get("spec") or {}, default=str), strict=True)
    except ValidationError as error:
        details = (d for d in error.errors(include_url=False) if not (d["type"] == "too_short" and d["input"]))
        return tuple(sorted({*refusals, *(_refusal(body, detail) for detail in details)}))
    refusals += broken_rules(spec, "spec")
    if refusals:
        return tuple(sorted(set(refusals)))
    return Deployment(
        name=name,
        namespace=str(metadata.get("namespace") or "default"),
        spec=spec,
        uid=str(metadata.get("uid", "")),
        generation=int(metadata.get("generation", 0)),
    )


def broken_rules(model: BaseModel, path: str) -> Iterator[Refusal]:
    """Refusals of the cross-field rules in `model` and everything below it."""
    name = type(model).__name__
    at = "spec" if isinstance(model, KimiK3DeploymentSpec) else name[0].lower() + name[1:]
    for rule in rules_for(at):
        if not rule.holds(model):
            yield Refusal(rule.id, rule.message, f"{path}.{rule.field}" if rule.field else path)
    for field, info in type(model).model_fields.items():
        value = getattr(model, field)
        key = f"{path}.{info.alias or field}"
        if isinstance(value, ApiModel):
            yield from broken_rules(value, key)
        elif isinstance(value, tuple):
            counts = Counter(item.name for item in value if isinstance(item, Pool | LocalObjectReference))
            for taken in sorted(name for name, count in counts.items() if count > 1):
                yield Refusal("name-taken-twice", f"the name {taken} appears twice", key)
            for index, item in enumerate(value):
                if isinstance(item, ApiModel):
                    yield from broken_rules(item, f"{key}[{getattr(item, 'name', index)}]")


def _refusal(body: Mapping[str, Any], detail: ErrorDetails) -> Refusal:
    """One sentence for one validation error."""
    path, given = _path(body, detail["loc"]), detail.get("input")
    kind, context = detail["type"], detail.get("ctx") or {}
    if kind == "extra_forbidden":
        siblings = _siblings(detail["loc"])
        return Refusal("unknown-field", f"unknown field{_meant(str(detail['loc'][-1]), siblings)}", path)
    if kind == "missing":
        return Refusal("missing-field", "must be set", path)
    if isinstance(given, str) and any(mark in given for mark in ("<", ">", "${")):
        return Refusal("placeholder", f"still holds placeholder text {_shown(given)}", path)
    if kind in ("greater_than_equal", "less_than_equal"):
        bound = f"at least {context['ge']}" if "ge" in context else f"at most {context['le']}"
        return Refusal("out-of-range", f"must be {bound}, not {_shown(given)}", path)
    if kind == "string_pattern_mismatch":
        return Refusal("malformed", f"{_shown(given)} does not have the form {context['pattern']}", path)
    if kind in ("string_too_long", "string_too_short", "too_long", "too_short"):
        return Refusal("out-of-range", _length(kind, given, context), path)
    if kind == "literal_error":
        return Refusal("malformed", f"must be {context['expected']}, not {_shown(given)}", path)
    if kind in _EXPECTED:
        return Refusal("malformed", f"must be {_EXPECTED[kind]}, not {_shown(given)}", path)
    return Refusal("malformed", f"{_shown(given)} is not valid here: {_lower(detail['msg'])}", path)


_EXPECTED: Mapping[str, str] = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "model_type": "a mapping",
    "string_type": "text (in quotes)",
    "tuple_type": "a list",
}
"""What a field takes, by the kind of the validation error."""


def _length(kind: str, given: Any, context: Mapping[str, Any]) -> str:
    unit = "character" if kind.startswith("string") else "item"
    bound, word = (context["max_length"], "most") if kind.endswith("long") else (context["min_length"], "least")
    return f"must have at {word} {bound} {unit}{'s' if bound != 1 else ''}, not {len(given)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _path(body: Mapping[str, Any], location: tuple[int | str, ...]) -> str:
    """`spec.pools[b300].replicas` for a location in the spec; list items with a name are shown by it."""
    text, here = "spec", body.get("spec")
    for step in location:
        if step == "[key]":  # the key itself is wrong; it is the step before
            break
        if isinstance(step, int):
            item = here[step] if isinstance(here, list | tuple) and step < len(here) else None
            name = item.get("name") if isinstance(item, Mapping) else None
            text, here = f"{text}[{name or step}]", item
        else:
            text, here = f"{text}.{step}", here.get(step) if isinstance(here, Mapping) else None
    return text


def _siblings(location: tuple[int | str, ...]) -> tuple[str, ...]:
    """Names of the fields that the object at `location` (less its last step) knows."""
    model: Any = KimiK3DeploymentSpec
    for step in location[:-1]:
        if isinstance(step, int):
            continue
        field = next((f for n, f in model.model_fields.items() if step in (n, f.alias)), None)
        model = _model_in(field.annotation) if field else None
        if model is None:
            return ()
    return tuple(field.alias or name for name, field in model.model_fields.items())


def _model_in(annotation: Any) -> type[ApiModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if (found := _model_in(argument)) is not None:
            return found
    return None


def _meant(name: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
