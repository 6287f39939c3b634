"""The answers of the formats beside OpenAI's completions, as vLLM 0.32 and SGLang 0.5 write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eluvix_extproc.core.prompt import Api
from eluvix_extproc.sim.answers import ChunkShapes, Shapes
from eluvix_extproc.sim.formats import anthropic, sglang
from eluvix_extproc.sim.formats.pooling import Embeddings, Ranks
from eluvix_extproc.sim.formats.responses import Responses
from eluvix_extproc.sim.formats.vllm import Ids
from eluvix_extproc.sim.intake import Ask


def shapes(ask: Ask, ident: str, created: int) -> Shapes:
    """For one answer."""
    match ask.api:
        case Api.ANTHROPIC_MESSAGES:
            return anthropic.Messages(ident, ask.model)
        case Api.OPENAI_RESPONSES:
            return Responses(ident, created, ask.model, ask.max_tokens)
        case Api.VLLM_GENERATE:
            return Ids(ident)
        case Api.SGLANG_GENERATE:
            return sglang.Texts(ident, len(ask.prompts) * ask.choices_per_prompt)
        case Api.OPENAI_EMBEDDINGS:
            return Embeddings(ident, created, ask.model)
        case Api.RERANK:
            return Ranks(ident, ask.model, ask.documents)
    kind = "chatcmpl" if ask.chat else "cmpl"
    return ChunkShapes(chat=ask.chat, ident=f"{kind}-{ident}", created=created, model=ask.model)


def refusal(api: Api | None, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """An error body as the API's engine writes it; `body` is OpenAI's."""
    if api in (Api.ANTHROPIC_MESSAGES, Api.ANTHROPIC_COUNT_TOKENS):
        return anthropic.refusal(body)
    return sglang.refusal(body) if api is Api.SGLANG_GENERATE else body
