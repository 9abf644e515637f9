from __future__ import annotations

import http.server
import runpy
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError, URLError

import pytest

SCRIPTS = Path(__file__).parents[2] / "operator/kimi_k3_operator/compile/scripts"
wait_for_leader = runpy.run_path(str(SCRIPTS / "worker_stop.py"))["wait_for_leader"]
HERE = "127.0.0.1"


class Clock:
    """Time passes only in pauses. `closing` is closed after that many of them, `opening` reopens it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses = 0
        self.then = {}  # type: ignore[var-annotated]

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.pauses += 1
        self.then.pop(self.pauses, lambda: None)()


def listening(port: int = 0) -> socket.socket:
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind((HERE, port))
    found.listen(64)
    return found


def wait(port: int, longest: float, clock: Clock) -> float:
    """Seconds until the worker goes on to exit."""
    wait_for_leader(HERE, port, longest, clock.pause, clock)
    return clock.now


def test_a_worker_waits_until_its_leader_is_gone():
    clock = Clock()
    with listening() as leader:
        clock.then = {5: leader.close}
        assert wait(leader.getsockname()[1], 900, clock) == 5 * 2 + 2 * 2


def test_one_refused_connection_is_not_the_end():
    clock, again = Clock(), []
    with listening() as leader:
        port = leader.getsockname()[1]
        clock.then = {
            1: leader.close,
            2: lambda: again.append(listening(port)),
            4: lambda: again[0].close(),
        }
        assert wait(port, 900, clock) == 4 * 2 + 2 * 2


def test_a_worker_waits_no_longer_than_the_leaders_drain():
    clock = Clock()
    with listening() as leader:
        assert wait(leader.getsockname()[1], 20, clock) == 20


def test_a_worker_without_a_leader_ends_at_once():
    with listening() as leader:
        port = leader.getsockname()[1]
    assert wait(port, 900, Clock()) == 4


@pytest.fixture
def leader() -> Iterator[dict[str, int]]:
    """An HTTP server whose answer is `answer["status"]`; its port is in there as well."""
    answer = {"status": 200}

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer["status"] if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer((HERE, 0), Answer) as server:
        answer["port"] = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield answer
        server.shutdown()
        thread.join()


def ask(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LWS_LEADER_ADDRESS", HERE)
    monkeypatch.setenv("LEADER_PORT", str(port))
    runpy.run_path(str(SCRIPTS / "worker_ready.py"))


def test_a_worker_is_ready_while_its_leader_is_healthy(leader: dict[str, int], monkeypatch: pytest.MonkeyPatch):
    ask(leader["port"], monkeypatch)
    leader["status"] = 503
    with pytest.raises(HTTPError, match="503") as caught:
        ask(leader["port"], monkeypatch)
    caught.value.close()


def test_a_worker_without_a_leader_is_not_ready(monkeypatch: pytest.MonkeyPatch):
    with listening() as gone:
        port = gone.getsockname()[1]
    with pytest.raises(URLError, match="refused"):
        ask(port, monkeypatch)


def test_the_container_reads_its_leader_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    with listening() as gone:
        monkeypatch.setenv("LEADER_PORT", str(gone.getsockname()[1]))
    monkeypatch.setenv("LWS_LEADER_ADDRESS", HERE)
    monkeypatch.setenv("LONGEST", "900")
    clock = Clock()
    monkeypatch.setattr("time.sleep", clock.pause)
    runpy.run_path(str(SCRIPTS / "worker_stop.py"), run_name="__main__")
    assert clock.pauses == 2
