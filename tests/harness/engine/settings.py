"""What one fake engine is: its model, its limits, its memory and its speed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

KDA_GROUPS = 3
"""Groups of recurrent layers that share the cache with the attention layers: 69 KDA layers over 24 MLA layers."""


@dataclass(frozen=True)
class Pace:
    """How fast an engine works, in tokens per second, and how long it loads, in seconds.

    The defaults keep tests short; `Pace.b300()` is what eight B300 do.
    """

    prefill: float = 1_000_000.0
    """All requests together: prompts are computed one after the other."""
    decode: float = 5_000.0
    """Each request."""
    transfer: float = 10_000_000.0
    """KV cache pulled from a prefill engine."""
    load_seconds: float = 0.0

    @classmethod
    def b300(cls, *, load_seconds: float = 0.0) -> Pace:
        """Published for 8 x B300: 21 500 prompt tokens/s, and 110 output tokens/s for one request without a draft."""
        return cls(prefill=21_500.0, decode=110.0, transfer=2_000_000.0, load_seconds=load_seconds)


@dataclass(frozen=True)
class KvTransfer:
    """The part of `--kv-transfer-config` that decides how KV cache moves between engines."""

    connector: str
    role: str
    failure_policy: str = "fail"
    lease_seconds: float = 30.0
    """How long a prefill engine keeps the blocks of a finished request for its decode engine."""
    host: str = "localhost"
    """The address that is told to decode engines: VLLM_NIXL_SIDE_CHANNEL_HOST and its default."""
    port: int = 5600


@dataclass(frozen=True)
class EngineSettings:
    """One engine. Sizes are tokens unless the name says blocks; defaults are the b300 profile at utilisation 0.90."""

    name: str = "fake"
    """Told in the header x-fake-engine of each answer."""
    version: str = "0.30.0"
    model: str = "/weights"
    served_name: str = "kimi-k3"
    max_model_len: int = 1_048_576
    max_num_seqs: int = 16
    max_num_queued: int | None = None
    """Requests that may run and wait at the same time; beyond it 503."""
    kv_blocks: int = 2135
    block_tokens: int = 1536
    unit_tokens: int = 128
    """Prefix hits are multiples of it (`--prefix-match-unit`)."""
    kv_cache_dtype: str = "fp8"
    prefix_caching: bool = True
    prompt_tokens_details: bool = True
    auto_tool_choice: bool = True
    stream_interval: int = 1
    """Tokens in one frame of a stream."""
    draft_model: str = ""
    draft_tokens: int = 0
    accepted_length: float = 2.5
    """Tokens that one step with a draft yields."""
    tensor_parallel: int = 8
    transfer: KvTransfer | None = None
    api_key: str | None = None
    shutdown_seconds: float = 0.0
    drain_listens: bool = True
    """Whether the port still answers (503 for new requests) while running requests finish after SIGTERM."""
    pace: Pace = Pace()

    @property
    def capacity_units(self) -> int:
        """KV cache in units of prefix matching."""
        return self.kv_blocks * self.block_tokens // self.unit_tokens

    @property
    def state_units(self) -> int:
        """What each running request holds for its recurrent state, in the same units."""
        slots = (2 if self.prefix_caching else 1) + self.draft_tokens
        return KDA_GROUPS * slots * self.block_tokens // self.unit_tokens

    @property
    def compatibility(self) -> str:
        """Two engines exchange KV cache only if this is equal: what NIXL compares, as far as this engine has it."""
        parts = (self.version, self.model, self.kv_cache_dtype, self.draft_model, self.draft_tokens, self.block_tokens)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
