"""Volumes and mounts of an engine pod."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

from kimi_k3_operator.profiles.engine import DRAFT_PATH, WEIGHTS_PATH, EngineConfig, Folder, HubDownload

CACHE_MOUNT = "/hub"
COMPILE_CACHE = "/cache"


def volumes(engine: EngineConfig) -> list[dict[str, Any]]:
    """The pod's volumes, ordered by name: compile cache, draft, shared memory, weights."""
    found = {
        "cache": {"emptyDir": {"sizeLimit": "50Gi"}},
        "shm": {"emptyDir": {"medium": "Memory", "sizeLimit": f"{engine.profile.memory.shm_gib}Gi"}},
        "weights": _source(engine.checkpoint.folder, engine.checkpoint.download),
    }
    speculation = engine.speculation
    if speculation.folder is not None and not _beside_weights(engine):
        found["draft"] = _source(speculation.folder, speculation.download)
    return [{"name": name, **found[name]} for name in sorted(found)]


def engine_mounts(engine: EngineConfig) -> list[dict[str, Any]]:
    mounts = [
        {"name": "cache", "mountPath": COMPILE_CACHE},
        {"name": "shm", "mountPath": "/dev/shm"},
        *checkpoint_mounts(engine),
    ]
    return sorted(mounts, key=lambda mount: str(mount["mountPath"]))


def checkpoint_mounts(engine: EngineConfig) -> list[dict[str, Any]]:
    """Read-only mounts of the weights and, where it has a folder, the draft."""
    mounts = [_mount("weights", WEIGHTS_PATH, engine.checkpoint.folder, engine.checkpoint.download)]
    speculation = engine.speculation
    if speculation.folder is not None:
        volume = "weights" if _beside_weights(engine) else "draft"
        mounts.append(_mount(volume, DRAFT_PATH, speculation.folder, speculation.download))
    return mounts


def hub_mount(folder: Folder) -> dict[str, Any]:
    """The cache as the download sees it: writable, one level above the checkpoint."""
    mount: dict[str, Any] = {"name": "weights", "mountPath": CACHE_MOUNT}
    parent = PurePosixPath(folder.path).parent
    return mount | {"subPath": str(parent)} if folder.claim and str(parent) != "." else mount


def downloads(engine: EngineConfig) -> str:
    """JSON for the download script; stable."""
    wanted = [(engine.checkpoint.folder, engine.checkpoint.download)]
    if engine.speculation.folder is not None:
        wanted.append((engine.speculation.folder, engine.speculation.download))
    items = [
        {"repository": hub.model, "revision": hub.revision, "folder": PurePosixPath(folder.path).name}
        for folder, hub in wanted
        if hub is not None
    ]
    return json.dumps(items, separators=(",", ":"), sort_keys=True)


def _beside_weights(engine: EngineConfig) -> bool:
    """The draft lies in the volume that holds the weights."""
    folder, draft = engine.checkpoint.folder, engine.speculation.folder
    if draft is None:
        return False
    return draft.claim == folder.claim and (draft.claim is not None or engine.speculation.download is not None)


def _source(folder: Folder, download: HubDownload | None) -> dict[str, Any]:
    if folder.claim is not None:
        return {"persistentVolumeClaim": {"claimName": folder.claim}}
    if download is not None:  # the folder appears only after the download: mount what is above it
        return {"hostPath": {"path": str(PurePosixPath(folder.path).parent), "type": "DirectoryOrCreate"}}
    return {"hostPath": {"path": folder.path, "type": "Directory"}}


def _mount(volume: str, path: str, folder: Folder, download: HubDownload | None) -> dict[str, Any]:
    mount: dict[str, Any] = {"name": volume, "mountPath": path, "readOnly": True}
    if folder.claim is not None:
        return mount | {"subPath": folder.path} if folder.path else mount
    return mount | {"subPath": PurePosixPath(folder.path).name} if download is not None else mount
