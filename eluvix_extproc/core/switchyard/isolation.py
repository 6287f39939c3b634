"""Prefill isolation: long prefills go to workers of their own, so that they do not stall others' decoding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from eluvix_extproc.core.fleet import Fleet, Pool, Role
from eluvix_extproc.core.switchyard.draft import Draft
from eluvix_extproc.errors import FailOpen, Unavailable

_LIGHT: Final = (Role.DECODE, Role.COLOCATED)
_HEAVY: Final = {
    "auto": (Role.CONDUCTOR, Role.PREFILL),
    "prefill": (Role.PREFILL,),
    "disaggregated-conductor": (Role.CONDUCTOR,),
}
# Where a request goes whose own roles have nobody ready. A conductor serves whole requests by design; a prefill
# worker's engine may be set up as a producer of KV cache only, so it comes last.
_FALLBACK: Final = (Role.DECODE, Role.COLOCATED, Role.CONDUCTOR, Role.PREFILL)


def isolate(draft: Draft) -> None:
    """Is the prompt heavy, and are there workers of their own for heavy ones?"""
    facts, fleet, policy = draft.facts, draft.fleet, draft.policy
    for role in _HEAVY[policy.prefill_isolation_route]:
        if role in fleet.by_role:
            break
    else:
        draft.reasons.append("isolation:no-pool")
        return
    tokens, basis = facts.prompt_tokens, "prompt"
    if policy.prefill_isolation_basis == "uncached":
        # Of what is cached only the light worker's part counts: a prefix that is warm on a prefill worker, or on one
        # that is too busy to be chosen, saves the decoding workers nothing.
        light = _first_ready(fleet, _LIGHT)
        tokens, basis = tokens - (draft.rank(light).cached_tokens if light else 0), "uncached"
    draft.heavy = tokens >= policy.prefill_isolation_threshold_tokens
    sign = ">=" if draft.heavy else "<"
    draft.reasons.append(f"isolation:{basis}={tokens}{sign}{policy.prefill_isolation_threshold_tokens}")


def pick_pool(draft: Draft) -> None:
    """The first pool with a ready worker among the wanted roles, else what the policy says."""
    wanted = _HEAVY[draft.policy.prefill_isolation_route] if draft.heavy else _LIGHT
    pool = _first_ready(draft.fleet, wanted)
    draft.isolated = draft.heavy and pool is not None
    if pool is None:
        missing = "+".join(_configured(draft.fleet, wanted)) or "+".join(wanted)
        draft.reasons.append(f"unready:{missing}")
        if draft.heavy and draft.policy.on_prefill_unavailable == "fail":
            raise Unavailable(f"no worker is ready in role {missing}")
        pool = _first_ready(draft.fleet, _FALLBACK)
        if pool is None and draft.policy.on_prefill_unavailable == "fail":
            raise Unavailable("no worker is ready")
        if pool is None:
            raise FailOpen("no_worker")
        draft.fallback = True
        draft.reasons.append(f"fallback:{draft.fleet.role_of(pool)}")
    draft.pool = pool


def _configured(fleet: Fleet, roles: Iterable[Role]) -> list[Role]:
    return [role for role in roles if role in fleet.by_role]


def _first_ready(fleet: Fleet, roles: Iterable[Role]) -> Pool | None:
    for role in roles:
        pool = fleet.ready_in.get(role)
        if pool is not None:
            return pool
    return None
