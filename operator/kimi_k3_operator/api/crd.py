"""The CustomResourceDefinition documents, generated from the models into `crds/`."""

from __future__ import annotations

from typing import Any

from kimi_k3_operator.api.base import GROUP, VERSION, Manifest
from kimi_k3_operator.api.names import MAX_DEPLOYMENT_NAME
from kimi_k3_operator.api.status import KimiK3DeploymentStatus, KimiK3PoolSpec, KimiK3PoolStatus
from kimi_k3_operator.api.structural import Schema, structural_schema
from kimi_k3_operator.api.v1alpha1 import KimiK3DeploymentSpec

_NAME_RULES = [
    {
        "rule": f"self.metadata.name.matches('^[a-z]([-a-z0-9]{{0,{MAX_DEPLOYMENT_NAME - 2}}}[a-z0-9])?$')",
        "message": "metadata.name must begin with a letter, hold lower-case letters, digits and dashes, end with a "
        f"letter or digit, and have at most {MAX_DEPLOYMENT_NAME} characters",
    }
]


def _condition(kind: str, field: str = "status") -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


def _column(name: str, path: str, kind: str = "string", *, priority: int = 0) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "jsonPath": path, "type": kind}
    return column | {"priority": priority} if priority else column


def deployment_crd() -> Manifest:
    """`kimik3deployments.kimik3.dev`."""
    return _crd(
        kind="KimiK3Deployment",
        plural="kimik3deployments",
        short="k3dep",
        description="A Kimi K3 service on one or more kinds of GPU nodes.",
        spec=structural_schema(KimiK3DeploymentSpec),
        status=structural_schema(KimiK3DeploymentStatus),
        columns=[
            _column("Ready", _condition("Ready")),
            _column("Available", _condition("Available")),
            _column("Reason", _condition("Ready", "reason")),
            _column("Replicas", ".status.replicas"),
            _column("Hardware", ".status.hardware"),
            _column("Age", ".metadata.creationTimestamp", "date"),
            _column("Message", _condition("Ready", "message"), priority=1),
        ],
        validations=_NAME_RULES,
    )


def pool_crd() -> Manifest:
    """`kimik3pools.kimik3.dev`, with the scale subresource."""
    return _crd(
        kind="KimiK3Pool",
        plural="kimik3pools",
        short="k3pool",
        description="One pool (and role) of a KimiK3Deployment. Made by the operator; scale it, do not edit it.",
        spec=structural_schema(KimiK3PoolSpec),
        status=structural_schema(KimiK3PoolStatus),
        columns=[
            _column("Profile", ".spec.profile"),
            _column("Desired", ".spec.replicas", "integer"),
            _column("Ready", ".status.readyReplicas", "integer"),
            _column("Revision", ".status.revision", priority=1),
            _column("Age", ".metadata.creationTimestamp", "date"),
        ],
        scale={
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    )


def crds() -> tuple[Manifest, ...]:
    return deployment_crd(), pool_crd()


def _crd(
    *,
    kind: str,
    plural: str,
    short: str,
    description: str,
    spec: Schema,
    status: Schema,
    columns: list[dict[str, Any]],
    scale: dict[str, str] | None = None,
    validations: list[dict[str, str]] | None = None,
) -> Manifest:
    schema: Schema = {
        "description": description,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }
    if validations:
        schema["x-kubernetes-validations"] = validations
    subresources: dict[str, Any] = {"status": {}}
    if scale:
        subresources["scale"] = scale
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["kimi"],
            },
            "conversion": {"strategy": "None"},
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": subresources,
                    "additionalPrinterColumns": columns,
                }
            ],
        },
    }
