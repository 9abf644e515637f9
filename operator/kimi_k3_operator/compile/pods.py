"""Pod templates of engines: single-node, leader, headless worker. The placement and the replica's name come later."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from kimi_k3_operator.api import labels, names
from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.api.v1alpha1 import KimiK3DeploymentSpec, Pool
from kimi_k3_operator.compile.replica import PoolKey
from kimi_k3_operator.compile.volumes import (
    CACHE_MOUNT,
    COMPILE_CACHE,
    checkpoint_mounts,
    downloads,
    engine_mounts,
    hub_mount,
    volumes,
)
from kimi_k3_operator.inventory.selection import ARCHITECTURE
from kimi_k3_operator.profiles.engine import (
    HTTP_PORT,
    PRE_STOP_SECONDS,
    WEIGHTS_PATH,
    EngineConfig,
    serve_command,
)
from kimi_k3_operator.profiles.model import LabelRequirement
from kimi_k3_operator.profiles.startup import PROBE_PERIOD_SECONDS, probe_failures

ENGINE = "engine"
CHANNEL_CLAIM = "nvlink-channel"
_GPU_GLOB = {"nvidia": "/dev/nvidia[0-9]*", "amd": "/dev/dri/renderD*"}
_GROUP_PATIENCE_SECONDS = 600
"""A failing init container recreates a group without back-off, so the check looks again for this long first."""
_RESTRICTED: Mapping[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _script(name: str) -> str:
    return files("kimi_k3_operator.compile").joinpath("scripts", f"{name}.py").read_text(encoding="utf-8")


PREFLIGHT, DOWNLOAD, WORKER_STOP, WORKER_READY = map(_script, ("preflight", "download", "worker_stop", "worker_ready"))


def serving_template(
    key: PoolKey, spec: KimiK3DeploymentSpec, pool: Pool, engine: EngineConfig, claim_template: str | None
) -> Manifest:
    """The pod that answers HTTP: a single-node engine, or rank 0 of a group."""
    template = _template(key, spec, pool, engine, claim_template, rank=0)
    template["metadata"]["labels"][labels.SERVES_HTTP] = "true"
    if spec.verification is None or spec.verification.gate == "Enforce":
        template["spec"]["readinessGates"] = [{"conditionType": labels.VERIFIED}]
    return template


def worker_template(
    key: PoolKey, spec: KimiK3DeploymentSpec, pool: Pool, engine: EngineConfig, claim_template: str | None
) -> Manifest:
    """Rank 1 of a group: no HTTP, no routing label; ready when its group answers; outlives the leader's drain."""
    return _template(key, spec, pool, engine, claim_template, rank=1)


def _template(
    key: PoolKey,
    spec: KimiK3DeploymentSpec,
    pool: Pool,
    engine: EngineConfig,
    claim_template: str | None,
    *,
    rank: int,
) -> Manifest:
    scheduling = pool.scheduling
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "containers": [_engine_container(engine, claim_template is not None, rank=rank)],
        "enableServiceLinks": False,
        "initContainers": _init_containers(engine, claim_template is not None),
        "nodeSelector": _node_selector(pool, engine),
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _node_terms(engine)}},
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "serviceAccountName": names.engine_service_account(key.deployment),
        "terminationGracePeriodSeconds": engine.termination_grace_seconds,
        "tolerations": _tolerations(pool, engine),
        "volumes": volumes(engine),
    }
    if spec.image_pull_secrets:
        pod["imagePullSecrets"] = [secret.wire() for secret in spec.image_pull_secrets]
    if scheduling and scheduling.priority_class_name:
        pod["priorityClassName"] = scheduling.priority_class_name
    if claim_template is not None:
        pod["resourceClaims"] = [{"name": CHANNEL_CLAIM, "resourceClaimTemplateName": claim_template}]
    return {"metadata": {"labels": labels.pool_labels(key.deployment, key.pool, key.role)}, "spec": pod}


def _engine_container(engine: EngineConfig, channel: bool, *, rank: int) -> Manifest:
    command, args = serve_command(engine, rank=rank)
    env = dict(engine.env) | {"TRITON_CACHE_DIR": f"{COMPILE_CACHE}/triton", "XDG_CACHE_HOME": COMPILE_CACHE}
    container: Manifest = {
        "name": ENGINE,
        "image": engine.image,
        "command": command,
        "args": args,
        "env": [],
        "resources": _resources(engine, channel),
        "securityContext": dict(_RESTRICTED),
        "volumeMounts": engine_mounts(engine),
    }
    if rank == 0:
        container["ports"] = [{"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"}]
        container |= _http_probes(engine)
        container["lifecycle"] = {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}}
    else:
        longest = PRE_STOP_SECONDS + engine.drain_seconds
        env |= {"LEADER_PORT": str(HTTP_PORT), "LONGEST": str(longest)}
        container["readinessProbe"] = _probe({"exec": {"command": ["python3", "-c", WORKER_READY]}}, period=30)
        container["lifecycle"] = {"preStop": {"exec": {"command": ["python3", "-c", WORKER_STOP]}}}
    container["env"] = [{"name": name, "value": env[name]} for name in sorted(env)]
    return container


def _http_probes(engine: EngineConfig) -> Manifest:
    """All from the one startup budget; liveness is patient, because an engine under load answers late."""
    health = {"httpGet": {"path": "/health", "port": "http"}}
    models = {"httpGet": {"path": "/v1/models", "port": "http"}}
    failures = probe_failures(engine.startup_seconds)
    return {
        "startupProbe": _probe(health, period=PROBE_PERIOD_SECONDS, failures=failures),
        "livenessProbe": _probe(health, period=15, failures=5),
        "readinessProbe": _probe(models, period=10, failures=3),
    }


def _probe(action: Manifest, *, period: int, failures: int = 3) -> Manifest:
    return {**action, "periodSeconds": period, "timeoutSeconds": 10, "failureThreshold": failures}


def _init_containers(engine: EngineConfig, channel: bool) -> list[Manifest]:
    multi_node = engine.profile.hardware.multi_node
    hub = engine.checkpoint.download
    check_env = {
        "DRAFT": engine.speculation.path,
        "GPUS": str(engine.profile.hardware.gpus_per_node),
        "GPU_GLOB": _GPU_GLOB[engine.profile.hardware.vendor],
        "IMEX": "1" if channel else "0",
        "PATIENCE": str(_GROUP_PATIENCE_SECONDS if multi_node else 0),
        "WEIGHTS": WEIGHTS_PATH,
    }
    check: Manifest = {
        "name": "preflight",
        "image": engine.image,
        "command": ["python3", "-c", PREFLIGHT],
        "env": [{"name": name, "value": value} for name, value in check_env.items()],
        "resources": _resources(engine, channel),
        "securityContext": dict(_RESTRICTED),
        "volumeMounts": checkpoint_mounts(engine),
    }
    if hub is None:
        return [check]
    fetch_env: list[dict[str, Any]] = [
        {"name": "CACHE", "value": CACHE_MOUNT},
        {"name": "DOWNLOADS", "value": downloads(engine)},
    ]
    if hub.token is not None:
        fetch_env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": hub.token.wire()}})
    fetch: Manifest = {
        "name": "download",
        "image": engine.image,
        "command": ["python3", "-c", DOWNLOAD],
        "env": fetch_env,
        "securityContext": dict(_RESTRICTED),
        "volumeMounts": [hub_mount(engine.checkpoint.folder)],
    }
    return [fetch, check]


def _resources(engine: EngineConfig, channel: bool) -> Manifest:
    """The node's GPUs, all of them; for a group also the channel of its NVLink domain."""
    gpus = {engine.profile.hardware.gpu_resource: str(engine.profile.hardware.gpus_per_node)}
    resources: Manifest = {"limits": dict(gpus), "requests": dict(gpus)}
    return resources | {"claims": [{"name": CHANNEL_CLAIM}]} if channel else resources


def _node_selector(pool: Pool, engine: EngineConfig) -> dict[str, str]:
    own = dict(pool.scheduling.node_selector or {}) if pool.scheduling else {}
    return own | {ARCHITECTURE: engine.profile.hardware.architecture}


def _node_terms(engine: EngineConfig) -> Manifest:
    """One term per way of recognising the hardware; the scheduler takes any that holds."""

    def expression(requirement: LabelRequirement) -> Manifest:
        found: Manifest = {"key": requirement.key, "operator": requirement.operator}
        return found | {"values": list(requirement.values)} if requirement.operator == "In" else found

    options = engine.profile.hardware.node_selection
    return {"nodeSelectorTerms": [{"matchExpressions": [expression(r) for r in option]} for option in options]}


def _tolerations(pool: Pool, engine: EngineConfig) -> list[Manifest]:
    own = [t.model_dump(mode="json", exclude_none=True) for t in engine.profile.hardware.tolerations]
    given = [t.wire() for t in (pool.scheduling.tolerations or ())] if pool.scheduling else []
    return [*own, *given]
