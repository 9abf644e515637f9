"""From a pool and its profile to an `EngineConfig`, or to the refusals that keep it from being one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from kimi_k3_operator.api.base import seconds
from kimi_k3_operator.api.refusal import Refusal
from kimi_k3_operator.api.v1alpha1 import KimiK3DeploymentSpec, Load, Model, Overrides, Pool, SpeculationSpec, Weights
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
from kimi_k3_operator.profiles.overrides import override_args, override_refusals, unset_args
from kimi_k3_operator.profiles.refusals import judge
from kimi_k3_operator.profiles.refusals.amd import SITU_NAMES
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
        load=load,
    )
    base = _with_layers(engine, load)
    engine = _with_overrides(base, pool, flags)
    refusals = [
        *override_refusals(pool, base.args, base.env, version, flags),
        *_short_budget(engine, pool),
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


def _with_layers(engine: EngineConfig, load: Load) -> EngineConfig:
    """Profile, then band, then speculation: the engine without what the user overrides."""
    profile = engine.profile
    band = band_for(profile, load.concurrency)
    engine = _on_top(engine, f"profile {profile.name}/{profile.version}", profile.engine.args, profile.engine.env)
    engine = _on_top(engine, f"band up to {band.max_concurrency}", band.args, {})
    if not engine.speculation.tokens:
        return engine
    config: dict[str, ArgValue] = {
        "model": engine.speculation.path,
        "method": "dspark",
        "num_speculative_tokens": engine.speculation.tokens,
        **profile.speculation.config,
    }
    return _on_top(engine, "speculation", {"speculative-config": dict(config)}, {})


def _with_overrides(engine: EngineConfig, pool: Pool, flags: FlagTable) -> EngineConfig:
    """On top of the layers the user's overrides, then what the operator alone sets."""
    overrides = pool.overrides or Overrides()
    engine = _on_top(engine, "override", override_args(overrides, flags), overrides.env or {})
    unset = {*unset_args(overrides, flags), *(overrides.unset_env or ())}
    engine = replace(
        engine,
        args={name: value for name, value in engine.args.items() if name not in unset},
        env={name: value for name, value in engine.env.items() if name not in unset},
        origins={name: origin for name, origin in engine.origins.items() if name not in unset},
    )
    args: dict[str, ArgValue] = {
        "host": "0.0.0.0",
        "port": HTTP_PORT,
        "served-model-name": engine.served_name,
        "shutdown-timeout": engine.drain_seconds,
    }
    env = {"VLLM_ENGINE_READY_TIMEOUT_S": str(engine_ready_timeout(engine.startup_seconds))}
    return _on_top(engine, "operator", args, env)


def _on_top(engine: EngineConfig, origin: str, args: Mapping[str, ArgValue], env: Mapping[str, str]) -> EngineConfig:
    """The engine with more flags and variables, which replace those of the same name."""
    return replace(
        engine,
        args={**engine.args, **args},
        env={**engine.env, **env},
        origins={**engine.origins, **dict.fromkeys([*args, *env], origin)},
    )


def _short_budget(engine: EngineConfig, pool: Pool) -> Iterator[Refusal]:
    """A startup budget that ends before the engine gives up waiting for its own workers."""
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
    unknown += [n for n in engine.env if flags.owns_env(n) and not flags.knows_env(n, version)]
    if engine.profile.hardware.vendor == "amd":
        unknown = [name for name in unknown if name not in SITU_NAMES]  # the policy says which name is right
    for name in unknown:
        meant = flags.suggest(name, version)
        hint = f"did you mean {meant}?" if meant else ""
        field = f"{where}.overrides.{'args' if name in engine.args else 'env'}"
        at = field if engine.origins[name] == "override" else where
        yield Refusal("unknown-engine-option", f"vLLM {version} does not know {name}", at, hint)
