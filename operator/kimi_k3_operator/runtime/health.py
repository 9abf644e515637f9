"""`/livez`, `/readyz` and `/metrics`, served from a thread so that a blocked event loop cannot answer for itself."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from kimi_k3_operator.metrics import REGISTRY

LOOP_SECONDS = 30.0
WATCH_SECONDS = 180.0
"""The planning Lease changes every few seconds, so its watch must say something well within this."""


class Pulse:
    """When the event loop, the watches and the API server last showed life; seconds of the monotonic clock."""

    def __init__(self) -> None:
        now = time.monotonic()
        self.loop = self.watch = now
        self.lease = float("-inf")
        self.ready = False
        self.standing = ""

    def dead(self, now: float) -> str | None:
        """Why the process should be restarted; None while it lives.

        A silent watch counts only while the API server answers: an outage is no reason to restart.
        """
        if now - self.loop > LOOP_SECONDS:
            return f"the event loop has been blocked for {now - self.loop:.0f} s"
        if now - self.lease < LOOP_SECONDS and now - self.watch > WATCH_SECONDS:
            return f"no watch has said anything for {now - self.watch:.0f} s"
        return None


def serve(pulse: Pulse, address: tuple[str, int]) -> ThreadingHTTPServer:
    """Start answering; the caller shuts the server down."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, kind, body = self._answer()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _answer(self) -> tuple[int, str, bytes]:
            if self.path == "/metrics":
                return 200, CONTENT_TYPE_LATEST, generate_latest(REGISTRY)
            if self.path == "/livez":
                reason = pulse.dead(time.monotonic())
                return (503, "text/plain", reason.encode()) if reason else (200, "text/plain", b"ok")
            if self.path == "/readyz":
                words = (pulse.standing or "ok").encode()
                return (200, "text/plain", words) if pulse.ready else (503, "text/plain", b"watches are being filled")
            return 404, "text/plain", b"try /livez, /readyz or /metrics"

        def log_message(self, format: str, *args: object) -> None:
            """Probes are not news."""

    server = ThreadingHTTPServer(address, Answer)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server
