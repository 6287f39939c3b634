from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.core.memo import ENTRY_OVERHEAD_BYTES, Memo


def test_the_oldest_untouched_entry_goes_first() -> None:
    memo: Memo[str] = Memo(2 * (10 + ENTRY_OVERHEAD_BYTES))
    memo.put(1, "one", 10)
    memo.put(2, "two", 10)
    assert memo.get(1) == "one"
    memo.put(3, "three", 10)
    assert memo.get_many((1, 2, 3)) == ["one", None, "three"]


def test_looking_whether_a_key_is_there_keeps_nothing_alive() -> None:
    memo: Memo[str] = Memo(2 * (10 + ENTRY_OVERHEAD_BYTES))
    memo.put(1, "one", 10)
    memo.put(2, "two", 10)
    assert 1 in memo
    memo.put(3, "three", 10)
    assert 1 not in memo


def test_what_exceeds_the_budget_alone_is_not_kept_and_evicts_nobody() -> None:
    memo: Memo[str] = Memo(1000)
    memo.put(1, "one", 10)
    memo.put(2, "huge", 1000)
    assert memo.get_many((1, 2)) == ["one", None]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 900), st.booleans())))
def test_the_bytes_are_bounded_and_accounted_for(steps: list[tuple[int, int, bool]]) -> None:
    memo: Memo[int] = Memo(2000)
    for key, size, drop in steps:
        if drop:
            memo.drop(key)
            assert key not in memo
        else:
            memo.put(key, size, size)
        held = [value for value in memo.get_many(range(10)) if value is not None]
        assert memo.used_bytes == sum(held) + ENTRY_OVERHEAD_BYTES * len(held) <= 2000
        assert len(memo) == len(held)
