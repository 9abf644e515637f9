from __future__ import annotations

from typing import Any

import pytest
import yaml

from kimi_k3_operator.api import labels
from kimi_k3_operator.compile.entrance import KEY_HEADER, entrance_objects
from kimi_k3_operator.compile.envoy import INTERNAL_HEADERS


def entrance(**changes: Any) -> dict[str, Any]:
    """The entrance of `k3`, by kind."""
    given = {"namespace": "serving", "deployment": "k3", "picker_host": "k3-picker.serving.svc"}
    return {found["kind"]: found for found in entrance_objects(**(given | changes))}


def config(objects: dict[str, Any]) -> Any:
    return yaml.safe_load(objects["ConfigMap"]["data"]["envoy.yaml"])


def manager(objects: dict[str, Any]) -> Any:
    """The connection manager of the listener for requests."""
    listener = config(objects)["static_resources"]["listeners"][0]
    return listener["filter_chains"][0]["filters"][0]["typed_config"]


def pod(objects: dict[str, Any]) -> Any:
    return objects["Deployment"]["spec"]["template"]["spec"]


def config_hash(objects: dict[str, Any]) -> str:
    return str(objects["Deployment"]["spec"]["template"]["metadata"]["annotations"])


def filter_names(objects: dict[str, Any]) -> list[str]:
    return [found["name"] for found in manager(objects)["http_filters"]]


def test_it_is_five_objects_of_one_name_in_one_namespace():
    found = entrance()
    assert list(found) == ["ServiceAccount", "ConfigMap", "PodDisruptionBudget", "Deployment", "Service"]
    assert {one["metadata"]["namespace"] for one in found.values()} == {"serving"}
    assert {kind for kind, one in found.items() if one["metadata"]["name"] != "k3-entrance"} == {"PodDisruptionBudget"}


def test_its_budget_cannot_have_the_name_of_a_pool():
    assert "." in entrance()["PodDisruptionBudget"]["metadata"]["name"]


def test_the_same_input_gives_the_same_bytes():
    assert str(entrance(api_key_secret="keys")) == str(entrance(api_key_secret="keys"))


def test_its_pods_are_selected_and_no_engines_are():
    found = entrance()
    own = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
    ):
        assert selector.items() <= own.items()
        assert not selector.items() <= labels.pool_labels("k3", "b300").items()
    assert labels.POOL not in own
    assert labels.SERVES_HTTP not in own


def test_internal_headers_are_removed_before_anything_else():
    (strip,) = manager(entrance())["early_header_mutation_extensions"]
    assert {*INTERNAL_HEADERS, KEY_HEADER} <= {one["remove"] for one in strip["typed_config"]["mutations"]}


def test_the_key_is_checked_first_and_the_session_is_named_before_the_picker_is_asked():
    order = ["session_key", "endpoint_picker", "envoy.filters.http.router"]
    assert filter_names(entrance())[1:] == order
    assert filter_names(entrance(api_key_secret="keys"))[1:] == ["api_key", *order]


def test_no_script_is_without_its_file_and_no_file_without_its_use():
    for changes in ({}, {"api_key_secret": "keys"}, {"tls_secret": "tls"}, {"api_key_secret": "k", "tls_secret": "t"}):
        data = entrance(**changes)["ConfigMap"]["data"]
        named = {name for name in ("session_key.lua", "api_key.lua", "tls.yaml") if name in data["envoy.yaml"]}
        assert named | {"envoy.yaml"} == set(data)


def test_answers_have_no_deadline_and_no_second_try():
    (host,) = manager(entrance())["route_config"]["virtual_hosts"]
    served, elsewhere = host["routes"]
    assert served["match"] == {"path_separated_prefix": "/v1"}
    assert served["route"]["timeout"] == "0s"
    assert "retry_policy" not in str(host)
    assert elsewhere["direct_response"]["status"] == 404


def test_without_the_picker_nothing_is_answered_by_chance():
    picker = next(f for f in manager(entrance())["http_filters"] if f["name"] == "endpoint_picker")["typed_config"]
    assert picker["failure_mode_allow"] is False
    assert picker["processing_mode"]["request_body_mode"] == "FULL_DUPLEX_STREAMED"


def test_the_admin_interface_is_on_loopback():
    assert config(entrance())["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
    ports = [port["containerPort"] for port in pod(entrance())["containers"][0]["ports"]]
    assert config(entrance())["admin"]["address"]["socket_address"]["port_value"] not in ports


def test_the_access_log_has_neither_queries_nor_credentials():
    (log,) = manager(entrance(api_key_secret="keys"))["access_log"]
    fields = str(log["typed_config"]["log_format"]["json_format"]).lower()
    assert "%req(:path)%" not in fields
    assert "authorization" not in fields
    assert "api-key" not in fields


@pytest.mark.parametrize("drain", [60, 900, 3600])
def test_a_stopping_pod_serves_on_for_the_drain_of_the_engines(drain):
    spec = pod(entrance(drain_seconds=drain))
    assert spec["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": drain}}}
    assert spec["terminationGracePeriodSeconds"] == drain + 60


def test_a_new_pod_is_there_before_an_old_one_goes():
    spec = entrance()["Deployment"]["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_a_changed_configuration_restarts_it_and_a_changed_drain_alone_does_not_change_the_hash():
    assert config_hash(entrance()) != config_hash(entrance(session_header="x-conversation"))
    assert config_hash(entrance()) != config_hash(entrance(picker_host="other"))
    assert config_hash(entrance()) == config_hash(entrance(drain_seconds=60))


def test_the_pod_meets_the_restricted_standard():
    spec = pod(entrance(api_key_secret="keys", tls_secret="tls"))
    container = spec["containers"][0]["securityContext"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert spec["automountServiceAccountToken"] is False


def test_secrets_are_mounted_and_in_no_configuration():
    found = entrance(api_key_secret="team-keys", tls_secret="site-tls")
    secrets = {one["secret"]["secretName"]: one["secret"] for one in pod(found)["volumes"] if "secret" in one}
    assert [item["key"] for item in secrets["team-keys"]["items"]] == ["api-keys"]
    assert [item["key"] for item in secrets["site-tls"]["items"]] == ["tls.crt", "tls.key"]
    assert "team-keys" not in str(found["ConfigMap"])


def test_clients_find_it_at_the_port_of_its_protocol():
    assert entrance()["Service"]["spec"]["ports"][0] | {"protocol": ""} == {
        "name": "http",
        "port": 80,
        "targetPort": "http",
        "protocol": "",
    }
    assert entrance(tls_secret="tls")["Service"]["spec"]["ports"][0]["port"] == 443
    for found in (entrance(), entrance(tls_secret="tls")):
        names = {port["name"] for port in pod(found)["containers"][0]["ports"]}
        assert found["Service"]["spec"]["ports"][0]["targetPort"] in names


@pytest.mark.parametrize("header", ['x" os.exit() --', "x\\", "x\n"])
def test_a_strange_header_name_stays_a_string_in_the_script(header):
    first = entrance(session_header=header)["ConfigMap"]["data"]["session_key.lua"].splitlines()[0]
    assert yaml.safe_load(first.removeprefix("SESSION_HEADER = ")) == header
