"""The API of the fake engine: answers, counts, streams, tools, refusals."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.harness.engine import EngineSettings, FakeEngine, serving
from tests.harness.engine.client import EngineClient, client

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[EngineClient]:
    async with serving(FakeEngine(EngineSettings())) as url, client(url) as asker:
        yield asker


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is 17 + 25? Answer with the number alone.", "42"),
        ("Compute 1000-1", "999"),
        ("What is 6 x 7?", "42"),
    ],
)
async def test_sums_are_answered_right(engine: EngineClient, question: str, answer: str):
    assert (await engine.chat(question)).message["content"] == answer


async def test_other_questions_have_one_answer_each(engine: EngineClient):
    first, again = await engine.chat("Who are you?"), await engine.chat("Who are you?")
    other = await engine.chat("Who am I?")
    assert first.message["content"] == again.message["content"] != other.message["content"]


async def test_thinking_is_told_apart_from_the_answer(engine: EngineClient):
    low, most = [(await engine.chat("1 + 1", reasoning_effort=effort)).message for effort in ("low", "max")]
    assert low["content"] == most["content"] == "2"
    assert 0 < len(low["reasoning"]) < len(most["reasoning"])
    for off in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"thinking": False}}):
        assert (await engine.chat("1 + 1", **off)).message["reasoning"] is None


async def test_usage_is_exact(engine: EngineClient):
    short = (await engine.chat("1 + 1", reasoning_effort="none")).usage
    longer = (await engine.chat("1 + 1" + " " * 400, reasoning_effort="none")).usage
    assert longer["prompt_tokens"] - short["prompt_tokens"] == 100
    assert (short["completion_tokens"], short["total_tokens"]) == (2, short["prompt_tokens"] + 2)
    told = (await engine.post("/tokenize", {"messages": [{"role": "user", "content": "1 + 1"}]})).json
    with_thinking = (await engine.chat("1 + 1")).usage
    assert told["count"] == len(told["tokens"]) == with_thinking["prompt_tokens"]


@pytest.mark.parametrize("effort", ["none", "max"])
async def test_an_answer_of_n_tokens_has_n_tokens_and_the_end(engine: EngineClient, effort: str):
    reply = await engine.chat("[[tokens 50]]", reasoning_effort=effort)
    text = (reply.message["reasoning"] or "") + reply.message["content"]
    assert len(reply.message["content"]) == 200
    assert reply.usage["completion_tokens"] == -(-len(text) // 4) + 1


async def test_an_answer_is_cut_at_its_limit_or_drawn_out_to_it(engine: EngineClient):
    cut = await engine.chat("[[tokens 50]]", max_tokens=7)
    assert (cut.usage["completion_tokens"], cut.json["choices"][0]["finish_reason"]) == (7, "length")
    assert cut.message["content"] == ""
    drawn = await engine.chat("1 + 1", max_completion_tokens=60, ignore_eos=True)
    assert drawn.usage["completion_tokens"] == 60


async def test_a_stream_says_what_the_answer_in_one_piece_says(engine: EngineClient):
    whole = await engine.chat("What is 5 + 6?")
    reply = await engine.chat("What is 5 + 6?", stream=True, stream_options={"include_usage": True})
    frames = reply.frames
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    assert reply.events[-1] == "[DONE]"
    assert reply.text.endswith("\n\n")
    assert len({frame["id"] for frame in frames}) == 1
    deltas = [choice["delta"] for frame in frames for choice in frame["choices"]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert not any("role" in delta for delta in deltas[1:])
    for name in ("reasoning", "content"):
        assert "".join(delta.get(name, "") for delta in deltas) == whole.message[name]
    ends = [choice["finish_reason"] for frame in frames for choice in frame["choices"]]
    assert ends[-1] == "stop"
    assert set(ends[:-1]) == {None}
    assert frames[-1]["choices"] == []
    expected = {**whole.usage, "prompt_tokens_details": frames[-1]["usage"]["prompt_tokens_details"]}
    assert frames[-1]["usage"] == expected


async def test_a_stream_has_no_usage_unless_asked(engine: EngineClient):
    assert not any("usage" in frame for frame in (await engine.chat("1 + 1", stream=True)).frames)


async def test_text_of_any_script_survives_a_stream(engine: EngineClient):
    reply = await engine.chat("[[say 日本 é 🙂]]", stream=True, reasoning_effort="none")
    deltas = [choice["delta"] for frame in reply.frames for choice in frame["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) == "日本 é 🙂"


async def test_a_marked_question_calls_a_tool(engine: EngineClient):
    reply = await engine.chat('[[call get_weather {"city":"Oslo"}]]', tools=[WEATHER])
    (call,) = reply.message["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city":"Oslo"}'}
    assert reply.json["choices"][0]["finish_reason"] == "tool_calls"
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ("required", named):
        (call,) = (await engine.chat("Hello", tools=[WEATHER], tool_choice=choice)).message["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"city": "text"}
    assert (await engine.chat("[[call]]", tools=[WEATHER], tool_choice="none")).message["tool_calls"] == []


async def test_a_streamed_call_begins_with_its_name_and_goes_on_with_its_arguments(engine: EngineClient):
    reply = await engine.chat('[[call get_weather {"city":"Reykjavik"}]]', tools=[WEATHER], stream=True)
    deltas = [choice["delta"] for frame in reply.frames for choice in frame["choices"]]
    first, *rest = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert first["function"] == {"name": "get_weather", "arguments": ""}
    assert first["id"]
    assert len(rest) > 1
    assert "".join(one["function"]["arguments"] for one in rest) == '{"city":"Reykjavik"}'
    assert reply.frames[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_response_format_is_kept_to(engine: EngineClient):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert json.loads((await engine.chat("1 + 1", response_format=form)).message["content"]) == {"n": 1}
    plain = await engine.chat("1 + 1", response_format={"type": "json_object"})
    assert json.loads(plain.message["content"]) == {"answer": "2"}


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "medium"},
        {"chat_template_kwargs": {"thinking_effort": "extreme"}},
        {"n": 2},
        {"max_tokens": 0},
        {"max_tokens": 1_048_576},
        {"messages": []},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"tool_choice": "required"},
        {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}},
        {"response_format": {"type": "yaml"}},
        {"top_logprobs": 3},
        {"stream_options": {"include_usage": True}},
    ],
    ids=str,
)
async def test_wrong_values_are_refused_with_400(engine: EngineClient, fields: dict[str, Any]):
    reply = await engine.chat("1 + 1", **fields)
    error = reply.json["error"]
    assert (reply.status, error["code"], error["type"]) == (400, 400, "BadRequestError")
    assert error["message"]


async def test_another_model_and_another_path_are_not_found(engine: EngineClient):
    assert (await engine.chat("1 + 1", model="gpt")).json["error"]["type"] == "NotFoundError"
    assert (await engine.chat("1 + 1", model="gpt")).status == 404
    assert (await engine.get("/health/ready")).status == 404
    assert (await engine.get("/v1/chat/completions")).status == 405


async def test_plain_completions_answer_too(engine: EngineClient):
    body = {"model": "kimi-k3", "prompt": "2 + 3 =", "max_tokens": 5}
    reply = (await engine.post("/v1/completions", body)).json
    assert (reply["choices"][0]["text"], reply["usage"]["prompt_tokens"]) == ("5", 2)
    by_ids = (await engine.post("/v1/completions", {**body, "prompt": [7] * 9})).json
    assert by_ids["usage"]["prompt_tokens"] == 9
    stream = await engine.post("/v1/completions", {**body, "stream": True})
    assert "".join(frame["choices"][0]["text"] for frame in stream.frames) == "5"


async def test_the_model_and_its_length_are_listed(engine: EngineClient):
    (model,) = (await engine.get("/v1/models")).json["data"]
    assert (model["id"], model["max_model_len"]) == ("kimi-k3", 1_048_576)
    assert (await engine.get("/version")).json == {"version": "0.30.0"}
    assert (await engine.get("/health")).status == 200


async def test_a_key_is_asked_for_where_one_is_set():
    async with serving(FakeEngine(EngineSettings(api_key="k"))) as url, client(url) as asker:
        assert (await asker.get("/v1/models")).status == 401
        assert (await asker.get("/health")).status == 200


async def test_a_body_of_more_than_a_megabyte_is_answered_soon(engine: EngineClient):
    text = "x" * 1_200_000
    begun = time.monotonic()
    reply = await engine.chat(text + " What is 20 + 1?", max_tokens=100)
    assert time.monotonic() - begun < 5
    assert reply.message["content"] == "21"
    assert reply.usage["prompt_tokens"] > 300_000


async def test_a_client_that_waits_for_leave_to_send_its_body_gets_it(engine: EngineClient):
    body = b'{"messages":[{"role":"user","content":"1 + 1"}],"reasoning_effort":"none"}'
    host, port = engine.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Expect: 100-continue\r\n\r\n".encode())
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()
