"""What an answer of each request format says: one small module a format, one shape for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from eluvix_extproc.core.answers.anthropic import Anthropic
from eluvix_extproc.core.answers.openai import Openai, VllmGenerate
from eluvix_extproc.core.answers.responses import Responses
from eluvix_extproc.core.answers.said import Format, Said, Usage
from eluvix_extproc.core.answers.sglang import Sglang
from eluvix_extproc.core.prompt import Api

__all__ = ["FORMATS", "Format", "Said", "Usage"]

_OPENAI, _VLLM, _RESPONSES, _ANTHROPIC = Openai(), VllmGenerate(), Responses(), Anthropic()

# A reader for one answer; only SGLang's remembers anything from event to event.
FORMATS: Mapping[Api, Callable[[], Format]] = {
    Api.OPENAI_CHAT: lambda: _OPENAI,
    Api.OPENAI_COMPLETIONS: lambda: _OPENAI,
    Api.OPENAI_EMBEDDINGS: lambda: _OPENAI,
    Api.RERANK: lambda: _OPENAI,
    Api.OPENAI_RESPONSES: lambda: _RESPONSES,
    Api.ANTHROPIC_MESSAGES: lambda: _ANTHROPIC,
    Api.ANTHROPIC_COUNT_TOKENS: lambda: _ANTHROPIC,
    Api.VLLM_GENERATE: lambda: _VLLM,
    Api.SGLANG_GENERATE: Sglang,
}
