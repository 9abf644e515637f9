"""What the README and the design pages say can be done, looked up or read is really there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.factories import planner

from kimi_k3_operator import __version__
from kimi_k3_operator.api.parse import Deployment, parse_deployment
from kimi_k3_operator.api.v1alpha1 import Rollout
from kimi_k3_operator.cli.main import app, profiles_app
from kimi_k3_operator.plan.conditions import Facts, conditions
from kimi_k3_operator.plan.routing import RoutingPlan
from kimi_k3_operator.plan.unserved import unserved
from kimi_k3_operator.profiles.engine import EngineConfig
from kimi_k3_operator.runtime.config import parse_config

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DESIGN = sorted((ROOT / "docs" / "design").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "docs" / "known-limitations.md", *DESIGN]
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
FOLDERS = {"charts", "crds", "docs", "gitops", "operator", "profiles", "requirements", "samples", "tests", "tools"}
FILE_ENDINGS = (".md", ".mod", ".py", ".yaml")


def section(title: str) -> str:
    """The text below a heading of the README, up to the next one of any level."""
    return README.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def code(text: str) -> list[str]:
    """Code blocks, and code spans of the rest."""
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return blocks + re.findall(r"`([^`\n]+)`", rest)


def first_column(text: str) -> list[str]:
    """The code spans in the first cells of a table's rows."""
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return [span for row in rows for span in re.findall(r"`([^`]+)`", row.split("|")[1])]


def paths(text: str) -> list[str]:
    """Code spans that name a file or folder of the repository."""
    spans = [span for span in code(text) if re.fullmatch(r"[\w.-]+(/[\w.-]*)+", span)]
    return [span for span in spans if span.split("/")[0] in FOLDERS or span.endswith(FILE_ENDINGS)]


def slug(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")


def sample() -> dict[str, Any]:
    """The resource that the README shows."""
    return yaml.safe_load(re.search(r"```yaml\n(apiVersion.*?)```", README, re.DOTALL)[1])  # type: ignore[index]


def test_the_resource_shown_is_the_heterogeneous_sample():
    assert sample() == yaml.safe_load((ROOT / "samples" / "heterogeneous.yaml").read_text(encoding="utf-8"))


def test_the_resource_shown_is_accepted():
    deployment = parse_deployment(sample())
    assert isinstance(deployment, Deployment)
    assert unserved(deployment.spec) == ()


def test_the_changed_flags_shown_are_accepted():
    changed = yaml.safe_load(re.search(r"```yaml\n(.*?)```", section("Change a flag"), re.DOTALL)[1])  # type: ignore[index]
    body = sample()
    body["spec"]["pools"][0]["overrides"] = changed["pools"][0]["overrides"]
    deployment = parse_deployment(body)
    assert isinstance(deployment, Deployment)
    engine = planner().engines(deployment, ())[0]
    assert isinstance(engine, EngineConfig)
    assert engine.args["max-model-len"] == "262144"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_named_exists(page: Path):
    named = {
        name
        for text in code(page.read_text(encoding="utf-8"))
        for name in re.findall(r"\bmake (?:-s )?([a-z-]+)", text)
    }
    assert named <= TARGETS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page: Path):
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith("https://"):
            continue
        target, _, anchor = link.partition("#")
        path = page.parent / target if target else page
        assert path.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(slug, headings), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_named_exists(page: Path):
    assert [name for name in paths(page.read_text(encoding="utf-8")) if not (ROOT / name).exists()] == []


def test_the_path_check_sees_the_paths_of_the_readme():
    assert {"operator/kimi_k3_operator/plan/rollout.py", "tests/harness/"} <= set(paths(README))


def test_the_table_of_conditions_names_exactly_those_that_there_are():
    entrance = RoutingPlan((), "", (), open_to_all=False)
    known = [verdict.type for verdict in conditions(Facts((), (), (), Rollout(), False, "", (), routing=entrance))]
    assert first_column(section("Read conditions")) == known


def test_the_table_of_refused_fields_names_exactly_those_that_are_refused():
    body = sample()
    body["spec"] |= {"routing": {"pooling": "PerPool", "gateway": {"name": "g"}}, "rollout": {"updates": "Automatic"}}
    body["spec"]["verification"] = {"tier": "Wire", "profile": "moonshot"}
    body["spec"]["placement"] = {"mode": "Kueue", "queueName": "gpus"}
    pool = body["spec"]["pools"][0]
    del pool["replicas"]
    pool["disaggregation"] = {"prefill": {"replicas": 1}, "decode": {"replicas": 1}}
    deployment = parse_deployment(body)
    assert isinstance(deployment, Deployment)
    refused = {refusal.field.removeprefix("spec.").replace("[b300]", "[]") for refusal in unserved(deployment.spec)}
    shown = {field.removeprefix("spec.").split(":")[0] for field in first_column(section("What you get"))}
    assert {field.replace("placement.mode", "placement") for field in shown - {"placement.queueName"}} == refused


def test_the_commands_named_are_those_of_the_cli():
    line = next(line for line in re.split(r"\n\* ", section("What you get")) if "`kimi-k3`" in line)
    named = set(re.findall(r"`([^`]+)`", line.split("\n\n")[0])) - {"kimi-k3"}
    commands = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    nested = {f"profiles {command.name}" for command in profiles_app.registered_commands}
    assert named == commands | nested


def test_the_operator_takes_the_flags_shown():
    line = re.search(r"-m kimi_k3_operator (.*?)(?:\s+#.*)?$", section("A first session"), re.MULTILINE)
    assert line is not None
    assert parse_config(shlex.split(line[1]), {}).listen == ("127.0.0.1", 8080)


def test_the_readme_and_the_changelog_are_about_this_version():
    assert f"This is version {__version__}." in README
    assert f"\n## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_index_lists_every_design_page():
    index = (ROOT / "docs" / "design" / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((\d{4}-[a-z-]+\.md)\)", index) == [page.name for page in DESIGN if page.name != "README.md"]
