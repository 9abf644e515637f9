from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kimi_k3_operator.errors import KimiK3Error, ProfileError
from kimi_k3_operator.profiles.catalog import Catalog, packaged_directory
from kimi_k3_operator.profiles.documents import leaves, merge, nearest

OURS = {"source": "our own benchmark", "kind": "derived"}


def overlay(**changes: Any) -> dict[str, Any]:
    """A small profile on top of b300/1; `changes` replace top-level keys."""
    base = {
        "extends": "b300/1",
        "name": "b300-lab",
        "version": "1",
        "channel": "stable",
        "summary": "Our rack",
        "engine": {"args": {"gpu-memory-utilization": 0.85}},
        "provenance": {"engine.args.gpu-memory-utilization": OURS},
    }
    return {key: value for key, value in (base | changes).items() if value is not None}


def write(directory: Path, *documents: dict[str, Any]) -> Path:
    for document in documents:
        path = directory / document["name"] / f"{document['version']}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(document, sort_keys=False))
    return directory


def message(directory: Path) -> str:
    with pytest.raises(ProfileError) as caught:
        Catalog.load(directory)
    return str(caught.value)


def test_a_directory_adds_a_profile_that_extends_a_packaged_one(tmp_path: Path):
    catalog = Catalog.load(write(tmp_path, overlay()))
    mine, base = catalog.get("b300-lab", "1"), catalog.get("b300", "1")
    assert mine.engine.args == {**base.engine.args, "gpu-memory-utilization": 0.85}
    assert mine.hardware == base.hardware
    assert mine.provenance["engine.args.gpu-memory-utilization"].source == "our own benchmark"
    assert "b300-lab" not in Catalog.load().names()


def test_a_directory_adds_a_version_and_the_newest_stable_one_is_found(tmp_path: Path):
    added = [overlay(name="b300", version=v, channel=c) for v, c in (("2", "stable"), ("10", "candidate"))]
    catalog = Catalog.load(write(tmp_path, *added))
    assert catalog.versions("b300") == ("1", "2", "10")
    assert catalog.newest_stable("b300").version == "2"


def test_a_packaged_version_cannot_be_replaced(tmp_path: Path):
    text = message(write(tmp_path, overlay(name="b300", version="1", extends="gb300/1")))
    assert "b300/1 exists already" in text
    assert "add a new version" in text


def test_two_directories_cannot_state_the_same_version(tmp_path: Path):
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
        write(directory, overlay())
    with pytest.raises(ProfileError, match="b300-lab/1 exists already"):
        Catalog.load(first, second)


def test_without_the_packaged_profiles_only_the_directory_counts(tmp_path: Path):
    assert Catalog.load(tmp_path, packaged=False).names() == ()


def test_hidden_entries_of_a_mounted_volume_are_skipped(tmp_path: Path):
    write(tmp_path, overlay())
    (tmp_path / "..data").symlink_to(tmp_path / "b300-lab")
    assert "b300-lab" in Catalog.load(tmp_path).names()


def test_a_missing_directory_is_named(tmp_path: Path):
    assert "no such directory of profiles" in message(tmp_path / "absent")


def test_null_removes_what_the_base_states_and_its_source(tmp_path: Path):
    changes = {"engine": {"args": {"max-cudagraph-capture-size": None}}, "provenance": {}}
    profile = Catalog.load(write(tmp_path, overlay(**changes))).get("b300-lab", "1")
    assert "max-cudagraph-capture-size" not in profile.engine.args
    assert "engine.args.max-cudagraph-capture-size" not in profile.provenance


def test_an_inherited_source_is_carried_over_when_the_engine_changes(tmp_path: Path):
    changes = {"engine": {"version": "0.33.0", "image": {"reference": "registry.internal/vllm:0.33.0"}}}
    document = overlay(**changes, provenance={"engine.version": OURS, "engine.image": OURS})
    profile = Catalog.load(write(tmp_path, document)).get("b300-lab", "1")
    assert profile.provenance["engine.env.VLLM_USE_RUST_FRONTEND"].carried_over
    assert not Catalog.load().get("b300", "1").provenance["engine.env.VLLM_USE_RUST_FRONTEND"].carried_over


def test_a_value_set_over_a_base_needs_a_source_of_its_own(tmp_path: Path):
    text = message(write(tmp_path, overlay(provenance={})))
    missing = "no source for engine.args.gpu-memory-utilization, which this file sets itself"
    assert text == f"b300-lab/1.yaml: field provenance: {missing}"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"extends": "b400/1"}, "b300-lab/1.yaml: field extends: there is no profile 'b400/1' (known: b300/1,"),
        ({"extends": "b300-lab/1"}, "b300-lab/1.yaml: field extends: the chain b300-lab/1 -> b300-lab/1 never ends"),
        ({"colour": "red"}, "field provenance: no source for colour"),
        (
            {"colour": "red", "engine": None, "provenance": {"colour": OURS}},
            "b300-lab/1.yaml: field colour: there is no such field",
        ),
        ({"channel": "beta"}, "b300-lab/1.yaml: field channel: input should be 'stable' or 'candidate'"),
        ({"summary": None, "extends": None, "engine": None}, "b300-lab/1.yaml: field summary: is required"),
        (
            {"engine": {"args": {"max-num-batched-token": 1}}, "provenance": {"engine.args": OURS}},
            "field engine.args.max-num-batched-token: vLLM 0.30.0 does not know the flag --max-num-batched-token; "
            "did you mean max-num-batched-tokens",
        ),
        (
            {"engine": {"args": {"tool-strict-level": "auto"}}, "provenance": {"engine.args": OURS}},
            "field engine.args.tool-strict-level: vLLM 0.30.0 does not know the flag --tool-strict-level",
        ),
        (
            {"engine": {"args": {"--max-num-seqs": 1}}, "provenance": {"engine.args": OURS}},
            "field engine.args.--max-num-seqs: write the flag without dashes in front",
        ),
        (
            {"engine": {"args": {"port": 80}}, "provenance": {"engine.args": OURS}},
            "field engine.args.port: the operator sets this flag itself",
        ),
        (
            {"engine": {"args": {"stream-interval": [1]}}, "provenance": {"engine.args": OURS}},
            "field engine.args.stream-interval: expected text, a number, true, false or a mapping",
        ),
        (
            {"engine": {"env": {"VLLM_ROCM_USE_AITER_MOE_SITUV2": "a8w4"}}, "provenance": {"engine.env": OURS}},
            "field engine.env.VLLM_ROCM_USE_AITER_MOE_SITUV2: vLLM 0.30.0 does not know the variable",
        ),
        (
            {"engine": {"env": {"VLLM_ENGINE_READY_TIMEOUT_S": "1"}}, "provenance": {"engine.env": OURS}},
            "field engine.env.VLLM_ENGINE_READY_TIMEOUT_S: the operator sets this variable itself",
        ),
        (
            {"engine": {"version": "0.27.1"}, "provenance": {"engine.version": OURS}},
            "field engine.version: vLLM 0.27.1 is not supported",
        ),
        (
            {"engine": {"args": {"max-num-batched-tokens": None}}, "provenance": {}},
            "field bands.0.args: neither the band nor engine.args states max-num-batched-tokens",
        ),
        (
            {"speculation": {"explicitTokens": 8}, "engine": None, "provenance": {"speculation.explicitTokens": OURS}},
            "field speculation.explicitTokens: 8 is not between 1 and 7, the limit of draft Inferact/Kimi-K3-DSpark",
        ),
        (
            {"disaggregationRefusal": "No.", "engine": None, "provenance": {"disaggregationRefusal": OURS}},
            "field disaggregation: state either disaggregation or disaggregationRefusal",
        ),
        (
            {"hardware": {"nodesPerReplica": 2}, "engine": None, "provenance": {"hardware.nodesPerReplica": OURS}},
            "field hardware.domainLabels: needed exactly when a replica spans several nodes",
        ),
        (
            {"hardware": {"nodeSelection": [[]]}, "engine": None, "provenance": {"hardware.nodeSelection": OURS}},
            "field hardware.nodeSelection.0: an empty alternative would match every node",
        ),
        (
            {"provenance": {"engine.args": OURS, "engine.arguments": OURS}},
            "field provenance.engine.arguments: the profile has no such value",
        ),
        (
            {"provenance": {"engine.args": {"source": "a run", "kind": "measured"}}},
            "a measured value names the engine build it was measured on",
        ),
        (
            {"provenance": {"engine.args": {"source": "a run", "kind": "measured", "engine": "0.29.0"}}},
            "carriedOver is true exactly when engine differs from 0.30.0",
        ),
    ],
)
def test_a_mistake_is_one_sentence_that_names_file_and_field(tmp_path: Path, changes: dict[str, Any], expected: str):
    assert expected in message(write(tmp_path, overlay(**changes)))


def test_bands_have_to_ascend(tmp_path: Path):
    bands = [{"maxConcurrency": c, "args": {"max-num-seqs": 8}} for c in (8, 8)]
    document = overlay(bands=bands, engine=None, provenance={"bands.0": OURS, "bands.1": OURS})
    assert "field bands: maxConcurrency must rise from band to band, got [8, 8]" in message(write(tmp_path, document))


def test_the_file_name_and_the_name_inside_agree(tmp_path: Path):
    write(tmp_path, overlay())
    (tmp_path / "b300-lab").rename(tmp_path / "other")
    assert "other/1.yaml: field name: the file says b300-lab/1" in message(tmp_path)


def test_every_wrong_file_is_reported_at_once(tmp_path: Path):
    text = message(write(tmp_path, overlay(channel="beta"), overlay(name="b300-pit", colour="red")))
    assert [line.split(":")[0] for line in text.splitlines()] == ["b300-lab/1.yaml", "b300-pit/1.yaml"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\nname: b\n", "the key 'name' appears twice"),
        ("- a\n", "a profile is a YAML mapping"),
        ("a: [\n", "not readable as YAML"),
    ],
)
def test_a_file_that_is_no_clean_mapping(tmp_path: Path, text: str, expected: str):
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "1.yaml").write_text(text)
    found = message(tmp_path)
    assert found.startswith("lab/1.yaml: ")
    assert expected in found


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("b30", "1", "there is no profile b30 (known: b300, gb300, mi350x, mi355x); did you mean b300"),
        ("b300", "9", "profile b300 has no version 9 (known: 1)"),
    ],
)
def test_asking_for_what_does_not_exist(name: str, version: str, expected: str):
    with pytest.raises(KimiK3Error) as caught:
        Catalog.load().get(name, version)
    assert str(caught.value) == expected


def test_a_profile_with_candidates_alone_has_no_newest_stable_version(tmp_path: Path):
    catalog = Catalog.load(write(tmp_path, overlay(channel="candidate")))
    with pytest.raises(ProfileError, match=r"profile b300-lab has only candidate versions \(1\)"):
        catalog.newest_stable("b300-lab")


def test_mi355x_differs_from_mi350x_in_its_nodes_and_sources_alone():
    catalog = Catalog.load()
    one, other = catalog.get("mi350x", "1"), catalog.get("mi355x", "1")
    skipped = {"name", "summary", "hardware", "provenance"}
    assert one.model_dump(exclude=skipped) == other.model_dump(exclude=skipped)
    assert one.hardware.node_selection != other.hardware.node_selection


def test_no_mi350x_tuning_claims_to_be_measured_on_mi350x():
    sources = Catalog.load().get("mi350x", "1").provenance
    assert {path for path, source in sources.items() if source.kind == "measured"} == {
        "engine.env.VLLM_USE_RUST_FRONTEND"
    }


@pytest.mark.parametrize("name", Catalog.load().names())
def test_every_value_has_a_source(name: str):
    profile = Catalog.load().get(name, "1")
    document = profile.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert [path for path in leaves(document) if nearest(path, profile.provenance) is None] == []


def test_a_single_segment_covers_no_subtree():
    assert nearest("engine.args.max-num-seqs", {"engine": 1}) is None
    assert nearest("engine.args.max-num-seqs", {"engine.args": 1}) == "engine.args"
    assert nearest("disaggregationRefusal", {"disaggregationRefusal": 1}) == "disaggregationRefusal"


def test_merging_changes_neither_side():
    base: dict[str, Any] = {"a": {"b": 1, "c": [1]}, "d": 1}
    override: dict[str, Any] = {"a": {"b": 2, "c": [2]}, "d": None, "e": {"f": None, "g": 1}}
    assert merge(base, override) == {"a": {"b": 2, "c": [2]}, "e": {"g": 1}}
    assert base == {"a": {"b": 1, "c": [1]}, "d": 1}


def test_profiles_lie_in_the_checkout_or_the_wheel():
    assert (packaged_directory() / "b300" / "1.yaml").is_file()
