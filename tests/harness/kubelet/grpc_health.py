"""`grpc.health.v1.Health/Check` over plain HTTP/2, as far as a probe needs it.

The answer's headers are not decoded: a serving answer is a message whose first field is 1, and an error comes without a
message.
"""

from __future__ import annotations

import asyncio
import contextlib

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY = 0, 1, 3, 4, 6, 7
END_STREAM, END_HEADERS, PADDED = 1, 4, 8
ACKNOWLEDGED = 1
SERVING = 1
NAMES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _text(value: str) -> bytes:
    return bytes([len(value)]) + value.encode()


def _request(authority: str, service: str) -> bytes:
    """Headers by the static table of RFC 7541 with literal values (each shorter than 127 bytes), then the message."""
    headers = b"\x83\x86" + b"\x04" + _text("/grpc.health.v1.Health/Check") + b"\x01" + _text(authority)
    headers += b"\x0f\x10" + _text("application/grpc") + b"\x00" + _text("te") + _text("trailers")
    message = b"\x0a" + _text(service) if service else b""
    body = b"\x00" + len(message).to_bytes(4, "big") + message
    return frame(HEADERS, END_HEADERS, 1, headers) + frame(DATA, END_STREAM, 1, body)


async def check(host: str, port: int, service: str = "") -> str | None:
    """None when the service is SERVING, else what it is. Raises OSError."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(PREFACE + frame(SETTINGS, 0, 0) + _request(f"{host}:{port}", service))
        await writer.drain()
        return await _answer(reader, writer)
    except asyncio.IncompleteReadError:
        return "the server closed the connection"
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str | None:
    body = b""
    while True:
        head = await reader.readexactly(9)
        payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
        kind, flags = head[3], head[4]
        if kind == SETTINGS and not flags & ACKNOWLEDGED:
            writer.write(frame(SETTINGS, ACKNOWLEDGED, 0))
        elif kind == PING and not flags & ACKNOWLEDGED:
            writer.write(frame(PING, ACKNOWLEDGED, 0, payload))
        elif kind in (RESET, GO_AWAY):
            return "the server refused the call"
        elif kind == DATA:
            body += payload[1 : len(payload) - payload[0]] if flags & PADDED else payload
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            return _status(body)


def _status(body: bytes) -> str | None:
    if len(body) < 5:
        return "the service does not know grpc.health.v1 or the name asked for"
    message = body[5:]
    status = message[1] if len(message) >= 2 and message[0] == 0x08 else 0
    return None if status == SERVING else f"status {NAMES.get(status, status)}"
