"""Fixtures of the tests that run the operator against a real control plane."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.controlplane.site import Site
from tests.harness.kube import Kube
from tests.harness.operator_process import OperatorProcess
from tests.harness.practice import PracticeCluster


@pytest.fixture(scope="session")
def operator_process(practice_cluster: PracticeCluster) -> Iterator[OperatorProcess]:
    """One operator for all tests; a test that stops it starts it again."""
    with OperatorProcess(practice_cluster) as process:
        yield process


@pytest_asyncio.fixture
async def site(
    practice_cluster: PracticeCluster, operator_process: OperatorProcess, kube: Kube, namespace: str
) -> AsyncIterator[Site]:
    """A namespace on a cluster whose GPUs are all free, with the operator running."""
    if not operator_process.running:
        operator_process.start()
    found = Site(practice_cluster, operator_process, kube, namespace)
    await found.until_empty()
    yield found
    await found.remove_all()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed test shows the end of the operator's log."""
    report = yield
    process = getattr(item, "funcargs", {}).get("operator_process")
    if report.failed and isinstance(process, OperatorProcess) and process.log.exists():
        lines = process.log.read_text(errors="replace").splitlines()[-60:]
        report.sections.append(("operator log", "\n".join(lines)))
    return report
