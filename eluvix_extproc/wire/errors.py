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
_ANTHROPIC_TYPES = {400: "invalid_request_error", 404: "not_found_error", 413: "request_too_large",
                    503: "overloaded_error"}  # fmt: skip
# As vLLM names them (entrypoints/serve/exception_handling/error_response.py).
_VLLM_TYPES = {404: "NotFoundError", 503: "ServiceUnavailableError"}


def answer(error: EluvixError, api: Api | None) -> HttpAnswer:
    """The API's own error object: Anthropic's and vLLM's for theirs, OpenAI's for all others (SGLang's has a `message`
    alone, which that one has too)."""
    status = _STATUS.get(type(error), 400 if isinstance(error, RequestError) else 503)
    code = error.code if isinstance(error, (RequestError, Unavailable)) else "unavailable"
    message = error.message if isinstance(error, (RequestError, Unavailable)) else "temporarily unavailable"
    param = error.param if isinstance(error, RequestError) else None
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
    if status == 503:
        headers += (("retry-after", "1"),)
    told: dict[str, object]
    if api in _ANTHROPIC:
        told = {"type": "error", "error": {"type": _ANTHROPIC_TYPES[status], "message": message}}
    elif api is Api.VLLM_GENERATE:
        kind = _VLLM_TYPES.get(status, "BadRequestError")
        told = {"error": {"message": message, "type": kind, "param": param, "code": status}}
    else:
        kind = "invalid_request_error" if status < 500 else "service_unavailable_error"
        told = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return HttpAnswer(status, headers, msgspec.json.encode(told), f"eluvix_{code}")
