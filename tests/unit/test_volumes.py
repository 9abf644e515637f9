from __future__ import annotations

import json
from typing import Any

import pytest
from tests.factories import CLAIM, HOST_PATH, HUB, b300, deployment, engine_of

from kimi_k3_operator.compile.volumes import downloads, engine_mounts, hub_mount, volumes
from kimi_k3_operator.profiles.engine import EngineConfig

DRAFT = "Inferact/Kimi-K3-DSpark"
HUB_ON_NODE = {"huggingFace": {"cache": {"hostPath": {"path": "/mnt/nvme/hub"}}}}
IN_CLAIM = {"persistentVolumeClaim": {"claimName": "kimi-k3"}}


def engine(weights: Any, draft: dict[str, str] | None = None, mode: str = "DSpark") -> EngineConfig:
    speculation = {"speculation": {"mode": mode, "draft": {"id": DRAFT, **draft}}} if draft is not None else {}
    return engine_of(deployment(b300(**speculation), weights=weights))


def sources(found: EngineConfig) -> dict[str, Any]:
    made = {v["name"]: {key: value for key, value in v.items() if key != "name"} for v in volumes(found)}
    assert made.pop("cache") == {"emptyDir": {"sizeLimit": "50Gi"}}
    assert made.pop("shm")["emptyDir"]["medium"] == "Memory"
    return made


def mounts(found: EngineConfig) -> dict[str, tuple[str, str | None]]:
    """Mount path to (volume, sub-path) of the checkpoint mounts, which are all read-only."""
    checkpoint = [m for m in engine_mounts(found) if m["name"] in ("weights", "draft")]
    assert all(m["readOnly"] for m in checkpoint)
    return {m["mountPath"]: (m["name"], m.get("subPath")) for m in checkpoint}


@pytest.mark.parametrize(
    ("weights", "draft", "wanted_sources", "wanted_mounts"),
    [
        (CLAIM, None, {"weights": IN_CLAIM}, {"/weights": ("weights", None)}),
        (
            {"persistentVolumeClaim": {"claimName": "kimi-k3", "subPath": "k3"}},
            {"subPath": "draft"},
            {"weights": IN_CLAIM},
            {"/weights": ("weights", "k3"), "/draft": ("weights", "draft")},
        ),
        (
            HOST_PATH,
            None,
            {"weights": {"hostPath": {"path": "/mnt/nvme/kimi-k3", "type": "Directory"}}},
            {"/weights": ("weights", None)},
        ),
        (
            HOST_PATH,
            {"subPath": "draft"},
            {
                "weights": {"hostPath": {"path": "/mnt/nvme/kimi-k3", "type": "Directory"}},
                "draft": {"hostPath": {"path": "/mnt/nvme/draft", "type": "Directory"}},
            },
            {"/weights": ("weights", None), "/draft": ("draft", None)},
        ),
        (HOST_PATH, {"path": "/opt/draft"}, None, {"/weights": ("weights", None)}),
        (HUB, None, {"weights": IN_CLAIM}, {"/weights": ("weights", "moonshotai--Kimi-K3@main")}),
        (
            HUB,
            {},
            {"weights": IN_CLAIM},
            {
                "/weights": ("weights", "moonshotai--Kimi-K3@main"),
                "/draft": ("weights", "Inferact--Kimi-K3-DSpark@main"),
            },
        ),
        (
            HUB_ON_NODE,
            {},
            {"weights": {"hostPath": {"path": "/mnt/nvme/hub", "type": "DirectoryOrCreate"}}},
            {
                "/weights": ("weights", "moonshotai--Kimi-K3@main"),
                "/draft": ("weights", "Inferact--Kimi-K3-DSpark@main"),
            },
        ),
        (
            HUB_ON_NODE,
            {"subPath": "draft"},
            {
                "weights": {"hostPath": {"path": "/mnt/nvme/hub", "type": "DirectoryOrCreate"}},
                "draft": {"hostPath": {"path": "/mnt/nvme/hub/draft", "type": "Directory"}},
            },
            {"/weights": ("weights", "moonshotai--Kimi-K3@main"), "/draft": ("draft", None)},
        ),
    ],
)
def test_weights_and_draft_are_mounted(weights, draft, wanted_sources, wanted_mounts):
    found = engine(weights, draft)
    assert mounts(found) == wanted_mounts
    if wanted_sources is not None:
        assert sources(found) == wanted_sources


def test_volumes_and_mounts_are_in_order():
    found = engine(HOST_PATH, {"subPath": "draft"})
    assert [v["name"] for v in volumes(found)] == ["cache", "draft", "shm", "weights"]
    assert [m["mountPath"] for m in engine_mounts(found)] == ["/cache", "/dev/shm", "/draft", "/weights"]


def test_the_download_writes_one_level_above_the_checkpoint():
    assert hub_mount(engine(HUB).checkpoint.folder) == {"name": "weights", "mountPath": "/hub"}
    cache = {"persistentVolumeClaim": {"claimName": "kimi-k3", "subPath": "hub"}}
    found = engine({"huggingFace": {"cache": cache}})
    assert hub_mount(found.checkpoint.folder) == {"name": "weights", "mountPath": "/hub", "subPath": "hub"}
    assert mounts(found) == {"/weights": ("weights", "hub/moonshotai--Kimi-K3@main")}
    assert hub_mount(engine(HUB_ON_NODE).checkpoint.folder) == {"name": "weights", "mountPath": "/hub"}


def test_the_draft_is_downloaded_with_the_weights():
    wanted = json.loads(downloads(engine(HUB, {"revision": "v1"})))
    assert [(item["repository"], item["folder"]) for item in wanted] == [
        ("moonshotai/Kimi-K3", "moonshotai--Kimi-K3@main"),
        (DRAFT, "Inferact--Kimi-K3-DSpark@v1"),
    ]
    assert json.loads(downloads(engine(HUB))) == wanted[:1]
