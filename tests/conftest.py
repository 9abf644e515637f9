"""Makes the fixtures of the practice cluster known to all tests."""

from __future__ import annotations

pytest_plugins = ("tests.harness.fixtures",)
