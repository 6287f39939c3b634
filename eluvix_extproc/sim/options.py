"""What one simulated worker is: its speed, its cache, its limits."""

from __future__ import annotations

from dataclasses import dataclass

ROLES = ("colocated", "prefill", "decode", "disaggregated-conductor")
OVERLOAD_MODES = ("status", "stream")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Settings of one worker; a value that no engine could have is a ValueError that says why.

    `prefill_tokens_per_s` is the compute rate of prefill, `itl_ms` the length of a step that only decodes, and
    `base_ttft_ms` what passes between a request's arrival and the first step that may take it (HTTP, tokenisation,
    scheduling). `interference` is the share of a prefill chunk's time that the decode steps beside it are made longer
    by: 1 is a plain engine, 0 overlaps the two perfectly, above 1 exaggerates. `max_queued` bounds the requests beyond
    `max_running`; None is no bound. `role` changes nothing but what the worker says of itself.
    """

    host: str = "127.0.0.1"
    port: int = 0
    models: tuple[str, ...] = ("sim",)
    role: str = "colocated"
    prefill_tokens_per_s: float = 8000.0
    base_ttft_ms: float = 20.0
    itl_ms: float = 10.0
    interference: float = 1.0
    max_batched_tokens: int = 2048
    max_running: int = 256
    max_queued: int | None = None
    overload_mode: str = "status"
    max_model_len: int = 131072
    kv_blocks: int = 16384
    block_size: int = 16
    output_tokens: int = 64

    def __post_init__(self) -> None:
        if not self.models or not all(self.models):
            raise ValueError("at least one model name is needed, and none may be empty")
        if self.role not in ROLES:
            raise ValueError(f"role {self.role!r} is not one of {', '.join(ROLES)}")
        if self.overload_mode not in OVERLOAD_MODES:
            raise ValueError(f"overload mode {self.overload_mode!r} is not one of {', '.join(OVERLOAD_MODES)}")
        if self.prefill_tokens_per_s <= 0:
            raise ValueError("prefill tokens per second must be above 0")
        if min(self.base_ttft_ms, self.itl_ms, self.interference) < 0:
            raise ValueError("base TTFT, ITL and interference must not be negative")
        if min(self.max_batched_tokens, self.max_running, self.block_size, self.output_tokens) < 1:
            raise ValueError("batched tokens, running requests, block size and output tokens must be at least 1")
        if self.max_queued is not None and self.max_queued < 0:
            raise ValueError("max queued must not be negative")
        if self.kv_blocks * self.block_size < self.max_model_len:
            raise ValueError(
                f"{self.kv_blocks} KV blocks of {self.block_size} tokens cannot hold one request of "
                f"{self.max_model_len} tokens (max model length)"
            )
