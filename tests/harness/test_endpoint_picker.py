from __future__ import annotations

from collections import Counter

import pytest

from tests.harness.endpoint_picker import (
    Chance,
    Load,
    SessionAffinity,
    fields,
    headers_of,
    nested,
    number,
    session_hash,
    varint,
)


def idle(*endpoints: str) -> dict[str, Load]:
    return {endpoint: Load() for endpoint in endpoints}


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 1 << 40])
def test_numbers_come_back_as_they_went(value):
    assert list(fields(number(7, value))) == [(7, value)]


def test_the_documented_example_of_a_varint():
    assert varint(300) == b"\xac\x02"


def test_nested_messages_come_back_as_they_went():
    message = nested(1, nested(1, nested(1, b"name"), nested(3, b"value")), nested(1, nested(1, b"empty")))
    assert headers_of(message) == {"name": "value", "empty": ""}


def test_a_field_that_envoy_never_sends_is_an_error():
    with pytest.raises(ValueError, match="wire type 5"):
        list(fields(b"\x0d\x00\x00\x00\x00"))


def test_a_session_stays_at_home_although_others_have_less_to_do():
    policy, load = SessionAffinity(), idle("a", "b")
    home = policy("s", load)
    load[home] = Load(requests=5, tokens=100_000)
    assert policy("s", load) == home


def test_a_new_session_goes_where_least_is_under_way():
    load = {"a": Load(2, 5000), "b": Load(1, 100), "c": Load(2, 4000)}
    assert SessionAffinity()("new", load) == "b"


def test_requests_without_a_session_have_no_home():
    policy, load = SessionAffinity(), idle("a", "b")
    first = policy(None, load)
    load[first] = Load(1, 10)
    assert policy(None, load) != first


def test_the_hash_ignores_load_and_chance_ignores_both():
    load = idle("a", "b", "c")
    homes = {session_hash(f"s{n}", load) for n in range(50)}
    assert homes == set(load)
    assert session_hash("s", {**load, "a": Load(9, 9)}) == session_hash("s", load)
    policy = Chance()
    assert min(Counter(policy("s", load) for _ in range(300)).values()) > 50
