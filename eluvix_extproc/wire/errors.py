"""The one place where a domain error becomes an HTTP answer: status, body in the API's own shape, Retry-After."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from eluvix_extproc.core.prompt import Api
from eluvix_extproc.errors import BodyTooLarge, EluvixError, MalformedBody, RequestError, Unavailable, UnknownModel


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """`details` shows up in Envoy's RESPONSE_CODE_DETAILS."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    details: str


_STATUS: dict[type[EluvixError], int] = {
    MalformedBody: 400,
    UnknownModel: 404,
    BodyTooLarge: 413,
    Unavailable: 503,
}


_ANTHROPIC = (Api.ANTHROPIC_MESSAGES, Api.ANTHROPIC_COUNT_TOKENS)
_ANTHROPIC_TYPES = {404: "not_found_error", 413: "request_too_large", 503: "overloaded_error"}


def answer(error: EluvixError, api: Api | None) -> HttpAnswer:
    """The API's error object: Anthropic's for its own, OpenAI's for all others."""
    status = _STATUS.get(type(error), 400 if isinstance(error, RequestError) else 503)
    code = error.code if isinstance(error, (RequestError, Unavailable)) else "unavailable"
    message = error.message if isinstance(error, (RequestError, Unavailable)) else "temporarily unavailable"
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
    if status == 503:
        headers += (("retry-after", "1"),)
    told: dict[str, object]
    if api in _ANTHROPIC:
        kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error")
        told = {"type": "error", "error": {"type": kind, "message": message}}
    else:
        kind = "invalid_request_error" if status < 500 else "service_unavailable_error"
        param = error.param if isinstance(error, RequestError) else None
        told = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return HttpAnswer(status, headers, msgspec.json.encode(told), f"eluvix_{code}")
