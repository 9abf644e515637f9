"""Stand-ins for CRDs that are not at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.external_crds import GROUPS, KINDS, REAL, definitions
from tests.harness.kube import Object


def test_without_the_real_files_all_kinds_are_stand_ins(tmp_path: Path):
    found = definitions(folder=tmp_path)
    assert [source for _, source in found] == ["stand-in"] * len(KINDS)


def test_an_unknown_group_is_refused():
    with pytest.raises(ValueError, match=r"example\.com"):
        definitions(["example.com"])


@pytest.mark.skipif(not REAL.is_dir(), reason="the real CRD files are not beside the repository")
def test_stand_ins_have_the_shape_of_the_real_ones(tmp_path: Path):
    real = {body["metadata"]["name"]: body for body, source in definitions(GROUPS) if source == "real"}
    assert real
    for body, _ in definitions(GROUPS, tmp_path):
        name = body["metadata"]["name"]
        assert shape(body) == shape(real[name]), name


def shape(crd: Object) -> list[object]:
    spec = crd["spec"]
    served = {one["name"]: (one["storage"], one.get("subresources") or {}) for one in spec["versions"] if one["served"]}
    return [spec["group"], spec["scope"], spec["names"]["kind"], spec["names"]["plural"], served]
