"""What the session key costs: the scan of bodies of 0.1, 1.2 and 20 MB in LuaJIT, and of the worst bodies there are.

    python -m benchmarks.session_key

Milliseconds of one Envoy worker, median of 15. With `--envoy` also what a whole request takes through a real Envoy
with a FakeEndpointPicker: with the session in a header (the body passes as it comes), with a key that the scan finds at
once (the body is held), and with the key of the messages (the body is held and scanned).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness.session_key import LuaFilter

ROUNDS = 15
CODE = 'def f(x):\n    return "a\\tb" + x["k"]  # as agents send it: code in JSON, quotes and line ends escaped\n'


def conversation(size: int) -> bytes:
    """A coding agent's request of about `size` bytes: system prompt, task, then calls of tools and their results."""
    chance = random.Random(size)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a coding agent. " * 1000},
        {"role": "user", "content": "Please fix the failing test."},
    ]
    length = 25_000
    while length < size:
        text = CODE * chance.randint(5, 60)
        edit = {"name": "edit", "arguments": json.dumps({"new": text})}
        call = {"id": "call_1", "type": "function", "function": edit}
        turn = [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": text},
        ]
        messages += turn
        length += len(json.dumps(turn))
    return json.dumps({"model": "kimi-k3", "messages": messages, "stream": True, "temperature": 1}).encode()


def bodies() -> dict[str, bytes]:
    """What is measured, by name."""
    size = 20_000_000
    return {
        "conversation, 0.1 MB": conversation(100_000),
        "conversation, 1.2 MB": conversation(1_200_000),
        "conversation, 20 MB": conversation(size),
        "one user message, 20 MB": json.dumps({"messages": [{"role": "user", "content": "w " * 10_000_000}]}).encode(),
        "prompt of 2.5M token ids, 20 MB": json.dumps({"prompt": list(range(100_000)) * 25}).encode(),
        "hostile: quotes, 32 MB": b'{"a": "' + b'\\"' * (16 << 20) + b'"}',
        "hostile: backslashes, 32 MB": b'{"a": "' + b"\\" * (32 << 20) + b'"}',
        "hostile: objects, 32 MB": b'{"a": [' + b"{}," * (11 << 20) + b"0]}",
        "hostile: digits, 32 MB": b'{"a": [' + b"1," * (16 << 20) + b"0]}",
    }


def milliseconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    def once() -> float:
        start = time.perf_counter()
        work()
        return (time.perf_counter() - start) * 1000

    return statistics.median(once() for _ in range(rounds))


def scan() -> None:
    lua = LuaFilter()
    print(f"{'body':34} {'ms':>8}  key")
    for name, body in bodies().items():
        found = lua.of_body(body)
        print(f"{name:34} {milliseconds(lambda body=body: lua.of_body(body)):8.2f}  {(found or b'none').decode()}")


def through_envoy() -> None:
    import httpx
    from tests.harness.endpoint_picker import FakeEndpointPicker
    from tests.harness.entrance import HERE, EchoEngine, running_entrance, write_certificate
    from tests.harness.processes import free_ports

    from kimi_k3_operator.compile.entrance import KEY_HEADER, PickerAddress

    with tempfile.TemporaryDirectory() as name, EchoEngine() as engine:
        folder = Path(name)
        write_certificate(folder / "picker", "picker")
        pair = ((folder / "picker/tls.key").read_bytes(), (folder / "picker/tls.crt").read_bytes())
        port, health_port = free_ports(2)
        with (
            FakeEndpointPicker([engine.address], KEY_HEADER, pair, port, health_port),
            running_entrance(folder, PickerAddress(HERE, port, health_port)) as entrance,
            httpx.Client(base_url=entrance.url, timeout=120) as client,
        ):
            print(f"\n{'request through Envoy':34} {'header':>8} {'held':>8} {'scanned':>8}  ms")
            for what, body in list(bodies().items())[:3]:
                body = body.replace(b'"stream": true', b'"stream": null')

                def ask(body: bytes = body, **headers: str) -> None:
                    client.post("/v1/chat/completions", content=body, headers=headers).raise_for_status()

                for _ in range(3):
                    ask()
                early = b'{"prompt_cache_key": "s", ' + body[1:]
                named = milliseconds(lambda ask=ask: ask(**{"x-session-id": "s"}))
                held = milliseconds(lambda ask=ask, early=early: ask(early))
                print(f"{what:34} {named:8.2f} {held:8.2f} {milliseconds(ask):8.2f}")
            print(f"Envoy's memory: {entrance.process.memory() >> 20} MiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envoy", action="store_true")
    arguments = parser.parse_args()
    scan()
    if arguments.envoy:
        through_envoy()
