from __future__ import annotations

import pytest

from eluvix_extproc.core.paths import api_of
from eluvix_extproc.core.prompt import Api

POST = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v1/chat/completions", Api.OPENAI_CHAT),
        ("/v1/completions", Api.OPENAI_COMPLETIONS),
        ("/team-a/v1/chat/completions", Api.OPENAI_CHAT),
        ("/a/b/v1/completions?beta=1#x", Api.OPENAI_COMPLETIONS),
        ("/v1/chat/completions?next=/v1/models", Api.OPENAI_CHAT),
        ("/v1/ch%61t/completions", Api.OPENAI_CHAT),
        ("/xv1/completions", None),
        ("/v1/chat/completions/", None),
        ("/v1/chat/completions/render", None),
        ("/v1/models?x=/v1/completions", None),
        ("/v1/models#/v1/completions", None),
        ("/v1/embeddings", Api.OPENAI_EMBEDDINGS),
        ("/v1/responses", Api.OPENAI_RESPONSES),
        ("/v1/responses/resp_1", None),
        ("/v1/responses/resp_1/cancel", None),
        ("/v1/messages", Api.ANTHROPIC_MESSAGES),
        ("/v1/messages/count_tokens", Api.ANTHROPIC_COUNT_TOKENS),
        ("/v1/messages/batches", None),
        ("/rerank", Api.RERANK),
        ("/v1/rerank", Api.RERANK),
        ("/v2/rerank?top_n=1", Api.RERANK),
        ("/inference/v1/generate", Api.VLLM_GENERATE),
        ("/a/inference/v1/generate", Api.VLLM_GENERATE),
        ("/generate", Api.SGLANG_GENERATE),
        ("/team-a/generate", Api.SGLANG_GENERATE),
        ("/api/generate", None),
        ("/regenerate", None),
        ("", None),
    ],
)
def test_path_suffix_at_a_segment_border(path: str, api: Api | None) -> None:
    assert api_of({**POST, ":path": path}) is api


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "post", ""])
def test_only_post(method: str) -> None:
    assert api_of({**POST, ":method": method}) is None


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "APPLICATION/JSON; charset=utf-8",
        "application/vnd.api+json",
        " application/json ;x=y",
        "",
        "text/plain, application/json",
        "application/json, text/plain",
        "application/jsonx",
        "\udc85application/json",
        "application/json\udca0",
    ],
)
def test_json_in_any_spelling(content_type: str) -> None:
    assert api_of({**POST, "content-type": content_type}) is Api.OPENAI_CHAT


@pytest.mark.parametrize("content_type", ["multipart/form-data; boundary=x", "text/plain"])
def test_other_content_passes(content_type: str) -> None:
    assert api_of({**POST, "content-type": content_type}) is None


def test_absent_content_type_is_json() -> None:
    assert api_of({":method": "POST", ":path": "/v1/completions"}) is Api.OPENAI_COMPLETIONS


def test_upgrade_and_announced_empty_body_pass() -> None:
    assert api_of({**POST, "upgrade": "websocket"}) is None
    assert api_of({**POST, "content-length": "0"}) is None
    assert api_of({**POST, "content-length": "17"}) is Api.OPENAI_CHAT


def test_no_pseudo_headers() -> None:
    assert api_of({}) is None
