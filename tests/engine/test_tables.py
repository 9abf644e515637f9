"""The committed table says what the releases say."""

from __future__ import annotations

import pytest
from tools import engine_tables, engine_venv

from kimi_k3_operator.profiles.flags import FlagTable

from .lines import Ask

pytestmark = pytest.mark.engine

TABLE = FlagTable.load()


def test_the_table_is_up_to_date(ask: Ask):
    said = {version: ask(version, {"table": True}) for version in engine_venv.VERSIONS}
    assert engine_tables.FILE.read_text(encoding="utf-8") == engine_tables.render(said)


@pytest.mark.parametrize("version", TABLE.versions)
def test_the_table_answers_like_the_release(ask: Ask, version: str):
    said = ask(version, {"table": True})
    flags, env = said["flags"], said["env"]
    assert {name for name in TABLE.flags if TABLE.knows_flag(name, version)} == set(flags)
    assert {name for name in TABLE.flags if TABLE.knows_flag(f"no-{name}", version)} == {
        name for name, flag in flags.items() if flag["negatable"]
    }
    assert {name for name in TABLE.env if TABLE.knows_env(name, version)} == set(env)
    for name, flag in flags.items():
        assert TABLE.default_of(name, version) == flag.get("default"), name
