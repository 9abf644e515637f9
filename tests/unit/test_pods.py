from __future__ import annotations

import json
from typing import Any

import pytest
from tests.factories import HUB, b300, deployment, gb300, mi350x, revision_of

from kimi_k3_operator.api import labels
from kimi_k3_operator.compile.pods import DOWNLOAD, PREFLIGHT, WORKER_READY, WORKER_STOP


def leader(*pools: Any, **spec: Any) -> dict[str, Any]:
    return revision_of(deployment(*pools, **spec)).leader


def worker(**more: Any) -> dict[str, Any]:
    found = revision_of(deployment(gb300(**more))).worker
    assert found is not None
    return found


def container(template: dict[str, Any], name: str = "engine") -> dict[str, Any]:
    pod = template["spec"]
    return next(c for c in (*pod["containers"], *pod["initContainers"]) if c["name"] == name)


def env(template: dict[str, Any], name: str = "engine") -> dict[str, Any]:
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in container(template, name)["env"]}


def flag(template: dict[str, Any], name: str) -> str:
    args = container(template)["args"]
    return args[args.index(f"--{name}") + 1]


def test_a_serving_pod_answers_http_and_carries_the_routing_label():
    template = leader()
    assert template["metadata"]["labels"] == labels.pool_labels("k3", "b300") | {labels.SERVES_HTTP: "true"}
    assert container(template)["ports"] == [{"name": "http", "containerPort": 8000, "protocol": "TCP"}]
    assert container(template)["command"] == ["vllm", "serve"]
    assert container(template)["args"][0] == "/weights"


def test_probes_follow_from_the_startup_budget():
    engine = container(leader(b300(startupBudget="2h")))
    assert engine["startupProbe"]["periodSeconds"] * engine["startupProbe"]["failureThreshold"] == 7200
    assert engine["startupProbe"]["httpGet"] == {"path": "/health", "port": "http"}
    assert engine["readinessProbe"]["httpGet"]["path"] == "/v1/models"
    assert env(leader(b300(startupBudget="2h")))["VLLM_ENGINE_READY_TIMEOUT_S"] == "6900"


def test_a_pod_has_time_for_the_pre_stop_the_drain_and_a_margin():
    template = leader(b300(drainSeconds=600))
    assert template["spec"]["terminationGracePeriodSeconds"] == 15 + 600 + 60
    assert container(template)["lifecycle"] == {"preStop": {"sleep": {"seconds": 15}}}
    assert flag(template, "shutdown-timeout") == "600"


def test_the_engine_takes_the_whole_node():
    for pool, resource, count in ((b300(), "nvidia.com/gpu", "8"), (mi350x(), "amd.com/gpu", "8")):
        resources = container(leader(pool))["resources"]
        assert resources == {"limits": {resource: count}, "requests": {resource: count}}


def test_only_groups_claim_a_channel():
    assert "resourceClaims" not in leader()["spec"]
    for template in (leader(gb300()), worker()):
        assert template["spec"]["resourceClaims"] == [
            {"name": "nvlink-channel", "resourceClaimTemplateName": "channel"}
        ]
        for name in ("engine", "preflight"):
            assert container(template, name)["resources"]["claims"] == [{"name": "nvlink-channel"}]


def test_a_worker_has_no_http_and_no_routing_label():
    template = worker(drainSeconds=600)
    engine = container(template)
    assert labels.SERVES_HTTP not in template["metadata"]["labels"]
    assert not {"ports", "startupProbe", "livenessProbe"} & set(engine)
    assert engine["readinessProbe"]["exec"]["command"] == ["python3", "-c", WORKER_READY]
    assert engine["lifecycle"]["preStop"]["exec"]["command"] == ["python3", "-c", WORKER_STOP]
    assert env(template)["LONGEST"] == str(15 + 600)
    assert env(template)["LEADER_PORT"] == "8000"
    assert "--headless" in engine["args"]
    assert template["spec"]["terminationGracePeriodSeconds"] == 15 + 600 + 60


def test_the_ranks_of_a_group_know_each_other():
    for rank, template in enumerate((leader(gb300()), worker())):
        assert flag(template, "node-rank") == str(rank)
        assert flag(template, "nnodes") == "2"
        assert flag(template, "master-addr") == "$(LWS_LEADER_ADDRESS)"
        assert flag(template, "tensor-parallel-size") == "8"
    assert "--nnodes" not in container(leader())["args"]
    assert "--headless" not in container(leader(gb300()))["args"]


def test_the_hub_token_is_only_in_the_download():
    template = leader(weights=HUB)
    assert [c["name"] for c in template["spec"]["initContainers"]] == ["download", "preflight"]
    assert env(template, "download")["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    for name in ("engine", "preflight"):
        assert "HF_TOKEN" not in env(template, name)
    assert env(template)["HF_HUB_OFFLINE"] == "1"


def test_a_public_repository_needs_no_token():
    weights = {"huggingFace": {"cache": HUB["huggingFace"]["cache"]}}
    assert set(env(leader(weights=weights), "download")) == {"CACHE", "DOWNLOADS"}


def test_the_download_is_told_repository_revision_and_folder():
    wanted = json.loads(env(leader(weights=HUB, model={"revision": "abc"}), "download")["DOWNLOADS"])
    assert wanted == [{"repository": "moonshotai/Kimi-K3", "revision": "abc", "folder": "moonshotai--Kimi-K3@abc"}]


def test_other_weights_are_only_checked():
    assert [c["name"] for c in leader()["spec"]["initContainers"]] == ["preflight"]


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        (b300(), {"GPUS": "8", "GPU_GLOB": "/dev/nvidia[0-9]*", "IMEX": "0", "PATIENCE": "0", "DRAFT": ""}),
        (mi350x(), {"GPUS": "8", "GPU_GLOB": "/dev/dri/renderD*", "IMEX": "0", "PATIENCE": "0", "DRAFT": ""}),
        (gb300(), {"GPUS": "4", "GPU_GLOB": "/dev/nvidia[0-9]*", "IMEX": "1", "PATIENCE": "600", "DRAFT": ""}),
        (
            b300(speculation={"mode": "DSpark", "draft": {"id": "Inferact/Kimi-K3-DSpark", "subPath": "d"}}),
            {"GPUS": "8", "GPU_GLOB": "/dev/nvidia[0-9]*", "IMEX": "0", "PATIENCE": "0", "DRAFT": "/draft"},
        ),
    ],
)
def test_the_check_knows_what_must_be_there(pool, expected):
    assert env(leader(pool), "preflight") == expected | {"WEIGHTS": "/weights"}


def test_the_scripts_are_the_packaged_ones():
    template = leader(weights=HUB)
    assert container(template, "preflight")["command"] == ["python3", "-c", PREFLIGHT]
    assert container(template, "download")["command"] == ["python3", "-c", DOWNLOAD]


def test_nodes_are_chosen_by_architecture_hardware_and_the_users_selector():
    template = leader(b300(scheduling={"nodeSelector": {"zone": "x", "kubernetes.io/arch": "arm64"}}))
    assert template["spec"]["nodeSelector"] == {"zone": "x", "kubernetes.io/arch": "amd64"}
    terms = template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    first = terms["nodeSelectorTerms"][0]["matchExpressions"]
    assert first == [
        {
            "key": "nvidia.com/gpu.product",
            "operator": "In",
            "values": ["NVIDIA-B300-SXM6-AC", "NVIDIA-B300-SXM6-PC"],
        }
    ]


def test_a_pool_adds_tolerations_and_a_priority():
    scheduling = {"tolerations": [{"key": "team", "operator": "Exists"}], "priorityClassName": "high"}
    spec = leader(b300(scheduling=scheduling))["spec"]
    assert [t["key"] for t in spec["tolerations"]] == ["nvidia.com/gpu", "team"]
    assert spec["priorityClassName"] == "high"
    assert "priorityClassName" not in leader()["spec"]


def test_pull_secrets_are_passed_on():
    assert leader(imagePullSecrets=[{"name": "s"}])["spec"]["imagePullSecrets"] == [{"name": "s"}]
    assert "imagePullSecrets" not in leader()["spec"]


def test_engines_have_no_identity_and_few_rights():
    for template in (leader(weights=HUB), leader(gb300()), worker()):
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["serviceAccountName"] == "k3-engine"
        assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
        for made in (*spec["containers"], *spec["initContainers"]):
            assert made["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_variables_are_sorted_and_caches_lie_in_the_cache_volume():
    names = [e["name"] for e in container(leader())["env"]]
    assert names == sorted(names)
    assert env(leader())["TRITON_CACHE_DIR"] == "/cache/triton"
