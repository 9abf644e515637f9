from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def default_event_loop() -> Iterator[None]:
    """Closes at the end the main thread's default loop, which pytest-asyncio would make and leave to the collector."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
