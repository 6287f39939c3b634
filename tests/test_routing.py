"""Routing: what one body becomes, where the work runs, and who is counted as busy with it."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from eluvix_extproc.core.actions import Decide
from eluvix_extproc.core.events import Decided, Undecidable
from eluvix_extproc.core.fleet import Fleet, Pool, Role, Worker
from eluvix_extproc.core.hints import Session, VolatileLines
from eluvix_extproc.core.index import MemoryIndex
from eluvix_extproc.core.ledger import Ledger
from eluvix_extproc.core.pace import Pace
from eluvix_extproc.core.prompt import Api, Prompt, TokenCount
from eluvix_extproc.core.record import Outcome, Record
from eluvix_extproc.core.switchyard.types import Policy
from eluvix_extproc.errors import FailOpen, MalformedBody, Unavailable, UnknownModel
from eluvix_extproc.physics import catalogue
from eluvix_extproc.physics.geometry import kv_bytes
from eluvix_extproc.routing import NO_HINTS, Affinity, Claim, Model, Models, Router, Verdict
from eluvix_extproc.tokens.estimate import Estimate

PATIENCE_S = 20.0
DECODE = ("10.0.0.1:8000", "10.0.0.2:8000")
PREFILL = ("10.0.1.1:8000",)
GEOMETRY = catalogue.load("llama-3.1-8b")
LONG = "long " * 100_000   # read in a thread for its size alone


@dataclass
class FakeCounter:
    """Counts words. `cost` steers where it runs; `gate` holds it, `fault` ends it."""

    cost: float = 0.0
    gate: threading.Event | None = None
    fault: BaseException | None = None
    entered: threading.Event = field(default_factory=threading.Event)
    threads: list[str] = field(default_factory=list)
    source: str = "exact"

    def cost_s(self, prompt: Prompt) -> float:
        return self.cost

    def count(self, prompt: Prompt) -> TokenCount:
        self.threads.append(threading.current_thread().name)
        self.entered.set()
        if self.gate is not None:
            assert self.gate.wait(PATIENCE_S)
        if self.fault is not None:
            raise self.fault
        return TokenCount(sum(len(message.text.split()) for message in prompt.messages), True)


@dataclass
class Bench:
    """A Router with everything around it in reach."""

    executor: ThreadPoolExecutor
    ledger: Ledger = field(default_factory=Ledger)
    pace: Pace = field(default_factory=Pace)
    index: MemoryIndex = field(default_factory=lambda: MemoryIndex(1 << 20))
    fleet: Fleet = field(default_factory=lambda: fleet(DECODE, PREFILL))
    defects: list[tuple[str, BaseException]] = field(default_factory=list)
    now: float = 100.0

    def router(
        self,
        *models: Model,
        unknown: bool = False,
        max_body: int = 1 << 20,
        max_held: int = 1 << 20,
        affinity: Affinity = NO_HINTS,
        **policy: Any,
    ) -> Router:
        names = {name: model for model in models for name in (model.name, f"{model.name}-served", *model.adapters)}
        return Router(
            Models(names, Estimate(4.0) if unknown else None),
            Policy(**policy),
            max_body,
            max_held,
            fleet=lambda: self.fleet,
            index=self.index,
            ledger=self.ledger,
            pace=self.pace,
            executor=self.executor,
            clock=lambda: self.now,
            defect=lambda where, error: self.defects.append((where, error)),
            affinity=affinity,
        )

    def in_flight(self) -> dict[str, int]:
        return dict(self.ledger.counts())


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ThreadPoolExecutor(2, thread_name_prefix="study") as executor:
        yield Bench(executor)


def fleet(decode: tuple[str, ...], prefill: tuple[str, ...]) -> Fleet:
    def pool(name: str, role: Role, addresses: tuple[str, ...]) -> Pool:
        return Pool(name, role, f"llm-{name}", tuple(Worker(address) for address in addresses))

    return Fleet((pool("decode", Role.DECODE, decode), pool("prefill", Role.PREFILL, prefill)))


def model(name: str = "m", counter: Any = None, adapters: tuple[str, ...] = ()) -> Model:
    return Model(name, frozenset(adapters), counter or FakeCounter(), GEOMETRY, "bf16")


def chat(text: str = "hello there", name: str | None = "m", **fields: Any) -> bytes:
    named = {} if name is None else {"model": name}
    return json.dumps({**named, "messages": [{"role": "user", "content": text}], **fields}).encode()


def ask(body: bytes, complete: bool = True, size: int = 0, encoding: str = "") -> Decide:
    headers = {"x-request-id": "r1"} | ({"content-encoding": encoding} if encoding else {})
    return Decide(Api.OPENAI_CHAT, headers, body, complete, size or len(body), 100.0)


async def settled(router: Router, decide: Decide) -> Verdict:
    verdict = router.decide(decide)
    return verdict if isinstance(verdict, tuple) else await asyncio.wait_for(verdict, PATIENCE_S)


async def decided(router: Router, decide: Decide) -> tuple[Decided, Claim]:
    event, claim = await settled(router, decide)
    assert isinstance(event, Decided), event
    assert isinstance(claim, Claim)
    return event, claim


async def error_of(router: Router, decide: Decide) -> Exception:
    event, claim = await settled(router, decide)
    assert isinstance(event, Undecidable) and claim is None
    return event.error


def record(outcome: Outcome, worker: str | None, first_token_at: float | None = None) -> Record:
    return Record(
        outcome=outcome, method="POST", path="/v1/chat/completions", api=Api.OPENAI_CHAT, request_id="", started=100.0,
        duration_s=1.0, served_worker=worker, first_token_at=first_token_at,
    )  # fmt: skip


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.002)


# ---- where the work runs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["hello", LONG], ids=["short", "long"])
async def test_a_verdict_does_not_depend_on_where_it_was_found(bench: Bench, text: str) -> None:
    """At once, in a thread for the counter's cost, in a thread because the body is compressed: the same."""
    verdicts = []
    for cost, encoding in ((0.0, ""), (1.0, ""), (0.0, "gzip")):
        counter = FakeCounter(cost)
        body = chat(text)
        router = bench.router(model(counter=counter), kv_prefix_affinity=False)
        event, claim = await decided(router, ask(gzip.compress(body) if encoding else body, True, len(body), encoding))
        claim.settle(record(Outcome.COMPLETED, None), bench.now)
        in_thread = bool(cost or encoding) or text == LONG
        assert counter.threads[0].startswith("study") == in_thread
        verdicts.append((event.decision, event.sized, event.body))
    assert verdicts[0] == verdicts[1] == verdicts[2]
    assert verdicts[0][1].tokens == len(text.split())
    assert verdicts[0][1].kv_bytes == kv_bytes(GEOMETRY, len(text.split()), "bf16")


async def test_a_short_request_does_not_wait_for_a_long_one(bench: Bench) -> None:
    """While a counter is stuck in a thread, another request is decided at once, and a third in the other thread."""
    slow = FakeCounter(cost=1.0, gate=threading.Event())
    router = bench.router(model("slow", slow), model("quick"), model("threaded", FakeCounter(cost=1.0)))
    waiting = asyncio.ensure_future(settled(router, ask(chat(name="slow"))))
    await until(slow.entered.is_set)
    assert isinstance(router.decide(ask(chat(name="quick"))), tuple)
    await decided(router, ask(chat(name="threaded")))
    assert not waiting.done()
    assert slow.gate is not None
    slow.gate.set()
    event, _ = await asyncio.wait_for(waiting, PATIENCE_S)
    assert isinstance(event, Decided)


async def test_a_request_that_gives_up_while_it_is_counted_takes_no_worker(bench: Bench) -> None:
    slow = FakeCounter(cost=1.0, gate=threading.Event())
    router = bench.router(model(counter=slow))
    waiting = asyncio.ensure_future(settled(router, ask(chat())))
    await until(slow.entered.is_set)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert slow.gate is not None
    slow.gate.set()
    bench.executor.shutdown(wait=True)
    await asyncio.sleep(0)
    assert bench.in_flight() == {} and len(bench.index) == 0 and bench.defects == []


# ---- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", [0.0, 1.0], ids=["at once", "in a thread"])
async def test_a_defect_lets_the_request_through(bench: Bench, cost: float) -> None:
    fault = ZeroDivisionError("in a counter")
    error = await error_of(bench.router(model(counter=FakeCounter(cost, fault=fault))), ask(chat()))
    assert isinstance(error, FailOpen) and error.reason == "internal"
    assert bench.defects == [("routing", fault)]
    assert fault.__notes__ == ["request_id: r1"]    # the traceback in the log leads to the exchange's line
    assert bench.in_flight() == {}


@pytest.mark.parametrize("body", [chat(), chat(LONG)], ids=["at once", "in a thread"])
async def test_a_defect_in_reading_lets_the_request_through(
    bench: Bench, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = RecursionError("in a parser")

    def fail(*_: object, **__: object) -> Prompt:
        raise fault

    monkeypatch.setattr("eluvix_extproc.routing.parse", fail)
    error = await error_of(bench.router(model()), ask(body))
    assert isinstance(error, FailOpen) and error.reason == "internal"
    assert bench.defects == [("routing", fault)]


@pytest.mark.parametrize("body", [b"{nope", b"{nope" + b" " * 500_000], ids=["at once", "in a thread"])
async def test_a_malformed_body_is_the_clients_fault(bench: Bench, body: bytes) -> None:
    assert isinstance(await error_of(bench.router(model()), ask(body)), MalformedBody)
    assert bench.defects == []


async def test_no_worker_at_all(bench: Bench) -> None:
    """Nobody to name: the policy's answer, with what was found out about the prompt."""
    bench.fleet = fleet((), ())
    event, claim = await settled(bench.router(model()), ask(chat()))
    assert isinstance(event, Undecidable) and claim is None
    assert isinstance(event.error, (FailOpen, Unavailable))
    assert event.sized is not None and event.sized.tokens == 2
    assert len(bench.index) == 0 and bench.in_flight() == {}


# ---- models ----------------------------------------------------------------------------------------------------------


async def test_a_body_without_a_model_means_the_only_one(bench: Bench) -> None:
    event, _ = await decided(bench.router(model("only")), ask(chat(name=None)))
    assert event.sized.model == "only"


async def test_a_body_without_a_model_is_refused_among_several(bench: Bench) -> None:
    error = await error_of(bench.router(model("a"), model("b")), ask(chat(name=None)))
    assert isinstance(error, MalformedBody) and error.param == "model"


async def test_a_head_that_does_not_tell_its_model_yet_is_decided(bench: Bench) -> None:
    head = b'{"messages":[{"role":"user","content":"' + b"word " * 1000
    event, _ = await decided(bench.router(model("a"), model("b")), ask(head, complete=False, size=20_000))
    assert event.sized.model == "" and event.sized.kv_bytes is None


@pytest.mark.parametrize("cost", [0.0, 1.0], ids=["at once", "in a thread"])
async def test_an_unknown_model_is_refused_or_passed(bench: Bench, cost: float) -> None:
    known = model(counter=FakeCounter(cost))
    error = await error_of(bench.router(known), ask(chat(name="else")))
    assert isinstance(error, UnknownModel) and error.param == "model"
    event, _ = await decided(bench.router(known, unknown=True), ask(chat(name="else")))
    assert (event.sized.model, event.sized.exact, event.sized.kv_bytes) == ("", False, None)
    assert event.sized.tokens > 0 and len(event.sized.prefix_hash) == 64


async def test_names_of_one_model_share_their_prefixes_and_adapters_do_not(bench: Bench) -> None:
    router = bench.router(model("base", adapters=("tuned", "tuned-2")))
    hashes = {}
    for name in ("base", "base-served", "tuned", "tuned-2"):
        event, _ = await decided(router, ask(chat(name=name)))
        assert event.sized.model == "base"
        hashes[name] = event.sized.prefix_hash
    assert hashes["base"] == hashes["base-served"]
    assert len(set(hashes.values())) == 3


# ---- the body that goes on -------------------------------------------------------------------------------------------


async def test_a_clean_body_goes_on_as_it_came(bench: Bench) -> None:
    event, _ = await decided(bench.router(model()), ask(chat(kv="not reserved")))
    assert event.body is None and event.drop_request_headers == ()


@pytest.mark.parametrize("encoding", ["", "gzip"])
async def test_reserved_members_are_cut_out(bench: Bench, encoding: str) -> None:
    body = chat(kv_transfer_params={"remote_host": "10.6.6.6"}, max_tokens=3)
    sent = gzip.compress(body) if encoding else body
    event, _ = await decided(bench.router(model()), ask(sent, encoding=encoding))
    assert event.body is not None
    kept = json.loads(body)
    del kept["kv_transfer_params"]
    assert json.loads(event.body) == kept
    assert event.drop_request_headers == (("content-encoding",) if encoding else ())


# ---- who is busy -----------------------------------------------------------------------------------------------------


async def test_a_worker_is_counted_from_its_choice_to_the_end(bench: Bench) -> None:
    router = bench.router(model())
    claims = [(await decided(router, ask(chat(f"text {n}"))))[1] for n in range(4)]
    assert bench.in_flight() == {DECODE[0]: 2, DECODE[1]: 2}
    for claim in claims:
        claim.settle(record(Outcome.COMPLETED, None), bench.now)
    assert bench.in_flight() == {}


async def test_who_served_in_the_end_is_who_was_busy(bench: Bench) -> None:
    """Envoy's retry went to another worker; a left stream counts there until its expected end."""
    event, claim = await decided(bench.router(model()), ask(chat(max_tokens=11)))
    chosen = event.decision.workers[0]
    other = next(worker for worker in DECODE if worker != chosen)
    bench.pace.token_seen(other, 0.5, bench.now, 1)
    claim.settle(record(Outcome.LEFT, other, first_token_at=100.0), bench.now)
    assert bench.in_flight() == {other: 1}
    assert bench.ledger.expire(104.9) == 0
    assert bench.ledger.expire(105.1) == 1
    assert bench.in_flight() == {}


async def test_a_left_stream_of_an_unknown_pace_is_released_at_once(bench: Bench) -> None:
    _, claim = await decided(bench.router(model()), ask(chat()))
    claim.settle(record(Outcome.LEFT, None, first_token_at=100.0), bench.now)
    assert bench.in_flight() == {} and bench.ledger.ghosts == 0


async def test_the_next_decision_lets_go_of_what_should_have_ended(bench: Bench) -> None:
    router = bench.router(model())
    event, claim = await decided(router, ask(chat(max_tokens=3)))
    bench.pace.token_seen(event.decision.workers[0], 0.5, bench.now, 1)
    claim.settle(record(Outcome.LEFT, None, first_token_at=100.0), bench.now)
    assert sum(bench.in_flight().values()) == 1
    bench.now = 200.0
    await decided(router, ask(chat()))
    assert sum(bench.in_flight().values()) == 1


async def test_a_conversation_stays_with_its_worker(bench: Bench) -> None:
    router = bench.router(model())
    turns = [{"role": "user", "content": "a beginning " * 400}]
    first, _ = await decided(router, ask(json.dumps({"model": "m", "messages": turns}).encode()))
    turns += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "go on"}]
    second, _ = await decided(router, ask(json.dumps({"model": "m", "messages": turns}).encode()))
    assert second.decision.workers[0] == first.decision.workers[0]
    assert second.decision.cached_tokens >= 800
    assert second.sized.prefix_hash == first.sized.prefix_hash


async def test_only_headers_were_sent(bench: Bench) -> None:
    """Where Envoy keeps the body to itself, content-length is the estimate and nothing can be hashed."""
    event, _ = await decided(bench.router(model()), ask(b"", complete=False, size=40_000))
    assert (event.sized.tokens, event.sized.exact, event.sized.prefix_hash) == (10_000, False, "")
    assert event.decision.role is Role.PREFILL


async def test_what_a_compressed_body_unfolds_to_is_held_no_more_than_a_plain_one(bench: Bench) -> None:
    body = chat("x" * 5_000)
    router = bench.router(model(), max_held=1_000)
    verdict, _ = await settled(router, ask(gzip.compress(body), encoding="gzip"))
    assert isinstance(verdict, Decided)
    assert verdict.sized.prefix_hash and verdict.body is None
    plain, _ = await settled(router, ask(body[:1_000], complete=False, size=len(body)))
    assert isinstance(plain, Decided) and plain.sized == verdict.sized


async def test_reserved_members_beyond_what_is_held_of_a_compressed_body_are_refused(bench: Bench) -> None:
    body = chat("x" * 200_000)[:-1] + b',"kv_transfer_params":{"do_remote_prefill":true}}'
    error = await error_of(bench.router(model(), max_held=1_000), ask(gzip.compress(body), encoding="gzip"))
    assert isinstance(error, MalformedBody)


# ---- hints -----------------------------------------------------------------------------------------------------------

HINTS = Affinity(Session(("x-session-id",), ("prompt_cache_key",)), VolatileLines(["^Today is "]))


def named(body: bytes, session: str = "") -> Decide:
    return Decide(Api.OPENAI_CHAT, {"x-session-id": session} if session else {}, body, True, len(body), 100.0)


async def served(bench: Bench, router: Router, decide: Decide) -> Decided:
    event, claim = await decided(router, decide)
    claim.settle(record(Outcome.COMPLETED, None), bench.now)
    return event


async def test_a_session_stays_on_its_worker_whatever_it_says(bench: Bench) -> None:
    router = bench.router(model(), affinity=HINTS)
    for number in range(8):
        event = await served(bench, router, named(chat(f"{number} about something else"), f"session {number % 4}"))
        again = await served(bench, router, named(chat(f"{number}, and a history made short"), f"session {number % 4}"))
        assert again.decision.workers[0] == event.decision.workers[0]
        assert again.decision.cached_tokens == 0 and "affinity:hint" in again.decision.reasons


async def test_two_replicas_agree_on_a_session(bench: Bench) -> None:
    for number in range(20):
        first = await served(bench, bench.router(model(), affinity=HINTS), named(chat("one"), f"s{number}"))
        bench.index, bench.ledger = MemoryIndex(1 << 20), Ledger()
        second = await served(bench, bench.router(model(), affinity=HINTS), named(chat("another"), f"s{number}"))
        bench.index, bench.ledger = MemoryIndex(1 << 20), Ledger()
        assert first.decision.workers == second.decision.workers
        assert first.sized.prefix_hash != second.sized.prefix_hash


async def test_a_prompt_cache_key_is_a_session_and_headers_come_first(bench: Bench) -> None:
    router = bench.router(model(), affinity=HINTS)
    first = await served(bench, router, named(chat("one", prompt_cache_key="k")))
    again = await served(bench, router, named(chat("two", prompt_cache_key="k")))
    assert again.decision.workers[0] == first.decision.workers[0] and "affinity:hint" in again.decision.reasons
    other = await served(bench, router, named(chat("three", prompt_cache_key="k"), "s"))
    assert "affinity:hint" not in other.decision.reasons


async def test_a_prompt_but_for_its_date_stays_on_its_worker(bench: Bench) -> None:
    router = bench.router(model(), affinity=HINTS)

    def dated(day: str, user: str) -> Decide:
        messages = [{"role": "system", "content": f"Today is {day}.\nBe brief."}, {"role": "user", "content": user}]
        return named(json.dumps({"model": "m", "messages": messages}).encode())

    for user in ("a", "b", "c", "d"):
        monday = await served(bench, router, dated(f"Monday of {user}", user))
        tuesday = await served(bench, router, dated(f"Tuesday of {user}", user))
        assert tuesday.sized.prefix_hash == monday.sized.prefix_hash
        assert tuesday.decision.workers[0] == monday.decision.workers[0]
        assert tuesday.decision.cached_tokens == 0 and "affinity:hint" in tuesday.decision.reasons


async def test_a_session_is_known_where_only_headers_are_sent(bench: Bench) -> None:
    router = bench.router(model(), affinity=HINTS)
    first = await served(bench, router, named(b"", "s"))
    again = await served(bench, router, named(b"", "s"))
    assert again.decision.workers[0] == first.decision.workers[0] and "affinity:hint" in again.decision.reasons
