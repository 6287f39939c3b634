"""Prefill isolation and what happens when a role has nobody ready: rows R1, R4 and R7, and the general properties."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eluvix_extproc.core.fleet import Fleet, Load, Pool, Role, Worker
from eluvix_extproc.core.switchyard import choose
from eluvix_extproc.core.switchyard.types import Decision, Facts, InFlight, Policy, PrefixHits
from eluvix_extproc.errors import FailOpen, Unavailable

KEY = bytes(range(32))


def _pool(role: Role, *addresses: str, ready: bool = True) -> Pool:
    return Pool(str(role), role, f"llm-{role}", tuple(Worker(address, ready) for address in addresses))


def _choose(
    fleet: Fleet, tokens: int, hits: PrefixHits | None = None, in_flight: InFlight | None = None, **policy: object
) -> Decision:
    facts = Facts(prompt_tokens=tokens, exact=True, prefix_key=KEY, now=100.0)
    return choose(facts, fleet, hits or {}, in_flight or {}, Policy(**policy))  # type: ignore[arg-type]


PAIR = Fleet((_pool(Role.PREFILL, "p1", "p2"), _pool(Role.DECODE, "d1", "d2")))
TRIO = Fleet((*PAIR.pools, _pool(Role.CONDUCTOR, "c1")))


@pytest.mark.parametrize("basis", ["uncached", "prompt"])
@pytest.mark.parametrize(
    ("threshold", "tokens", "heavy"),
    [
        *((4096, 4095, False), (4096, 4096, True), (4096, 4097, True)),
        *((0, 0, True), (0, 1, True), (1, 1, True), (16, 3, False)),
    ],
)
def test_heavy_from_the_threshold_on(basis: str, threshold: int, tokens: int, heavy: bool) -> None:
    decision = _choose(
        PAIR, tokens, prefill_isolation_threshold_tokens=threshold, prefill_isolation_basis=basis
    )
    assert decision.role is (Role.PREFILL if heavy else Role.DECODE)
    assert decision.isolated is heavy
    assert not decision.fallback
    assert decision.reasons[0] == f"isolation:{basis}={tokens}{'>=' if heavy else '<'}{threshold}"


def test_what_a_light_worker_holds_does_not_count_against_the_threshold() -> None:
    decision = _choose(PAIR, 9000, {"d1": 4905})
    assert (decision.role, decision.workers[0]) == (Role.DECODE, "d1")
    assert (decision.cached_tokens, decision.uncached_tokens) == (4905, 4095)
    assert _choose(PAIR, 9000, {"d1": 4904}).role is Role.PREFILL
    assert _choose(PAIR, 9000, {"d1": 4905}, prefill_isolation_basis="prompt").role is Role.PREFILL


def test_a_prefix_that_only_a_prefill_worker_holds_does_not_make_a_prompt_light() -> None:
    decision = _choose(PAIR, 9000, {"p2": 8960})
    assert (decision.role, decision.workers[0]) == (Role.PREFILL, "p2")
    assert decision.isolated
    assert decision.uncached_tokens == 40


def test_a_warm_worker_that_is_too_busy_does_not_make_a_prompt_light() -> None:
    assert _choose(PAIR, 9000, {"d1": 8960}, {"d1": 3}).role is Role.DECODE
    assert _choose(PAIR, 9000, {"d1": 8960}, {"d1": 4}).role is Role.PREFILL


def test_without_affinity_only_the_least_loaded_ones_prefix_counts() -> None:
    assert _choose(PAIR, 9000, {"d1": 8960}, {"d2": 1}, kv_prefix_affinity=False).role is Role.DECODE
    assert _choose(PAIR, 9000, {"d1": 8960}, {"d1": 1}, kv_prefix_affinity=False).role is Role.PREFILL


def test_the_last_token_is_always_computed() -> None:
    decision = _choose(PAIR, 64, {"d1": 80})
    assert (decision.cached_tokens, decision.uncached_tokens) == (63, 1)
    assert _choose(PAIR, 0, {"d1": 80}).cached_tokens == 0


@pytest.mark.parametrize(
    ("route", "role"),
    [("auto", Role.CONDUCTOR), ("disaggregated-conductor", Role.CONDUCTOR), ("prefill", Role.PREFILL)],
)
def test_the_route_of_heavy_prompts(route: str, role: Role) -> None:
    decision = _choose(TRIO, 5000, prefill_isolation_route=route)
    assert (decision.role, decision.isolated, decision.fallback) == (role, True, False)


def test_auto_takes_prefill_while_no_conductor_is_ready() -> None:
    fleet = Fleet((*PAIR.pools, _pool(Role.CONDUCTOR, "c1", ready=False)))
    decision = _choose(fleet, 5000)
    assert (decision.role, decision.isolated, decision.fallback) == (Role.PREFILL, True, False)


def test_the_first_pool_of_a_role_with_a_ready_worker() -> None:
    fleet = Fleet(
        (
            Pool("d-east", Role.DECODE, "east", (Worker("e1", ready=False),)),
            Pool("d-west", Role.DECODE, "west", (Worker("w1"),)),
        )
    )
    decision = _choose(fleet, 10)
    assert (decision.pool, decision.cluster, decision.workers) == ("d-west", "west", ("w1",))


@pytest.mark.parametrize("role", list(Role))
def test_a_lone_pool_is_colocated_and_isolates_nothing(role: Role) -> None:
    decision = _choose(Fleet((_pool(role, "w1"),)), 100_000)
    assert (decision.role, decision.workers) == (Role.COLOCATED, ("w1",))
    assert not decision.isolated and not decision.fallback
    assert decision.reasons[0] == "isolation:no-pool"


def test_no_pool_of_the_wanted_route_makes_everything_light() -> None:
    decision = _choose(PAIR, 100_000, prefill_isolation_route="disaggregated-conductor")
    assert (decision.role, decision.isolated, decision.fallback) == (Role.DECODE, False, False)


NO_PREFILL = Fleet((_pool(Role.PREFILL, "p1", ready=False), _pool(Role.DECODE, "d1")))


def test_no_ready_prefill_worker_falls_back_visibly() -> None:
    decision = _choose(NO_PREFILL, 5000)
    assert (decision.role, decision.workers) == (Role.DECODE, ("d1",))
    assert decision.fallback and not decision.isolated
    assert decision.reasons[:3] == ("isolation:uncached=5000>=4096", "unready:prefill", "fallback:decode")


def test_no_ready_prefill_worker_fails_where_the_policy_says_so() -> None:
    with pytest.raises(Unavailable, match="prefill"):
        _choose(NO_PREFILL, 5000, on_prefill_unavailable="fail")
    assert _choose(NO_PREFILL, 10, on_prefill_unavailable="fail").role is Role.DECODE


@pytest.mark.parametrize("policy", ["fallback", "fail"])
def test_no_ready_decode_worker_falls_back_visibly(policy: str) -> None:
    fleet = Fleet((_pool(Role.PREFILL, "p1"), _pool(Role.DECODE, "d1", ready=False)))
    decision = _choose(fleet, 10, on_prefill_unavailable=policy)
    assert (decision.role, decision.fallback, decision.isolated) == (Role.PREFILL, True, False)
    assert "unready:decode" in decision.reasons and "fallback:prefill" in decision.reasons


def test_a_conductor_stands_in_for_decode_before_a_prefill_worker_does() -> None:
    decision = _choose(Fleet((_pool(Role.PREFILL, "p1"), _pool(Role.CONDUCTOR, "c1"))), 10)
    assert (decision.role, decision.fallback) == (Role.CONDUCTOR, True)


@pytest.mark.parametrize("tokens", [10, 5000])
@pytest.mark.parametrize(
    "fleet",
    [Fleet(()), Fleet((_pool(Role.DECODE),)), Fleet(tuple(_pool(role, f"{role}1", ready=False) for role in Role))],
)
def test_nobody_ready_anywhere(fleet: Fleet, tokens: int) -> None:
    with pytest.raises(FailOpen) as failed:
        _choose(fleet, tokens)
    assert failed.value.reason == "no_worker"
    with pytest.raises(Unavailable):
        _choose(fleet, tokens, on_prefill_unavailable="fail")


def test_a_worker_that_is_gone_is_replaced_at_once() -> None:
    hits = {"d1": 4096, "d2": 1024}
    assert _choose(PAIR, 5000, hits).workers == ("d1", "d2")
    unready = Fleet((PAIR.pools[0], Pool("decode", Role.DECODE, "llm-decode", (Worker("d1", False), Worker("d2")))))
    assert _choose(unready, 5000, hits).workers == ("d2",)
    removed = Fleet((_pool(Role.PREFILL, "p1"), _pool(Role.DECODE, "d2")))
    decision = _choose(removed, 5000, hits)
    assert (decision.role, decision.workers) == (Role.DECODE, ("d2",))


def test_others_of_the_pool_follow_for_retries() -> None:
    fleet = Fleet((_pool(Role.DECODE, *(f"d{n}" for n in range(6))),))
    busy = {f"d{n}": n for n in range(6)}
    assert _choose(fleet, 10, {}, busy).workers == ("d0", "d1", "d2")
    assert _choose(fleet, 10, {}, busy, fallback_workers=1).workers == ("d0",)
    assert len(_choose(fleet, 10, {}, busy, fallback_workers=50).workers) == 6


_addresses = [f"10.0.0.{n}:8000" for n in range(20)]
_load = st.none() | st.builds(
    Load,
    at=st.floats(0, 100),
    running=st.none() | st.floats(0, 50) | st.just(float("nan")),
    waiting=st.none() | st.floats(0, 50) | st.just(float("inf")),
    own_in_flight=st.integers(0, 60),
)


@st.composite
def _fleets(draw: st.DrawFn) -> Fleet:
    addresses = draw(st.permutations(_addresses))
    pools = []
    for number, role in enumerate(draw(st.lists(st.sampled_from(list(Role)), max_size=5))):
        mine = addresses[4 * number : 4 * number + draw(st.integers(0, 4))]
        workers = tuple(Worker(address, draw(st.booleans()), draw(_load)) for address in mine)
        pools.append(Pool(f"pool{number}", role, f"cluster{number}", workers))
    return Fleet(tuple(pools))


_facts = st.builds(
    Facts,
    prompt_tokens=st.integers(0, 200_000),
    exact=st.booleans(),
    prefix_key=st.sampled_from([b"", KEY]),
    now=st.floats(90, 110),
)
_hits = st.dictionaries(st.sampled_from(_addresses), st.integers(0, 200_000))
_in_flight = st.dictionaries(st.sampled_from(_addresses), st.integers(1, 40))
_policies = st.builds(
    Policy,
    prefill_isolation_threshold_tokens=st.sampled_from([0, 1, 4096]),
    prefill_isolation_basis=st.sampled_from(["uncached", "prompt"]),
    prefill_isolation_route=st.sampled_from(["auto", "prefill", "disaggregated-conductor"]),
    kv_prefix_affinity=st.booleans(),
    on_prefill_unavailable=st.sampled_from(["fallback", "fail"]),
    fallback_workers=st.integers(1, 4),
)


@settings(deadline=None)
@given(_facts, _fleets(), _hits, _in_flight, _policies, st.randoms(use_true_random=False))
def test_whatever_the_question_the_answer_is_sound(
    facts: Facts, fleet: Fleet, hits: PrefixHits, in_flight: InFlight, policy: Policy, rng: random.Random
) -> None:
    answer = _answer(facts, fleet, hits, in_flight, policy)
    shuffled = Fleet(
        tuple(
            Pool(pool.name, pool.role, pool.cluster, tuple(rng.sample(pool.workers, len(pool.workers))))
            for pool in fleet.pools
        )
    )
    assert answer == _answer(facts, shuffled, hits, in_flight, policy), "neither chance nor order may matter"

    any_ready = any(pool.ready for pool in fleet.pools)
    if not isinstance(answer, Decision):
        assert policy.on_prefill_unavailable == "fail" or (answer == "no_worker" and not any_ready)
        return
    pool = fleet.by_cluster[answer.cluster]
    ready = {worker.address for worker in pool.ready}
    assert answer.workers and set(answer.workers) <= ready
    assert len(answer.workers) == len(set(answer.workers)) == min(len(ready), policy.fallback_workers)
    assert (answer.pool, answer.role) == (pool.name, fleet.role_of(pool))
    assert answer.cached_tokens + answer.uncached_tokens == facts.prompt_tokens
    assert 0 <= answer.cached_tokens <= max(0, facts.prompt_tokens - 1)
    assert not (answer.isolated and answer.fallback)
    assert answer.isolated <= (answer.role in (Role.PREFILL, Role.CONDUCTOR))


def _answer(
    facts: Facts, fleet: Fleet, hits: PrefixHits, in_flight: InFlight, policy: Policy
) -> Decision | str:
    try:
        return choose(facts, fleet, hits, in_flight, policy)
    except Unavailable as error:
        return error.message
    except FailOpen as error:
        return error.reason
