from __future__ import annotations

from eluvix_extproc.workers.health import Health


def test_ready_until_shown_otherwise() -> None:
    health = Health(3)
    assert health.ready
    for ready in (True, True, False, False):
        assert not health.failed()
        assert health.ready is ready


def test_a_refused_connection_counts_double_and_loses_the_cache_once() -> None:
    health = Health(3)
    assert not health.failed(refused=True)
    assert health.ready
    assert health.failed(refused=True)
    assert not health.ready
    assert not health.failed(refused=True)


def test_one_success_makes_it_ready_and_a_next_restart_is_noticed_again() -> None:
    health = Health(1)
    assert health.failed(refused=True)
    health.succeeded()
    assert health.ready
    assert health.failed(refused=True)


def test_a_worker_that_hung_before_it_died_loses_its_cache_when_it_died() -> None:
    health = Health(2)
    assert not health.failed()
    assert not health.failed()
    assert not health.ready
    assert health.failed(refused=True)
