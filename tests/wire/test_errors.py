from __future__ import annotations

import json

import pytest

from eluvix_extproc.core.prompt import Api
from eluvix_extproc.errors import BodyTooLarge, EluvixError, MalformedBody, Unavailable, UnknownModel
from eluvix_extproc.wire.errors import answer

ERRORS: list[tuple[EluvixError, int, str, str]] = [
    (MalformedBody("no", "messages"), 400, "invalid_request_error", "malformed_body"),
    (UnknownModel("no", "model"), 404, "not_found_error", "model_not_found"),
    (BodyTooLarge("no"), 413, "request_too_large", "body_too_large"),
    (Unavailable("no"), 503, "overloaded_error", "no_worker"),
]


@pytest.mark.parametrize("api", [Api.ANTHROPIC_MESSAGES, Api.ANTHROPIC_COUNT_TOKENS])
@pytest.mark.parametrize(("error", "status", "kind", "code"), ERRORS)
def test_anthropics_apis_have_anthropics_error(api: Api, error: EluvixError, status: int, kind: str, code: str) -> None:
    told = answer(error, api)
    assert (told.status, told.details) == (status, f"eluvix_{code}")
    assert json.loads(told.body) == {"type": "error", "error": {"type": kind, "message": "no"}}


@pytest.mark.parametrize(("error", "status", "kind", "code"), ERRORS)
def test_vllms_own_format_has_vllms_error(error: EluvixError, status: int, kind: str, code: str) -> None:
    told = answer(error, Api.VLLM_GENERATE)
    name = {404: "NotFoundError", 503: "ServiceUnavailableError"}.get(status, "BadRequestError")
    param = getattr(error, "param", None)
    assert json.loads(told.body) == {"error": {"message": "no", "type": name, "param": param, "code": status}}
    assert (told.status, told.details) == (status, f"eluvix_{code}")
    assert ("retry-after" in dict(told.headers)) == (status == 503)


@pytest.mark.parametrize("api", [None, *(api for api in Api if "openai" in api), Api.RERANK, Api.SGLANG_GENERATE])
@pytest.mark.parametrize(("error", "status", "kind", "code"), ERRORS)
def test_all_others_have_openais(api: Api | None, error: EluvixError, status: int, kind: str, code: str) -> None:
    told = answer(error, api)
    assert told.status == status
    whose = "invalid_request_error" if status < 500 else "service_unavailable_error"
    param = getattr(error, "param", None)
    assert json.loads(told.body) == {"error": {"message": "no", "type": whose, "param": param, "code": code}}
    assert ("retry-after" in dict(told.headers)) == (status == 503)
