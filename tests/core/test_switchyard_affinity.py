"""KV-prefix affinity and load: rows R3, R5, R6 and R8."""

from __future__ import annotations

from collections import Counter

import pytest

from eluvix_extproc.core.fleet import Fleet, Load, Pool, Role, Worker
from eluvix_extproc.core.index import MemoryIndex
from eluvix_extproc.core.ledger import Ledger
from eluvix_extproc.core.prompt import PrefixPoint
from eluvix_extproc.core.switchyard import choose
from eluvix_extproc.core.switchyard.load import loads
from eluvix_extproc.core.switchyard.types import Decision, Facts, InFlight, Policy, PrefixHits

NOW = 100.0


def _fleet(*workers: Worker) -> Fleet:
    return Fleet((Pool("all", Role.COLOCATED, "llm", workers),))


def _choose(
    fleet: Fleet,
    hits: PrefixHits | None = None,
    in_flight: InFlight | None = None,
    *,
    key: bytes = b"k" * 32,
    tokens: int = 8192,
    affinity: bool = True,
    root: int = 0,
    hinted: str = "",
) -> Decision:
    facts = Facts(tokens, exact=True, prefix_key=key, now=NOW, root_tokens=root, hinted=frozenset(hinted))
    return choose(facts, fleet, hits or {}, in_flight or {}, Policy(kv_prefix_affinity=affinity))


def _first(*args: object, **kwargs: object) -> str:
    return _choose(*args, **kwargs).workers[0]  # type: ignore[arg-type]


THREE = _fleet(Worker("a"), Worker("b"), Worker("c"))


def test_replicas_that_share_nothing_agree_on_a_conversation() -> None:
    other = _fleet(Worker("c"), Worker("a"), Worker("b"))
    for number in range(200):
        key = number.to_bytes(32, "big")
        assert _choose(THREE, key=key).workers == _choose(other, key=key).workers


def test_conversations_spread_over_idle_workers() -> None:
    chosen = Counter(_first(THREE, key=number.to_bytes(32, "big")) for number in range(300))
    assert set(chosen) == {"a", "b", "c"} and min(chosen.values()) > 60


def test_a_worker_that_joins_moves_only_the_conversations_it_takes() -> None:
    four = _fleet(*THREE.pools[0].workers, Worker("d"))
    for number in range(200):
        key = number.to_bytes(32, "big")
        assert _first(four, key=key) in (_first(THREE, key=key), "d")


def test_prompts_without_a_key_spread_too() -> None:
    ledger, in_order = Ledger(), []
    for _ in range(30):
        worker = _first(THREE, {}, ledger.counts(), key=b"")
        in_order.append(worker)
        ledger.acquire(worker)
    assert set(ledger.counts().values()) == {10}
    assert len({_first(THREE, key=b"", tokens=tokens) for tokens in range(20)}) == 3


def test_replicas_agree_on_conversations_that_share_a_short_system_prompt() -> None:
    for number in range(100):
        key = number.to_bytes(32, "big")
        fresh = _choose(THREE, key=key, tokens=300, root=260)
        for holder in "abc":    # wherever a replica happened to send the last one that began like this
            shared = _choose(THREE, {holder: 200}, key=key, tokens=300, root=260)
            assert shared.workers == fresh.workers
            assert "affinity:shared=200" in shared.reasons
            own = _choose(THREE, {holder: 260}, key=key, tokens=300, root=260)
            assert own.workers[0] == holder


def test_a_long_shared_prefix_is_worth_following() -> None:
    assert _first(THREE, {"c": 1024}, tokens=3000, root=2900) == "c"
    assert _choose(THREE, {"c": 1023}, tokens=3000, root=2900).workers == _choose(THREE, tokens=3000).workers


def test_the_longest_prefix_wins() -> None:
    decision = _choose(THREE, {"a": 1024, "b": 4096})
    assert decision.workers[:2] == ("b", "a")
    assert decision.cached_tokens == 4096
    assert "affinity:hit=4096" in decision.reasons


def test_among_equal_prefixes_the_least_loaded_wins() -> None:
    assert _first(THREE, {"a": 4096, "b": 4096, "c": 4096}, {"a": 1, "b": 2}) == "c"
    assert _first(THREE, {"a": 4096, "b": 4096}, {"a": 2, "b": 1}) == "b"


def test_a_miss_goes_to_the_least_loaded() -> None:
    decision = _choose(THREE, {}, {"a": 2, "b": 1, "c": 3})
    assert decision.workers == ("b", "a", "c")
    assert "affinity:miss" in decision.reasons


def test_affinity_off_goes_to_the_least_loaded() -> None:
    decision = _choose(THREE, {"a": 8000}, {"a": 1, "b": 1}, affinity=False)
    assert decision.workers[0] == "c"
    assert "affinity:off" in decision.reasons


def test_imbalance_keeps_the_longest_prefix_within_the_window() -> None:
    assert _first(THREE, {"a": 512}, {"a": 2}) == "a"
    assert _first(THREE, {"a": 512}, {"a": 3}) != "a"
    assert _first(THREE, {"a": 1024}, {"a": 3}) == "a"
    assert _first(THREE, {"a": 8000}, {"a": 4}) != "a"
    busy = {"b": 10, "c": 10}
    assert _first(THREE, {"a": 8000}, {"a": 17, **busy}) == "a"
    assert _first(THREE, {"a": 8000}, {"a": 18, **busy}) != "a"
    assert _first(THREE, {"a": 8000, "b": 8000 - 16}, {"a": 18, "b": 13, "c": 13}) == "a"


def test_the_gain_is_over_the_least_loaded_worker() -> None:
    hits = {"a": 8000, "b": 7900}
    assert _first(THREE, hits, {"a": 13, "b": 10, "c": 11}) == "a"
    assert _first(THREE, hits, {"a": 14, "b": 10, "c": 11}) == "b"
    assert _first(THREE, hits, {"a": 14, "b": 11, "c": 10}) == "a"


def test_out_of_the_window_the_next_longest_is_taken() -> None:
    decision = _choose(THREE, {"a": 8000, "b": 2048}, {"a": 9, "b": 1})
    assert decision.workers == ("b", "c", "a")
    assert "affinity:hit=2048<8000" in decision.reasons
    assert decision.cached_tokens == 2048


@pytest.mark.parametrize("affinity", [True, False])
@pytest.mark.parametrize("tokens", [5, 100, 1024, 4096, 60_000])
@pytest.mark.parametrize("workers", range(2, 17))
def test_a_burst_of_equal_requests_spreads(workers: int, tokens: int, affinity: bool) -> None:
    fleet = _fleet(*(Worker(f"10.0.0.{number}:8000") for number in range(workers)))
    points = [PrefixPoint(tokens + end, end) for end in range(min(16, tokens), tokens + 1, max(16, tokens // 40))]
    index, ledger = MemoryIndex(1 << 16), Ledger()
    for _ in range(64):
        decision = _choose(fleet, index.lookup(points), ledger.counts(), tokens=tokens, affinity=affinity)
        index.insert(points, decision.workers[0])
        ledger.acquire(decision.workers[0], tokens)
    counts = ledger.counts()
    assert len(counts) == workers
    assert max(counts.values()) / min(counts.values()) <= 2


def _scraped(
    address: str, running: float | None, waiting: float | None = 0.0, own: int = 0, age: float = 1.0
) -> Worker:
    return Worker(address, load=Load(at=NOW - age, running=running, waiting=waiting, own_in_flight=own))


def test_others_load_counts_beside_ours() -> None:
    fleet = _fleet(_scraped("a", 5.0, 2.0), _scraped("b", 3.0, 3.0), _scraped("c", 8.0))
    assert _choose(fleet).workers == ("b", "a", "c")
    assert _choose(fleet, {}, {"b": 3}).workers == ("a", "c", "b")


def test_our_own_requests_are_not_counted_twice() -> None:
    fleet = _fleet(_scraped("a", 5.0, own=5), _scraped("b", 1.0))
    assert _first(fleet, {}, {"a": 0}) == "a", "what we had there at the scrape has ended since"
    assert _first(fleet, {}, {"a": 2}) == "b"
    ended = _fleet(_scraped("a", 2.0, own=9), _scraped("b", 1.0))
    assert _first(ended) == "a", "never below zero"


@pytest.mark.parametrize(
    "unknown",
    [
        Worker("x"),
        _scraped("x", 0.0, age=10.5),
        _scraped("x", 900.0, age=10.5),
        _scraped("x", None),
        _scraped("x", 0.0, None),
        _scraped("x", float("nan")),
    ],
)
def test_unknown_load_is_neither_zero_nor_saturated(unknown: Worker) -> None:
    fleet = _fleet(unknown, _scraped("low", 2.0), _scraped("high", 6.0))
    decision = _choose(fleet)
    assert decision.workers == ("low", "x", "high")
    assert "load:others-unknown" not in decision.reasons
    lone = _choose(fleet, {}, {"low": 9, "high": 9})
    assert lone.workers[0] == "x"
    assert {"load:4", "load:others-unknown"} <= set(lone.reasons)


def test_a_scrape_of_the_staleness_limit_still_counts() -> None:
    fleet = _fleet(_scraped("a", 3.0, age=10.0), _scraped("b", 2.0))
    assert _first(fleet) == "b"
    assert _first(_fleet(_scraped("a", 1.0, age=10.0), _scraped("b", 2.0))) == "a"


def test_where_no_load_is_known_ours_decides() -> None:
    fleet = _fleet(Worker("a"), _scraped("b", 50.0, age=60.0), _scraped("c", None))
    assert _choose(fleet, {}, {"a": 2, "b": 1, "c": 3}).workers == ("b", "a", "c")


def test_the_mean_does_not_depend_on_the_order_of_workers() -> None:
    workers = [_scraped("a", 0.1), _scraped("b", 0.2), _scraped("c", 0.3), Worker("x")]
    assert loads(workers, {}, NOW, 10.0) == loads(workers[::-1], {}, NOW, 10.0)


def test_an_unready_workers_load_says_nothing_about_the_others() -> None:
    hung = Worker("hung", ready=False, load=Load(at=NOW, running=1000.0, waiting=1000.0))
    fleet = _fleet(hung, Worker("x"), _scraped("a", 3.0), _scraped("b", 1.0))
    assert _choose(fleet).workers == ("b", "x", "a")


def test_those_too_busy_to_be_named_do_not_change_who_is() -> None:
    """A busy pool's other workers are not weighed; the answer is that of a policy that names them all."""
    workers = tuple(_scraped(f"w{n}", float(n % 5)) for n in range(12))
    for hits in ({}, {"w4": 2048}, {"w9": 4096, "w1": 512, "w14": 9}):
        for number in range(20):
            facts = Facts(8192, True, number.to_bytes(32, "big"), NOW)
            every = choose(facts, _fleet(*workers), hits, {"w0": 2}, Policy(fallback_workers=12))
            some = choose(facts, _fleet(*workers), hits, {"w0": 2}, Policy(fallback_workers=3))
            assert some.workers == every.workers[:3]
            assert (some.reasons, some.cached_tokens) == (every.reasons, every.cached_tokens)


@pytest.mark.parametrize("hint", "abc")
def test_a_hint_decides_where_nothing_else_does(hint: str) -> None:
    decision = _choose(THREE, hinted=hint)
    assert (decision.workers[0], decision.cached_tokens) == (hint, 0)
    assert "affinity:hint" in decision.reasons


def test_a_hint_gives_way_to_a_known_prefix_and_is_next_to_it() -> None:
    decision = _choose(THREE, {"a": 4096}, hinted="b")
    assert decision.workers[:2] == ("a", "b") and "affinity:hit=4096" in decision.reasons


def test_a_hint_beats_a_short_prefix_that_many_share() -> None:
    decision = _choose(THREE, {"a": 200}, tokens=300, root=260, hinted="b")
    assert decision.workers[0] == "b" and "affinity:hint" in decision.reasons


def test_a_hint_is_worth_two_requests_of_queueing() -> None:
    assert _first(THREE, {}, {"a": 2}, hinted="a") == "a"
    assert _first(THREE, {}, {"a": 3}, hinted="a") != "a"


def test_hints_of_absent_workers_and_with_affinity_off_count_for_nothing() -> None:
    plain = _choose(THREE)
    assert _choose(THREE, hinted="z") == plain
    assert _choose(THREE, hinted="c", affinity=False).workers == _choose(THREE, affinity=False).workers


def test_the_hinted_worker_is_found_in_a_large_busy_pool() -> None:
    many = _fleet(*(Worker(f"w{number}") for number in range(40)))
    busy = {"w7": 1}
    facts = Facts(8192, True, b"k" * 32, NOW, hinted=frozenset({"w7"}))
    assert choose(facts, many, {}, busy, Policy()).workers[0] == "w7"
