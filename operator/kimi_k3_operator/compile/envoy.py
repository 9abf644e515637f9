"""Envoy's bootstrap for the entrance, as it goes into the ConfigMap. Everything in it exists in Envoy 1.33."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CONFIG_FOLDER = "/etc/entrance"
API_KEYS_FOLDER = "/etc/entrance-api-keys"
TLS_FOLDER = "/etc/entrance-tls"

DESTINATION_HEADER = "x-gateway-destination-endpoint"
INTERNAL_HEADERS = (
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-kv-cache-source-host-port",
    DESTINATION_HEADER,
)
"""Headers by which picker, Envoy and P/D sidecar talk to each other. The sidecar calls whatever host the first names
and returns its answer, so a client's must be gone before the picker runs. On the route the picker's would go too."""
ROUTER_HEADERS = (
    "x-envoy-retry-on",
    "x-envoy-retry-grpc-on",
    "x-envoy-hedge-on-per-try-timeout",
    "x-envoy-upstream-rq-timeout-ms",
    "x-envoy-upstream-rq-per-try-timeout-ms",
    "x-envoy-upstream-stream-duration-ms",
)
"""By these Envoy lets clients of private networks ask for retries and deadlines of their own. A retry is a second
prefill, on an engine that the picker has not counted."""

UPSTREAM_IDLE_SECONDS = 300
"""Below the engines' keep-alive of 900 s: a kept connection is never closed by the engine just as it is used."""
STREAM_IDLE_SECONDS = 3600
"""Without a byte in either direction. The prefill of a 1M-token prompt sends none for many minutes."""
CONNECTION_SECONDS = 300
"""After this a client's connection takes no new request. So a stopping pod, to which no new connection comes, has none
but the answers under way long before its drain ends."""
MAX_BUFFERED_BYTES = 64 << 20
"""A body that is held for the session key. Longer ones that do not say their length get 413."""
MAX_PARALLEL = 40000
PICKER_MESSAGE_SECONDS = 1000
"""How long the picker may hold a request, in its queue for example."""

_HTTP_PROTOCOL_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


@dataclass(frozen=True)
class Ports:
    """Where Envoy listens. Requests and health on `address`, the admin interface on loopback alone."""

    address: str = "0.0.0.0"
    requests: int = 8080
    health: int = 19001
    admin: int = 19000


def bootstrap(
    *,
    picker_host: str,
    picker_port: int,
    picker_health_port: int,
    key_header: str,
    api_keys: bool,
    tls: bool,
    heap_bytes: int,
    ports: Ports,
) -> dict[str, Any]:
    """The whole configuration. Above 95 % of `heap_bytes` new requests get 503, so that those under way survive."""
    return {
        "node": {"id": "entrance", "cluster": "entrance"},
        "admin": {"address": _address("127.0.0.1", ports.admin)},
        "static_resources": {
            "listeners": [_request_listener(ports, key_header, api_keys=api_keys, tls=tls), _health_listener(ports)],
            "clusters": [_engines(), _picker(picker_host, picker_port, picker_health_port), _admin(ports.admin)],
        },
        "overload_manager": _overload_manager(heap_bytes),
    }


def tls_secret_file() -> dict[str, Any]:
    """The file that names certificate and key. Envoy watches their folder: a renewed Secret needs no restart."""
    return {
        "resources": [
            _typed(
                "envoy.extensions.transport_sockets.tls.v3.Secret",
                name="entrance",
                tls_certificate={
                    "certificate_chain": {"filename": f"{TLS_FOLDER}/tls.crt"},
                    "private_key": {"filename": f"{TLS_FOLDER}/tls.key"},
                    "watched_directory": {"path": TLS_FOLDER},
                },
            )
        ]
    }


def _typed(kind: str, **fields: Any) -> dict[str, Any]:
    return {"@type": f"type.googleapis.com/{kind}", **fields}


def _extension(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "typed_config": _typed(kind, **fields)}


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _request_listener(ports: Ports, key_header: str, *, api_keys: bool, tls: bool) -> dict[str, Any]:
    chain: dict[str, Any] = {"filters": [_connection_manager(key_header, api_keys=api_keys)]}
    if tls:
        certificate = {
            "name": "entrance",
            "sds_config": {
                "path_config_source": {"path": f"{CONFIG_FOLDER}/tls.yaml"},
                "resource_api_version": "V3",
            },
        }
        chain["transport_socket"] = _extension(
            "envoy.transport_sockets.tls",
            "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            common_tls_context={
                "alpn_protocols": ["h2", "http/1.1"],
                "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
                "tls_certificate_sds_secret_configs": [certificate],
            },
        )
    return {
        "name": "requests",
        "address": _address(ports.address, ports.requests),
        "per_connection_buffer_limit_bytes": MAX_BUFFERED_BYTES,
        "filter_chains": [chain],
    }


def _connection_manager(key_header: str, *, api_keys: bool) -> dict[str, Any]:
    removed = [{"remove": name} for name in (*INTERNAL_HEADERS, *ROUTER_HEADERS, key_header)]
    strip = _extension(
        "strip_internal_headers",
        "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
        mutations=removed,
    )
    keys = [_lua("api_key")] if api_keys else []
    return _extension(
        "envoy.filters.network.http_connection_manager",
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="requests",
        early_header_mutation_extensions=[strip],
        use_remote_address=True,
        preserve_external_request_id=True,
        normalize_path=True,
        merge_slashes=True,
        path_with_escaped_slashes_action="REJECT_REQUEST",
        request_headers_timeout="60s",
        stream_idle_timeout=f"{STREAM_IDLE_SECONDS}s",
        common_http_protocol_options={"idle_timeout": "900s", "max_connection_duration": f"{CONNECTION_SECONDS}s"},
        http1_safe_max_connection_duration=True,
        http2_protocol_options={
            "max_concurrent_streams": 100,
            "initial_stream_window_size": 1 << 20,
            "initial_connection_window_size": 4 << 20,
        },
        access_log=[_access_log(key_header)],
        local_reply_config=_local_replies(),
        route_config={"name": "requests", "virtual_hosts": [_virtual_host()]},
        http_filters=[_strip_marker(), *keys, _lua("session_key"), _ext_proc(), _router()],
    )


def _virtual_host() -> dict[str, Any]:
    """`/v1` and nothing else: any other path would publish the engines' metrics and control endpoints.

    No timeout and no retry: an answer takes as long as it takes, and a second try is a second prefill.
    """
    elsewhere = {
        "match": {"prefix": "/"},
        "direct_response": {"status": 404, "body": {"inline_string": "Unknown path: this service answers under /v1."}},
        "typed_per_filter_config": {
            "session_key": _typed("envoy.extensions.filters.http.lua.v3.LuaPerRoute", disabled=True),
            "endpoint_picker": _typed("envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute", disabled=True),
        },
    }
    served = {
        "match": {"path_separated_prefix": "/v1"},
        "route": {"cluster": "engines", "timeout": "0s", "idle_timeout": f"{STREAM_IDLE_SECONDS}s"},
    }
    return {"name": "requests", "domains": ["*"], "routes": [served, elsewhere]}


def _strip_marker() -> dict[str, Any]:
    """The endpoint picker marks every answer with a header; first in the chain is last on the way back."""
    return _extension(
        "strip_marker",
        "envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
        mutations={"response_mutations": [{"remove": "x-went-into-resp-headers"}]},
    )


def _lua(script: str) -> dict[str, Any]:
    return _extension(
        script,
        "envoy.extensions.filters.http.lua.v3.Lua",
        default_source_code={"filename": f"{CONFIG_FOLDER}/{script}.lua"},
    )


def _ext_proc() -> dict[str, Any]:
    """The endpoint picker sees whole requests and answers; without it there is no answer (fail-open does not exist)."""
    return _extension(
        "endpoint_picker",
        "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        failure_mode_allow=False,
        grpc_service={"envoy_grpc": {"cluster_name": "endpoint_picker", "authority": "endpoint-picker"}},
        message_timeout=f"{PICKER_MESSAGE_SECONDS}s",
        processing_mode={
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "response_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_trailer_mode": "SEND",
        },
    )


def _router() -> dict[str, Any]:
    return _extension(
        "envoy.filters.http.router", "envoy.extensions.filters.http.router.v3.Router", suppress_envoy_headers=True
    )


def _access_log(key_header: str) -> dict[str, Any]:
    """One JSON line a request, without queries, bodies and API keys; the session key is a hash."""
    fields = {
        "time": "%START_TIME%",
        "method": "%REQ(:METHOD)%",
        "path": "%REQ_WITHOUT_QUERY(:PATH)%",
        "status": "%RESPONSE_CODE%",
        "flags": "%RESPONSE_FLAGS%",
        "details": "%RESPONSE_CODE_DETAILS%",
        "duration_ms": "%DURATION%",
        "first_byte_ms": "%RESPONSE_DURATION%",
        "request_bytes": "%BYTES_RECEIVED%",
        "response_bytes": "%BYTES_SENT%",
        "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
        "engine": "%UPSTREAM_HOST%",
        "session": f"%REQ({key_header})%",
        "request_id": "%REQ(X-REQUEST-ID)%",
    }
    without_query = _extension(
        "envoy.formatter.req_without_query", "envoy.extensions.formatter.req_without_query.v3.ReqWithoutQuery"
    )
    return _extension(
        "envoy.access_loggers.stdout",
        "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
        log_format={"json_format": fields, "formatters": [without_query]},
    )


def _local_replies() -> dict[str, Any]:
    """Whatever Envoy or the endpoint picker answers instead of an engine has the form of an OpenAI error."""

    def body(kind: str, code: str) -> dict[str, Any]:
        return {"json_format": {"error": {"message": "%LOCAL_REPLY_BODY%", "type": kind, "code": code}}}

    def mapper(comparison: str, status: int, kind: str, code: str, **more: Any) -> dict[str, Any]:
        value = {"default_value": status, "runtime_key": f"entrance.reply_{status}"}
        return {
            "filter": {"status_code_filter": {"comparison": {"op": comparison, "value": value}}},
            "body_format_override": body(kind, code),
            **more,
        }

    challenge = {"header": {"key": "www-authenticate", "value": "Bearer"}}
    return {
        "mappers": [
            mapper("EQ", 401, "invalid_request_error", "invalid_api_key", headers_to_add=[challenge]),
            mapper("EQ", 404, "invalid_request_error", "not_found"),
            mapper("LE", 499, "invalid_request_error", "%RESPONSE_CODE_DETAILS%"),
        ],
        "body_format": body("server_error", "%RESPONSE_CODE_DETAILS%"),
    }


def _engines() -> dict[str, Any]:
    """Whatever pod the endpoint picker named in its header."""
    return {
        "name": "engines",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": DESTINATION_HEADER},
        "connect_timeout": "5s",
        "circuit_breakers": _unlimited(),
        "upstream_connection_options": _keepalive(),
        "typed_extension_protocol_options": {
            _HTTP_PROTOCOL_OPTIONS: _typed(
                _HTTP_PROTOCOL_OPTIONS,
                common_http_protocol_options={"idle_timeout": f"{UPSTREAM_IDLE_SECONDS}s"},
                explicit_http_config={"http_protocol_options": {}},
            )
        },
    }


def _picker(host: str, port: int, health_port: int) -> dict[str, Any]:
    """The picker signs its own certificate, so TLS here hides and does not prove. Its health port has no TLS.

    It says that it does not serve as soon as it is told to stop, and goes on with what it has: a new one gets the rest.
    """
    encrypted = _extension(
        "envoy.transport_sockets.tls",
        "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        common_tls_context={"alpn_protocols": ["h2"], "validation_context": {}},
    )
    plain = _extension(
        "envoy.transport_sockets.raw_buffer", "envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"
    )
    endpoint = {"address": _address(host, port), "health_check_config": {"port_value": health_port}}
    return {
        "name": "endpoint_picker",
        "type": "STRICT_DNS",
        "connect_timeout": "5s",
        "circuit_breakers": _unlimited(),
        "upstream_connection_options": _keepalive(),
        "transport_socket": encrypted,
        "transport_socket_matches": [{"name": "health", "match": {"health": True}, "transport_socket": plain}],
        "health_checks": [
            {
                "timeout": "2s",
                "interval": "5s",
                "no_traffic_interval": "5s",
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
                "grpc_health_check": {"service_name": "envoy.service.ext_proc.v3.ExternalProcessor"},
                "transport_socket_match_criteria": {"health": True},
            }
        ],
        "typed_extension_protocol_options": {
            _HTTP_PROTOCOL_OPTIONS: _typed(_HTTP_PROTOCOL_OPTIONS, explicit_http_config={"http2_protocol_options": {}})
        },
        "load_assignment": _assignment("endpoint_picker", [endpoint]),
    }


def _unlimited() -> dict[str, Any]:
    """Envoy's default of 1024 at a time is a limit for short requests; here the picker decides what waits."""
    names = ("max_connections", "max_pending_requests", "max_requests")
    return {"thresholds": [dict.fromkeys(names, MAX_PARALLEL)]}


def _keepalive() -> dict[str, Any]:
    """A peer whose node is gone sends nothing, as one that thinks does; after 60 + 3 x 10 s this tells them apart."""
    return {"tcp_keepalive": {"keepalive_time": 60, "keepalive_interval": 10, "keepalive_probes": 3}}


def _assignment(cluster: str, endpoints: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": [{"endpoint": one} for one in endpoints]}]}


def _admin(port: int) -> dict[str, Any]:
    return {
        "name": "admin",
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": _assignment("admin", [{"address": _address("127.0.0.1", port)}]),
    }


def _health_listener(ports: Ports) -> dict[str, Any]:
    """The two harmless pages of the admin interface, for probes and for Prometheus."""
    routes = [{"match": {"path": path}, "route": {"cluster": "admin"}} for path in ("/ready", "/stats/prometheus")]
    manager = _extension(
        "envoy.filters.network.http_connection_manager",
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="health",
        route_config={"name": "health", "virtual_hosts": [{"name": "health", "domains": ["*"], "routes": routes}]},
        http_filters=[_router()],
    )
    address = _address(ports.address, ports.health)
    return {"name": "health", "address": address, "filter_chains": [{"filters": [manager]}]}


def _overload_manager(heap_bytes: int) -> dict[str, Any]:
    heap = "envoy.resource_monitors.fixed_heap"
    kind = "envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig"
    limit = _extension(heap, kind, max_heap_size_bytes=heap_bytes)

    def above(action: str, share: float) -> dict[str, Any]:
        trigger = {"name": heap, "threshold": {"value": share}}
        return {"name": f"envoy.overload_actions.{action}", "triggers": [trigger]}

    return {
        "refresh_interval": "0.25s",
        "resource_monitors": [limit],
        "actions": [above("shrink_heap", 0.9), above("stop_accepting_requests", 0.95)],
    }
