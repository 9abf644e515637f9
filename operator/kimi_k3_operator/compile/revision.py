"""The revision of a pool: the pod templates that its replicas are made from, stored as a ControllerRevision.

Two hashes (docs/design/0006-revisions.md): `inputs` covers what the user set, `render` what this operator makes of it.
Only changed inputs roll replicas by themselves, so an operator upgrade restarts nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kimi_k3_operator.api import labels, names
from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.api.v1alpha1 import KimiK3DeploymentSpec, Pool
from kimi_k3_operator.compile.pods import serving_template, worker_template
from kimi_k3_operator.compile.replica import PoolKey
from kimi_k3_operator.profiles.engine import EngineConfig
from kimi_k3_operator.profiles.startup import progress_deadline


@dataclass(frozen=True)
class Revision:
    """`leader` serves HTTP; `worker` is None for single-node hardware."""

    name: str
    inputs: str
    render: str
    profile: str
    startup_seconds: int
    leader: Manifest
    worker: Manifest | None

    @property
    def label(self) -> str:
        """The value of the revision label on pods: the hash at the end of the name."""
        return self.name.rsplit("-", 1)[-1]

    @property
    def multi_node(self) -> bool:
        return self.worker is not None

    @property
    def progress_deadline_seconds(self) -> int:
        return progress_deadline(self.startup_seconds)


def digest(value: Any) -> str:
    """Hash of a JSON value: sha256 of its canonical text, 16 hex digits."""
    text = json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def inputs_hash(spec: KimiK3DeploymentSpec, pool: Pool, profile: str) -> str:
    """Hash of everything the user set for the pool that its engines depend on.

    Replica counts and placement are left out. So are fields that hold their default, so that a field which a later
    operator adds changes no hash.
    """
    unset: dict[str, Any] = {"mode": "json", "by_alias": True, "exclude_none": True, "exclude_defaults": True}
    chosen = pool.model_dump(
        **unset, exclude={"name", "profile", "replicas", "autoscaling", "disaggregation", "weights"}
    )
    weights = pool.weights or spec.weights
    shared = spec.placement.compute_domain if spec.placement else None
    return digest(
        {
            "pool": _said(chosen),
            "profile": profile,
            "model": _said(spec.model.model_dump(**unset)) if spec.model else {},
            "weights": _said(weights.model_dump(**unset)) if weights else {},
            "pullSecrets": [secret.name for secret in spec.image_pull_secrets or ()],
            "computeDomain": shared.existing if shared else "",
            "disaggregated": pool.disaggregation is not None,
            **({"gate": spec.verification.gate} if spec.verification and spec.verification.gate != "Enforce" else {}),
        }
    )


def _said(value: Any) -> Any:
    """Without maps and lists that say nothing: `load: {}` is the same as no load."""
    if not isinstance(value, dict):
        return value
    said = {key: _said(item) for key, item in value.items()}
    return {key: item for key, item in said.items() if item not in ({}, [], ())}


def compile_revision(
    key: PoolKey, spec: KimiK3DeploymentSpec, pool: Pool, engine: EngineConfig, claim_template: str | None
) -> Revision:
    """What this operator would make of the pool now. `claim_template` only for multi-node hardware."""
    profile = f"{engine.profile.name}/{engine.profile.version}"
    leader = serving_template(key, spec, pool, engine, claim_template)
    multi_node = engine.profile.hardware.multi_node
    worker = worker_template(key, spec, pool, engine, claim_template) if multi_node else None
    inputs = inputs_hash(spec, pool, profile)
    render = digest([leader, worker, engine.startup_seconds])
    return Revision(
        name=names.revision(key.name, digest([inputs, render])),
        inputs=inputs,
        render=render,
        profile=profile,
        startup_seconds=engine.startup_seconds,
        leader=leader,
        worker=worker,
    )


def controller_revision(key: PoolKey, revision: Revision, number: int) -> Manifest:
    """The stored form. `number` orders the revisions of a pool."""
    data: Manifest = {
        "inputs": revision.inputs,
        "render": revision.render,
        "profile": revision.profile,
        "startupSeconds": revision.startup_seconds,
        "leader": revision.leader,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": revision.name,
            "namespace": key.namespace,
            "labels": labels.pool_labels(key.deployment, key.pool, key.role),
        },
        "revision": number,
        "data": data | {"worker": revision.worker} if revision.worker is not None else data,
    }


def parse_revision(body: Mapping[str, Any]) -> Revision:
    """The revision that a stored ControllerRevision holds."""
    data = body["data"]
    return Revision(
        name=body["metadata"]["name"],
        inputs=data["inputs"],
        render=data["render"],
        profile=data["profile"],
        startup_seconds=int(data["startupSeconds"]),
        leader=data["leader"],
        worker=data.get("worker"),
    )
