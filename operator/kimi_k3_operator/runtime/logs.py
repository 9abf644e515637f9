"""Logs: one JSON object a line, or plain text for a terminal."""

from __future__ import annotations

import logging
import sys

from pythonjsonlogger.json import JsonFormatter


class _Quiet(logging.Filter):
    """kopf reports each index and event handler that ran; with thousands of pods that is most of the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.INFO or not str(record.msg).startswith(("Handler ", "Indexer "))


def set_up_logs(level: str, form: str) -> None:
    """Configure the root logger."""
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        rename = {"asctime": "time", "levelname": "level", "name": "logger"}
        layout = "%(asctime)s %(levelname)s %(name)s %(message)s"
        handler.setFormatter(JsonFormatter(layout, rename_fields=rename, datefmt="%Y-%m-%dT%H:%M:%S%z"))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    handler.addFilter(_Quiet())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for noisy in ("aiohttp.access", "asyncio", "httpx", "kubernetes.aio.client.rest"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
