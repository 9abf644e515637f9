"""What a pool's `overrides` mean, and the ones that mean nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from kimi_k3_operator.api.refusal import Refusal
from kimi_k3_operator.api.v1alpha1 import Overrides, Pool
from kimi_k3_operator.profiles.flags import FlagTable
from kimi_k3_operator.profiles.model import ArgValue
from kimi_k3_operator.profiles.reserved import RESERVED_ARGS, RESERVED_ENV

RULES: Mapping[str, str] = {
    "reserved-override": "A flag or variable that the operator alone sets is overridden or unset.",
    "override-twice": "One flag is given in two spellings: `x` and `no-x`, or `enable-x` and `disable-x`.",
    "override-negation": "`no-x` with a value; give `x` the value instead.",
    "override-switch": "A switch has a value other than `true` and `false`, or a flag that is no switch is turned off.",
    "override-number": "A count is no whole number above 0, or a share of memory is not above 0 and at most 1.",
    "override-json": "A flag that takes a JSON object has none.",
    "override-and-unset": "A name is both overridden and unset.",
    "unset-nothing": "A name is unset that neither the profile nor the load sets.",
}
"""Refusals of this module, for the reference page."""

_COUNTS = (
    "api-server-count", "cp-kv-cache-interleave-size", "dcp-kv-cache-interleave-size", "decode-context-parallel-size",
    "mamba-block-size", "max-model-len", "max-num-batched-tokens", "max-num-queued-reqs", "max-num-queued-tokens",
    "max-num-seqs",
)  # fmt: skip
"""Flags that policies calculate with. vLLM takes forms such as `128k` as well, which would pass them unseen."""

_OBJECTS = ("additional-config", "attention-config", "compilation-config", "kv-events-config")
"""Flags with a JSON object that policies look into."""

_SWITCH: Mapping[str, bool] = {"": True, "true": True, "false": False}


def canonical(name: str, flags: FlagTable) -> tuple[str, bool]:
    """(the flag that a spelling sets, whether it turns it off).

    `no-x` is `x` turned off. Of a pair `enable-x` and `disable-x` the one that more versions know is the flag.
    """
    if name.startswith("no-") and name not in flags.flags:
        return name.removeprefix("no-"), True
    for mine, other in (("enable-", "disable-"), ("disable-", "enable-")):
        twin = other + name.removeprefix(mine)
        if name.startswith(mine) and name in flags.flags and twin in flags.flags:
            newer = flags.flags[name].versions < flags.flags[twin].versions
            return (twin, True) if newer else (name, False)
    return name, False


def override_args(overrides: Overrides, flags: FlagTable) -> dict[str, ArgValue]:
    """Flag to value: `true` or nothing is on, `false` is off, anything else is text."""
    found: dict[str, ArgValue] = {}
    for name, text in (overrides.args or {}).items():
        flag, off = canonical(name, flags)
        value: ArgValue = _SWITCH.get(text, text)
        found[flag] = not value if off else value
    return found


def unset_args(overrides: Overrides, flags: FlagTable) -> tuple[str, ...]:
    """The flags that are left out, whatever spelling names them."""
    return tuple(canonical(name, flags)[0] for name in overrides.unset_args or ())


def override_refusals(
    pool: Pool, args: Mapping[str, ArgValue], env: Mapping[str, str], version: str, flags: FlagTable
) -> Iterator[Refusal]:
    """Everything wrong with the overrides by themselves; `args` and `env` are what would be without them."""
    if pool.overrides is None:
        return
    where = f"spec.pools[{pool.name}].overrides"
    yield from _reserved(pool.overrides, flags, where)
    yield from _spellings(pool.overrides, flags, where)
    yield from _values(pool.overrides, version, flags, where)
    yield from _unset(pool.overrides, args, env, flags, where)


def _reserved(overrides: Overrides, flags: FlagTable, where: str) -> Iterator[Refusal]:
    for name in (*(overrides.args or ()), *(overrides.unset_args or ())):
        flag = canonical(name, flags)[0]
        if flag in RESERVED_ARGS:
            yield Refusal("reserved-override", f"{name} cannot be overridden", f"{where}.args", RESERVED_ARGS[flag])
    for name in (*(overrides.env or ()), *(overrides.unset_env or ())):
        if name in RESERVED_ENV:
            yield Refusal("reserved-override", f"{name} cannot be overridden", f"{where}.env", RESERVED_ENV[name])


def _spellings(overrides: Overrides, flags: FlagTable, where: str) -> Iterator[Refusal]:
    first: dict[str, str] = {}
    for name, text in (overrides.args or {}).items():
        flag, off = canonical(name, flags)
        if flag in first:
            sentence = f"{first[flag]} and {name} set the same flag"
            yield Refusal("override-twice", sentence, f"{where}.args", f"keep {flag} with true or false")
        elif off and _SWITCH.get(text) is not True:
            fix = f"set {flag} to {'true' if text == 'false' else 'a value'} instead"
            yield Refusal("override-negation", f"{name} takes no value, not {text!r}", f"{where}.args.{name}", fix)
        first.setdefault(flag, name)


def _values(overrides: Overrides, version: str, flags: FlagTable, where: str) -> Iterator[Refusal]:
    for name, text in (overrides.args or {}).items():
        flag, off = canonical(name, flags)
        at, switch = f"{where}.args.{name}", flags.knows_flag(f"no-{flag}", version)
        if switch and not off and text not in _SWITCH:
            yield Refusal("override-switch", f"must be true or false, not {text!r}", at)
        elif flags.knows_flag(flag, version) and not switch and (off or text == "false"):
            yield Refusal("override-switch", f"{flag} cannot be turned off", at, f"put {flag} into unsetArgs")
        elif flag in _COUNTS and not re.fullmatch("[1-9][0-9]{0,8}", text):
            yield Refusal("override-number", f"must be a whole number above 0, not {text!r}", at)
        elif flag == "gpu-memory-utilization" and not re.fullmatch("0?[.][0-9]*[1-9][0-9]*|1|1[.]0+", text):
            yield Refusal("override-number", f"must be a number above 0 and at most 1, not {text!r}", at)
        elif flag in _OBJECTS and not _is_object(text):
            yield Refusal("override-json", f"must be a JSON object, not {text!r}", at)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _unset(
    overrides: Overrides, args: Mapping[str, ArgValue], env: Mapping[str, str], flags: FlagTable, where: str
) -> Iterator[Refusal]:
    given = {canonical(name, flags)[0] for name in overrides.args or ()}
    for name, flag in zip(overrides.unset_args or (), unset_args(overrides, flags), strict=True):
        if flag in given:
            yield Refusal("override-and-unset", f"{name} is overridden as well", f"{where}.unsetArgs", "keep one")
        elif flag not in args and flag not in RESERVED_ARGS:
            yield _nothing_to_unset(name, args, f"{where}.unsetArgs")
    for name in overrides.unset_env or ():
        if name in (overrides.env or ()):
            yield Refusal("override-and-unset", f"{name} is overridden as well", f"{where}.unsetEnv", "keep one")
        elif name not in env and name not in RESERVED_ENV:
            yield _nothing_to_unset(name, env, f"{where}.unsetEnv")


def _nothing_to_unset(name: str, present: Mapping[str, object], where: str) -> Refusal:
    close = get_close_matches(name, present, n=1)
    fix = f"did you mean {close[0]}?" if close else "remove it"
    return Refusal("unset-nothing", f"{name} is not set, so it cannot be unset", where, fix)
