"""The engine: continuous batching with chunked prefill, as a clockless state machine.

One step does one decode token for every sequence that decodes, and fills what is left of `max_batched_tokens` with
prompt tokens: first of sequences whose prefill has begun, then of waiting ones, in order of arrival. The whole batch
waits for the step to end, so a step that carries N prompt tokens gives every decoding sequence a gap longer by
N / prefill rate. That is the interference which prefill isolation removes, and here it is not an effect put on top:
it follows from the steps. (vLLM's V1 scheduler with chunked prefill; Agrawal et al., Sarathi-Serve, OSDI 2024.)

`plan` and `complete` alternate; whoever drives the engine lets the step's duration pass in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from eluvix_extproc.sim.kvcache import BlockPool, Lease
from eluvix_extproc.sim.metrics import EngineMetrics
from eluvix_extproc.sim.options import WorkerOptions


class Overloaded(Exception):
    """As many requests as the worker may hold are there already."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One prompt with the output that it will get.

    `block_hashes` is the chain over the full blocks of prompt and output together. `on_token` is called after each
    step that gave the sequence a token. The rest is the engine's own record of its progress, in tokens and seconds.
    """

    prompt_tokens: int
    output_tokens: int
    block_hashes: tuple[int, ...]
    on_token: Callable[[], None]
    finish_reason: str = "length"
    lease: Lease | None = field(default=None, init=False)
    arrived: float = field(default=0.0, init=False)
    last_token: float = field(default=0.0, init=False)
    computed: int = field(default=0, init=False)
    generated: int = field(default=0, init=False)
    cached_tokens: int = field(default=0, init=False)
    created_cache_tokens: int = field(default=0, init=False)
    aborted: bool = field(default=False, init=False)

    @property
    def decoding(self) -> bool:
        return self.generated > 0

    @property
    def finished(self) -> bool:
        return self.generated >= self.output_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass: who decodes, who prefills how many tokens, and how long it takes (s)."""

    decoding: tuple[Sequence, ...]
    chunks: tuple[tuple[Sequence, int], ...]
    duration: float

    @property
    def prefill_tokens(self) -> int:
        return sum(n for _, n in self.chunks)


class Engine:
    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self.pool = BlockPool(options.kv_blocks)
        self.metrics = EngineMetrics()

    def submit(self, sequences: list[Sequence], now: float) -> None:
        """Takes all sequences of one request or, raising Overloaded, none."""
        limit = self._options.max_queued
        if limit is not None and self.load + len(sequences) > self._options.max_running + limit:
            self.metrics.rejected += 1
            raise Overloaded
        for sequence in sequences:
            sequence.arrived = now
            self._waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Forgets a sequence whose client left; one that is finished or aborted already is left alone."""
        if sequence.aborted or sequence.finished:
            return
        sequence.aborted = True
        if sequence.lease is None:
            self._waiting.remove(sequence)
        else:
            self._retire(sequence)
        self.metrics.finished["abort"] += 1

    def plan(self, now: float) -> Step | None:
        """The next step, or None when nothing can run at `now` (see `next_ready`)."""
        rate, itl = self._options.prefill_tokens_per_s, self._options.itl_ms / 1000
        decoding = tuple(s for s in self._running if s.decoding)
        chunks = self._fill_with_prefill(now, self._prefill_budget(len(decoding)))
        if not decoding and not chunks:
            return None
        prefill = sum(n for _, n in chunks) / rate
        duration = max(prefill, itl + self._options.interference * prefill) if decoding else prefill
        return Step(decoding, tuple(chunks), duration)

    def complete(self, step: Step, now: float) -> tuple[Sequence, ...]:
        """Books a step that ended at `now`; returns the sequences that got a token."""
        advanced = []
        for sequence in step.decoding:
            if not sequence.aborted:
                self.metrics.inter_token_latency.observe(now - sequence.last_token)
                self._advance(sequence, 1)
                self._emit(sequence, now)
                advanced.append(sequence)
        for sequence, tokens in step.chunks:
            if sequence.aborted:
                continue
            self._advance(sequence, tokens)
            if sequence.computed == sequence.prompt_tokens:
                self.metrics.time_to_first_token.observe(now - sequence.arrived)
                self.metrics.prompt_tokens += sequence.prompt_tokens
                self._emit(sequence, now)
                advanced.append(sequence)
        return tuple(advanced)

    def next_ready(self) -> float | None:
        """When the oldest waiting sequence may be taken; None when none waits."""
        return self._ready(self._waiting[0]) if self._waiting else None

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def load(self) -> int:
        return len(self._running) + len(self._waiting)

    def _prefill_budget(self, decoding: int) -> int:
        """Prompt tokens that the next step may carry.

        Below an interference of 1 a part of prefill is hidden behind decoding. Chunks are then kept so small that the
        hidden part fits, or prefill would run faster than its own rate.
        """
        options = self._options
        budget = max(0, options.max_batched_tokens - decoding)
        if decoding and options.interference < 1:
            hidden = options.itl_ms / 1000 * options.prefill_tokens_per_s / (1 - options.interference)
            budget = min(budget, max(1, int(hidden)))
        return budget

    def _fill_with_prefill(self, now: float, budget: int) -> list[tuple[Sequence, int]]:
        chunks = []
        for sequence in self._running:
            if not sequence.decoding and budget:
                tokens = min(budget, sequence.prompt_tokens - sequence.computed)
                chunks.append((sequence, tokens))
                budget -= tokens
        while budget and self._waiting and self._ready(self._waiting[0]) <= now and self._start(self._waiting[0]):
            sequence = self._waiting.popleft()
            self._running.append(sequence)
            tokens = min(budget, sequence.prompt_tokens - sequence.computed)
            chunks.append((sequence, tokens))
            budget -= tokens
        return chunks

    def _ready(self, sequence: Sequence) -> float:
        return sequence.arrived + self._options.base_ttft_ms / 1000

    def _start(self, sequence: Sequence) -> bool:
        """Reserves the sequence's blocks to its end, so that nothing is ever preempted; False when none are free."""
        if len(self._running) >= self._options.max_running:
            return False
        size = self._options.block_size
        # The last prompt token is always computed: its output is the first new token.
        findable = (sequence.prompt_tokens - 1) // size
        total = -(-(sequence.prompt_tokens + sequence.output_tokens) // size)
        sequence.lease = self.pool.lease(sequence.block_hashes, findable, total)
        if sequence.lease is None:
            return False
        sequence.cached_tokens = sequence.computed = len(sequence.lease.hashes) * size
        self.metrics.prefix_queries += sequence.prompt_tokens
        self.metrics.prefix_hits += sequence.cached_tokens
        return True

    def _advance(self, sequence: Sequence, tokens: int) -> None:
        """Adds computed tokens and makes each block that they filled findable."""
        assert sequence.lease is not None
        size = self._options.block_size
        full_before = sequence.computed // size
        sequence.computed += tokens
        for block_hash in sequence.block_hashes[full_before : sequence.computed // size]:
            if self.pool.store(sequence.lease, block_hash) and not sequence.decoding:
                sequence.created_cache_tokens += size

    def _emit(self, sequence: Sequence, now: float) -> None:
        sequence.last_token = now
        sequence.generated += 1
        self.metrics.generation_tokens += 1
        if sequence.finished:
            self._retire(sequence)
            self.metrics.finished[sequence.finish_reason] += 1
            self.metrics.e2e_latency.observe(now - sequence.arrived)

    def _retire(self, sequence: Sequence) -> None:
        assert sequence.lease is not None
        self.pool.release(sequence.lease)
        self._running.remove(sequence)
