"""The engine on a virtual clock: every figure here is counted in steps or computed from them, none is measured."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eluvix_extproc.sim.engine import Engine, Overloaded, Sequence, Step
from eluvix_extproc.sim.options import WorkerOptions

RATE = 8000.0
ITL = 0.01


def _engine(**settings_: Any) -> Engine:
    usual = {"prefill_tokens_per_s": RATE, "itl_ms": ITL * 1000, "base_ttft_ms": 0}
    return Engine(WorkerOptions(**{**usual, **settings_}))


class Clock:
    """Runs an engine step by step and remembers the steps."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.now = 0.0
        self.steps: list[Step] = []

    def submit(self, prompt: int, output: int, *, first_hash: int = 0) -> Sequence:
        """A prompt whose blocks are numbered from `first_hash`, which thus says what it shares with others."""
        hashes = tuple(range(first_hash, first_hash + (prompt + output) // 16))
        sequence = Sequence(prompt, output, hashes, lambda: None)
        self.engine.submit([sequence], self.now)
        return sequence

    def step(self) -> Step | None:
        step = self.engine.plan(self.now)
        if step is not None:
            self.now += step.duration
            self.engine.complete(step, self.now)
            self.steps.append(step)
        return step

    def run(self) -> None:
        while self.step():
            pass


def _steady_decoder(engine: Engine) -> Clock:
    """An engine in which one interactive sequence decodes."""
    clock = Clock(engine)
    clock.submit(16, 1000, first_hash=10**6)
    clock.step()
    clock.steps.clear()
    return clock


def test_a_long_prefill_slows_every_decode_step_beside_it() -> None:
    clock = _steady_decoder(_engine())
    heavy = clock.submit(8192, 1)
    while not heavy.finished:
        clock.step()
    assert [step.prefill_tokens for step in clock.steps] == [2047, 2047, 2047, 2047, 4]
    assert all(len(step.decoding) == 1 for step in clock.steps)
    assert [step.duration for step in clock.steps] == pytest.approx([ITL + 2047 / RATE] * 4 + [ITL + 4 / RATE])
    after = clock.step()
    assert after is not None
    assert after.duration == ITL


def test_isolated_the_same_prefill_slows_no_decode_step() -> None:
    interactive, isolated = _steady_decoder(_engine()), Clock(_engine())
    heavy = isolated.submit(8192, 1)
    isolated.run()
    for _ in range(100):
        interactive.step()
    assert heavy.finished
    assert [step.duration for step in isolated.steps] == pytest.approx([2048 / RATE] * 4)
    assert {step.duration for step in interactive.steps} == {ITL}


def test_smaller_chunks_shorten_the_gaps_and_lengthen_the_prefill() -> None:
    worst, total = {}, {}
    for chunk in (256, 2048):
        clock = _steady_decoder(_engine(max_batched_tokens=chunk))
        heavy, begun = clock.submit(8192, 1), clock.now
        while not heavy.finished:
            clock.step()
        worst[chunk], total[chunk] = max(step.duration for step in clock.steps), clock.now - begun
    assert worst[256] < worst[2048] / 5
    assert total[256] > total[2048]


def test_without_interference_decoding_keeps_its_pace_and_prefill_its_rate() -> None:
    clock = _steady_decoder(_engine(interference=0.0))
    heavy, begun = clock.submit(800, 1), clock.now
    while not heavy.finished:
        clock.step()
    assert {step.duration for step in clock.steps} == {ITL}
    assert clock.now - begun == pytest.approx(800 / RATE)


@given(
    interference=st.floats(0, 3),
    prompts=st.lists(st.integers(1, 5000), min_size=1, max_size=5),
    itl=st.floats(0.1, 50),
)
@settings(max_examples=60, deadline=None)
def test_prefill_is_never_faster_than_its_rate(interference: float, prompts: list[int], itl: float) -> None:
    clock = _steady_decoder(_engine(interference=interference, itl_ms=itl))
    for i, prompt in enumerate(prompts):
        clock.submit(prompt, 3, first_hash=1000 * (i + 1))
    for _ in range(30):
        clock.step()
    assert all(step.duration >= step.prefill_tokens / RATE for step in clock.steps)
    assert all(step.duration >= itl / 1000 for step in clock.steps if step.decoding)


def test_nothing_starts_before_its_fixed_cost_has_passed() -> None:
    engine = _engine(base_ttft_ms=20)
    clock = Clock(engine)
    clock.submit(100, 1)
    assert clock.step() is None
    assert engine.next_ready() == pytest.approx(0.02)
    clock.now = 0.02
    step = clock.step()
    assert step is not None
    assert clock.now == pytest.approx(0.02 + 100 / RATE)
    assert engine.metrics.time_to_first_token.sum == pytest.approx(clock.now)


def test_only_uncached_tokens_are_computed() -> None:
    clock = Clock(_engine())
    cold = clock.submit(100, 1)
    clock.run()
    warm = clock.submit(100, 1)
    clock.run()
    assert (cold.cached_tokens, cold.created_cache_tokens) == (0, 96)
    assert (warm.cached_tokens, warm.created_cache_tokens) == (96, 0)
    assert [step.prefill_tokens for step in clock.steps] == [100, 4]
    assert (clock.engine.metrics.prefix_queries, clock.engine.metrics.prefix_hits) == (200, 96)


def test_the_last_prompt_token_is_always_computed() -> None:
    clock = Clock(_engine())
    for _ in range(2):
        sequence = clock.submit(64, 1)
        clock.run()
    assert sequence.cached_tokens == 48
    assert clock.steps[-1].prefill_tokens == 16


def test_generated_blocks_can_be_found_by_the_next_turn() -> None:
    clock = Clock(_engine())
    clock.submit(32, 33)
    clock.run()
    following = clock.submit(200, 1)
    clock.run()
    assert following.cached_tokens == 64


def test_the_least_recently_used_prefix_is_computed_again() -> None:
    clock = Clock(_engine(kv_blocks=16, max_model_len=256))
    for first_hash in (0, 100, 0, 200):
        clock.submit(96, 1, first_hash=first_hash)
        clock.run()
    kept, lost = clock.submit(96, 1, first_hash=0), clock.submit(96, 1, first_hash=100)
    clock.run()
    assert kept.cached_tokens == 80
    # 12 idle blocks and 7 new ones in 16: three had to go, from the end of the prefix that was not asked for again.
    assert lost.cached_tokens == 48


def test_a_sequence_waits_until_blocks_are_free() -> None:
    clock = Clock(_engine(kv_blocks=16, max_model_len=256))
    first, second = clock.submit(150, 10), clock.submit(150, 10, first_hash=100)
    clock.step()
    assert (clock.engine.running, clock.engine.waiting) == (1, 1)
    while not first.finished:
        clock.step()
    assert second.generated == 0
    clock.run()
    assert second.finished


def test_no_more_run_than_may() -> None:
    clock = Clock(_engine(max_running=2))
    sequences = [clock.submit(16, 4, first_hash=100 * i) for i in range(5)]
    clock.run()
    assert all(sequence.finished for sequence in sequences)
    assert max(len(step.decoding) + len(step.chunks) for step in clock.steps) == 2


def test_a_full_engine_takes_all_of_a_request_or_none() -> None:
    engine = _engine(max_running=1, max_queued=2)
    clock = Clock(engine)
    clock.submit(16, 4)
    three = [Sequence(16, 4, (), lambda: None) for _ in range(3)]
    with pytest.raises(Overloaded):
        engine.submit(three, 0.0)
    assert engine.load == 1
    engine.submit(three[:2], 0.0)
    assert engine.metrics.rejected == 1


def test_an_abort_during_a_step_frees_the_place_and_gives_no_token() -> None:
    clock = _steady_decoder(_engine())
    prefilling, waiting = clock.submit(8192, 5), clock.submit(8192, 5, first_hash=5000)
    step = clock.engine.plan(clock.now)
    assert step is not None
    for sequence in (step.decoding[0], prefilling, waiting):
        clock.engine.abort(sequence)
        clock.engine.abort(sequence)
    assert clock.engine.complete(step, clock.now + step.duration) == ()
    assert clock.engine.load == 0
    assert clock.engine.pool.used == 0
    assert clock.engine.metrics.finished["abort"] == 3
    assert clock.step() is None


@given(st.lists(st.tuples(st.sampled_from("saxx"), st.integers(1, 200), st.integers(1, 40)), max_size=60))
@settings(max_examples=100, deadline=None)
def test_whatever_happens_every_block_comes_back(script: list[tuple[str, int, int]]) -> None:
    clock = Clock(_engine(kv_blocks=40, max_model_len=400, max_running=4, max_batched_tokens=64))
    sequences: list[Sequence] = []
    for act, first, second in script:
        if act == "s":
            sequences.append(clock.submit(first, second, first_hash=first % 7 * 1000))
        elif act == "a" and sequences:
            clock.engine.abort(sequences[first % len(sequences)])
        else:
            clock.step()
        assert clock.engine.pool.used <= 40
    clock.run()
    assert clock.engine.load == 0
    assert clock.engine.pool.used == 0
    assert all(s.aborted or s.generated == s.output_tokens for s in sequences)
    assert clock.engine.metrics.generation_tokens == sum(s.generated for s in sequences)
