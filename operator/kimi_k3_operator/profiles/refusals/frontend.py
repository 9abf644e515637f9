"""The HTTP side of the engine."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.specifiers import SpecifierSet

from kimi_k3_operator.profiles.engine import EngineConfig
from kimi_k3_operator.profiles.refusals.settings import before, is_on
from kimi_k3_operator.profiles.refusals.table import refusal, warning

RUST_STOPS_ON: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "allowed-local-media-path", "allowed-media-domains", "collect-detailed-traces",
            "enable-force-include-usage",
            "enable-log-outputs", "enable-prompt-embeds", "enable-ssl-refresh", "h11-max-header-count", "hf-token",
            "log-config-file", "log-error-stack", "max-log-len", "media-io-kwargs", "middleware",
            "mm-processor-cache-gb",
            "mm-processor-cache-type", "mm-processor-kwargs", "otlp-traces-endpoint", "reasoning-parser-plugin",
            "response-role", "root-path", "tool-parser-plugin", "tool-server", "uvicorn-log-level",
        ),
        "",
    ),
    "generation-config": "<0.29",
    "override-generation-config": ">=0.29",
    "stream-interval": "<0.32",
    "enable-per-request-metrics": ">=0.31,<0.33",
    "enable-fault-tolerance": ">=0.31",
    "max-num-queued-reqs": ">=0.31",
    "max-num-queued-tokens": ">=0.31",
    "trust-request-mm-kwargs": ">=0.31",
}  # fmt: skip
"""Flag on which the Rust front end ends the start, and the versions that do (each binary run with each flag)."""


@refusal("rust-frontend", fix="remove the flags, or set VLLM_USE_RUST_FRONTEND=0")
def rust_frontend_takes_the_flags(engine: EngineConfig) -> str | None:
    if not is_on(engine.env.get("VLLM_USE_RUST_FRONTEND", "0")):
        return None
    version = engine.engine_version
    stops = sorted(
        name
        for name, engines in RUST_STOPS_ON.items()
        if engine.args.get(name) not in (None, False) and SpecifierSet(engines).contains(version)
    )
    return f"the Rust front end of vLLM {version} stops on {', '.join(stops)}" if stops else None


@refusal("log-outputs", fix="set enable-log-requests as well", at="overrides.args.enable-log-outputs")
def outputs_are_logged_with_requests(engine: EngineConfig) -> str | None:
    args = engine.args
    if args.get("enable-log-outputs") is True and args.get("enable-log-requests") is not True:
        return "enable-log-outputs needs enable-log-requests"
    return None


@warning("queue-limit-per-server", fix="remove api-server-count")
def queue_limit_counts_for_each_server(engine: EngineConfig) -> str | None:
    names = ["max-num-queued-tokens"] if "max-num-queued-tokens" in engine.args else []
    if "max-num-queued-reqs" in engine.args and before(engine, "0.30"):
        names.append("max-num-queued-reqs")
    servers = engine.int_arg("api-server-count", 1)
    return f"{names[0]} counts in each of the {servers} API servers by itself" if names and servers > 1 else None


@warning("strict-tool-calls-off", fix="remove VLLM_ENFORCE_STRICT_TOOL_CALLING")
def named_tools_need_strict_calls(engine: EngineConfig) -> str | None:
    if is_on(engine.env.get("VLLM_ENFORCE_STRICT_TOOL_CALLING", "1")):
        return None
    return "requests that name the tool to call are answered with 400"


@refusal("developer-endpoints", fix="remove VLLM_SERVER_DEV_MODE", at="overrides.env.VLLM_SERVER_DEV_MODE")
def developer_endpoints_are_closed(engine: EngineConfig) -> str | None:
    if is_on(engine.env.get("VLLM_SERVER_DEV_MODE", "0")):
        return "anybody who reaches the port could put the engine to sleep or empty its cache"
    return None
