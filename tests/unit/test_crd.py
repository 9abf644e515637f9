from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kimi_k3_operator.api.crd import crds, deployment_crd, pool_crd

DIRECTORY = Path(__file__).parents[2] / "crds"
BOTH = [pytest.param(crd, id=crd["spec"]["names"]["kind"]) for crd in crds()]


def schema(crd: dict[str, Any]) -> dict[str, Any]:
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def nodes(found: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, found
    for name, child in found.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(found.get(key), dict):
            yield from nodes(found[key], f"{path}[]")


@pytest.mark.parametrize("crd", BOTH)
def test_the_committed_file_is_the_generated_one(crd: dict[str, Any]):
    committed = yaml.safe_load((DIRECTORY / f"{crd['metadata']['name']}.yaml").read_text(encoding="utf-8"))
    assert committed == crd


@pytest.mark.parametrize("crd", BOTH)
def test_a_crd_has_one_version_a_status_and_a_bounded_size(crd: dict[str, Any]):
    assert len(crd["spec"]["versions"]) == 1
    assert crd["spec"]["conversion"] == {"strategy": "None"}
    assert "status" in crd["spec"]["versions"][0]["subresources"]
    assert len(yaml.safe_dump(crd)) < 200 * 1024


@pytest.mark.parametrize("crd", BOTH)
def test_every_string_list_and_map_is_bounded(crd: dict[str, Any]):
    for path, found in nodes(schema(crd)["properties"]["spec"], "spec"):
        if found.get("type") == "string":
            assert "maxLength" in found or "enum" in found, path
        if found.get("type") == "array":
            assert "maxItems" in found, path
            assert "x-kubernetes-list-type" in found, path
        if "additionalProperties" in found:
            assert "maxProperties" in found, path
        assert "nullable" not in found, path


def test_only_scalars_have_defaults():
    for path, found in nodes(schema(deployment_crd())["properties"]["spec"], "spec"):
        assert isinstance(found.get("default", 0), str | int | bool), path


def test_the_pool_is_scaled_through_its_subresource():
    subresources = pool_crd()["spec"]["versions"][0]["subresources"]
    assert subresources["scale"]["specReplicasPath"] == ".spec.replicas"
    assert "scale" not in deployment_crd()["spec"]["versions"][0]["subresources"]
    assert "default" not in schema(pool_crd())["properties"]["spec"]["properties"]["replicas"]


def test_the_name_is_checked_by_the_server():
    (rule,) = schema(deployment_crd())["x-kubernetes-validations"]
    assert "{0,38}" in rule["rule"]
    assert "40 characters" in rule["message"]


def test_columns_show_what_a_reader_looks_for():
    columns = deployment_crd()["spec"]["versions"][0]["additionalPrinterColumns"]
    shown = [column["name"] for column in columns if not column.get("priority")]
    assert shown == ["Ready", "Available", "Reason", "Replicas", "Hardware", "Age"]
