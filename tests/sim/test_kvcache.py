from __future__ import annotations

from eluvix_extproc.sim.kvcache import BlockPool


def _fill(pool: BlockPool, hashes: tuple[int, ...]) -> None:
    lease = pool.lease(hashes, 0, len(hashes))
    assert lease is not None
    for h in hashes:
        pool.store(lease, h)
    pool.release(lease)


def _found(pool: BlockPool, hashes: tuple[int, ...]) -> int:
    lease = pool.lease(hashes, len(hashes), len(hashes))
    assert lease is not None
    found = len(lease.hashes)
    pool.release(lease)
    return found


def test_blocks_stay_findable_after_their_sequence() -> None:
    pool = BlockPool(10)
    _fill(pool, (1, 2, 3))
    assert pool.used == 0
    assert _found(pool, (1, 2, 3, 4)) == 3


def test_only_an_unbroken_run_from_the_start_is_found() -> None:
    pool = BlockPool(10)
    _fill(pool, (1, 2, 3))
    assert _found(pool, (9, 2, 3)) == 0
    assert _found(pool, (1, 9, 3)) == 1


def test_the_longest_idle_goes_first_and_ends_before_beginnings() -> None:
    pool = BlockPool(6)
    _fill(pool, (1, 2, 3))
    _fill(pool, (4, 5, 6))
    assert _found(pool, (1, 2, 3)) == 3
    _fill(pool, (7, 8))
    assert _found(pool, (1, 2, 3)) == 3
    assert _found(pool, (4, 5, 6)) == 1


def test_what_runs_is_never_evicted() -> None:
    pool = BlockPool(4)
    held = pool.lease((1, 2), 2, 2)
    assert held is not None
    pool.store(held, 1)
    pool.store(held, 2)
    _fill(pool, (3, 4))
    _fill(pool, (5, 6))
    assert pool.lease((9,), 0, 3) is None
    assert pool.used == 2
    shared = pool.lease((1, 2), 2, 4)
    assert shared is not None
    assert pool.usage == 1.0
    pool.release(held)
    assert pool.used == 4
    pool.release(shared)
    assert pool.used == 0


def test_two_that_compute_the_same_block_at_once_keep_one_findable() -> None:
    pool = BlockPool(4)
    one, two = pool.lease((1,), 1, 1), pool.lease((1,), 1, 1)
    assert one is not None and two is not None
    assert pool.store(one, 1)
    assert not pool.store(two, 1)
    assert pool.used == 2
    pool.release(one)
    pool.release(two)
    assert (pool.used, pool.findable) == (0, 1)
