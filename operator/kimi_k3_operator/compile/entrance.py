"""The entrance of a deployment without a Gateway: Envoy, which asks the endpoint picker where each request goes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

from kimi_k3_operator.api.base import Manifest
from kimi_k3_operator.compile.envoy import API_KEYS_FOLDER, CONFIG_FOLDER, TLS_FOLDER, Ports, bootstrap, tls_secret_file
from kimi_k3_operator.compile.front import CONTAINER_SECURITY, front_deployment, front_labels, pod_spec, selector

IMAGE = "envoyproxy/envoy:distroless-v1.33.2"
"""The one that the standalone chart of llm-d-router 0.11 pins."""

KEY_HEADER = "x-kimi-k3-session-key"
"""What the endpoint picker's session affinity reads. A client's own value never gets past the listener."""
API_KEYS_ITEM = "api-keys"
"""Key of the Secret of API keys: one key a line, # begins a comment."""

REPLICAS = 2
WORKERS = 4
"""Envoy's own default is one worker a core of the node, of which a GPU node has hundreds."""
MEMORY_GIB = 4
MAX_SCANNED_BYTES = 32 << 20
"""Bodies that say they are longer go on at once, without a key from the body. 1M tokens are about 5 MB of text."""


@dataclass(frozen=True)
class PickerAddress:
    """Where the endpoint picker listens: ext_proc with TLS, health without."""

    host: str
    port: int = 9002
    health_port: int = 9003


def entrance_objects(
    *,
    namespace: str,
    deployment: str,
    picker_host: str,
    session_header: str = "x-session-id",
    api_key_secret: str | None = None,
    tls_secret: str | None = None,
    drain_seconds: int = 900,
) -> list[Manifest]:
    """Everything the entrance consists of, in the order in which it is applied.

    `picker_host` is the DNS name of the endpoint picker's Service; a headless one lets Envoy see each picker and leave
    one that drains. Both Secrets are in `namespace`. `drain_seconds` is that of the engines: an answer that is under
    way when a pod is told to stop has this long to end.
    """
    data = config_files(
        picker=PickerAddress(picker_host),
        session_header=session_header,
        api_keys=api_key_secret is not None,
        tls=tls_secret is not None,
    )
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    name = entrance_name(deployment)
    metadata = {"name": name, "namespace": namespace, "labels": front_labels(deployment, "entrance")}
    pod = _pod(name, api_key_secret, tls_secret, drain_seconds, front_labels(deployment, "entrance"))
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": False},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data},
        _disruption_budget(metadata | {"name": disruption_budget_name(deployment)}),
        front_deployment(metadata, pod, replicas=REPLICAS, digest=digest),
        _service(metadata, tls=tls_secret is not None),
    ]


def entrance_name(deployment: str) -> str:
    """Name of the entrance's objects; its Service is what clients are told."""
    return f"{deployment}-entrance"


def disruption_budget_name(deployment: str) -> str:
    """With a dot, which no pool's name has: `k3-entrance` is the budget of a pool that is called entrance."""
    return f"{deployment}.entrance"


def config_files(
    *, picker: PickerAddress, session_header: str, api_keys: bool, tls: bool, ports: Ports | None = None
) -> dict[str, str]:
    """The files of the ConfigMap, by name."""
    config = bootstrap(
        picker_host=picker.host,
        picker_port=picker.port,
        picker_health_port=picker.health_port,
        key_header=KEY_HEADER,
        api_keys=api_keys,
        tls=tls,
        heap_bytes=(MEMORY_GIB << 30) * 9 // 10,
        ports=ports or Ports(),
    )
    data = {
        "envoy.yaml": _yaml(config),
        "session_key.lua": session_key_script(session_header),
    }
    if api_keys:
        data["api_key.lua"] = api_key_script(f"{API_KEYS_FOLDER}/{API_KEYS_ITEM}")
    if tls:
        data["tls.yaml"] = _yaml(tls_secret_file())
    return data


def session_key_script(session_header: str) -> str:
    return _script(
        "session_key", SESSION_HEADER=session_header, KEY_HEADER=KEY_HEADER, MAX_BODY_BYTES=MAX_SCANNED_BYTES
    )


def api_key_script(file: str) -> str:
    return _script("api_key", API_KEYS_FILE=file)


def _script(name: str, **variables: str | int) -> str:
    """A Lua script with the globals it reads in front: JSON's numbers and plain strings are Lua's as well."""
    source = files("kimi_k3_operator.compile").joinpath("scripts", f"{name}.lua").read_text(encoding="utf-8")
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in variables.items()) + source


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, width=120)


def _pod(
    name: str, api_key_secret: str | None, tls_secret: str | None, drain_seconds: int, own: dict[str, str]
) -> Manifest:
    volumes: list[Manifest] = [{"name": "config", "configMap": {"name": name}}]
    mounts: list[Manifest] = [{"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True}]
    for volume, secret, folder, items in (
        ("api-keys", api_key_secret, API_KEYS_FOLDER, (API_KEYS_ITEM,)),
        ("tls", tls_secret, TLS_FOLDER, ("tls.crt", "tls.key")),
    ):
        if secret is not None:
            source = {
                "secretName": secret,
                "defaultMode": 0o440,
                "items": [{"key": item, "path": item} for item in items],
            }
            volumes.append({"name": volume, "secret": source})
            mounts.append({"name": volume, "mountPath": folder, "readOnly": True})
    container = _container(mounts, drain_seconds, tls=tls_secret is not None)
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(own)},
    }
    pod = pod_spec(name, container, token=False, drain_seconds=drain_seconds, volumes=volumes)
    return pod | {"topologySpreadConstraints": [spread]}


def _container(mounts: list[Manifest], drain_seconds: int, *, tls: bool) -> Manifest:
    """Envoy ends at once on SIGTERM, so the preStop is the drain (docs/design/0015-session-key.md)."""
    ports = Ports()
    ready = {"httpGet": {"path": "/ready", "port": "health"}, "timeoutSeconds": 5}
    return {
        "name": "envoy",
        "image": IMAGE,
        "command": ["/usr/local/bin/envoy"],
        "args": [
            "--config-path",
            f"{CONFIG_FOLDER}/envoy.yaml",
            "--concurrency",
            str(WORKERS),
            "--disable-hot-restart",
            "--log-level",
            "warning",
        ],
        "ports": [
            {"name": "https" if tls else "http", "containerPort": ports.requests, "protocol": "TCP"},
            {"name": "health", "containerPort": ports.health, "protocol": "TCP"},
        ],
        "readinessProbe": {**ready, "periodSeconds": 5, "failureThreshold": 2},
        "livenessProbe": {**ready, "periodSeconds": 10, "failureThreshold": 6},
        "lifecycle": {"preStop": {"sleep": {"seconds": drain_seconds}}},
        "resources": {
            "requests": {"cpu": "1", "memory": "1Gi"},
            "limits": {"memory": f"{MEMORY_GIB}Gi"},
        },
        "securityContext": dict(CONTAINER_SECURITY),
        "volumeMounts": mounts,
    }


def _service(metadata: Manifest, *, tls: bool) -> Manifest:
    name = "https" if tls else "http"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "type": "ClusterIP",
            "selector": selector(metadata["labels"]),
            "ports": [{"name": name, "port": 443 if tls else 80, "targetPort": name, "protocol": "TCP"}],
        },
    }


def _disruption_budget(metadata: Manifest) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata,
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": selector(metadata["labels"])},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
