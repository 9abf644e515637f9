"""These tests ask vLLM's own parser, in the environment that tools/engine_venv.py prepares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache

import pytest
from tools import engine_venv

from .lines import Ask

FORCED = os.environ.get("KIMI_K3_ENGINE_TESTS") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without the environment the tests are skipped, or fail at their first question where the variable is set."""
    if FORCED or not engine_venv.missing():
        return
    for item in items:
        if item.get_closest_marker("engine"):
            item.add_marker(pytest.mark.skip(reason="vLLM is not prepared: python tools/engine_venv.py"))


@pytest.fixture(scope="session")
def ask() -> Iterator[Ask]:
    """Puts a request to a release; its process runs until the end of the session."""
    engine = cache(engine_venv.Engine)
    versions: set[str] = set()

    def put(version: str, request: dict[str, object]) -> dict[str, object]:
        versions.add(version)
        return engine(version).ask(request)

    yield put
    for version in versions:
        engine(version).close()
