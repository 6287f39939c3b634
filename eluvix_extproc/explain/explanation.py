"""One request's way through parsing, counting, hashing and the Switchyard, kept for looking at.

The steps and their order are those of `routing.Router`, which throws away what is kept here; a property test holds the
two to the same decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eluvix_extproc.config.models import PoolSettings, Settings
from eluvix_extproc.core import blocks
from eluvix_extproc.core.actions import Decide
from eluvix_extproc.core.fleet import Fleet, Pool, Worker
from eluvix_extproc.core.headers import routing_headers
from eluvix_extproc.core.hints import Session, VolatileLines
from eluvix_extproc.core.paths import api_of
from eluvix_extproc.core.prefix import chain
from eluvix_extproc.core.prompt import Api, PrefixChain, Prompt, TokenCount
from eluvix_extproc.core.switchyard import choose
from eluvix_extproc.core.switchyard.affinity import Score, scores
from eluvix_extproc.core.switchyard.types import Decision, Facts
from eluvix_extproc.errors import BodyTooLarge, EluvixError
from eluvix_extproc.models import build_models
from eluvix_extproc.physics.geometry import kv_bytes
from eluvix_extproc.routing import Model, Models, read, refuse_reserved
from eluvix_extproc.tokens.learned import Learned


@dataclass(frozen=True, slots=True)
class Request:
    """`headers` have lower-case names, `:path` among them. `in_flight` and `cached` are what is supposed of workers:
    requests, and tokens of this prompt, by address; `served_by` are those that served its conversation last, where the
    client names it."""

    headers: Mapping[str, str]
    body: bytes
    in_flight: Mapping[str, int]
    cached: Mapping[str, int]
    served_by: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class BlockHashes:
    """As KV events carry them, or why they cannot be told."""

    engine: str
    block_size: int
    hashes: tuple[int, ...]
    unknown: str | None = None


@dataclass(slots=True)
class Explanation:
    """As far as the request came; what was not reached is None. `error` is what stopped it."""

    api: Api | None = None
    prompt: Prompt | None = None
    model: Model | None = None
    adapter: str = ""
    count: TokenCount | None = None
    chain: PrefixChain | None = None
    session: bytes = b""
    blocks: BlockHashes | None = None
    kv_bytes: int | None = None
    scores: tuple[tuple[Pool, tuple[Score, ...]], ...] = ()
    decision: Decision | None = None
    headers: tuple[tuple[str, str], ...] = ()
    error: EluvixError | None = None


def explain(settings: Settings, request: Request) -> Explanation:
    """Raises ConfigError for a tokenizer and the like that cannot be loaded."""
    found = Explanation(api=api_of({":method": "POST", **request.headers}) if request.body else None)
    if found.api is None:
        return found
    models = build_models(settings, Learned())
    try:
        _count(found, settings, models, request)
        _choose(found, settings, request)
    except EluvixError as error:
        found.error = error
    if found.count is not None:
        found.blocks = _blocks(settings, found, found.count)
    return found


def fleet_of(settings: Settings) -> Fleet:
    """Every worker that the configuration names, ready; a name that would have to be resolved stands for one worker."""
    return Fleet(tuple(_pool(pool) for pool in settings.pools))


def _pool(pool: PoolSettings) -> Pool:
    addresses = pool.workers.static or (str(pool.workers.dns),)
    return Pool(pool.name, pool.role, pool.cluster, tuple(Worker(address) for address in addresses), pool.engine)


def _count(found: Explanation, settings: Settings, models: Models, request: Request) -> None:
    assert found.api is not None
    limits = settings.server
    size = len(request.body)
    if size > limits.max_body_bytes:
        raise BodyTooLarge(f"the request body is larger than {limits.max_body_bytes} bytes")
    complete = size <= limits.max_held_bytes
    if not complete:
        refuse_reserved(request.body)
    ask = Decide(found.api, request.headers, request.body[: limits.max_held_bytes], complete, size, 0.0)
    _, prompt = read(ask, limits.max_body_bytes, limits.max_held_bytes)
    found.prompt = prompt
    found.model, counter = models.counted_by(prompt)
    count = found.count = counter.count(prompt)
    named = prompt.model
    if found.model is not None:
        named = found.model.name
        found.adapter = prompt.model if prompt.model in found.model.adapters else ""
        if found.model.geometry is not None:
            found.kv_bytes = kv_bytes(found.model.geometry, count.total, found.model.kv_dtype)
    affinity = settings.affinity
    volatile = VolatileLines(affinity.ignore_lines)
    found.chain = chain(prompt, count, model=named, adapter=found.adapter, volatile=volatile or None)
    session = Session(affinity.session_headers, affinity.session_fields)
    found.session = session.digest(request.headers, prompt, model=named, salt=prompt.salt)


def _choose(found: Explanation, settings: Settings, request: Request) -> None:
    assert found.count is not None and found.chain is not None
    fleet, policy = fleet_of(settings), settings.switchyard.policy()
    hits: Mapping[str, int] = {}
    hinted: frozenset[str] = frozenset()
    if policy.kv_prefix_affinity:
        hits = request.cached
        if found.session or found.chain.steadied:
            hinted = request.served_by
    known_by = found.session or found.chain.root
    facts = Facts(found.count.total, found.count.exact, known_by, 0.0, found.chain.root_tokens, hinted)
    found.scores = tuple(
        (pool, scores(pool, facts, hits, request.in_flight, policy)) for pool in fleet.pools if pool.ready
    )
    found.decision = choose(facts, fleet, hits, request.in_flight, policy)
    found.headers = routing_headers(found.decision, found.chain.root.hex())


def _blocks(settings: Settings, found: Explanation, count: TokenCount) -> BlockHashes:
    """As the chosen pool's engine names them."""
    chosen = found.decision.pool if found.decision else settings.pools[0].name
    engine = next(pool.engine for pool in settings.pools if pool.name == chosen)
    entry = next((model for model in settings.models if found.model and model.name == found.model.name), None)
    if entry is None or found.prompt is None:
        return BlockHashes(engine, 0, (), "the model is not one of the configuration's")
    size = entry.block_size
    if (why := _unforeseen(found.prompt, count, found.adapter, engine)) is not None:
        return BlockHashes(engine, size, (), why)
    ids = blocks.unpacked(count.ids)
    if engine == "sglang":
        return BlockHashes(engine, size, tuple(blocks.sglang_chain(ids, size)))
    hashes = blocks.vllm_chain(ids, size, seed=entry.block_hash_seed, salt=found.prompt.salt)
    return BlockHashes(engine, size, tuple(hashes))


def _unforeseen(prompt: Prompt, count: TokenCount, adapter: str, engine: str) -> str | None:
    if prompt.elsewhere:
        return "the engine makes the prompt of more than is in the body, or of less"
    if len(prompt.texts) > 1 or len(prompt.token_ids) > 1:
        return "these are several prompts, each with blocks of its own"
    if not count.ids:
        return "the tokens are not known exactly"
    if engine == "sglang" and (prompt.salt or adapter):
        return "what a salt or an adapter does to them depends on SGLang's version"
    if adapter:
        return "the engine's blocks of an adapter bear its path, which only the engine knows"
    return None
