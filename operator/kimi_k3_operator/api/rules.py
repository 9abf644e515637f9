"""Rules that span several fields of one object: each is a CEL expression for the API server and the same check here.

The API server refuses a broken rule at once; the CLI and the operator (for objects that older code stored) run `holds`.
A test on a real API server proves that both say the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SpecRule:
    """`at` names the model (see `v1alpha1`), `field` the field below it that the message is about ("" for itself)."""

    id: str
    at: str
    cel: str
    message: str
    holds: Callable[[Any], bool]
    field: str = ""


def _set_fields(model: Any, *names: str) -> int:
    return sum(getattr(model, name) is not None for name in names)


def _no_placeholder(text: str | None) -> bool:
    return text is None or not any(mark in text for mark in ("<", ">", "${"))


_NO_PLACEHOLDER_CEL = "!self.{0}.contains('<') && !self.{0}.contains('>') && !self.{0}.contains('${{')"

RULES: tuple[SpecRule, ...] = (
    SpecRule(
        "weights-source",
        "spec",
        "has(self.weights) || self.pools.all(p, has(p.weights))",
        "weights is missing: set spec.weights, or weights in every pool",
        lambda spec: spec.weights is not None or all(pool.weights is not None for pool in spec.pools),
        field="weights",
    ),
    SpecRule(
        "one-weight-source",
        "weights",
        "[has(self.persistentVolumeClaim), has(self.hostPath), has(self.huggingFace)].filter(x, x).size() == 1",
        "set exactly one of persistentVolumeClaim, hostPath and huggingFace",
        lambda weights: _set_fields(weights, "persistent_volume_claim", "host_path", "hugging_face") == 1,
    ),
    SpecRule(
        "placeholder",
        "hostPath",
        _NO_PLACEHOLDER_CEL.format("path"),
        "path still holds placeholder text: put the real folder",
        lambda source: _no_placeholder(source.path),
        field="path",
    ),
    SpecRule(
        "placeholder",
        "persistentVolumeClaim",
        "!has(self.subPath) || (" + _NO_PLACEHOLDER_CEL.format("subPath") + ")",
        "subPath still holds placeholder text: put the real folder",
        lambda source: _no_placeholder(source.sub_path),
        field="subPath",
    ),
    SpecRule(
        "one-cache",
        "hubCache",
        "[has(self.persistentVolumeClaim), has(self.hostPath)].filter(x, x).size() == 1",
        "set exactly one of persistentVolumeClaim and hostPath",
        lambda cache: _set_fields(cache, "persistent_volume_claim", "host_path") == 1,
    ),
    SpecRule(
        "replica-source",
        "pool",
        "[has(self.replicas), has(self.autoscaling), has(self.disaggregation)].filter(x, x).size() == 1",
        "set exactly one of replicas, autoscaling and disaggregation",
        lambda pool: _set_fields(pool, "replicas", "autoscaling", "disaggregation") == 1,
    ),
    SpecRule(
        "pool-name-taken",
        "pool",
        "!(self.name in ['prefill', 'decode'])",
        "name must not be prefill or decode: its children would collide with another deployment's",
        lambda pool: pool.name not in ("prefill", "decode"),
        field="name",
    ),
    SpecRule(
        "autoscaling-bounds",
        "autoscaling",
        "self.minReplicas <= self.maxReplicas",
        "minReplicas must not be above maxReplicas",
        lambda bounds: bounds.min_replicas <= bounds.max_replicas,
        field="minReplicas",
    ),
    SpecRule(
        "one-draft-path",
        "draft",
        "!(has(self.subPath) && has(self.path))",
        "set only one of subPath and path",
        lambda draft: _set_fields(draft, "sub_path", "path") < 2,
    ),
    SpecRule(
        "queue-missing",
        "placement",
        "self.mode != 'Kueue' || has(self.queueName)",
        "mode Kueue needs queueName",
        lambda placement: placement.mode != "Kueue" or placement.queue_name is not None,
        field="queueName",
    ),
    SpecRule(
        "queue-without-kueue",
        "placement",
        "self.mode != 'Planner' || !has(self.queueName)",
        "mode Planner and queueName exclude each other",
        lambda placement: placement.mode != "Planner" or placement.queue_name is None,
        field="queueName",
    ),
)


def validations(rules: tuple[SpecRule, ...]) -> list[dict[str, str]]:
    """The `x-kubernetes-validations` entries of `rules`."""
    return [
        {"rule": rule.cel, "message": rule.message} | ({"fieldPath": f".{rule.field}"} if rule.field else {})
        for rule in rules
    ]


def rules_for(at: str) -> tuple[SpecRule, ...]:
    return tuple(rule for rule in RULES if rule.at == at)


def rules_at(at: str) -> dict[str, Any]:
    """JSON schema keywords for the model called `at`."""
    return {"x-kubernetes-validations": validations(rules_for(at))}
