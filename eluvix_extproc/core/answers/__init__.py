"""What an answer of each request format says: one small module a format, one shape for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from eluvix_extproc.core.answers.anthropic import Anthropic
from eluvix_extproc.core.answers.openai import Openai, Pooling, VllmGenerate
from eluvix_extproc.core.answers.responses import Responses
from eluvix_extproc.core.answers.said import TOKEN, Format, Said, Usage
from eluvix_extproc.core.answers.sglang import Sglang
from eluvix_extproc.core.prompt import Api

__all__ = ["FORMATS", "TOKEN", "Format", "Said", "Usage"]

_OPENAI, _POOLING, _VLLM, _RESPONSES = Openai(), Pooling(), VllmGenerate(), Responses()

# A reader for one answer; some remember what earlier events said.
FORMATS: Mapping[Api, Callable[[], Format]] = {
    Api.OPENAI_CHAT: lambda: _OPENAI,
    Api.OPENAI_COMPLETIONS: lambda: _OPENAI,
    Api.OPENAI_EMBEDDINGS: lambda: _POOLING,
    Api.RERANK: lambda: _POOLING,
    Api.OPENAI_RESPONSES: lambda: _RESPONSES,
    Api.ANTHROPIC_MESSAGES: Anthropic,
    Api.ANTHROPIC_COUNT_TOKENS: Anthropic,
    Api.VLLM_GENERATE: lambda: _VLLM,
    Api.SGLANG_GENERATE: Sglang,
}
