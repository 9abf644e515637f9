"""Volumes of a pod as folders of this machine, and which of them a container mounts where."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.kube import Object
from tests.harness.kubelet.environment import expand, field_value
from tests.harness.kubelet.machine import HeldBackError, Machine, content


@dataclass(frozen=True)
class Mount:
    source: Path
    target: str
    read_only: bool = False

    def order(self) -> dict[str, Any]:
        return {"source": str(self.source), "target": self.target, "readOnly": self.read_only}


async def make_volumes(machine: Machine, pod: Object, addresses: Mapping[str, str]) -> dict[str, Path]:
    """Volume name to folder. Raises HeldBackError (ContainerCreating) while something is missing."""
    folder = machine.pod_folder(pod) / "volumes"
    found: dict[str, Path] = {}
    for volume in pod["spec"].get("volumes", ()):
        try:
            found[volume["name"]] = await _make(machine, pod, volume, folder / volume["name"], addresses)
        except HeldBackError as error:
            problem = f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}'
            raise HeldBackError("ContainerCreating", problem) from None
    return found


async def _make(machine: Machine, pod: Object, volume: Object, folder: Path, addresses: Mapping[str, str]) -> Path:
    namespace, node = pod["metadata"]["namespace"], pod["spec"]["nodeName"]
    if "hostPath" in volume:
        return _host_path(machine.host_path(node, volume["hostPath"]["path"]), volume["hostPath"])
    if "persistentVolumeClaim" in volume:
        folder = machine.claim_path(namespace, volume["persistentVolumeClaim"]["claimName"])
    elif "ephemeral" in volume:
        folder = machine.claim_path(namespace, f"{pod['metadata']['name']}-{volume['name']}")
    folder.mkdir(parents=True, exist_ok=True)
    sources = volume.get("projected", {}).get("sources", ())
    for kind in ("configMap", "secret", "downwardAPI"):
        if kind in volume:
            sources = [{kind: volume[kind]}]
    for source in sources:
        for path, data in (await _files(machine, pod, source, addresses)).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
    return folder


def _host_path(path: Path, asked: Object) -> Path:
    kind = asked.get("type", "")
    if kind == "DirectoryOrCreate" or (not kind and not path.exists()):
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    elif (kind == "Directory" and not path.is_dir()) or (kind and not path.exists()):
        raise HeldBackError("", f"hostPath type check failed: {asked['path']} is not a {kind.lower()}")
    return path


async def _files(machine: Machine, pod: Object, source: Object, addresses: Mapping[str, str]) -> dict[str, bytes]:
    """Relative path to content of one source of a projected volume."""
    if "downwardAPI" in source:
        items = source["downwardAPI"].get("items", ())
        return {
            one["path"]: field_value(one["fieldRef"]["fieldPath"], pod, addresses).encode()
            for one in items
            if "fieldRef" in one
        }
    if "serviceAccountToken" in source:
        asked = source["serviceAccountToken"]
        return {asked["path"]: (await _token(machine, pod, asked)).encode()}
    for plural, kind in (("configmaps", "configMap"), ("secrets", "secret")):
        if (asked := source.get(kind)) is not None:
            name = asked.get("name") or asked["secretName"]
            optional = bool(asked.get("optional"))
            found = await content(machine.kube, plural, pod["metadata"]["namespace"], name, optional=optional)
            return _select(_entries(found or {}), asked, name)
    return {}


def _entries(found: Object) -> dict[str, bytes]:
    if found.get("kind") == "Secret":
        return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
    binary = {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}
    return {key: value.encode() for key, value in (found.get("data") or {}).items()} | binary


def _select(entries: dict[str, bytes], asked: Object, name: str) -> dict[str, bytes]:
    if not asked.get("items"):
        return entries
    absent = [item["key"] for item in asked["items"] if item["key"] not in entries]
    if absent and not asked.get("optional"):
        raise HeldBackError("", f"references non-existent config key: {absent[0]} of {name}")
    return {item["path"]: entries[item["key"]] for item in asked["items"] if item["key"] in entries}


async def _token(machine: Machine, pod: Object, asked: Object) -> str:
    meta, account = pod["metadata"], pod["spec"].get("serviceAccountName", "default")
    spec: Object = {
        "expirationSeconds": asked.get("expirationSeconds", 3600),
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]},
    }
    if "audience" in asked:
        spec["audiences"] = [asked["audience"]]
    answer = await machine.kube.request(
        "POST",
        f"/api/v1/namespaces/{meta['namespace']}/serviceaccounts/{account}/token",
        body={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
    )
    return str(answer["status"]["token"])


def mounts_of(container: Object, volumes: Mapping[str, Path], variables: Mapping[str, str]) -> list[Mount]:
    """The mounts of one container; a subPath that is missing becomes a folder. Raises HeldBackError."""
    found: list[Mount] = []
    for one in container.get("volumeMounts", ()):
        if one["name"] not in volumes:
            raise HeldBackError("CreateContainerConfigError", f"volume {one['name']} is not known")
        below = one.get("subPath") or expand(one.get("subPathExpr", ""), variables)
        source = volumes[one["name"]] / below
        if not source.exists():
            source.mkdir(parents=True)
        found.append(Mount(source, one["mountPath"], bool(one.get("readOnly"))))
    return found
