"""From a pool and its profile to an `EngineConfig`, or to the refusals that keep it from being one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from kimi_k3_operator.api.base import seconds
from kimi_k3_operator.api.refusal import Refusal
from kimi_k3_operator.api.v1alpha1 import KimiK3DeploymentSpec, Load, Model, Pool, SpeculationSpec, Weights
from kimi_k3_operator.profiles.engine import (
    DRAFT_PATH,
    HTTP_PORT,
    Checkpoint,
    EngineConfig,
    Folder,
    HubDownload,
    SpeculationPlan,
    claim_folder,
    claim_or_path,
)
from kimi_k3_operator.profiles.flags import FlagTable
from kimi_k3_operator.profiles.model import ArgValue, Band, Profile
from kimi_k3_operator.profiles.refusals import judge
from kimi_k3_operator.profiles.reserved import RESERVED_ARGS, RESERVED_ENV
from kimi_k3_operator.profiles.startup import engine_ready_timeout, startup_seconds


def resolve(
    spec: KimiK3DeploymentSpec, pool: Pool, profile: Profile, flags: FlagTable
) -> EngineConfig | tuple[Refusal, ...]:
    """The engine of `pool`, or every refusal, ordered."""
    model, load = spec.model or Model(), pool.load or Load()
    weights = pool.weights or spec.weights
    assert weights is not None  # a rule of the API
    checkpoint = _checkpoint(weights, model)
    speculation = plan_speculation(pool, profile, load, checkpoint)
    if isinstance(speculation, Refusal):
        return (speculation,)
    version = pool.image.engine_version if pool.image else profile.engine.version
    engine = EngineConfig(
        pool=pool.name,
        profile=profile,
        image=pool.image.reference if pool.image else _image(profile),
        engine_version=version,
        command=profile.engine.command,
        args={},
        env={},
        origins={},
        checkpoint=checkpoint,
        speculation=speculation,
        served_name=model.served_name,
        startup_seconds=_budget(pool, profile, checkpoint),
        drain_seconds=pool.drain_seconds,
    )
    engine = _with_layers(engine, pool, load)
    refusals = [
        *_override_refusals(pool, version, flags),
        *_unusable_numbers(engine, pool),
        *_unknown_names(engine, pool, flags),
    ]
    judged, warnings = judge(engine)
    if refusals or judged:
        return tuple(sorted({*refusals, *judged}))
    return replace(engine, warnings=warnings)


def band_for(profile: Profile, concurrency: int) -> Band:
    """The first band that holds `concurrency`, else the last one."""
    return next((band for band in profile.bands if concurrency <= band.max_concurrency), profile.bands[-1])


def plan_speculation(pool: Pool, profile: Profile, load: Load, checkpoint: Checkpoint) -> SpeculationPlan | Refusal:
    """What speculative decoding does for this pool. Auto never needs more than the user gave."""
    wanted, rules = pool.speculation or SpeculationSpec(), profile.speculation
    where = f"spec.pools[{pool.name}].speculation"
    if wanted.mode == "Off":
        return SpeculationPlan(0, "off: asked for")
    draft = wanted.draft.id if wanted.draft else rules.drafts[0].id
    known = next((d for d in rules.drafts if d.id == draft), None)
    if wanted.mode == "Auto":
        if not rules.auto:
            return SpeculationPlan(0, f"off: profile {profile.name}/{profile.version} drafts only when asked to")
        fitting = (
            rule
            for rule in rules.auto
            if load.concurrency <= rule.max_concurrency and load.context_tokens <= rule.max_context_tokens
        )
        auto = next(fitting, None)
        if auto is None:
            return SpeculationPlan(0, f"off: no gain at {load.concurrency} requests of {load.context_tokens} tokens")
        tokens, why = wanted.tokens or auto.tokens, f"{load.concurrency} requests of {load.context_tokens} tokens"
    else:
        tokens, why = wanted.tokens or rules.explicit_tokens, "asked for"
    if known is not None and tokens > known.block_size:
        return Refusal(
            "draft-tokens", f"{tokens} tokens are above the {known.block_size} that {draft} drafts at once", where
        )
    located = _locate_draft(wanted, draft, checkpoint)
    if located is None:
        if wanted.mode == "Auto":
            return SpeculationPlan(0, "off: no draft weights are named in speculation.draft")
        return Refusal("draft-missing", "DSpark needs draft.subPath or draft.path for these weights", where)
    path, folder, download = located
    return SpeculationPlan(tokens, f"{tokens} tokens: {why}", draft, path, folder, download)


def _locate_draft(
    wanted: SpeculationSpec, draft: str, checkpoint: Checkpoint
) -> tuple[str, Folder | None, HubDownload | None] | None:
    """(path in the container, folder to mount there, download that fills it), or None where nothing is known."""
    if wanted.draft and wanted.draft.path:
        return wanted.draft.path, None, None
    folder = checkpoint.folder
    if wanted.draft and wanted.draft.sub_path:
        if folder.claim is not None:
            return DRAFT_PATH, Folder(folder.claim, wanted.draft.sub_path), None
        return DRAFT_PATH, Folder(None, str(PurePosixPath(folder.path).parent / wanted.draft.sub_path)), None
    if checkpoint.download is None:
        return None
    revision = wanted.draft.revision if wanted.draft else None
    target = str(PurePosixPath(folder.path).parent / _folder_name(draft, revision))
    return DRAFT_PATH, Folder(folder.claim, target), HubDownload(draft, revision, checkpoint.download.token)


def _checkpoint(weights: Weights, model: Model) -> Checkpoint:
    if weights.persistent_volume_claim is not None:
        return Checkpoint(claim_folder(weights.persistent_volume_claim))
    if weights.host_path is not None:
        return Checkpoint(Folder(None, weights.host_path.path))
    assert weights.hugging_face is not None
    cache = claim_or_path(weights.hugging_face.cache)
    path = PurePosixPath(cache.path) / _folder_name(model.id, model.revision)
    download = HubDownload(model.id, model.revision, weights.hugging_face.token_secret_ref)
    return Checkpoint(Folder(cache.claim, str(path)), download)


def _folder_name(repository: str, revision: str | None) -> str:
    return f"{repository.replace('/', '--')}@{(revision or 'main').replace('/', '--')}"


def _image(profile: Profile) -> str:
    image = profile.engine.image
    return f"{image.reference}@{image.digest}" if image.digest else image.reference


def _budget(pool: Pool, profile: Profile, checkpoint: Checkpoint) -> int:
    if pool.startup_budget is not None:
        return seconds(pool.startup_budget)
    return startup_seconds(profile.startup, shared_claim=checkpoint.folder.claim is not None)


def _with_layers(engine: EngineConfig, pool: Pool, load: Load) -> EngineConfig:
    """Profile, then band, then speculation, then the user's overrides, then what the operator alone sets."""
    profile, overrides = engine.profile, pool.overrides
    args: dict[str, ArgValue] = {}
    env: dict[str, str] = {}
    origins: dict[str, str] = {}

    def layer(origin: str, new_args: dict[str, ArgValue], new_env: dict[str, str]) -> None:
        args.update(new_args)
        env.update(new_env)
        origins.update(dict.fromkeys([*new_args, *new_env], origin))

    layer(f"profile {profile.name}/{profile.version}", dict(profile.engine.args), dict(profile.engine.env))
    band = band_for(profile, load.concurrency)
    layer(f"band up to {band.max_concurrency}", dict(band.args), {})
    if engine.speculation.tokens:
        config: dict[str, ArgValue] = {
            "model": engine.speculation.path,
            "method": "dspark",
            "num_speculative_tokens": engine.speculation.tokens,
            **profile.speculation.config,
        }
        layer("speculation", {"speculative-config": dict(config)}, {})
    if overrides is not None:
        layer(
            "override",
            {name: _override_value(value) for name, value in (overrides.args or {}).items()},
            dict(overrides.env or {}),
        )
        for name in (*(overrides.unset_args or ()), *(overrides.unset_env or ())):
            args.pop(name, None)
            env.pop(name, None)
            origins.pop(name, None)
    layer(
        "operator",
        {
            "host": "0.0.0.0",
            "port": HTTP_PORT,
            "served-model-name": engine.served_name,
            "shutdown-timeout": engine.drain_seconds,
        },
        {"VLLM_ENGINE_READY_TIMEOUT_S": str(engine_ready_timeout(engine.startup_seconds))},
    )
    return replace(engine, args=args, env=env, origins=origins)


def _override_value(text: str) -> ArgValue:
    return {"": True, "true": True, "false": False}.get(text, text)


def _override_refusals(pool: Pool, version: str, flags: FlagTable) -> Iterator[Refusal]:
    overrides = pool.overrides
    if overrides is None:
        return
    for kind, names, reserved in (
        ("args", (*(overrides.args or ()), *(overrides.unset_args or ())), RESERVED_ARGS),
        ("env", (*(overrides.env or ()), *(overrides.unset_env or ())), RESERVED_ENV),
    ):
        for name in names:
            bare = name.removeprefix("no-") if kind == "args" else name
            if bare in reserved:
                where = f"spec.pools[{pool.name}].overrides.{kind}"
                yield Refusal("reserved-override", f"{name} cannot be overridden", where, reserved[bare])


_COUNTS = ("decode-context-parallel-size", "max-model-len", "max-num-batched-tokens", "max-num-seqs")
"""Flags that policies calculate with. vLLM takes forms such as `128k` as well, which would pass them unseen."""


def _unusable_numbers(engine: EngineConfig, pool: Pool) -> Iterator[Refusal]:
    """Overrides of counts and shares that are none, and a startup budget that ends before the engine gives up."""
    given = (pool.overrides.args if pool.overrides else None) or {}
    for name in _COUNTS:
        if name in given and not re.fullmatch("[1-9][0-9]{0,8}", given[name]):
            where = f"spec.pools[{pool.name}].overrides.args.{name}"
            yield Refusal("override-number", f"must be a whole number above 0, not {given[name]!r}", where)
    share = given.get("gpu-memory-utilization")
    if share is not None and not re.fullmatch("0?[.][0-9]*[1-9][0-9]*|1|1[.]0+", share):
        where = f"spec.pools[{pool.name}].overrides.args.gpu-memory-utilization"
        yield Refusal("override-number", f"must be a number above 0 and at most 1, not {share!r}", where)
    patience = engine_ready_timeout(engine.startup_seconds)
    if engine.startup_seconds <= patience:
        yield Refusal(
            "startup-budget",
            f"{engine.startup_seconds} s is not above the {patience} s that an engine waits for its own workers",
            f"spec.pools[{pool.name}].startupBudget",
        )


def _unknown_names(engine: EngineConfig, pool: Pool, flags: FlagTable) -> Iterator[Refusal]:
    """Flags and vLLM variables that the engine's version does not know, whoever set them."""
    where, version = f"spec.pools[{pool.name}]", engine.engine_version
    if version not in flags.versions:
        supported = f"{flags.versions[0]} to {flags.versions[-1]}"
        yield Refusal("engine-version", f"vLLM {version} is not supported (supported: {supported})", f"{where}.image")
        return
    unknown = [n for n in engine.args if not flags.knows_flag(n, version)]
    unknown += [n for n in engine.env if n.startswith("VLLM_") and not flags.knows_env(n, version)]
    for name in unknown:
        meant = flags.suggest(name)
        hint = f"did you mean {meant}?" if meant else ""
        field = f"{where}.overrides.{'args' if name in engine.args else 'env'}"
        at = field if engine.origins[name] == "override" else where
        yield Refusal("unknown-engine-option", f"vLLM {version} does not know {name}", at, hint)
