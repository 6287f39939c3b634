"""Answers Decide: read the body, count it, hash it, ask the Switchyard.

The first part (`_study`) is computation over one body and runs where its predicted cost says: at once for small
requests, in a thread beyond INLINE_S, so that no request waits on another's tokenisation. The second part (`_select`)
reads and writes what all requests share (index, ledger) and always runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

import msgspec

from eluvix_extproc.core.actions import Decide
from eluvix_extproc.core.events import Decided, Undecidable
from eluvix_extproc.core.fleet import Fleet
from eluvix_extproc.core.hints import Session, VolatileLines, hint_key
from eluvix_extproc.core.index import PrefixIndex
from eluvix_extproc.core.ledger import Lease, Ledger
from eluvix_extproc.core.pace import Pace
from eluvix_extproc.core.prefix import chain
from eluvix_extproc.core.prompt import GENERATING, Api, PrefixChain, PrefixPoint, Prompt
from eluvix_extproc.core.record import Outcome, Record, Sized
from eluvix_extproc.core.reserved import Guard, strip
from eluvix_extproc.core.switchyard import choose
from eluvix_extproc.core.switchyard.types import Decision, Facts, Policy
from eluvix_extproc.core.value import Value
from eluvix_extproc.errors import EluvixError, FailOpen, MalformedBody, UnknownModel
from eluvix_extproc.physics.geometry import Geometry, kv_bytes
from eluvix_extproc.prompt import parse
from eluvix_extproc.prompt.encoding import decoded
from eluvix_extproc.tokens.counter import Counter
from eluvix_extproc.tokens.learned import Estimated, LearningCounter, PassedModels

GUARDED_AT_ONCE = 64 * 1024
INLINE_S = 0.001           # longer work leaves the event loop
_ANSWERED = (Outcome.COMPLETED, Outcome.LEFT)
PARSE_S_PER_BYTE = 2.5e-9  # JSON decode, hash and copies, as measured by `bench`; errs on the slow side


@dataclass(frozen=True, slots=True)
class Model:
    """A configured model as routing needs it."""

    name: str
    adapters: frozenset[str]
    counter: Counter
    geometry: Geometry | None
    kv_dtype: str


@dataclass(frozen=True, slots=True)
class Models:
    """`by_name` has every name that clients may use; `unknown` counts for names that it lacks, None refuses them."""

    by_name: Mapping[str, Model]
    unknown: Counter | None

    def find(self, prompt: Prompt) -> Model | None:
        """Raises UnknownModel or MalformedBody. Where the body names none, or its head does not yet, a lone model is
        meant."""
        found = self.by_name.get(prompt.model)
        if found is not None:
            return found
        if not prompt.model:
            models = {model.name: model for model in self.by_name.values()}
            if len(models) == 1:
                return next(iter(models.values()))
            if prompt.complete and self.unknown is None and prompt.api not in _NAMELESS:
                raise MalformedBody("Missing required parameter: 'model'.", "model")
            return None
        if self.unknown is None:
            raise UnknownModel(f"The model `{prompt.model[:200]}` does not exist.", "model")
        return None

    def counted_by(self, prompt: Prompt) -> tuple[Model | None, Counter]:
        """The model, if it is a known one, and what counts its prompts. Raises as `find`."""
        model = self.find(prompt)
        if model is not None:
            return model, model.counter
        # What counts for unknown models may have a length, and be empty, so "or" would pass over it.
        return None, next(iter(self.by_name.values())).counter if self.unknown is None else self.unknown

    def learn(self, record: Record) -> None:
        """Let the estimate behind `record` learn from what its answer reported, where both are sound."""
        sized, reported = record.sized, record.prompt_tokens_reported
        if sized is None or sized.evidence is None or reported is None:
            return
        if record.outcome not in _ANSWERED or record.status is None or not 200 <= record.status < 300:
            return
        model = self.by_name.get(sized.model)
        counter = model.counter if model else self.unknown
        if isinstance(counter, LearningCounter | PassedModels):
            counter.learn(sized.evidence, reported)


class Study(Value, frozen=True):
    """What one body told. `body` is set when reserved fields had to be cut out of it."""

    sized: Sized
    chain: PrefixChain
    max_tokens: int | None
    body: bytes | None = None
    drop_headers: tuple[str, ...] = ()
    session: bytes = b""       # digest of the client's own name for the conversation


@dataclass(frozen=True, slots=True)
class Affinity:
    """The `affinity` section of the configuration."""

    session: Session
    volatile: VolatileLines


NO_HINTS = Affinity(Session((), ()), VolatileLines(()))


class Claim(msgspec.Struct, eq=False, gc=False):
    """The chosen worker's in-flight count, held until the exchange is over, or a left stream should be."""

    _lease: Lease
    _pace: Pace
    _model: str
    _max_tokens: int | None

    def drop(self) -> None:
        self._lease.release()

    def settle(self, record: Record, now: float) -> None:
        worker = record.served_worker
        if worker is not None and worker != self._lease.worker:
            self._lease.move(worker)
        due = None
        if record.outcome is Outcome.LEFT and record.api in GENERATING:
            first = record.first_token_at or now
            due = self._pace.expected_end(self._lease.worker, first, self._max_tokens, self._model)
        if due is None or due <= now:
            self._lease.release()
        else:
            self._lease.release_at(due)


# Engines' own formats, in which a request need not say which model it means.
_NAMELESS = frozenset({Api.VLLM_GENERATE, Api.SGLANG_GENERATE, Api.RERANK})

Verdict = tuple[Decided | Undecidable, Claim | None]


class Router:
    """Made anew on a reload, around the same index, ledger and pace."""

    def __init__(
        self,
        models: Models,
        policy: Policy,
        max_body_bytes: int,
        max_held_bytes: int,
        *,
        fleet: Callable[[], Fleet],
        index: PrefixIndex,
        ledger: Ledger,
        pace: Pace,
        executor: Executor,
        clock: Callable[[], float],
        defect: Callable[[str, BaseException], None],
        affinity: Affinity = NO_HINTS,
    ) -> None:
        self._models = models
        self._policy = policy
        self._session = affinity.session
        self._volatile = affinity.volatile or None
        self._max_body_bytes = max_body_bytes
        self._max_held_bytes = max_held_bytes
        self._fleet = fleet
        self._index = index
        self._ledger = ledger
        self._pace = pace
        self._executor = executor
        self._clock = clock
        self._defect = defect

    def decide(self, ask: Decide) -> Verdict | Awaitable[Verdict]:
        """At once when the work is short, else an awaitable. Never raises."""
        parse_s = len(ask.body) * PARSE_S_PER_BYTE
        if parse_s > INLINE_S or "content-encoding" in ask.headers:
            return self._decide_in_thread(self._read_and_study, ask)
        try:
            if not ask.body:
                return self._select(self._unread(ask))
            prompt = _read(ask, ask.body)
            model, counter = self._models.counted_by(prompt)
            if parse_s + counter.cost_s(prompt) > INLINE_S:
                return self._decide_in_thread(self._study, ask, ask.body, prompt, model, counter)
            return self._select(self._study(ask, ask.body, prompt, model, counter))
        except Exception as error:
            return self._undecidable(error, ask)

    async def _decide_in_thread(self, study: Callable[..., Study], ask: Decide, *args: object) -> Verdict:
        try:
            loop = asyncio.get_running_loop()
            return self._select(await loop.run_in_executor(self._executor, study, ask, *args))
        except Exception as error:
            return self._undecidable(error, ask)

    def _undecidable(self, error: Exception, ask: Decide) -> Verdict:
        if isinstance(error, EluvixError):
            return Undecidable(error), None
        # The traceback ends with it, so that the defect's log line and the exchange's find each other.
        error.add_note(f"request_id: {ask.headers.get('x-request-id', '')[:128]}")
        self._defect("routing", error)
        return Undecidable(FailOpen("internal")), None

    def _read_and_study(self, ask: Decide) -> Study:
        if not ask.body:
            return self._unread(ask)
        body, prompt = read(ask, self._max_body_bytes, self._max_held_bytes)
        return self._study(ask, body, prompt, *self._models.counted_by(prompt))

    def _study(self, ask: Decide, body: bytes, prompt: Prompt, model: Model | None, counter: Counter) -> Study:
        """Pure computation; may run in any thread. `body` is without its content-encoding."""
        clean = strip(body) if prompt.reserved and prompt.complete else None
        count = counter.count(prompt)
        kv: int | None = None
        if model is None:
            name = ""
            adapter, named = "", prompt.model
        else:
            name = named = model.name
            adapter = prompt.model if prompt.model in model.adapters else ""
            if model.geometry is not None:
                kv = kv_bytes(model.geometry, count.total, model.kv_dtype)
        prefix = chain(prompt, count, model=named, adapter=adapter, volatile=self._volatile)
        session = self._session.digest(ask.headers, prompt, model=named, salt=prompt.salt)
        evidence = count.evidence if isinstance(count, Estimated) else None
        sized = Sized(name, count.total, count.exact, prefix.root.hex(), kv, evidence, _sequences(prompt))
        if clean is None:
            return Study(sized, prefix, prompt.max_tokens, session=session)
        dropped = ("content-encoding",) if ask.headers.get("content-encoding") else ()
        return Study(sized, prefix, prompt.max_tokens, clean, dropped, session)

    def _unread(self, ask: Decide) -> Study:
        """Only headers are sent to us: content-length is all that is known of the prompt."""
        sized = Sized("", ask.body_bytes // 4, False, "")
        return Study(sized, PrefixChain(b""), None, session=self._session.digest(ask.headers, None, model=""))

    def _select(self, study: Study) -> Verdict:
        sized, points = study.sized, study.chain.points
        now = self._clock()
        self._ledger.expire(now)
        root, hints = study.chain.root, _hints(study)
        hits: Mapping[str, int] = {}
        hinted: frozenset[str] = frozenset()
        if self._policy.kv_prefix_affinity:
            if points:
                hits = self._index.lookup(points)
            if hints:
                hinted = frozenset(self._index.lookup(hints))
        facts = Facts(sized.tokens, sized.exact, study.session or root, now, study.chain.root_tokens, hinted)
        try:
            decision = choose(facts, self._fleet(), hits, self._ledger.counts(), self._policy)
        except EluvixError as error:
            return Undecidable(error, sized, study.body, study.drop_headers), None
        return Decided(decision, sized, study.body, study.drop_headers), self._claim(decision, study)

    def _claim(self, decision: Decision, study: Study) -> Claim:
        worker = decision.workers[0]
        if study.chain.points:
            self._index.insert(study.chain.points, worker)
        if hints := _hints(study):
            self._index.insert(hints, worker)
        lease = self._ledger.acquire(worker, study.sized.tokens)
        return Claim(lease, self._pace, study.sized.model, study.max_tokens)


def read(ask: Decide, max_body_bytes: int, max_held_bytes: int) -> tuple[bytes, Prompt]:
    """What is studied of the body, without its content-encoding, and its prompt. Raises EluvixError."""
    encoding = ask.headers.get("content-encoding", "")
    body = decoded(ask.body, encoding, max_body_bytes, complete=ask.complete) if encoding else ask.body
    if ask.complete and len(body) > max_held_bytes:
        # What a small body unfolds to is worth no more work than one that was sent so large, nor less care.
        refuse_reserved(body)
        head = body[:max_held_bytes]
        return head, parse(ask.api, head, body_bytes=len(body), complete=False)
    return body, _read(ask, body)


def refuse_reserved(body: bytes) -> None:
    """Raises MalformedBody for a body, of which only a head is parsed, with a member that only the gateway may set."""
    guard = Guard()
    for start in range(0, len(body), GUARDED_AT_ONCE):
        if guard.feed(body[start : start + GUARDED_AT_ONCE]):
            raise MalformedBody("the request carries a field reserved for the gateway")


def _read(ask: Decide, body: bytes) -> Prompt:
    return parse(ask.api, body, body_bytes=max(ask.body_bytes, len(body)), complete=ask.complete)


def _sequences(prompt: Prompt) -> int:
    return prompt.samples * (len(prompt.texts) or len(prompt.token_ids) or 1)


def _hints(study: Study) -> tuple[PrefixPoint, ...]:
    """What the conversation is known by where that says nothing of the KV cache: its latest worker is remembered."""
    if study.session:
        return (PrefixPoint(hint_key(study.session), 0),)
    if study.chain.steadied:
        return (PrefixPoint(hint_key(study.chain.root), 0),)
    return ()
