"""An explanation as JSON values and as lines for a person."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from eluvix_extproc.config.models import Settings
from eluvix_extproc.core.prompt import Prompt, TokenCount
from eluvix_extproc.core.switchyard.affinity import Score
from eluvix_extproc.errors import FailOpen
from eluvix_extproc.explain.explanation import Explanation
from eluvix_extproc.explain.standing import behind
from eluvix_extproc.wire import errors

_SHOWN_HASHES = 4


def as_json(found: Explanation, settings: Settings) -> dict[str, Any]:
    """What was not reached is null; tokens by message are null where only the sum is known."""
    return {
        "api": found.api,
        "prompt": _prompt(found),
        "tokens": _tokens(found),
        "prefix": _prefix(found),
        "blocks": _blocks(found),
        "kv_bytes": found.kv_bytes,
        "switchyard": _switchyard(found, settings),
        "decision": _decision(found),
        "error": _error(found),
    }


def _prompt(found: Explanation) -> dict[str, Any] | None:
    prompt = found.prompt
    if prompt is None:
        return None
    return {
        "model": prompt.model,
        "configured_model": found.model.name if found.model else None,
        "adapter": found.adapter or None,
        "stream": prompt.stream,
        "bytes": prompt.body_bytes,
        "read_bytes": prompt.read_bytes,
        "max_tokens": prompt.max_tokens,
        "samples": prompt.samples,
        "salted": bool(prompt.salt),
        "reserved_members_removed": prompt.reserved and prompt.complete,
        "partly_elsewhere": prompt.elsewhere,
    }


def _tokens(found: Explanation) -> dict[str, Any] | None:
    prompt, count = found.prompt, found.count
    if prompt is None or count is None:
        return None
    return {
        "total": count.total,
        "source": "exact" if count.exact else "estimate",
        "messages": _messages(prompt, count),
        "texts": len(prompt.texts),
        "sequences_of_ids": len(prompt.token_ids),
        "tools_bytes": len(prompt.tools_raw),
    }


def _messages(prompt: Prompt, count: TokenCount) -> list[dict[str, Any]]:
    """A message's tokens are those up to its end that no message before it has: markers and tools of the template count
    to the message that they stand before."""
    known = len(count.per_message) == len(prompt.messages)
    shown = []
    before = 0
    for at, message in enumerate(prompt.messages):
        tokens = count.per_message[at] - before if known else None
        before = count.per_message[at] if known else 0
        shown.append(
            {"role": message.role, "tokens": tokens, "bytes": len(message.text.encode("utf-8", "replace")),
             "media": message.media}
        )  # fmt: skip
    return shown


def _prefix(found: Explanation) -> dict[str, Any] | None:
    chain = found.chain
    if chain is None:
        return None
    return {
        "key": chain.root.hex() or None,
        "root_tokens": chain.root_tokens,
        "volatile_lines_left_out": chain.steadied,
        "session": found.session.hex() or None,
        "points": [{"tokens": point.tokens, "key": f"{point.key:016x}"} for point in chain.points],
    }


def _blocks(found: Explanation) -> dict[str, Any] | None:
    blocks = found.blocks
    if blocks is None:
        return None
    return {
        "engine": blocks.engine,
        "block_size": blocks.block_size,
        "count": len(blocks.hashes),
        "hashes": list(blocks.hashes),
        "unknown": blocks.unknown,
    }


def _switchyard(found: Explanation, settings: Settings) -> dict[str, Any] | None:
    if not found.scores:
        return None
    unresolved = _unresolved(settings)
    return {
        "threshold_tokens": settings.switchyard.prefill_isolation_threshold_tokens,
        "basis": settings.switchyard.prefill_isolation_basis,
        "pools": [
            {
                "name": pool.name,
                "role": pool.role,
                "unresolved": pool.name in unresolved,
                "workers": [_score(scores[0], score) for score in scores],
            }
            for pool, scores in found.scores
        ],
    }


def _unresolved(settings: Settings) -> set[str]:
    """Pools whose one worker is a name, and not an address."""
    return {pool.name for pool in settings.pools if pool.workers.dns is not None}


def _score(first: Score, score: Score) -> dict[str, Any]:
    return {
        "address": score.address,
        "load": score.load,
        "held_tokens": score.held,
        "worth_following": score.worth,
        "load_window": score.window,
        "not_first": None if score is first else behind(first, score),
    }


def _decision(found: Explanation) -> dict[str, Any] | None:
    decision = found.decision
    if decision is None:
        return None
    return {
        "role": decision.role,
        "pool": decision.pool,
        "cluster": decision.cluster,
        "workers": list(decision.workers),
        "isolated": decision.isolated,
        "fallback": decision.fallback,
        "cached_tokens": decision.cached_tokens,
        "uncached_tokens": decision.uncached_tokens,
        "reasons": list(decision.reasons),
        "request_headers": dict(found.headers),
    }


def _error(found: Explanation) -> dict[str, Any] | None:
    if found.error is None:
        return None
    if isinstance(found.error, FailOpen):
        return {"unrouted": found.error.reason, "status": None, "body": None}
    answer = errors.answer(found.error, found.api)
    return {"unrouted": None, "status": answer.status, "body": json.loads(answer.body)}


def as_text(found: Explanation, settings: Settings) -> Iterator[str]:
    """One line a fact."""
    if found.api is None:
        yield "This request is not one that the sidecar reads: it passes through untouched."
        return
    yield f"api        {found.api}"
    prompt, count = _prompt(found), _tokens(found)
    if prompt is not None:
        served = prompt["configured_model"] or "not in the configuration"
        yield f"model      {prompt['model'] or '(none named)'}: {served}"
        if prompt["read_bytes"] < prompt["bytes"]:
            yield f"body       {prompt['bytes']} bytes, of which {prompt['read_bytes']} are read for the decision"
    if count is not None:
        yield f"tokens     {count['total']} ({count['source']})"
        for at, message in enumerate(count["messages"]):
            media = f", {message['media']} media" if message["media"] else ""
            tokens = "?" if message["tokens"] is None else message["tokens"]
            yield f"  [{at}] {message['role']:<10} {tokens:>7} tokens, {message['bytes']} bytes{media}"
    if found.kv_bytes is not None:
        yield f"kv cache   {found.kv_bytes / 1024:.1f} KiB"
    yield from _prefix_lines(found)
    yield from _switchyard_lines(found, settings)
    error = _error(found)
    if error is not None and error["unrouted"]:
        yield f"result     let through unrouted: {error['unrouted']}"
    elif error is not None:
        yield f"result     answered with {error['status']}: {json.dumps(error['body'], ensure_ascii=False)}"


def _prefix_lines(found: Explanation) -> Iterator[str]:
    if found.chain is not None:
        volatile = ", volatile lines left out" if found.chain.steadied else ""
        yield f"prefix key {found.chain.root.hex() or 'none'}{volatile}"
        lengths = [str(point.tokens) for point in found.chain.points]
        yield f"  known to the index at {', '.join(lengths) or 'no length'} tokens"
    if found.session:
        yield f"session    {found.session.hex()[:16]}…"
    blocks = found.blocks
    if blocks is not None and blocks.unknown is not None:
        yield f"blocks     not foreseen: {blocks.unknown}"
    elif blocks is not None:
        first = ", ".join(str(value) for value in blocks.hashes[:_SHOWN_HASHES])
        more = ", …" if len(blocks.hashes) > _SHOWN_HASHES else ""
        yield f"blocks     {len(blocks.hashes)} of {blocks.block_size} tokens ({blocks.engine}): {first}{more}"


def _switchyard_lines(found: Explanation, settings: Settings) -> Iterator[str]:
    unresolved = _unresolved(settings)
    for pool, scores in found.scores:
        named = ", a name that is not resolved here" if pool.name in unresolved else ""
        yield f"pool       {pool.name} ({pool.role}){named}"
        for place, score in enumerate(scores, 1):
            window = "" if score.window is None else f", preferred up to a load of {score.window:.3g}"
            why = "" if score is scores[0] else f"; {behind(scores[0], score)}"
            yield f"  {place}. {score.address}: load {score.load:.3g}, holds {score.held} tokens{window}{why}"
    decision = found.decision
    if decision is not None:
        yield f"decision   {decision.role}: {decision.pool}, cluster {decision.cluster}"
        yield f"  workers  {', '.join(decision.workers)}"
        for reason in decision.reasons:
            yield f"  because  {reason}"
        for name, value in found.headers:
            yield f"  sets     {name}: {value}"
