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


def answer(error: EluvixError, api: Api | None) -> HttpAnswer:
    """OpenAI's error object for all APIs of today; `type` says whose fault it is, `code` which kind."""
    status = _STATUS.get(type(error), 400 if isinstance(error, RequestError) else 503)
    code = error.code if isinstance(error, (RequestError, Unavailable)) else "unavailable"
    message = error.message if isinstance(error, (RequestError, Unavailable)) else "temporarily unavailable"
    param = error.param if isinstance(error, RequestError) else None
    kind = "invalid_request_error" if status < 500 else "service_unavailable_error"
    body = msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
    if status == 503:
        headers += (("retry-after", "1"),)
    return HttpAnswer(status, headers, body, f"eluvix_{code}")
