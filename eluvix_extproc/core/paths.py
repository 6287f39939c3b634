"""Which requests are ours to read: told from the headers alone, so that everything else passes undelayed."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from eluvix_extproc.core.prompt import Api

# Each starts at a segment border, so that `/team-a/v1/completions` is ours and `/xv1/completions` is not. The first of
# those that fit counts.
_SUFFIXES = (
    ("/v1/chat/completions", Api.OPENAI_CHAT),
    ("/v1/completions", Api.OPENAI_COMPLETIONS),
    ("/v1/responses", Api.OPENAI_RESPONSES),
    ("/v1/messages", Api.ANTHROPIC_MESSAGES),
    ("/v1/messages/count_tokens", Api.ANTHROPIC_COUNT_TOKENS),
    ("/v1/embeddings", Api.OPENAI_EMBEDDINGS),
    ("/inference/v1/generate", Api.VLLM_GENERATE),
    ("/rerank", Api.RERANK),      # and /v1/rerank, /v2/rerank
    ("/generate", Api.SGLANG_GENERATE),
)
# What another service's path ends in, though it looks like one of the above: Ollama's.
_NOT_OURS = ("/api/generate",)
# Without a prefix and a query, as nearly all requests are, a path is known at one look.
_WHOLE = dict(_SUFFIXES)


def api_of(headers: Mapping[str, str]) -> Api | None:
    """The request format that a request's headers announce, or None when it is not one that we read.

    `headers` have lower-case names and hold `:method` and `:path`. None for another method than POST, an unknown
    path, an upgrade, a body announced as empty, and a content-type other than JSON (an upload).
    """
    if headers.get(":method") != "POST" or headers.get("upgrade"):
        return None
    path = headers.get(":path", "")
    api = _WHOLE.get(path) or _by_path(path)
    if api is None or headers.get("content-length") == "0":
        return None
    content_type = headers.get("content-type", "")
    return api if content_type == "application/json" or _is_json(content_type) else None


def _by_path(path: str) -> Api | None:
    path = path.partition("#")[0].partition("?")[0]
    if "%" in path:
        path = unquote(path)     # engines route on the decoded path: `/v1/%63ompletions` reaches them as ours
    for suffix, api in _SUFFIXES:
        if path.endswith(suffix) and not path.endswith(_NOT_OURS):
            return api
    return None


def _is_json(content_type: str) -> bool:
    if not content_type.strip():
        return True
    # Repeated headers arrive joined by commas and an engine obeys one of them: any JSON among them makes it ours.
    for value in content_type.lower().split(","):
        media_type = value.partition(";")[0].strip()
        # Bytes around it that are white space to one reader are none to another: whoever names JSON means it.
        if "json" in media_type:
            return True
    return False
