"""Request bodies in, Prompts out: one function for every request format that we read."""

from __future__ import annotations

from eluvix_extproc.core.prompt import Api, Prompt
from eluvix_extproc.prompt import (
    anthropic_messages,
    generate,
    openai_chat,
    openai_completions,
    openai_responses,
    pooling,
)
from eluvix_extproc.prompt.encoding import decoded

__all__ = ["decoded", "parse"]

_PARSERS = {
    Api.OPENAI_CHAT: openai_chat.parse,
    Api.OPENAI_COMPLETIONS: openai_completions.parse,
    Api.OPENAI_RESPONSES: openai_responses.parse,
    Api.OPENAI_EMBEDDINGS: pooling.parse_embeddings,
    Api.RERANK: pooling.parse_rerank,
    Api.ANTHROPIC_MESSAGES: anthropic_messages.parse,
    Api.ANTHROPIC_COUNT_TOKENS: anthropic_messages.parse_count,
    Api.VLLM_GENERATE: generate.parse_vllm,
    Api.SGLANG_GENERATE: generate.parse_sglang,
}


def parse(api: Api, body: bytes, *, body_bytes: int, complete: bool = True) -> Prompt:
    """The prompt of one request body (identity encoding; see `decoded`).

    `complete` False says that `body` is only the first bytes of a larger one of `body_bytes`: what can be read of it
    is read, and what a head need not hold yet (`model`, `messages`) may be missing. Raises MalformedBody for what no
    engine could read: not JSON, not an object, `model` or the prompt itself absent or of the wrong type; and
    FailOpen("unknown_format") where a path that other services use as well holds no prompt at all. Fields that
    are not needed here never matter, whatever they hold: judging them is the engine's business.
    """
    return _PARSERS[api](body, body_bytes=body_bytes, complete=complete)
