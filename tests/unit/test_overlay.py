from __future__ import annotations

from dataclasses import replace
from typing import Any

from kimi_k3_operator.plan.snapshot import Child, parse_child
from kimi_k3_operator.runtime.overlay import Overlay


def body(version: int, *, kind: str = "Service", name: str = "s", uid: str = "u", **spec: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name, "uid": uid, "resourceVersion": str(version)}, "spec": spec}


def child(version: int, **more: Any) -> Child:
    found = body(version, **more)
    return parse_child(found, found["kind"])


def test_without_writes_it_shows_the_index_in_order():
    indexed = [child(1, name="b"), child(2, kind="Deployment", name="z"), child(3, name="a")]
    assert [c.identity for c in Overlay().merge(indexed, 0)] == [
        ("Deployment", "z"),
        ("Service", "a"),
        ("Service", "b"),
    ]


def test_a_write_covers_the_index_until_the_watch_has_it():
    overlay = Overlay()
    overlay.wrote(body(5, x="new"), 0)
    assert overlay.merge([], 1)[0].body["spec"] == {"x": "new"}
    assert overlay.merge([child(4, x="old")], 1)[0].body["spec"] == {"x": "new"}
    assert overlay.merge([child(5, x="new")], 2) == (child(5, x="new"),)
    assert overlay.merge([child(4, x="late")], 3)[0].body["spec"] == {"x": "late"}


def test_what_others_wrote_later_is_believed():
    overlay = Overlay()
    overlay.wrote(body(9), 0)
    assert overlay.merge([child(10, x="theirs")], 1)[0].body["spec"] == {"x": "theirs"}


def test_versions_are_compared_as_numbers():
    overlay = Overlay()
    overlay.wrote(body(10, x="new"), 0)
    assert overlay.merge([child(9, x="old")], 1)[0].body["spec"] == {"x": "new"}


def test_a_write_that_no_watch_shows_for_a_minute_is_forgotten():
    overlay = Overlay()
    overlay.wrote(body(5), 0)
    assert len(overlay.merge([], 60)) == 1
    assert overlay.merge([], 61) == ()
    assert overlay.merge([], 1) == ()


def test_a_deleted_object_is_terminating_until_it_is_gone():
    overlay = Overlay()
    overlay.deleted("u")
    assert [c.terminating for c in overlay.merge([child(1)], 0)] == [True]
    assert overlay.merge([], 1) == ()
    assert [c.terminating for c in overlay.merge([child(2, uid="next")], 2)] == [False]


def test_an_object_that_was_written_and_deleted_before_any_watch_is_terminating():
    overlay = Overlay()
    overlay.wrote(body(5), 0)
    overlay.deleted("u")
    assert [c.terminating for c in overlay.merge([], 1)] == [True]


def test_the_watch_says_that_a_written_object_is_gone():
    overlay = Overlay()
    overlay.wrote(body(5), 0)
    overlay.gone(("Service", "s"), "another")
    assert len(overlay.merge([], 1)) == 1
    overlay.gone(("Service", "s"), "u")
    assert overlay.merge([], 1) == ()
    overlay.gone(("Service", "never"), "seen")


def test_a_scaled_pool_shows_its_new_count_at_once():
    overlay, pool = Overlay(), child(3, kind="KimiK3Pool", replicas=1, profile="b300/1")
    overlay.scaled(pool, {"metadata": {"resourceVersion": "4"}, "spec": {"replicas": 3}}, 0)
    (merged,) = overlay.merge([pool], 1)
    assert merged.body["spec"] == {"replicas": 3, "profile": "b300/1"}
    assert merged.resource_version == "4"
    overlay.scaled(pool, {"metadata": {"resourceVersion": "5"}}, 1)
    assert overlay.merge([pool], 1)[0].body["spec"]["replicas"] == 0


def test_an_index_without_a_version_is_older_than_any_write():
    overlay = Overlay()
    overlay.wrote(body(5, x="new"), 0)
    assert overlay.merge([replace(child(1), resource_version="")], 1)[0].body["spec"] == {"x": "new"}
