"""A client of one engine for tests: questions, scrapes and faults."""

from __future__ import annotations

import io
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

SAMPLE = re.compile(r"^([a-z_:]+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')

Json = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def message(self) -> Json:
        """The message of an answer in one piece."""
        found: Json = self.json["choices"][0]["message"]
        return found

    @property
    def usage(self) -> Json:
        found: Json = self.json["usage"]
        return found

    @property
    def cached(self) -> int:
        """Prompt tokens that came from a cache."""
        return int(self.usage["prompt_tokens_details"]["cached_tokens"])

    @property
    def events(self) -> list[str]:
        """The data of the server-sent events of a stream."""
        return [part.removeprefix("data: ") for part in self.text.split("\n\n") if part]

    @property
    def frames(self) -> list[Json]:
        """The JSON objects of a stream."""
        return [json.loads(one) for one in self.events if one != "[DONE]"]


class Scrape:
    """The samples of one `/metrics` text."""

    def __init__(self, text: str) -> None:
        self.samples = [
            (name, dict(LABEL.findall(labels or "")), float(value)) for name, labels, value in SAMPLE.findall(text)
        ]

    def __getitem__(self, name: str) -> float:
        """The sum over all label values; the prefix `vllm:` may be left out. Raises KeyError where there is none."""
        found = [value for sample, _, value in self.samples if sample in (name, f"vllm:{name}")]
        if not found:
            raise KeyError(name)
        return sum(found)

    def labels(self, name: str) -> Mapping[str, str]:
        return next(labels for sample, labels, _ in self.samples if sample in (name, f"vllm:{name}"))


class EngineClient:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self.url = url

    async def get(self, path: str) -> Reply:
        return await self._ask("GET", path, None)

    async def post(self, path: str, body: Any) -> Reply:
        return await self._ask("POST", path, body)

    async def chat(self, question: str | Sequence[Json], **fields: Any) -> Reply:
        messages = [{"role": "user", "content": question}] if isinstance(question, str) else list(question)
        return await self.post("/v1/chat/completions", {"model": "kimi-k3", "messages": messages, **fields})

    async def metrics(self) -> Scrape:
        return Scrape((await self.get("/metrics")).text)

    async def faults(self, *faults: Any) -> Reply:
        """Replace the faults that are on."""
        return await self.post("/fake/faults", {"faults": list(faults)})

    async def _ask(self, method: str, path: str, body: Any) -> Reply:
        data = None if body is None else io.BytesIO(json.dumps(body).encode())
        headers = {"Content-Type": "application/json"}
        async with self._session.request(method, self.url + path, data=data, headers=headers) as answer:
            return Reply(answer.status, dict(answer.headers), await answer.text())


@asynccontextmanager
async def client(url: str, *, seconds: float = 20.0) -> AsyncIterator[EngineClient]:
    """A client that gives up a request after so many seconds."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=seconds)) as session:
        yield EngineClient(session, url)
