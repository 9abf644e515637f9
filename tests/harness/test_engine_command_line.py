"""Command lines of `vllm serve` as the fake engine reads them."""

from __future__ import annotations

import pytest

from kimi_k3_operator.profiles.engine import EngineConfig, serve_command
from kimi_k3_operator.profiles.flags import FlagTable
from tests.engine.lines import Line, packaged
from tests.factories import deployment as deployed
from tests.factories import engine_of, pool
from tests.harness.engine import CommandLineError, launch_from_command

LINES = [Line(profile, concurrency) for profile in packaged() for concurrency in (8, 16, 32)]
LINES += [Line(profile, 8, "DSpark") for profile in packaged()]


@pytest.mark.parametrize("line", LINES, ids=str)
def test_the_command_line_of_each_packaged_profile_is_taken(line: Line):
    engine = line.resolve()
    assert isinstance(engine, EngineConfig)
    for rank in range(engine.profile.hardware.nodes_per_replica):
        command, args = serve_command(engine, rank=rank)
        launch = launch_from_command(args, {**engine.env, "FAKE_VLLM_VERSION": engine.engine_version})
        settings = launch.settings
        assert command == ["vllm", "serve"]
        assert launch.warnings == ()
        assert (launch.port, launch.rank, launch.headless) == (8000, rank, rank > 0)
        assert (settings.served_name, settings.max_num_seqs) == ("kimi-k3", engine.int_arg("max-num-seqs"))
        assert settings.draft_tokens == engine.speculation.tokens
        assert settings.shutdown_seconds == engine.drain_seconds
        assert settings.unit_tokens == 128


def test_the_block_is_the_one_of_the_hybrid_model():
    engine = engine_of(deployed(pool("b300")))
    assert launch_from_command(serve_command(engine)[1], {}).settings.block_tokens == 1536
    assert launch_from_command(["/w", "--tensor-parallel-size", "8"], {}).settings.block_tokens == 768


def refused(*words: str, **env: str) -> CommandLineError:
    with pytest.raises(CommandLineError) as caught:
        launch_from_command(["/weights", "--tensor-parallel-size", "8", *words], env)
    return caught.value


def test_an_unknown_flag_is_refused_with_exit_code_2():
    error = refused("--bogus-flag", "1")
    assert (error.exit_code, str(error)) == (2, "vllm serve: error: unrecognized arguments: --bogus-flag")


def test_a_flag_of_a_later_release_is_refused():
    words = ("--reasoning-effort-map", '{"medium":"high"}')
    assert refused(*words, FAKE_VLLM_VERSION="0.32.0").exit_code == 2
    launch_from_command(["/w", "--tensor-parallel-size", "8", *words], {"FAKE_VLLM_VERSION": "0.33.0"})


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--max-num-seqs", "many"), 2),
        (("--kv-transfer-config", "{"), 2),
        (("--max-model-len",), 2),
        (("--headless", "yes"), 2),
        (("--kv-cache-dtype", "int2"), 1),
        (("--max-num-seqs", "64", "--max-num-batched-tokens", "32"), 1),
        (("--prefix-match-unit", "100"), 1),
        (("--kv-transfer-config", '{"kv_connector":"NixlConnector"}'), 1),
        (("--speculative-config", '{"method":"dspark"}'), 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_what_the_engine_would_refuse_is_refused(words: tuple[str, ...], code: int):
    assert refused(*words).exit_code == code


def test_more_context_than_cache_is_refused():
    assert "max seq len" in str(refused(FAKE_VLLM_KV_BLOCKS="100"))


def test_an_unknown_variable_warns_and_stops_the_start_only_where_asked():
    env = {"VLLM_NO_SUCH_THING": "1", "VLLM_NO_USAGE_STATS": "1"}
    words = ["/weights", "--tensor-parallel-size", "8"]
    warning = "Unknown vLLM environment variable detected: VLLM_NO_SUCH_THING"
    assert launch_from_command(words, env).warnings == (warning,)
    assert refused("--fail-on-environ-validation", **env).exit_code == 1


def test_spellings_that_the_parser_takes_mean_the_same():
    words = ["/w", "--tensor_parallel_size=8", "--max-model-len", "128k", "--speculative-config.num_speculative_tokens"]
    settings = launch_from_command([*words, "3", "--no-enable-prefix-caching"], {}).settings
    assert (settings.tensor_parallel, settings.max_model_len, settings.draft_tokens) == (8, 128_000, 3)
    assert settings.prefix_caching is False


@pytest.mark.parametrize("version", FlagTable.load().versions)
def test_the_first_of_several_served_names_is_kept_in_each_release(version: str):
    words = ["/w", "--tensor-parallel-size", "8", "--served-model-name", "kimi-k3", "kimi"]
    launch = launch_from_command(words, {"FAKE_VLLM_VERSION": version})
    assert (launch.settings.served_name, launch.settings.version) == ("kimi-k3", version)
