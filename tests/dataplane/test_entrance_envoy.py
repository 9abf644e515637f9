"""The entrance in a real Envoy, in front of a FakeEndpointPicker and engines that answer with what they were sent."""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from kimi_k3_operator.compile import envoy
from kimi_k3_operator.compile.entrance import KEY_HEADER, PickerAddress
from kimi_k3_operator.compile.envoy import INTERNAL_HEADERS, MAX_BUFFERED_BYTES, Ports
from tests.harness.endpoint_picker import DESTINATION, FakeEndpointPicker
from tests.harness.entrance import (
    HERE,
    EchoEngine,
    Entrance,
    envoy_binary,
    missing,
    mount_certificate,
    running_entrance,
    write_certificate,
    write_config,
)
from tests.harness.processes import free_ports
from tests.harness.session_key import reference, turns

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")
CHAT = "/v1/chat/completions"
SYSTEM = {"role": "system", "content": "You are a coding agent. " * 100}


@dataclass
class Site:
    """Two engines, a picker, an entrance and a client of it."""

    engines: list[EchoEngine]
    picker: FakeEndpointPicker
    entrance: Entrance
    client: httpx.Client

    def ask(self, body: Any, **headers: str) -> dict[str, Any]:
        """What the engine saw of a chat completion."""
        answer = self.client.post(
            CHAT, content=json.dumps(body), headers={"content-type": "application/json"} | headers
        )
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


@pytest.fixture(scope="module")
def back(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[EchoEngine], FakeEndpointPicker]]:
    folder = tmp_path_factory.mktemp("picker")
    write_certificate(folder, "picker")
    certificate = ((folder / "tls.key").read_bytes(), (folder / "tls.crt").read_bytes())
    port, health_port = free_ports(2)
    with EchoEngine() as one, EchoEngine() as two:
        endpoints = [one.address, two.address]
        with FakeEndpointPicker(endpoints, KEY_HEADER, certificate, port, health_port) as picker:
            yield [one, two], picker


def as_it_is(base: str, path: str) -> httpx.URL:
    """A URL whose path httpx does not tidy up."""
    return httpx.URL(base).copy_with(raw_path=path.encode())


def address(picker: FakeEndpointPicker) -> PickerAddress:
    return PickerAddress(HERE, picker.port, picker.health_port)


@pytest.fixture(scope="module")
def site(back: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    engines, picker = back
    with (
        running_entrance(tmp_path_factory.mktemp("plain"), address(picker)) as entrance,
        httpx.Client(base_url=entrance.url, timeout=60) as client,
    ):
        yield Site(engines, picker, entrance, client)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("api_keys", [False, True], ids=["open", "keys"])
def test_envoy_accepts_every_variant_without_a_warning(tmp_path: Path, api_keys: bool, tls: bool):
    config = write_config(tmp_path, PickerAddress("localhost"), Ports(), api_keys=api_keys, tls=tls)
    binary = str(envoy_binary())
    command = [binary, "--mode", "validate", "--config-path", str(config), "--log-level", "warning"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "eprecated" not in found.stderr


def test_forged_internal_headers_reach_neither_picker_nor_engine(site: Site):
    forged = dict.fromkeys([*INTERNAL_HEADERS, KEY_HEADER], "127.0.0.1:1")
    seen = site.ask({"messages": []}, **forged)["headers"]
    last = site.picker.picks[-1]
    assert not set(last.headers) & set(forged)
    assert {name: seen[name] for name in forged if name in seen} == {DESTINATION: last.endpoint}


@pytest.mark.parametrize(
    "path", ["/", "/metrics", "/health", "/v1x", "/V1/models", "/v1/../metrics", "/v1/%2e%2e/metrics"]
)
def test_only_v1_is_served(site: Site, path: str):
    picks = len(site.picker.picks)
    answer = site.client.get(as_it_is(site.entrance.url, path))
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["code"] == "not_found"
    assert len(site.picker.picks) == picks


def test_a_slash_in_disguise_is_refused(site: Site):
    assert site.client.get(as_it_is(site.entrance.url, "/v1%2f..%2fmetrics")).status_code == 400


def test_the_engine_gets_the_path_that_was_judged(site: Site):
    assert site.client.get(as_it_is(site.entrance.url, "/v1//./x/../models")).json()["path"] == "/v1/models"


def test_the_engine_sees_the_session_key_of_the_reference(site: Site):
    bodies: list[Any] = [
        {"messages": [SYSTEM, {"role": "user", "content": "ü"}]},
        {"messages": [SYSTEM], "user": "u1"},
        {"tools": [{"user": "no"}], "messages": [{"role": "user", "content": '"user": "no"'}], "prompt_cache_key": "c"},
        {"messages": [SYSTEM]},
        [1, 2],
    ]
    for body in bodies:
        seen = site.ask(body)["headers"].get(KEY_HEADER)
        assert seen == reference({}, json.dumps(body).encode())
        assert seen == site.picker.picks[-1].session
    assert site.ask({}, **{"x-session-id": "mine"})["headers"][KEY_HEADER] == reference({"x-session-id": "mine"}, None)


def test_a_conversation_stays_where_its_first_turn_went(site: Site):
    homes = []
    for session in range(6):
        first = [SYSTEM, {"role": "user", "content": f"task {session}"}]
        before = len(site.picker.picks)
        for messages in turns(first, 4):
            site.ask({"messages": messages})
        homes.append({pick.endpoint for pick in site.picker.picks[before:]})
    assert [len(home) for home in homes] == [1] * 6
    assert len(set.union(*homes)) == 2


async def test_fifty_long_bodies_at_once_arrive_whole(site: Site):
    bodies = [json.dumps({"messages": [{"role": "user", "content": f"{n} " + "word " * 240_000}]}) for n in range(50)]
    limits = httpx.Limits(max_connections=10)
    async with httpx.AsyncClient(base_url=site.entrance.url, timeout=120, limits=limits) as client:
        answers = await asyncio.gather(*(client.post(CHAT, content=body) for body in bodies))
    assert [answer.json()["sha256"] for answer in answers] == [hashlib.sha256(b.encode()).hexdigest() for b in bodies]


def test_a_body_of_20_mb_arrives_whole_and_has_a_key(site: Site):
    body = json.dumps({"messages": [SYSTEM, {"role": "user", "content": "word\n" * 3_400_000}], "user": "u"})
    seen = site.client.post(CHAT, content=body).json()
    assert len(body) > 20_000_000
    assert seen["sha256"] == hashlib.sha256(body.encode()).hexdigest()
    assert seen["headers"][KEY_HEADER] == reference({}, body.encode())


def test_a_body_of_unknown_length_arrives_whole_and_has_a_key(site: Site):
    body = json.dumps({"messages": [SYSTEM] * 500, "user": "u"}).encode()
    pieces = (body[at : at + 10_000] for at in range(0, len(body), 10_000))
    seen = site.client.post(CHAT, content=pieces, headers={"content-type": "application/json"}).json()
    assert seen["sha256"] == hashlib.sha256(body).hexdigest()
    assert seen["headers"][KEY_HEADER] == reference({}, body)


def test_a_body_too_long_to_be_held_passes_without_a_key(site: Site):
    size = MAX_BUFFERED_BYTES + 1_000_000
    seen = site.client.post(CHAT, content=b'{"user": "u", "x": "' + b"x" * size + b'"}').json()
    assert seen["bytes"] > size
    assert KEY_HEADER not in seen["headers"]


def test_a_stream_passes_event_by_event(site: Site):
    with site.client.stream("POST", CHAT, content=json.dumps({"user": "s", "stream": True})) as answer:
        engine = next(e for e in site.engines if e.address == site.picker.picks[-1].endpoint)
        lines = answer.iter_lines()
        for text in map(str, range(20)):
            engine.release(text)  # the next event is sent only after this one has been read here
            assert next(line for line in lines if line) == f"data: {text}"
        engine.finish()
        assert [line for line in lines if line] == []


def test_a_client_that_leaves_is_felt_by_engine_and_picker(site: Site):
    with site.client.stream("POST", CHAT, content=json.dumps({"user": "s2", "stream": True})) as answer:
        endpoint = site.picker.picks[-1].endpoint
        engine = next(e for e in site.engines if e.address == endpoint)
        engine.release("x")
        lines = answer.iter_lines()  # kept: httpx closes the answer with it
        assert next(lines) == "data: x"
        assert site.picker.load[endpoint].requests == 1
    assert engine.gone.wait(10)
    assert site.picker.settled()
    assert site.picker.load[endpoint].requests == 0


def test_a_client_gets_no_retry_even_if_it_asks(site: Site):
    wish = {"x-envoy-retry-on": "5xx", "x-envoy-max-retries": "3", "x-envoy-upstream-rq-timeout-ms": "1"}
    before = sum(len(engine.calls) for engine in site.engines)
    answer = site.client.post("/v1/fail", headers=wish)
    assert answer.status_code == 503
    assert answer.json() == {"error": {"message": "busy"}}
    assert sum(len(engine.calls) for engine in site.engines) == before + 1


def test_the_marker_of_the_picker_does_not_reach_clients(site: Site):
    answer = site.client.get("/v1/models")
    assert answer.status_code == 200
    assert "x-went-into-resp-headers" not in answer.headers


def test_a_refusal_of_the_picker_has_the_form_of_an_openai_error(site: Site):
    site.picker.refuse = (503, 'no "ready" endpoint')
    try:
        answer = site.client.post(CHAT, content="{}")
    finally:
        site.picker.refuse = None
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == 'no "ready" endpoint'
    assert answer.json()["error"]["type"] == "server_error"


def test_the_access_log_has_a_line_without_query_and_body(site: Site):
    site.client.post(CHAT + "?api_key=hidden-query", json={"user": "hidden-user"}, headers={"x-request-id": "line-1"})

    def line() -> dict[str, Any] | None:
        return next((one for one in site.entrance.requests() if one["request_id"] == "line-1"), None)

    deadline = time.monotonic() + 15  # Envoy writes its log once in a while
    while (found := line()) is None and time.monotonic() < deadline:
        httpx.get(f"{site.entrance.health_url}/ready")
    assert found is not None
    assert (found["path"], found["status"]) == (CHAT, 200)
    assert found["session"] == reference({}, b'{"user": "hidden-user"}')
    assert "hidden" not in site.entrance.process.log.read_text()


def test_the_health_port_shows_no_more_of_the_admin_interface(site: Site):
    assert httpx.get(f"{site.entrance.health_url}/ready").status_code == 200
    assert "envoy_http_downstream_rq" in httpx.get(f"{site.entrance.health_url}/stats/prometheus").text
    for path in ("/", "/config_dump", "/quitquitquit", "/stats/prometheus/../../config_dump"):
        assert httpx.post(as_it_is(site.entrance.health_url, path)).status_code == 404


def test_without_a_picker_there_is_an_error_and_no_answer(back: Any, tmp_path: Path):
    engines, _ = back
    port, health_port = free_ports(2)
    before = sum(len(engine.calls) for engine in engines)
    with running_entrance(tmp_path, PickerAddress(HERE, port, health_port)) as entrance:
        answer = httpx.post(entrance.url + CHAT, json={}, headers={DESTINATION: engines[0].address}, timeout=30)
    assert answer.status_code >= 500
    assert answer.json()["error"]["type"] == "server_error"
    assert sum(len(engine.calls) for engine in engines) == before


def test_an_old_connection_ends_between_answers_and_cuts_none(
    back: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    engines, picker = back
    monkeypatch.setattr(envoy, "CONNECTION_SECONDS", 0.2)
    with (
        running_entrance(tmp_path, address(picker)) as entrance,
        httpx.Client(base_url=entrance.url, timeout=30) as client,
    ):
        with client.stream("POST", CHAT, content=json.dumps({"user": "s3", "stream": True})) as answer:
            engine = next(e for e in engines if e.address == picker.picks[-1].endpoint)
            lines, end = answer.iter_lines(), time.monotonic() + 1.0
            while time.monotonic() < end:
                engine.release("x")
                assert next(line for line in lines if line) == "data: x"
            engine.finish()
            assert [line for line in lines if line] == []
        deadline = time.monotonic() + 10
        while (found := client.get("/v1/models")).headers.get("connection") != "close":
            assert found.status_code == 200
            assert time.monotonic() < deadline, "the connection took requests for ever"


def test_a_request_needs_one_of_the_keys_and_the_key_stays_here(back: Any, tmp_path: Path):
    _, picker = back
    with (
        running_entrance(tmp_path, address(picker), api_keys=("key-a", "key-b")) as entrance,
        httpx.Client(base_url=entrance.url, timeout=30) as client,
    ):
        for headers in ({}, {"authorization": "Bearer key-c"}, {"authorization": "Basic key-a"}):
            picks = len(picker.picks)
            answer = client.post(CHAT, json={"user": "u"}, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            error = answer.json()["error"]
            assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
            assert len(picker.picks) == picks
        for headers in ({"authorization": "Bearer key-a"}, {"x-api-key": "key-b"}):
            answer = client.post(CHAT, json={"user": "u"}, headers=headers)
            assert answer.status_code == 200
            assert "key-" not in str(answer.json()["headers"]).replace("session-key", "")
            assert not {"authorization", "x-api-key"} & set(picker.picks[-1].headers)
        assert httpx.get(f"{entrance.health_url}/ready").status_code == 200


def test_it_speaks_tls_with_the_mounted_certificate_and_takes_a_renewed_one(back: Any, tmp_path: Path):
    _, picker = back
    with running_entrance(tmp_path, address(picker), tls=True) as entrance:
        authority = ssl.create_default_context(cafile=str(tmp_path / "tls" / "tls.crt"))
        with httpx.Client(verify=authority, timeout=30) as client:
            assert client.post(entrance.url + CHAT, json={"user": "u"}).status_code == 200
        host, port = entrance.url.removeprefix("https://").split(":")
        old = ssl.get_server_certificate((host, int(port)))
        mount_certificate(tmp_path / "tls")
        deadline = time.monotonic() + 10
        while ssl.get_server_certificate((host, int(port))) == old:
            assert time.monotonic() < deadline, "the renewed certificate was not taken"
