"""Start and stop of an operator process, in a cluster or outside of one."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time

import httpx
import kopf
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config

from kimi_k3_operator import __version__
from kimi_k3_operator.api import labels
from kimi_k3_operator.apply.kube import Kube
from kimi_k3_operator.plan.engine import Planner
from kimi_k3_operator.profiles.catalog import Catalog
from kimi_k3_operator.profiles.flags import FlagTable
from kimi_k3_operator.runtime.app import App
from kimi_k3_operator.runtime.config import Config, parse_config
from kimi_k3_operator.runtime.handlers import build_registry, build_settings
from kimi_k3_operator.runtime.health import Pulse, serve
from kimi_k3_operator.runtime.logs import set_up_logs

log = logging.getLogger(__name__)


def main() -> None:
    """Entry point of `python -m kimi_k3_operator`."""
    config = parse_config(sys.argv[1:], os.environ)
    set_up_logs(config.log_level, config.log_format)
    asyncio.run(run(config))


async def run(config: Config) -> None:
    """Until SIGTERM or SIGINT (kopf handles both). A fatal error ends the process with a traceback and code 1."""
    planner = Planner(Catalog.load(*config.profiles), FlagTable.load())
    pulse = Pulse()
    server = serve(pulse, config.listen)
    try:
        await _load_credentials()
        client = kubernetes_client.ApiClient()
        client.user_agent = f"{labels.OPERATOR}/{__version__}"
        async with Kube(client) as api, httpx.AsyncClient(trust_env=False) as engines:
            await _with_helpers(App(config, api, planner, pulse, engines))
    finally:
        server.shutdown()


async def _with_helpers(app: App) -> None:
    helpers = [asyncio.create_task(app.lease.run()), asyncio.create_task(_beat(app))]
    try:
        await _watch(app)
    finally:
        await app.close()
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)


async def _watch(app: App) -> None:
    """Run kopf until it is told to stop; start it again when a watch fails for good.

    kopf gives up altogether on a 404 of a watch, which an API gives for a moment when it is removed or installed, and
    it can overlook an API that was installed. Everything is listed anew then; passes over an unchanged world write
    nothing.
    """
    wait = 1.0
    while True:
        began = time.monotonic()
        try:
            await app.before_watches()
            await kopf.operator(
                registry=build_registry(app),
                settings=build_settings(),
                clusterwide=True,
                standalone=True,
                stop_flag=app.rewatch,
            )
            if not app.rewatch.is_set():
                return
            wait = 0.0
        except kopf.LoginError:
            raise
        except Exception as error:  # noqa: BLE001 - its own hierarchy is private, and any end of its watches is the same
            wait = min(wait * 2, 30.0) if time.monotonic() - began < 60 else 1.0
            log.warning("the watches ended and start again in %.0f s: %s: %s", wait, type(error).__name__, error)
        app.pulse.ready = False
        await app.close()
        await asyncio.sleep(wait)


async def _beat(app: App) -> None:
    """The event loop's sign of life."""
    while True:
        app.pulse.loop = time.monotonic()
        app.pulse.lease = app.lease.answered
        app.pulse.standing = app.lease.standing.planned_by and f"stands by: {app.lease.standing.planned_by} plans"
        await asyncio.sleep(1.0)


async def _load_credentials() -> None:
    """In a cluster the pod's service account, else KUBECONFIG or the usual file."""
    if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
        kubernetes_config.load_incluster_config()  # type: ignore[no-untyped-call]
    else:
        await kubernetes_config.load_kube_config()  # type: ignore[no-untyped-call]
