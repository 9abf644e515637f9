"""Where the programs of the practice cluster are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import build

from tests.harness import binaries


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("KIMI_K3_TOOLS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def put(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch(mode=0o755)


def test_an_empty_cache_is_a_reason_to_skip(cache: Path):
    assert "kube-apiserver" in (binaries.missing() or "")
    assert binaries.missing("helm") == f"not built: helm (make controlplane builds them into {build.tools_dir()})"
    with pytest.raises(binaries.BinariesMissingError, match="make controlplane"):
        binaries.path("kwok")


def test_built_programs_are_found_in_the_cache(cache: Path):
    put(build.tools_dir(), *build.GROUPS["controlplane"], "kwok")
    assert binaries.missing() is None
    assert binaries.path("etcd").parent.parent == cache


def test_kubebuilder_assets_are_used_when_complete(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assets = tmp_path / "assets"
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    put(assets, "etcd", "kube-apiserver", "kubectl")
    assert binaries.missing("controlplane") is not None
    put(assets, *build.GROUPS["controlplane"])
    assert binaries.missing("controlplane") is None
    assert binaries.path("kubectl") == assets / "kubectl"
    assert binaries.missing("kwok") is not None


def test_a_changed_version_has_a_folder_of_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch):
    before = build.tools_dir()
    monkeypatch.setattr(build, "module_version", lambda group: "v1.2.3")
    assert build.tools_dir() != before


def test_the_versions_are_read_from_the_modules():
    assert build.module_version("controlplane").startswith("v1.")
    assert "-X k8s.io/component-base/version.gitMajor=1" in build.linker_flags("controlplane")
    assert build.module_version("kwok").startswith("v0.")
    assert build.module_version("helm").startswith("v4.")
