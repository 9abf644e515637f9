from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.session_key import AGENT_HEADERS, SESSION_HEADER, LuaFilter, key, murmur3, of_body, reference, turns

from kimi_k3_operator.compile.entrance import KEY_HEADER, MAX_SCANNED_BYTES, api_key_script

LUA = LuaFilter()
POST = {":method": "POST", "content-type": "application/json"}
SYSTEM = {"role": "system", "content": "You are a coding agent. " * 200}
HELLO = {"role": "user", "content": "hello"}
CHAT = {"model": "kimi-k3", "messages": [SYSTEM, HELLO]}


def derived(body: Any) -> str | None:
    """The key that the Lua finds in a body (bytes as they are, all else as JSON)."""
    found = LUA.of_body(body if isinstance(body, bytes) else json.dumps(body).encode())
    return found.decode() if found else None


def named(kind: str, text: str) -> str:
    return key(kind, text.encode())


def sent(headers: dict[str, str], body: bytes | None = None) -> bytes | None:
    """The key header that goes on to the endpoint picker."""
    return LUA.run(headers, body).values.get(KEY_HEADER.encode())


def test_the_hash_of_the_reference_is_murmur3():
    assert murmur3(b"", 0, 0) == 0
    assert murmur3(b"test", 0, 4) == 0xBA6BD213
    assert murmur3(b"Hello, world!", 0, 13) == 0xC0363E43


def test_two_turns_of_one_conversation_have_one_key():
    keys = {derived({"model": "kimi-k3", "messages": messages}) for messages in turns([SYSTEM, HELLO], 5)}
    assert len(keys) == 1
    assert None not in keys


def test_two_conversations_with_one_system_prompt_have_different_keys():
    other = {"role": "user", "content": "hello!"}
    assert derived(CHAT) != derived(CHAT | {"messages": [SYSTEM, other]})


def test_parameters_of_a_turn_do_not_change_the_key():
    assert derived({"temperature": 1, **CHAT, "stream": True}) == derived(CHAT)


@pytest.mark.parametrize("first", [SESSION_HEADER, *AGENT_HEADERS])
def test_a_header_names_the_session_and_the_body_is_not_even_read(first):
    handle = LUA.run({**POST, first: "s1"}, json.dumps(CHAT).encode())
    assert handle.values[KEY_HEADER.encode()].decode() == named("client", "s1")
    assert handle.reads == 0


def test_the_configured_header_comes_before_those_of_agents():
    assert sent({**POST, SESSION_HEADER: "mine", "session_id": "other"}) == named("client", "mine").encode()


def test_a_body_is_read_once_and_copied_once():
    body = json.dumps(CHAT).encode()
    handle = LUA.run(POST, body)
    assert (handle.reads, handle.copied) == (1, len(body))
    assert handle.values[KEY_HEADER.encode()].decode() == derived(CHAT)


@pytest.mark.parametrize(
    "headers",
    [
        {":method": "GET"},
        {":method": "POST", "content-type": "multipart/form-data; boundary=x"},
        {**POST, "content-encoding": "gzip"},
        {**POST, "content-length": str(MAX_SCANNED_BYTES + 1)},
    ],
    ids=["GET", "multipart", "gzip", "too long"],
)
def test_a_body_that_cannot_be_scanned_is_not_held(headers):
    handle = LUA.run(headers, json.dumps(CHAT).encode())
    assert handle.reads == 0
    assert KEY_HEADER.encode() not in handle.values


def test_the_cache_key_comes_before_the_user_and_the_user_before_the_messages():
    assert derived({**CHAT, "user": "u", "prompt_cache_key": "c"}) == named("cache", "c")
    assert derived({"user": "u", **CHAT, "prompt_cache_key": ""}) == named("user", "u")
    assert derived({**CHAT, "user": None, "prompt_cache_key": 7}) == derived(CHAT)


def test_nothing_after_the_cache_key_is_looked_at():
    assert derived(b'{"prompt_cache_key": "c", "messages": [' + b"{" * 100) == named("cache", "c")


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "function", "function": {"parameters": {"properties": {"user": "no"}, "user": "no"}}}]},
        {"metadata": {"user": "no", "prompt_cache_key": "no"}},
        {"stop": ['", "user": "no', '\\", "user": "no", "'], "x": '\\"}, "user": "no'},
        {"User": "no", "user ": "no", "users": "no", "": "no"},
        {"logit_bias": {"}": 1, "]": 2, '"': 3, "\\": 4}, "y": "\\\\"},
    ],
    ids=["tool schema", "nested", "quotes", "other keys", "brackets as keys"],
)
def test_a_user_elsewhere_is_not_the_user(more):
    assert derived({**more, **CHAT, **more}) == derived(CHAT)


def test_a_user_within_messages_is_not_the_user():
    content = '{"user": "no", "prompt_cache_key": "no"}'
    messages = [{"role": "system", "user": "no", "content": content}, {"role": "user", "content": [{"user": "no"}]}]
    assert derived({"messages": messages}) == named("text", json.dumps(messages)[:-1])


def test_escapes_of_keys_and_values_mean_the_same():
    assert derived(rb'{"us\u0065r": "Z\u00fcrich \ud83d\ude00 \"\\\/\n"}') == named("user", 'Zürich 😀 "\\/\n')
    assert derived(rb'{"\u0070rompt_cache_ke\u0079": "c"}') == named("cache", "c")


def test_the_role_may_follow_the_content():
    first = b'[{"content": {"role": "user"}, "role": "system"}, {"content": "hi", "role": "us\\u0065r"}'
    assert derived(b'{"messages": ' + first + b', {"role": "user"}]}') == named("text", first.decode())


def test_completions_and_responses_have_keys_as_well():
    assert derived({"prompt": "Once upon"}) == named("text", '"Once upon"')
    assert derived({"prompt": [1, 2, 3]}) == named("text", "[1, 2, 3]")
    assert derived({"input": "hi"}) == named("text", '"hi"')
    keys = {derived({"instructions": "x", "input": messages}) for messages in turns([HELLO], 3)}
    assert len(keys) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b'"user"',
        b"[1]",
        b"{",
        b'{"user"',
        b'{"user": ',
        b'{"user": "a',
        b'{"user": "a" "b": 1}',
        b'{"user": "\\x"}',
        b'{"user": "\\u12"}',
        b'{"messages": [}',
        b'{"messages": [{"role": "user"',
        b"\xff\xfe{}",
        b"{}",
        b'{"messages": []}',
        b'{"messages": [{"role": "system", "content": "x"}]}',
        b'{"messages": "x", "prompt": "", "input": []}',
        b'{"messages": [null, 1, "user", ["user"]]}',
        b'{"user": "' + b"u" * 5000 + b'"}',
    ],
)
def test_whatever_is_odd_has_no_key(body):
    assert derived(body) is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": "' + b'\\"' * 4_000_000 + b'", "user": "u"}',
        b'{"a": [' + b"{}," * 4_000_000 + b'0], "user": "u"}',
        b'{"messages": ' + b"[" * 4_000_000,
        b'{"a": ["' + b'","' * 4_000_000 + b'"], "user": "u"}',
    ],
    ids=["quotes", "objects", "depth", "strings"],
)
def test_hostile_bodies_are_given_up(body):
    assert derived(body) is None


def test_a_long_prompt_is_told_apart_by_its_ends_and_its_length():
    prompt = "word " * 200_000
    body = json.dumps({"prompt": prompt})
    assert derived(body.encode()) == of_body(body)
    others = ["x" + prompt[1:], prompt[:-1] + "x", prompt + "x"]
    assert len({derived({"prompt": other}) for other in [prompt, *others]}) == 4


tricky = st.one_of(
    st.sampled_from(
        ["user", "prompt_cache_key", "messages", "input", "prompt", "role", "content", '"', "\\", "}", "]"]
    ),
    st.text(max_size=8),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), tricky),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(tricky, inner, max_size=4)),
    max_leaves=12,
)
roles = st.sampled_from(["system", "user", "assistant", "tool", "", None])
messages = st.lists(
    st.one_of(st.fixed_dictionaries({}, optional={"role": roles, "content": values}), values), max_size=5
)
pairs = st.one_of(
    st.tuples(st.sampled_from(["messages", "input"]), messages),
    st.tuples(
        st.sampled_from(["user", "prompt_cache_key", "prompt", "input"]), st.one_of(st.text(max_size=30), values)
    ),
    st.tuples(tricky, values),
)
spellings = st.fixed_dictionaries(
    {
        "ensure_ascii": st.booleans(),
        "indent": st.sampled_from([None, 0, 2, "\t"]),
        "separators": st.sampled_from([(",", ":"), (" , ", " : "), (",\r\n", "\t:\n")]),
    }
)


@settings(max_examples=300, deadline=None)
@given(members=st.lists(pairs, max_size=6), spelling=spellings, space=st.sampled_from(["", " \n", "\t\r"]))
def test_it_agrees_with_the_reference_on_every_json_object(members, spelling, space):
    inside = ",".join(f"{json.dumps(name)}{space}:{json.dumps(value, **spelling)}" for name, value in members)
    body = f"{space}{{{space}{inside}{space}}}{space}".encode("utf-8", "replace")
    assert derived(body) == reference({}, body)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_bytes_make_it_fail(data):
    whole = json.dumps({**CHAT, "user": "u"}).encode()
    body = data.draw(st.one_of(st.binary(max_size=200), st.text('{}[]":,\\u0userprolc ', max_size=80).map(str.encode)))
    cut = data.draw(st.integers(0, len(whole)))
    for odd in (body, whole[:cut] + body, whole[:cut] + body + whole[cut:]):
        assert derived(odd) is None or "-" in (derived(odd) or "")


class Keys:
    """The API key filter over a file of keys, with a clock that the test moves."""

    def __init__(self, file: Any) -> None:
        self.filter = LuaFilter(api_key_script(str(file)))
        self.filter.runtime.execute(b"now = 0; os.time = function() return now end")

    def wait(self, seconds: int) -> None:
        self.filter.runtime.execute(f"now = now + {seconds}".encode())

    def ask(self, **headers: str) -> tuple[int, dict[bytes, bytes]]:
        handle = self.filter.run({name.replace("_", "-"): value for name, value in headers.items()})
        return int(handle.answer[0][b":status"]) if handle.answer else 200, handle.values


def test_a_key_of_the_file_passes_and_goes_no_further(tmp_path):
    (tmp_path / "keys").write_text("# team a\nkey-a\n\n  key-b  \r\n")
    keys = Keys(tmp_path / "keys")
    for headers in ({"authorization": "Bearer key-a"}, {"authorization": "bearer  key-b"}, {"x_api_key": "key-a"}):
        assert keys.ask(**headers) == (200, {})


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer key"},
        {"authorization": "Bearer "},
        {"authorization": "Basic key-a"},
        {"authorization": "Bearer #"},
        {"authorization": "Bearer key-a key-a"},
        {"x_api_key": ""},
    ],
)
def test_any_other_key_does_not_pass(tmp_path, headers):
    (tmp_path / "keys").write_text("#\nkey-a\n")
    assert Keys(tmp_path / "keys").ask(**headers)[0] == 401


def test_a_changed_file_takes_effect_without_a_restart(tmp_path):
    file = tmp_path / "keys"
    file.write_text("old\n")
    keys = Keys(file)
    assert keys.ask(authorization="Bearer old")[0] == 200
    file.write_text("new\n")
    keys.wait(5)
    assert keys.ask(authorization="Bearer old")[0] == 401
    assert keys.ask(authorization="Bearer new")[0] == 200


def test_without_a_file_nobody_passes_and_a_lost_file_locks_nobody_out(tmp_path):
    file = tmp_path / "keys"
    keys = Keys(file)
    assert keys.ask(authorization="Bearer key")[0] == 401
    file.write_text("key\n")
    keys.wait(5)
    assert keys.ask(authorization="Bearer key")[0] == 200
    file.unlink()
    keys.wait(5)
    assert keys.ask(authorization="Bearer key")[0] == 200
