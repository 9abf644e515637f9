"""Reads a `vllm serve` command line as the pinned release would, as far as a fake engine has to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kimi_k3_operator.profiles.blocks import kv_block_tokens
from kimi_k3_operator.profiles.flags import FlagTable
from tests.harness.engine.settings import EngineSettings, KvTransfer, Pace

VERSION = "FAKE_VLLM_VERSION"
DEFAULT_VERSION = "0.30.0"
SUFFIXES = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}
CONNECTOR_ROLES = ("kv_producer", "kv_consumer", "kv_both")


class CommandLineError(Exception):
    """The engine does not start: `exit_code` 2 for what the parser refuses, 1 for what the configuration refuses."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Launch:
    """One engine process: where it listens, its rank in a group, its settings, and what it warns of."""

    settings: EngineSettings
    host: str = "0.0.0.0"
    port: int = 8000
    headless: bool = False
    nodes: int = 1
    rank: int = 0
    master_address: str = "127.0.0.1"
    master_port: int = 29501
    warnings: tuple[str, ...] = field(default=())


def launch_from_command(words: Sequence[str], environment: Mapping[str, str] | None = None) -> Launch:
    """The engine that `vllm serve` with these arguments (model first, no command) and variables would be.

    Raises CommandLineError for an unknown flag, a value of the wrong form, and settings the engine refuses.
    """
    env = environment or {}
    version = env.get(VERSION, DEFAULT_VERSION)
    table = FlagTable.load()
    if not table.supports(version):
        raise CommandLineError(2, f"{VERSION}: no table of the flags of vLLM {version}")
    model, flags = _parse(words, version, table)
    warnings = tuple(
        f"Unknown vLLM environment variable detected: {name}"
        for name in sorted(env)
        if name.startswith("VLLM_") and not table.knows_env(name, version)
    )
    if warnings and flags.get("fail-on-environ-validation"):
        raise CommandLineError(1, warnings[0])
    read = _Flags(flags, version, table)
    return Launch(
        settings=_settings(model, read, env, version),
        host=env.get("FAKE_VLLM_BIND") or str(flags.get("host") or "0.0.0.0"),
        port=read.integer("port", 8000),
        headless=bool(flags.get("headless")),
        nodes=read.integer("nnodes", 1),
        rank=read.integer("node-rank", 0),
        master_address=str(flags.get("master-addr", "127.0.0.1")),
        master_port=read.integer("master-port", 29501),
        warnings=warnings,
    )


def _parse(words: Sequence[str], version: str, table: FlagTable) -> tuple[str, dict[str, Any]]:
    """(model, flags by name without dashes). The last of two equal flags counts, as in argparse."""
    model = ""
    flags: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            if model:
                raise CommandLineError(2, f"vllm serve: error: unrecognized arguments: {word}")
            model = word
            continue
        spelt, equals, inline = word[2:].partition("=")
        name, _, key = spelt.partition(".")
        name = name.replace("_", "-")
        if not table.knows_flag(name, version):
            raise CommandLineError(2, f"vllm serve: error: unrecognized arguments: {word}")
        if _is_switch(name, version, table):
            if equals:
                raise CommandLineError(2, f"vllm serve: error: argument --{name}: ignored explicit argument {inline!r}")
            negated = name.startswith("no-") and name not in table.flags
            flags[name.removeprefix("no-") if negated else name] = not negated
            continue
        values = [inline] if equals else []
        while not equals and rest and not rest[0].startswith("--"):
            values.append(rest.pop(0))
            if name not in LISTS:
                break
        if not values:
            raise CommandLineError(2, f"vllm serve: error: argument --{name}: expected at least one argument")
        if key:
            flags.setdefault(name, {})[key] = values[0]
        else:
            flags[name] = values[0]
    return model, flags


LISTS = frozenset(
    {"served-model-name", "api-key", "allowed-origins", "allowed-methods", "allowed-headers", "middleware"}
)
"""Flags that take several values; of a list the first value is kept."""


def _is_switch(name: str, version: str, table: FlagTable) -> bool:
    if name.startswith("no-") and name not in table.flags:
        return True
    return version in table.flags[name].negatable or isinstance(table.default_of(name, version), bool)


@dataclass(frozen=True)
class _Flags:
    values: Mapping[str, Any]
    version: str
    table: FlagTable

    def integer(self, name: str, default: int) -> int:
        """A number, also as `128k` or `1M`; `auto` is the default."""
        text = str(self.values.get(name, "auto"))
        if text == "auto":
            return default
        try:
            return int(float(text[:-1]) * SUFFIXES[text[-1]]) if text[-1:] in SUFFIXES else int(text)
        except ValueError:
            raise CommandLineError(2, f"vllm serve: error: argument --{name}: invalid int value: {text!r}") from None

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.values.get(name)
        if isinstance(value, dict) or value is None:
            return value or {}
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise CommandLineError(
                2, f"vllm serve: error: argument --{name}: Value {value} cannot be converted to a JSON object."
            )
        return found

    def switch(self, name: str, default: bool = False) -> bool:
        return bool(self.values.get(name, default))


def _settings(model: str, flags: _Flags, env: Mapping[str, str], version: str) -> EngineSettings:
    draft = flags.mapping("speculative-config")
    if draft and "num_speculative_tokens" not in draft:
        raise CommandLineError(1, "ValueError: num_speculative_tokens must be provided with speculative model")
    draft_tokens = int(draft.get("num_speculative_tokens", 0))
    dtype = str(flags.values.get("kv-cache-dtype", "auto"))
    tensor_parallel = flags.integer("tensor-parallel-size", 1)
    seqs = flags.integer("max-num-seqs", 1024)
    batched = flags.integer("max-num-batched-tokens", 16384)
    if batched < seqs:
        raise CommandLineError(1, f"ValueError: max_num_batched_tokens ({batched}) < max_num_seqs ({seqs})")
    try:
        ssm = str(flags.values.get("mamba-ssm-cache-dtype", "auto"))
        block = kv_block_tokens(
            tensor_parallel=tensor_parallel, kv_cache_dtype=dtype, draft_tokens=draft_tokens, ssm_dtype=ssm
        )
    except ValueError as refused:
        raise CommandLineError(1, f"ValueError: {refused}") from None
    unit = flags.integer("prefix-match-unit", block)
    if unit <= 0 or block % unit:
        raise CommandLineError(1, f"ValueError: prefix_match_unit {unit} does not divide the block of {block} tokens")
    settings = EngineSettings(
        name=env.get("POD_NAME", env.get("HOSTNAME", "fake")),
        version=version,
        model=model,
        served_name=str(flags.values.get("served-model-name", model)),
        max_model_len=flags.integer("max-model-len", 1_048_576),
        max_num_seqs=seqs,
        max_num_queued=flags.integer("max-num-queued-reqs", 0) or None,
        kv_blocks=int(env.get("FAKE_VLLM_KV_BLOCKS", 2135)),
        block_tokens=block,
        unit_tokens=unit,
        kv_cache_dtype=dtype,
        prefix_caching=flags.switch("enable-prefix-caching", True),
        prompt_tokens_details=flags.switch("enable-prompt-tokens-details"),
        auto_tool_choice=flags.switch("enable-auto-tool-choice"),
        stream_interval=max(1, flags.integer("stream-interval", 1)),
        draft_model=str(draft.get("model", "")),
        draft_tokens=draft_tokens,
        tensor_parallel=tensor_parallel,
        transfer=_transfer(flags.mapping("kv-transfer-config"), env),
        api_key=flags.values.get("api-key") or env.get("VLLM_API_KEY"),
        shutdown_seconds=flags.integer("shutdown-timeout", 0),
        drain_listens=env.get("FAKE_VLLM_DRAIN_LISTENS", "1") != "0",
        pace=_pace(env),
    )
    needed = -(-settings.max_model_len // block) * block // unit + settings.state_units
    if needed > settings.capacity_units:
        raise CommandLineError(
            1,
            f"ValueError: To serve at least one request with the models's max seq len ({settings.max_model_len}), "
            f"more KV cache is needed than the {settings.kv_blocks} blocks there are",
        )
    return settings


def _transfer(config: Mapping[str, Any], env: Mapping[str, str]) -> KvTransfer | None:
    if not config:
        return None
    if config.get("kv_role") not in CONNECTOR_ROLES:
        raise CommandLineError(1, f"ValueError: kv_role must be one of {', '.join(CONNECTOR_ROLES)}")
    policy = str(config.get("kv_load_failure_policy", "fail"))
    if policy not in ("fail", "recompute"):
        raise CommandLineError(1, f"ValueError: kv_load_failure_policy {policy!r} is neither fail nor recompute")
    extra = config.get("kv_connector_extra_config") or {}
    return KvTransfer(
        connector=str(config.get("kv_connector", "")),
        role=str(config["kv_role"]),
        failure_policy=policy,
        lease_seconds=float(extra.get("kv_lease_duration", 30)),
        host=env.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost"),
        port=int(env.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600")),
    )


def _pace(env: Mapping[str, str]) -> Pace:
    base = Pace.b300() if env.get("FAKE_VLLM_PACE") == "b300" else Pace()
    return Pace(
        prefill=float(env.get("FAKE_VLLM_PREFILL_RATE", base.prefill)),
        decode=float(env.get("FAKE_VLLM_DECODE_RATE", base.decode)),
        transfer=float(env.get("FAKE_VLLM_TRANSFER_RATE", base.transfer)),
        load_seconds=float(env.get("FAKE_VLLM_LOAD_SECONDS", base.load_seconds)),
    )
