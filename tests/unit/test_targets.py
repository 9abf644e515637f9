from __future__ import annotations

from typing import Any

import pytest
from tests.factories import b300, b300_node, deployment, domain, gb300
from tests.scene import Scene

from kimi_k3_operator.plan.targets import Target, targets

DRAFT = {"mode": "DSpark", "tokens": 7, "draft": {"id": "Inferact/Kimi-K3-DSpark", "path": "/opt/draft"}}


def running(*pools: dict[str, Any], ip: str = "10.0.0.1") -> Scene:
    """Every pod has an address and ready containers."""
    scene = Scene(deployment(*pools), b300_node("b1"), domain("a", free=2))
    scene.settle()
    for pod in scene.pods.values():
        pod["status"] |= {
            "podIP": ip,
            "containerStatuses": [{"name": "engine", "containerID": "containerd://1"}],
            "conditions": [{"type": "ContainersReady", "status": "True"}],
        }
    return scene


def test_whom_to_ask_and_what_to_expect_comes_from_the_revision_of_the_pod():
    (target,) = targets(running(b300(1)).snapshot())
    assert target == Target(
        pod=target.pod,
        container="containerd://1",
        url="http://10.0.0.1:8000",
        served_name="kimi-k3",
        max_model_len=1048576,
        block_tokens=1536,
    )


def test_a_headless_worker_is_not_asked():
    assert len(targets(running(gb300(1)).snapshot())) == 1


@pytest.mark.parametrize(
    ("pool", "block"),
    [
        (b300(1, speculation=DRAFT), 1536),
        (b300(1, overrides={"args": {"kv-cache-dtype": "bfloat16"}}), 768),
    ],
)
def test_the_block_is_computed_from_the_rendered_flags(pool: dict[str, Any], block: int):
    (target,) = targets(running(pool).snapshot())
    assert target.block_tokens == block


def test_an_address_of_ip_version_6_is_put_in_brackets():
    (target,) = targets(running(b300(1), ip="fd00::7").snapshot())
    assert target.url == "http://[fd00::7]:8000"


@pytest.mark.parametrize("change", ["podIP", "conditions", "deletion", "revision"])
def test_pods_that_do_not_run_go_or_are_of_an_unknown_revision_are_not_asked(change: str):
    scene = running(b300(1))
    (pod,) = scene.pods.values()
    if change == "podIP":
        del pod["status"]["podIP"]
    elif change == "conditions":
        pod["status"]["conditions"] = []
    elif change == "deletion":
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    else:
        pod["metadata"]["labels"]["kimik3.dev/revision"] = "ffffffffff"
    assert targets(scene.snapshot()) == ()
