"""Domain errors. They know nothing of HTTP or gRPC; `wire/errors.py` maps them to a status at the edge.

Two families answer a client: RequestError (its request cannot be served as it is) and Unavailable (nothing can serve
it now). Everything else that goes wrong lets the request through unrouted: that is a FailOpen, with a reason for the
metric `eluvix_failopen_total{reason}`.
"""

from __future__ import annotations

from typing import ClassVar


class EluvixError(Exception):
    """Base of all of ours."""


class RequestError(EluvixError):
    """The client's request is at fault.

    `message` is for the client and never holds anything of another request; `param` names the offending field in
    the API's own terms, or is None.
    """

    code: ClassVar[str] = "invalid_request"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class MalformedBody(RequestError):
    """Not JSON, not an object, or a field of the wrong type."""

    code = "malformed_body"


class BodyTooLarge(RequestError):
    """More bytes than `server.maxBodyBytes`, as sent or as decompressed."""

    code = "body_too_large"


class UnknownModel(RequestError):
    """A model name that no entry of `models` serves."""

    code = "model_not_found"


class Unavailable(EluvixError):
    """No worker may take the request and the policy is to say so (503)."""

    code: ClassVar[str] = "no_worker"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class FailOpen(EluvixError):
    """The request goes on unrouted; `reason` is one of a bounded set and labels the metric."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ConfigError(EluvixError):
    """A configuration that cannot be used; `problems` are lines for a person, each naming file and line."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class LocalProtocolError(EluvixError):
    """We broke the ext_proc protocol: a defect here."""


class RemoteProtocolError(EluvixError):
    """The peer sent what the protocol does not allow at this point."""
