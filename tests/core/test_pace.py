from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eluvix_extproc.core.pace import Always, Never, Pace, Watch, WatchBudget


def test_the_first_measurement_is_the_mean() -> None:
    pace = Pace()
    assert pace.itl_s("a") is None
    pace.token_seen("a", 0.02, now=1.0, tokens=3)
    assert pace.itl_s("a") == pytest.approx(0.02)


def test_tokens_weigh_alike_however_they_are_told() -> None:
    one_by_one, at_once = Pace(), Pace()
    for _ in range(300):
        one_by_one.token_seen("a", 0.02, now=1.0)
    for _ in range(100):
        one_by_one.token_seen("a", 0.03, now=2.0)
    at_once.token_seen("a", 0.02, now=1.0, tokens=300)
    at_once.token_seen("a", 0.03, now=2.0, tokens=100)
    assert one_by_one.itl_s("a") == pytest.approx(at_once.itl_s("a"))


def test_a_slower_worker_is_believed_after_some_hundred_tokens() -> None:
    pace = Pace()
    pace.token_seen("a", 0.01, now=0.0, tokens=5000)
    for second in range(20):
        pace.token_seen("a", 0.04, now=float(second), tokens=200)
    assert pace.itl_s("a") == pytest.approx(0.04, rel=0.02)


def test_one_stall_does_not_pose_as_the_pace() -> None:
    pace = Pace()
    pace.token_seen("a", 0.01, now=0.0, tokens=500)
    pace.token_seen("a", 30.0, now=1.0)
    itl = pace.itl_s("a")
    assert itl is not None and itl < 0.0102


@pytest.mark.parametrize("itl_s", [math.nan, math.inf, -0.01])
def test_nonsense_is_not_learned(itl_s: float) -> None:
    pace = Pace()
    pace.token_seen("a", itl_s, now=0.0)
    pace.observe_scrape("a", itl_s, now=0.0)
    assert pace.itl_s("a") is None


def test_a_scrape_counts_only_without_a_fresh_measurement() -> None:
    pace = Pace()
    pace.observe_scrape("a", 0.05, now=0.0)
    assert pace.itl_s("a") == 0.05
    pace.token_seen("a", 0.02, now=10.0)
    pace.observe_scrape("a", 0.05, now=70.0)
    assert pace.itl_s("a") == pytest.approx(0.02)
    pace.observe_scrape("a", 0.06, now=70.5)
    assert pace.itl_s("a") == 0.06


def test_the_pool_mean_leaves_out_the_unknown() -> None:
    pace = Pace()
    assert pace.pool_itl_s(["a", "b"]) is None
    pace.token_seen("a", 0.02, now=0.0)
    pace.observe_scrape("b", 0.04, now=0.0)
    assert pace.pool_itl_s(["a", "b", "c"]) == pytest.approx(0.03)


def test_expected_end_is_the_learned_length_at_the_workers_pace() -> None:
    pace = Pace()
    assert pace.expected_end("a", 100.0, None, "m") is None
    pace.token_seen("a", 0.01, now=0.0, tokens=50)
    pace.output_seen("a", "m", 101, now=0.0)
    assert pace.expected_end("a", 100.0, None, "m") == pytest.approx(101.0)
    assert pace.expected_end("a", 100.0, 51, "m") == pytest.approx(100.5)
    assert pace.expected_end("a", 100.0, 5000, "m") == pytest.approx(101.0)
    assert pace.expected_end("a", 100.0, 0, "m") == 100.0


def test_another_workers_answers_stand_in_for_a_new_one() -> None:
    pace = Pace()
    pace.output_seen("a", "m", 101, now=0.0)
    pace.observe_scrape("b", 0.01, now=0.0)
    assert pace.expected_end("b", 0.0, None, "m") == pytest.approx(1.0)
    assert pace.output_tokens("b", "other") is None


def test_forgetting_a_worker_leaves_nothing_of_it() -> None:
    pace = Pace()
    pace.token_seen("a", 0.01, now=0.0)
    pace.observe_scrape("a", 0.01, now=0.0)
    pace.output_seen("a", "m", 10, now=0.0)
    pace.forget("a")
    assert pace.itl_s("a") is None
    assert pace.output_tokens("a", "m") is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(1e-9, 10), st.integers(1, 3000)), min_size=1, max_size=50))
def test_a_mean_stays_between_the_extremes(samples: list[tuple[float, int]]) -> None:
    pace = Pace()
    for at, (itl_s, tokens) in enumerate(samples):
        pace.token_seen("a", itl_s, now=float(at), tokens=tokens)
    itl = pace.itl_s("a")
    assert itl is not None
    assert 0 <= itl <= max(sample for sample, _ in samples) * (1 + 1e-9)


_arrivals = st.lists(
    st.tuples(st.floats(0, 2), st.sampled_from("abcdef"), st.integers(1, 1000), st.integers(0, 6)), max_size=150
)


@settings(deadline=None)
@given(st.sampled_from([0.01, 0.05, 0.2]), _arrivals)
def test_spending_stays_within_the_share(share: float, arrivals: list[tuple[float, str, int, int]]) -> None:
    """`arrivals`: seconds since the last one, worker, chunks, how many of the open ones end first."""
    cost_s, most_chunks = 90e-6, 1000
    budget = WatchBudget(share, cost_s)
    now = spent = 0.0
    unfinished: list[int] = []
    most_open = 0
    for gap, worker, chunks, ending in arrivals:
        now += gap
        for ended in unfinished[:ending]:
            budget.charge(ended)
            spent += ended * cost_s
        unfinished = unfinished[ending:]
        if budget.admit(worker, now):
            unfinished.append(chunks)
            most_open = max(most_open, len(unfinished))
        # Debt comes only from what was already open when the balance ran out, and is paid before the next admission.
        assert spent <= share * now + budget.cap_s + most_open * most_chunks * cost_s + 1e-9
    assert budget.balance_s <= budget.cap_s


def test_the_long_run_share_is_used_and_kept() -> None:
    budget = WatchBudget(0.05)
    spent = 0.0
    for step in range(20_000):
        if budget.admit(f"w{step % 8}", step * 0.01):
            budget.charge(300)
            spent += 300 * 90e-6
    assert spent <= 0.05 * 200 + budget.cap_s + 300 * 90e-6
    assert spent >= 0.05 * 200 * 0.95


def test_a_burst_does_not_spend_the_balance_many_times() -> None:
    budget = WatchBudget(0.05)
    admitted = sum(budget.admit("a", 0.0) for _ in range(10_000))
    assert admitted * 128 * 90e-6 <= budget.cap_s + 2 * 128 * 90e-6


def test_a_quiet_worker_is_measured_beside_busy_ones() -> None:
    budget = WatchBudget(0.02)
    at: list[float] = []
    for step in range(12_000):
        now = step * 0.01
        if budget.admit(f"busy{step % 5}", now):
            budget.charge(500)
        if step % 100 == 99 and budget.admit("quiet", now):
            budget.charge(500)
            budget.measured("quiet", now)
            at.append(now)
    assert max(later - earlier for earlier, later in pairwise(at)) <= 20.0
    assert at[0] < 20.0 and at[-1] > 100.0


def test_a_share_of_nothing_watches_nothing() -> None:
    budget = WatchBudget(0.0)
    assert not any(budget.admit(worker, now) for worker in "ab" for now in (0.0, 100.0))


def test_debt_is_paid_before_anything_is_admitted() -> None:
    budget = WatchBudget(0.05)
    assert budget.admit("a", 0.0)
    budget.charge(100_000)
    assert not budget.admit("b", 0.0)
    assert not budget.admit("b", 100.0)
    assert budget.admit("b", 200.0)


def test_a_worker_that_is_gone_takes_no_turns() -> None:
    kept, forgetful = WatchBudget(0.01), WatchBudget(0.01)
    for number in range(50):
        for budget in (kept, forgetful):
            if budget.admit(f"gone{number}", 100.0 * number):
                budget.charge(200)
        forgetful.forget(f"gone{number}")
    for budget in (kept, forgetful):
        assert budget.admit("stays", 5000.0)
        budget.charge(200)
        while budget.admit("busy", 5010.5):
            budget.charge(200)
    assert not kept.admit("stays", 5010.5), "fifty others are believed to wait for theirs"
    assert forgetful.admit("stays", 5010.5)


@pytest.mark.parametrize(("watch", "admitted"), [(Always(), True), (Never(), False)])
def test_always_and_never(watch: Watch, admitted: bool) -> None:
    for now in range(3):
        assert watch.admit("a", float(now)) is admitted
        watch.charge(1_000_000)
        watch.measured("a", float(now))
        watch.forget("a")
