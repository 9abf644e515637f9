"""The endpoint picker of llm-d: which engine takes a request. Typed, because it exits on any field it does not know.

The scheduling profile is the one that kept every session on its warm engine in measurements with the real picker, while
new sessions spread by speed (docs/design/0017-endpoint-picker.md).
"""

from __future__ import annotations

import hashlib
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from kimi_k3_operator.api import labels
from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.compile.entrance import KEY_HEADER
from kimi_k3_operator.compile.front import CONTAINER_SECURITY, front_deployment, front_labels, pod_spec, selector
from kimi_k3_operator.profiles.engine import HTTP_PORT

IMAGE = "ghcr.io/llm-d/llm-d-router-endpoint-picker:v0.11.0"
CONFIG_FILE = "picker.yaml"
PORTS = {"grpc": 9002, "health": 9003, "metrics": 9090}
SESSION_SECONDS = 3600
"""How long an idle session keeps its engine. People think longer between turns than the picker's default, 5 min."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class HeaderSource(_Part):
    header: str


class SessionIdConfig(_Part):
    sources: tuple[HeaderSource, ...]
    eviction_ttl_seconds: float


class SessionAffinity(_Part):
    strategy: Literal["session_id"] = "session_id"
    session_id_config: SessionIdConfig


class Plugin(_Part):
    type: str
    parameters: SessionAffinity | None = None


class PluginRef(_Part):
    plugin_ref: str
    weight: int | None = None


class SchedulingProfile(_Part):
    name: str
    plugins: tuple[PluginRef, ...]


class EndpointPickerConfig(_Part):
    """What llm-d-router 0.11 reads; a later router may want `llm-d.ai/v1`."""

    api_version: Literal["llm-d.ai/v1alpha1", "llm-d.ai/v1"] = "llm-d.ai/v1alpha1"
    kind: Literal["EndpointPickerConfig"] = "EndpointPickerConfig"
    plugins: tuple[Plugin, ...]
    scheduling_profiles: tuple[SchedulingProfile, ...]


def picker_config() -> EndpointPickerConfig:
    """Session affinity first, then tokens and requests in flight."""
    session = SessionIdConfig(sources=(HeaderSource(header=KEY_HEADER),), eviction_ttl_seconds=SESSION_SECONDS)
    weighted = (("session-affinity-scorer", 3), ("token-load-scorer", 1), ("active-request-scorer", 1))
    return EndpointPickerConfig(
        plugins=(
            Plugin(type="inflight-load-producer"),
            Plugin(type="session-affinity-scorer", parameters=SessionAffinity(session_id_config=session)),
            Plugin(type="token-load-scorer"),
            Plugin(type="active-request-scorer"),
            Plugin(type="max-score-picker"),
        ),
        scheduling_profiles=(
            SchedulingProfile(
                name="default",
                plugins=(
                    *(PluginRef(plugin_ref=name, weight=weight) for name, weight in weighted),
                    PluginRef(plugin_ref="max-score-picker"),
                ),
            ),
        ),
    )


def picker_name(deployment: str) -> str:
    """Name of all the picker's objects; its Service is headless, so that Envoy sees each picker."""
    return f"{deployment}-picker"


def picker_objects(*, namespace: str, deployment: str, drain_seconds: int) -> list[Manifest]:
    """Everything the endpoint picker consists of, in the order in which it is applied.

    It finds its engines by label, so replica counts never enter its configuration and a scale restarts nothing.
    """
    name, own = picker_name(deployment), front_labels(deployment, "picker")
    metadata = {"name": name, "namespace": namespace, "labels": own}
    text = yaml.safe_dump(
        picker_config().model_dump(mode="json", by_alias=True, exclude_none=True), sort_keys=False, width=120
    )
    volumes = [{"name": "config", "configMap": {"name": name}}]
    container = _container(deployment, drain_seconds)
    pod = pod_spec(name, container, token=True, drain_seconds=drain_seconds, volumes=volumes)
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": False},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {CONFIG_FILE: text}},
        # One picker: the load it balances is counted in its memory.
        front_deployment(metadata, pod, replicas=1, digest=hashlib.sha256(text.encode()).hexdigest()),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": False,
                "selector": selector(own),
                "ports": [{"name": n, "port": p, "targetPort": n, "protocol": "TCP"} for n, p in PORTS.items()],
            },
        },
    ]


def _container(deployment: str, drain_seconds: int) -> Manifest:
    """Flags of llm-d-router 0.11. Metrics need no token review; traces go nowhere unless asked for."""
    engines = f"{labels.DEPLOYMENT}={deployment},{labels.SERVES_HTTP}=true"
    args = [
        "--allow-experimental-plugins",
        "--config-file",
        f"/config/{CONFIG_FILE}",
        "--drain-timeout",
        f"{drain_seconds}s",
        "--endpoint-selector",
        engines,
        "--endpoint-target-ports",
        str(HTTP_PORT),
        "--grpc-health-port",
        str(PORTS["health"]),
        "--grpc-port",
        str(PORTS["grpc"]),
        "--metrics-endpoint-auth=false",
        "--metrics-port",
        str(PORTS["metrics"]),
        "--tracing=false",
        "--zap-encoder",
        "json",
    ]
    probe = {"grpc": {"port": PORTS["health"], "service": "readiness"}, "timeoutSeconds": 5}
    return {
        "name": "picker",
        "image": IMAGE,
        "command": ["/app/epp"],
        "args": args,
        "env": [
            {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
        ],
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in PORTS.items()],
        "readinessProbe": {**probe, "periodSeconds": 2, "failureThreshold": 3},
        "livenessProbe": {"tcpSocket": {"port": "grpc"}, "periodSeconds": 10, "failureThreshold": 6},
        "resources": {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"memory": "16Gi"}},
        "securityContext": dict(CONTAINER_SECURITY),
        "volumeMounts": [{"name": "config", "mountPath": "/config", "readOnly": True}],
    }
