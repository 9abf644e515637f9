"""Asks one vLLM release, without a GPU: runs in the engine environment (tools/engine_venv.py), not in the project's.

Reads one JSON request a line on stdin and answers one JSON object a line on stdout:

    {"table": true}                              every option of `vllm serve` and every variable, with defaults
    {"argv": [...], "env": {...}, "build": true} whether `vllm serve` takes it; `build`: its configuration object too

The device is a stand-in, 8 CUDA GPUs of the B300 kind (or 4 of the GB300 kind: `"gpus": 4`), and compiled modules are
empty, so whatever comes after the configuration object, such as kernel choice and KV-cache layout, is not reached.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import math
import os
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

COMPILED = re.compile(r"vllm\.(_\w*C(_\w+)?|cumem_allocator|vllm_flash_attn|_rs\w*)(\.|$)")
PARSER_MODULES = ("common", "launchers", "openai")
"""Packages under vllm.entrypoints that hold `make_arg_parser`, newest release first."""

GIB = 1 << 30


class EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for modules that wheels hold only as machine code."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if COMPILED.match(name) else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


class Anything(types.ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


def pretend_gpus() -> type:
    """Make a CUDA platform without NVML the current one; returns its class, whose `gpus` may be set."""
    import vllm.platforms as platforms
    from vllm.platforms.interface import DeviceCapability, UnspecifiedPlatform

    UnspecifiedPlatform.device_type = "cuda"
    from vllm.platforms.cuda import NonNvmlCudaPlatform

    class Pretended(NonNvmlCudaPlatform):
        gpus = 8

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return DeviceCapability(10, 3)

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return 268 * GIB

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "NVIDIA B300"

        @classmethod
        def device_count(cls) -> int:
            return cls.gpus

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return 148

        @classmethod
        def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
            return True

    platforms.current_platform = Pretended()
    import torch

    torch.cuda.device_count = lambda: Pretended.gpus
    return Pretended


def pretend_kernels() -> None:
    """Answer the questions about machine code that modules ask while they are imported."""
    import torch

    for question in ("fp8", "block_fp8"):
        setattr(torch.ops._C, f"cutlass_scaled_mm_supports_{question}", lambda *_: True)


def pretend_model_classes() -> None:
    """Answer what kind of model Kimi K3 and its draft are, for their classes cannot be imported without kernels."""
    registry = importlib.import_module("vllm.model_executor.models.registry")
    words = {
        "attn_type": "decoder", "default_seq_pooling_type": "LAST", "default_tok_pooling_type": "ALL",
        "score_type": "bi-encoder",
    }  # fmt: skip
    target = {"supports_multimodal", "supports_pp", "has_inner_state", "is_hybrid", "supports_replayssm"}
    target |= {"supports_multimodal_encoder_tp_data", "supports_mm_device_do_normalize"}

    def inspect(self: Any) -> Any:
        true = {"is_text_generation_model"} | (target if self.class_name.startswith("KimiK3For") else set())
        values: dict[str, Any] = {}
        for field in dataclasses.fields(registry._ModelInfo):
            empty: Any = () if "tuple" in str(field.type) else words.get(field.name, field.name in true)
            values[field.name] = self.class_name if field.name == "architecture" else empty
        return registry._ModelInfo(**values)

    registry._LazyRegisteredModel.inspect_model_cls = inspect


def pretend_tokenizer() -> None:
    """Skip looking up the thinking tokens: the folders of the tests hold configurations alone."""
    importlib.import_module("vllm.config.reasoning").ReasoningConfig.initialize_token_ids = lambda *_, **__: None


def serve_parser() -> tuple[Any, types.ModuleType]:
    """(parser of `vllm serve`, module with the checks that follow parsing)."""
    for package in PARSER_MODULES:
        name = f"vllm.entrypoints.{package}.cli_args"
        found = None
        with contextlib.suppress(ModuleNotFoundError):
            found = importlib.util.find_spec(name)
        if found is not None and hasattr(module := importlib.import_module(name), "make_arg_parser"):
            utils = importlib.import_module("vllm.utils.argparse_utils")
            return module.make_arg_parser(utils.FlexibleArgumentParser(prog="vllm serve")), module
    raise SystemExit("this release has its serve parser in a place that the driver does not know")


def is_scalar(value: Any) -> bool:
    """Whether the table can state the value; a sentinel such as argparse's SUPPRESS is no default."""
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or (isinstance(value, bool | int | str) and not str(value).startswith(("==", "/")))


def table(parser: Any) -> dict[str, Any]:
    """Long options and variables; `default` only where it is a plain scalar, `negatable` where `--no-` exists."""
    flags: dict[str, dict[str, Any]] = {}
    for option, action in parser._option_string_actions.items():
        name, inverse = option[2:], option in getattr(action, "negative_option_strings", ())
        if not option.startswith("--") or name == "help" or f"--{name.removeprefix('no-')}" != option:
            continue
        entry = flags[name] = {"negatable": f"--no-{name}" in parser._option_string_actions}
        if is_scalar(action.default):
            entry["default"] = not action.default if inverse and action.default is not None else action.default
    return {"flags": flags, "env": variables()}


def variables() -> dict[str, dict[str, Any]]:
    """Every variable of vllm.envs with its value in an empty environment.

    A default is left out where it is no plain scalar or differs between two runs on pretended machines.
    """
    envs = importlib.import_module("vllm.envs")
    seen: dict[str, list[Any]] = {name: [] for name in envs.environment_variables}
    before, count = dict(os.environ), os.cpu_count
    try:
        for cores in (3, 512):
            os.environ.clear()
            os.environ.update({"HOME": f"/nowhere/{cores}", "TMPDIR": f"/nowhere/{cores}"})
            os.cpu_count = lambda cores=cores: cores  # type: ignore[misc]
            for name, read in envs.environment_variables.items():
                with contextlib.suppress(Exception):
                    seen[name].append(read())
    finally:
        os.cpu_count = count
        os.environ.clear()
        os.environ.update(before)
    known: dict[str, dict[str, Any]] = {}
    for name, values in seen.items():
        same = len(values) == 2 and values[0] == values[1] and is_scalar(values[0])
        known[name] = {"default": values[0]} if same else {}
    return known


@contextlib.contextmanager
def variables_set(env: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def judge(parser: Any, checks: types.ModuleType, request: dict[str, Any]) -> dict[str, Any]:
    """`{"accepted": true, "config": {...}}`, or `accepted` false with the stage that refused and its words."""
    envs = importlib.import_module("vllm.envs")
    stage, said, env = "parser", io.StringIO(), request.get("env", {})
    with variables_set(env):
        try:
            for name, read in {name: envs.environment_variables.get(name) for name in env}.items():
                if read is not None:
                    read()
                elif name.startswith("VLLM_"):
                    raise KeyError(f"vLLM does not know the variable {name}")
            with contextlib.redirect_stderr(said):
                arguments = parser.parse_args(request["argv"])
            arguments.subparser = "serve"
            stage = "checks"
            arguments.model = arguments.model_tag or arguments.model
            checks.validate_parsed_serve_args(arguments)
            if not request.get("build"):
                return {"accepted": True}
            stage = "config"
            return {"accepted": True, "config": build(arguments)}
        except SystemExit:
            return {"accepted": False, "stage": stage, "error": said.getvalue().rpartition("error: ")[2].strip()}
        except Exception as error:  # noqa: BLE001
            return {"accepted": False, "stage": stage, "error": f"{type(error).__name__}: {error}"}


def build(arguments: Any) -> dict[str, Any]:
    """The configuration object of `vllm serve`, reduced to what the tests look at."""
    arguments.skip_tokenizer_init = True
    engine_args = importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs.from_cli_args(arguments)
    config = engine_args.create_engine_config(headless=bool(arguments.headless))
    speculative = config.speculative_config
    return {
        "world_size": config.parallel_config.world_size,
        "node_rank": config.parallel_config.node_rank,
        "decode_context_parallel_size": config.parallel_config.decode_context_parallel_size,
        "max_model_len": config.model_config.max_model_len,
        "tokenizer_mode": config.model_config.tokenizer_mode,
        "kv_cache_dtype": config.cache_config.cache_dtype,
        "prefix_caching": config.cache_config.enable_prefix_caching,
        "gpu_memory_utilization": config.cache_config.gpu_memory_utilization,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "speculative_tokens": speculative.num_speculative_tokens if speculative else 0,
        "speculative_method": speculative.method if speculative else None,
    }


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.meta_path.insert(0, EmptyModules())
    platform = pretend_gpus()
    pretend_kernels()
    pretend_model_classes()
    pretend_tokenizer()
    parser, checks = serve_parser()
    for line in sys.stdin:
        request = json.loads(line)
        platform.gpus = request.get("gpus", 8)  # type: ignore[attr-defined]
        answer = table(parser) if request.get("table") else judge(parser, checks, request)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
