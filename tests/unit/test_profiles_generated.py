"""The lock, the JSON schema and the reference page agree with the profiles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from tools import generate_profiles, profiles_lock

FILES = sorted(profiles_lock.PROFILES.glob("*/*.yaml"))
SCHEMA = json.loads(generate_profiles.SCHEMA.read_text(encoding="utf-8"))


def test_published_versions_are_locked_and_unchanged():
    assert profiles_lock.broken(profiles_lock.PROFILES) == []
    assert profiles_lock.unlocked(profiles_lock.PROFILES) == []
    assert profiles_lock.main(["--check"]) == 0


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A directory with the locked version lab/1."""
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "1.yaml").write_text("a: 1\n")
    assert profiles_lock.main([], tmp_path) == 0
    return tmp_path


def test_a_new_version_is_added_to_the_lock_and_the_old_entry_stays(published: Path):
    before = profiles_lock.locked(published)
    (published / "lab" / "2.yaml").write_text("a: 2\n")
    assert profiles_lock.main(["--check"], published) == 1
    assert profiles_lock.main([], published) == 0
    assert profiles_lock.locked(published).items() > before.items()


def test_an_edited_version_is_refused_and_the_lock_stays(published: Path, capsys: pytest.CaptureFixture[str]):
    before = profiles_lock.locked(published)
    (published / "lab" / "1.yaml").write_text("a: 2\n")
    assert profiles_lock.main([], published) == 1
    assert profiles_lock.main(["--check"], published) == 1
    assert "lab/1: a published profile version was edited; add a new version" in capsys.readouterr().err
    assert profiles_lock.locked(published) == before
    with pytest.raises(ValueError, match="lab/1"):
        profiles_lock.write(published)


def test_a_removed_version_is_refused(published: Path, capsys: pytest.CaptureFixture[str]):
    (published / "lab" / "1.yaml").unlink()
    assert profiles_lock.main([], published) == 1
    assert "lab/1: a published profile version was removed" in capsys.readouterr().err


def test_generated_files_are_up_to_date():
    assert generate_profiles.main(["--check"]) == 0


def test_generating_twice_gives_the_same_text():
    assert generate_profiles.outputs() == generate_profiles.outputs()


def test_a_stale_file_fails_the_check_and_is_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name in ("SCHEMA", "PAGE"):
        monkeypatch.setattr(generate_profiles, name, tmp_path / "sub" / name)
    monkeypatch.setattr(generate_profiles, "ROOT", tmp_path)
    assert generate_profiles.main(["--check"]) == 1
    assert "is out of date" in capsys.readouterr().err
    assert generate_profiles.main([]) == 0
    assert generate_profiles.main(["--check"]) == 0


def test_the_schema_is_a_schema():
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_shipped_file_satisfies_the_schema(path: Path):
    assert errors(yaml.safe_load(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "change",
    [
        {"colour": "red"},
        {"channel": "beta"},
        {"version": 1},
        {"extends": "b300"},
        {"hardware": {"vendor": "intel"}},
        {"hardware": {"tolerations": [{"operator": "Exists"}]}},
        {"provenance": {"memory.shmGib": {"kind": "derived"}}},
    ],
)
def test_the_schema_refuses_mistakes_in_an_extending_file(change: dict[str, Any]):
    mi355x = yaml.safe_load((profiles_lock.PROFILES / "mi355x" / "1.yaml").read_text(encoding="utf-8"))
    assert errors({**mi355x, **change})


def test_the_schema_lets_an_extending_file_remove_a_value():
    mi355x = yaml.safe_load((profiles_lock.PROFILES / "mi355x" / "1.yaml").read_text(encoding="utf-8"))
    assert errors({**mi355x, "engine": {"args": {"load-format": None}}, "disaggregation": None}) == []


def test_the_schema_wants_a_complete_file_without_a_base():
    b300 = yaml.safe_load((profiles_lock.PROFILES / "b300" / "1.yaml").read_text(encoding="utf-8"))
    del b300["memory"]["shmGib"]
    assert errors(b300) == ["'shmGib' is a required property"]


def errors(document: dict[str, Any]) -> list[str]:
    return [error.message for error in Draft202012Validator(SCHEMA).iter_errors(document)]
