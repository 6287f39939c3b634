from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from eluvix_extproc.core.ledger import Lease, Ledger


def test_counted_from_selection_until_release() -> None:
    ledger = Ledger()
    view = ledger.counts()
    lease = ledger.acquire("a", 100)
    other = ledger.acquire("a", 20)
    assert dict(view) == {"a": 2}
    assert dict(ledger.tokens()) == {"a": 120}
    assert lease.release()
    assert dict(ledger.tokens()) == {"a": 20}
    other.release()
    assert dict(view) == {}, "an idle worker leaves no entry"


def test_released_exactly_once() -> None:
    ledger = Ledger()
    ledger.acquire("a")
    lease = ledger.acquire("a")
    assert lease.release()
    assert not lease.release()
    lease.move("b")
    lease.release_at(5.0)
    assert dict(ledger.counts()) == {"a": 1}
    assert ledger.ghosts == 0
    assert ledger.expire(10.0) == 0


def test_a_retry_counts_where_it_ended() -> None:
    ledger = Ledger()
    lease = ledger.acquire("a", 7)
    lease.move("b")
    assert dict(ledger.counts()) == {"b": 1}
    assert dict(ledger.tokens()) == {"b": 7}
    lease.release()
    assert not ledger.counts()


def test_a_left_stream_counts_until_its_expected_end() -> None:
    ledger = Ledger()
    for instant in (3.0, 1.0, 2.0):
        ledger.acquire("a").release_at(instant)
    assert ledger.ghosts == 3
    assert ledger.expire(0.5) == 0
    assert ledger.expire(2.0) == 2
    assert dict(ledger.counts()) == {"a": 1}
    assert ledger.expire(3.0) == 1
    assert ledger.ghosts == 0
    assert not ledger.counts()


def test_a_parked_lease_that_is_released_or_parked_anew_expires_once() -> None:
    ledger = Ledger()
    early, moved = ledger.acquire("a"), ledger.acquire("b")
    early.release_at(1.0)
    early.release()
    moved.release_at(1.0)
    moved.release_at(4.0)
    assert ledger.ghosts == 1
    assert ledger.expire(2.0) == 0
    assert dict(ledger.counts()) == {"b": 1}
    assert ledger.expire(4.0) == 1


_worker = st.sampled_from("abc")
_index = st.integers(0, 30)
_operation = st.one_of(
    st.tuples(st.just("acquire"), _worker, st.integers(0, 1000)),
    st.tuples(st.just("release"), _index, st.none()),
    st.tuples(st.just("move"), _index, _worker),
    st.tuples(st.just("park"), _index, st.integers(0, 20)),
    st.tuples(st.just("expire"), st.integers(0, 20), st.none()),
)


@settings(deadline=None)
@given(st.lists(_operation, max_size=80))
def test_counts_are_the_open_leases(operations: list[tuple[str, object, object]]) -> None:
    ledger = Ledger()
    leases: list[Lease] = []
    for verb, first, second in operations:
        if verb == "acquire":
            assert isinstance(first, str) and isinstance(second, int)
            leases.append(ledger.acquire(first, second))
        elif verb == "expire":
            assert isinstance(first, int)
            parked = ledger.ghosts
            assert ledger.expire(float(first)) == parked - ledger.ghosts
        elif leases:
            assert isinstance(first, int)
            lease = leases[first % len(leases)]
            if verb == "release":
                assert lease.open is lease.release()
            elif verb == "move":
                assert isinstance(second, str)
                lease.move(second)
            else:
                assert isinstance(second, int)
                lease.release_at(float(second))
        open_leases = [lease for lease in leases if lease.open]
        tokens: Counter[str] = Counter()
        for lease in open_leases:
            tokens[lease.worker] += lease.tokens
        assert dict(ledger.counts()) == dict(Counter(lease.worker for lease in open_leases))
        assert dict(ledger.tokens()) == dict(tokens)
        assert ledger.ghosts == sum(lease.due is not None for lease in open_leases)
