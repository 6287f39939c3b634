"""How long a prefill and a decode step take on a worker: the roofline, with stated shares of the peaks.

A step takes as long as the slower of its computation and its memory traffic (Williams et al., CACM 52(4), 2009). No
engine reaches either peak; `Efficiency` is the share that is assumed, and every report prints it. Communication between
the ranks of a worker, scheduling and kernel launches are not modelled: what a worker really takes is measured, and
replaces these figures where it is known.
"""

from __future__ import annotations

from dataclasses import dataclass

from eluvix_extproc.errors import ConfigError
from eluvix_extproc.physics import work
from eluvix_extproc.physics.catalogue import Model
from eluvix_extproc.physics.geometry import kv_bytes
from eluvix_extproc.physics.hardware import Accelerator
from eluvix_extproc.physics.work import Work


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the peaks: `compute` is the model FLOP utilisation (MFU; Chowdhery et al., arXiv 2204.02311,
    appendix B) of a prefill, `memory` the part of the bandwidth that decoding reaches, `capacity` the part of the
    memory that an engine takes for weights and cache (vLLM's gpu_memory_utilization)."""

    compute: float = 0.45
    memory: float = 0.7
    capacity: float = 0.9

    def __post_init__(self) -> None:
        if not all(0 < share <= 1 for share in (self.compute, self.memory, self.capacity)):
            raise ConfigError(["an efficiency is a share: above 0, at most 1"])


@dataclass(frozen=True, slots=True)
class Worker:
    """One engine instance: a model on `tp` accelerators. dtypes: `bf16`, `fp8` or `fp4` for weights and matrices,
    an engine's KV-cache dtype for the cache."""

    model: Model
    accelerator: Accelerator
    tp: int = 1
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    efficiency: Efficiency = Efficiency()

    def __post_init__(self) -> None:
        if self.tp < 1:
            raise ConfigError([f"tp is {self.tp}, not a number of accelerators"])

    def prefill_work(self, tokens: int, cached: int = 0) -> Work:
        return work.prefill(self.model, tokens, cached=cached, dtype=self.dtype, kv_dtype=self.kv_dtype)

    def decode_work(self, batch: int, context: int) -> Work:
        return work.decode(self.model, batch, context, dtype=self.dtype, kv_dtype=self.kv_dtype)

    def prefill_s(self, tokens: int, cached: int = 0) -> float:
        """Seconds to compute `tokens` tokens behind `cached` ones, alone on the worker; 0 for none."""
        return self.step_s(self.prefill_work(tokens, cached)) if tokens > 0 else 0.0

    def decode_step_s(self, batch: int, context: int) -> float:
        """Seconds of one step for `batch` sequences of `context` tokens: their inter-token latency."""
        return self.step_s(self.decode_work(batch, context))

    def stall_s(self, tokens: int, cached: int, batch: int, context: int, chunk_tokens: int) -> float:
        """Seconds that `batch` decoding sequences of `context` tokens each are held up by a prefill on their worker.

        Continuous batching computes both in one step (Agrawal et al., Sarathi-Serve, arXiv 2403.02310): the prefill
        takes at most `chunk_tokens` a step, and shares its reading of the weights with the decoding. So what fits into
        the computing power that decoding leaves idle costs nobody anything; only what is beyond does.
        """
        decoding = self.decode_work(batch, context)
        alone = self.step_s(decoding)
        weights = work.weights_of(self.model).read_by(batch) * work.weight_bytes_each(self.dtype)
        stall, done = 0.0, 0
        while done < tokens:
            step = min(chunk_tokens, tokens - done)
            chunk = self.prefill_work(step, cached + done)
            mixed = Work(decoding.flop + chunk.flop, max(decoding.bytes, decoding.bytes - weights + chunk.bytes))
            stall += self.step_s(mixed) - alone
            done += step
        return stall

    def step_s(self, step: Work) -> float:
        compute = step.flop / (self.tp * self.accelerator.peak(self.dtype) * self.efficiency.compute)
        memory = step.bytes / (self.tp * self.accelerator.memory_bytes_per_s * self.efficiency.memory)
        return max(compute, memory)

    @property
    def weight_bytes(self) -> float:
        return work.weights_of(self.model).total * work.weight_bytes_each(self.dtype)

    def kv_room_bytes(self) -> float:
        """Memory left for KV cache; negative where the weights do not fit."""
        return self.tp * self.accelerator.memory_bytes * self.efficiency.capacity - self.weight_bytes

    def most_sequences(self, context: int) -> int:
        """Sequences of `context` tokens whose cache fits, over all ranks."""
        each = kv_bytes(self.model.geometry, context, self.kv_dtype, tp=self.tp)
        return max(0, int(self.kv_room_bytes() // each)) if each else 0

    def batch_within(self, itl_s: float, context: int) -> int:
        """The largest number of sequences of `context` tokens that fits and decodes within `itl_s` a token; 0 when not
        even one does. A step gets no faster with more sequences, so it is found by halving."""
        low, high = 0, self.most_sequences(context)
        while low < high:
            middle = (low + high + 1) // 2
            if self.decode_step_s(middle, context) <= itl_s:
                low = middle
            else:
                high = middle - 1
        return low
