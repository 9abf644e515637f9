"""The table's notation: what the writer puts down, the reader understands."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from tools.engine_tables import FILE, FORMER, LIBRARIES, entry, render, span
from tools.engine_venv import VERSIONS

from kimi_k3_operator.profiles.flags import FlagTable

ONE, TWO, THREE = "0.28.0", "0.29.0", "0.30.0"


def releases(*said: dict[str, Any] | None) -> dict[str, Any]:
    """Releases that say this of the flag `x`; None: they do not have it."""
    return {
        version: {"flags": {} if one is None else {"x": one}, "env": {}}
        for version, one in zip((ONE, TWO, THREE), said, strict=True)
    }


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ((ONE, TWO, THREE), "all"),
        ((TWO, THREE), "0.29.0..0.30.0"),
        ((TWO,), "0.29.0"),
        ((THREE, ONE), "0.28.0, 0.30.0"),
    ],
)
def test_versions_are_written_as_ranges(known: tuple[str, ...], text: str):
    assert span(known, (ONE, TWO, THREE)) == text


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (({}, {}, {}), "x: {known: all}"),
        (({"default": 1}, {"default": 1}, {"default": 1}), "x: {known: all, default: 1}"),
        (({"default": "a"}, {"default": None}, {}), 'x: {known: all, defaults: {"0.28.0": "a", "0.29.0": null}}'),
        ((None, {"negatable": True}, None), "x: {known: 0.29.0, negatable: 0.29.0}"),
        (({}, None, {"negatable": True}), 'x: {known: "0.28.0, 0.30.0", negatable: 0.30.0}'),
    ],
)
def test_one_name_is_one_line(said: tuple[dict[str, Any] | None, ...], text: str):
    assert entry("x", "flags", releases(*said)) == text


def test_a_rendered_table_is_yaml_with_every_section():
    raw = yaml.safe_load(render(releases({"default": "off"}, {"default": "off"}, None)))
    assert raw == {
        "versions": [ONE, TWO, THREE],
        "flags": {"x": {"known": "0.28.0..0.29.0", "default": "off"}},
        "env": None,
        "libraries": LIBRARIES,
        "former": list(FORMER),
    }


def test_the_packaged_table_is_of_the_supported_releases():
    assert FlagTable.load().versions == VERSIONS
    assert yaml.safe_load(FILE.read_text(encoding="utf-8"))["libraries"] == LIBRARIES


def test_a_negation_is_known_only_where_the_parser_has_it():
    table = FlagTable.load()
    assert table.knows_flag("no-async-scheduling", "0.30.0")
    assert not table.knows_flag("no-max-num-seqs", "0.30.0")
    assert table.flag_versions("no-headless") == ()


def test_variables_of_the_system_are_not_the_engine_s_own():
    table = FlagTable.load()
    assert table.knows_env("CUDA_VISIBLE_DEVICES", "0.30.0")
    assert not table.owns_env("CUDA_VISIBLE_DEVICES")
