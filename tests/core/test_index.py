"""Rows K2 (a forgotten worker leaves nothing behind) and K4 (bounded in bytes, LRU) at the level of the index."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eluvix_extproc.core.index import MemoryIndex, PrefixIndex
from eluvix_extproc.core.prompt import PrefixPoint

_ODD = 0x9E3779B97F4A7C15
_SMALL = 65_536


def _chain(name: int, length: int) -> tuple[PrefixPoint, ...]:
    """Points with well-spread keys, as hashes have, disjoint from those of every other name below 2^32."""
    return tuple(
        PrefixPoint((((name << 20) + step + 1) * _ODD) & (2**64 - 1), 16 * (step + 1)) for step in range(length)
    )


def test_the_longest_known_prefix_per_worker() -> None:
    index: PrefixIndex = MemoryIndex(_SMALL)
    chain = _chain(1, 10)
    index.insert(chain[:4], "a")
    index.insert(chain[:7], "b")
    assert index.lookup(chain) == {"a": 64, "b": 112}
    assert index.lookup(chain[:5]) == {"a": 64, "b": 80}
    assert index.lookup(_chain(2, 10)) == {}
    assert index.lookup(()) == {}
    assert len(index) == 7


def test_a_hole_in_a_chain_does_not_hide_what_is_below_it() -> None:
    index = MemoryIndex(_SMALL)
    chain = _chain(1, 6)
    index.insert((chain[0], chain[1], chain[4]), "a")
    assert index.lookup(chain) == {"a": 80}
    assert index.lookup(chain[:4]) == {"a": 32}


def test_forgetting_a_worker_leaves_nothing_of_it() -> None:
    index = MemoryIndex(_SMALL)
    chain, other = _chain(1, 8), _chain(2, 8)
    index.insert(chain, "a")
    index.insert(chain, "b")
    index.insert(other, "a")
    index.forget("a")
    assert index.lookup(chain) == {"b": 128}
    assert index.lookup(other) == {}
    index.forget("never-seen")


def test_a_worker_that_comes_back_under_its_address_starts_empty() -> None:
    index = MemoryIndex(_SMALL)
    chain = _chain(1, 8)
    index.insert(chain, "a")
    index.forget("a")
    index.insert(chain[:2], "a")
    assert index.lookup(chain) == {"a": 32}


def test_renewing_a_point_sheds_forgotten_workers() -> None:
    index, lone = MemoryIndex(_SMALL), MemoryIndex(_SMALL)
    chain = _chain(1, 8)
    for number in range(20):
        index.insert(chain, f"gone{number}")
        index.insert(chain, "stays")
        index.forget(f"gone{number}")
    index.insert(chain, "stays")
    lone.insert(chain, "stays")
    assert index.bytes_used == lone.bytes_used


def test_least_recently_inserted_goes_first_and_a_chain_from_its_long_end() -> None:
    index = MemoryIndex(_SMALL)
    first, renewed = _chain(1_000_000, 4), _chain(1_000_001, 4)
    index.insert(renewed, "a")
    index.insert(first, "a")
    name = 0
    while index.lookup(first).get("a") == 64:
        index.insert(renewed, "a")
        index.insert(_chain(name, 1), "a")
        name += 1
    assert index.lookup(first) == {"a": 48}
    assert index.lookup(renewed) == {"a": 64}
    for later in range(name, name + 3):
        index.insert(_chain(later, 1), "a")
    assert index.lookup(first) == {}
    assert index.lookup(renewed) == {"a": 64}


# The middle size makes one shard of the largest kind: the table that is rebuilt weighs most there.
@pytest.mark.parametrize("limit", [200_000, 2_297_000, 4 << 20])
def test_traffic_without_end_stays_within_the_bytes(limit: int) -> None:
    points = 3 * limit // 200
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        index = MemoryIndex(limit)
        for name in range(points // 250):
            index.insert(_chain(name, 250), f"10.0.0.{name % 13}:8000")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The chain that is being inserted is the caller's.
    assert peak - before < limit + 250 * 160
    assert index.bytes_used <= limit
    assert len(index) * 200 > limit / 2, "the budget is used, not only kept"


@pytest.mark.parametrize("points", [60, 400])
def test_every_point_held_by_another_set_of_workers_stays_within_the_bytes(points: int) -> None:
    index = MemoryIndex(_SMALL)
    chain = _chain(1, points)
    for number in range(12):
        for point in chain:
            if (point.key >> number) & 1:
                index.insert((point,), f"w{number}")
                assert index.bytes_used <= _SMALL
    assert 1 < len(index) < points
    index.insert(chain[-1:], "w0")
    assert "w0" in index.lookup(chain[-1:])


def test_a_size_that_holds_nothing_useful_is_refused() -> None:
    with pytest.raises(ValueError, match="65536"):
        MemoryIndex(1000)


_step = st.one_of(
    st.tuples(st.just("insert"), st.integers(0, 5), st.integers(0, 6), st.sampled_from("abc")),
    st.tuples(st.just("forget"), st.just(0), st.just(0), st.sampled_from("abc")),
)


@settings(deadline=None)
@given(st.lists(_step, max_size=60))
def test_it_answers_like_a_plain_map_while_nothing_is_evicted(
    steps: Sequence[tuple[str, int, int, str]]
) -> None:
    index = MemoryIndex(_SMALL)
    model: dict[tuple[int, str], int] = {}
    for verb, name, length, worker in steps:
        if verb == "insert":
            index.insert(_chain(name, 6)[:length], worker)
            model[name, worker] = max(model.get((name, worker), 0), length)
        else:
            index.forget(worker)
            model = {key: length for key, length in model.items() if key[1] != worker}
        for name in range(6):
            expected = {worker: 16 * length for (n, worker), length in model.items() if n == name and length}
            assert index.lookup(_chain(name, 6)) == expected
    assert index.bytes_used <= _SMALL


@settings(deadline=None)
@given(st.lists(_step, max_size=40))
def test_sets_of_workers_are_counted_exactly(steps: Sequence[tuple[str, int, int, str]]) -> None:
    index = MemoryIndex(_SMALL)
    for verb, name, length, worker in steps:
        if verb == "insert":
            index.insert(_chain(name, 6)[:length], worker)
        else:
            index.forget(worker)
    lone = MemoryIndex(_SMALL)
    for name in range(1000, 1000 + 4 * _fill(MemoryIndex(_SMALL))):
        index.insert(_chain(name, 1), "d")
        lone.insert(_chain(name, 1), "d")
    for worker in "abc":
        index.forget(worker)
    assert index.bytes_used == lone.bytes_used, "what was evicted left no bytes behind"


def _fill(index: MemoryIndex) -> int:
    """Insert one-point chains until the index is full; how many it took."""
    name = 0
    while len(index) == name:
        index.insert(_chain(name, 1), "a")
        name += 1
    return name
