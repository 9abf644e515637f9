"""Pytest fixtures for tests against a practice cluster. Registered by tests/conftest.py."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.harness import binaries
from tests.harness.kube import Kube, eventually
from tests.harness.practice import PracticeCluster


@pytest.fixture(scope="session")
def practice_cluster() -> Iterator[PracticeCluster]:
    """One practice cluster with both sites, per test process (pytest-xdist worker); skips where programs are not
    built.
    """
    reason = binaries.missing()
    if reason is not None:
        pytest.skip(reason)
    with PracticeCluster() as cluster:
        yield cluster


@pytest_asyncio.fixture
async def kube(practice_cluster: PracticeCluster) -> AsyncIterator[Kube]:
    """A client with all rights, user name `harness` in the audit log."""
    async with Kube(practice_cluster.kubeconfig_for("harness")) as client:
        yield client


@pytest_asyncio.fixture
async def namespace(kube: Kube) -> AsyncIterator[str]:
    """A fresh namespace in which pods can be created; its deletion is asked for afterwards, not waited for."""
    name = f"test-{secrets.token_hex(4)}"
    await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    await eventually(
        lambda: kube.find("v1", "serviceaccounts", "default", name),
        what="the namespace has its default service account",
    )
    yield name
    await kube.delete("v1", "namespaces", name)
