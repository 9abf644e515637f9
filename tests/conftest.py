"""Makes the fixtures of the practice cluster known to all tests."""

from __future__ import annotations

import asyncio

pytest_plugins = ("tests.harness.fixtures",)

asyncio.set_event_loop(None)  # else looptime makes a loop for each first test without one, and nobody closes it
