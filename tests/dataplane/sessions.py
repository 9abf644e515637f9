"""Chat sessions of many turns through an entrance, and what became of each turn."""

from __future__ import annotations

import asyncio
import random
import string
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import aiohttp

Identity = Literal["header", "prompt_cache_key", "none"]
BYTES_PER_TOKEN = 4


@dataclass(frozen=True)
class Turn:
    session: int
    number: int
    engine: str
    prompt_tokens: int
    cached_tokens: int


def words(generator: random.Random, tokens: int) -> str:
    return "".join(generator.choices(string.ascii_lowercase + " ", k=tokens * BYTES_PER_TOKEN))


async def run_sessions(
    url: str,
    *,
    sessions: int = 40,
    turns: int = 10,
    shared_tokens: int = 6000,
    turn_tokens: int = 1300,
    answer_tokens: int = 40,
    apart: float = 0.15,
    identity: Identity = "header",
    seed: int = 1,
) -> list[Turn]:
    """Each session resends its history with every turn. All begin with one system prompt of `shared_tokens`.

    Sessions start `apart` seconds after each other; `identity` is how a client names its session, if it does.
    """
    shared = words(random.Random(seed), shared_tokens)
    found: list[Turn] = []

    async def one(client: aiohttp.ClientSession, number: int) -> None:
        await asyncio.sleep(apart * number)
        generator = random.Random(f"{seed} {number}")
        messages: list[dict[str, str]] = [{"role": "system", "content": shared}]
        for turn in range(turns):
            messages.append({"role": "user", "content": words(generator, turn_tokens)})
            body: dict[str, Any] = {"model": "kimi-k3", "messages": messages, "max_tokens": answer_tokens}
            headers = {"x-session-id": f"session-{number}"} if identity == "header" else {}
            if identity == "prompt_cache_key":
                body["prompt_cache_key"] = f"cache-{number}"
            async with client.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
                said = await answer.json()
                engine = answer.headers["x-fake-engine"]
            usage = said["usage"]
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            found.append(Turn(number, turn, engine, usage["prompt_tokens"], cached))
            messages.append({"role": "assistant", "content": said["choices"][0]["message"]["content"] or ""})

    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout) as client:
        await asyncio.gather(*(one(client, number) for number in range(sessions)))
    return found


def warm_share(found: list[Turn]) -> float:
    """Of the turns after the first, how many were answered by the engine of the turn before."""
    by_session: dict[int, list[Turn]] = {}
    for turn in sorted(found, key=lambda turn: (turn.session, turn.number)):
        by_session.setdefault(turn.session, []).append(turn)
    pairs = [(a, b) for turns in by_session.values() for a, b in pairwise(turns)]
    return sum(a.engine == b.engine for a, b in pairs) / len(pairs)


def load_shares(found: list[Turn]) -> dict[str, float]:
    """Engine to its share of the requests."""
    return {engine: count / len(found) for engine, count in Counter(turn.engine for turn in found).items()}
