"""Structured logs on standard error: one line an exchange, JSON for machines or a console format for people.

Never in a line: bodies, credentials, header values, query strings. What a client wrote (method, path, request id) is
cut to length and spelt out where it does not print.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, BinaryIO, Literal

import orjson
import structlog

from eluvix_extproc.core.record import Outcome, Record
from eluvix_extproc.observe.text import ID_LENGTH, METHOD_LENGTH, safe, safe_path

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["json", "console"]

_LEVELS: Mapping[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_VALUE_LENGTH = 4_000
WARN_EVERY_S = 600.0


def configure(level: Level = "info", form: Format = "json", stream: BinaryIO | None = None) -> None:
    """Send structlog's and the standard library's log records to `stream` (bytes; standard error by default)."""
    global _exchange_line
    target = sys.stderr.buffer if stream is None else stream
    stamps: list[Any] = [structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True)]
    finish: list[Any]
    if form == "json":
        finish = [structlog.processors.EventRenamer("message"), _render_json]
    else:
        finish = [structlog.dev.ConsoleRenderer(colors=target.isatty()), _encode]
    wrapper = structlog.make_filtering_bound_logger(_LEVELS[level])
    structlog.configure(
        processors=[*stamps, structlog.processors.format_exc_info, _spell_out, *finish],
        wrapper_class=wrapper,
        logger_factory=lambda *_: _Lines(target),
        # Module-level loggers of other files must follow a later configure().
        cache_logger_on_first_use=False,
    )
    # The line of an exchange is on the hot path: in JSON it goes by without the chain, for its values are safe already.
    lines = _Lines(target)
    if form == "json":
        _exchange_line = _JsonExchanges(lines, _LEVELS[level])
    else:
        bound = structlog.wrap_logger(lines, processors=[*stamps, *finish], wrapper_class=wrapper).bind()
        _exchange_line = partial(_through_structlog, bound)
    root = logging.getLogger()
    root.handlers[:] = [_FromStandardLibrary()]
    root.setLevel(_LEVELS[level])


def log_exchange(record: Record) -> None:
    """One line for a finished exchange: error for a defect here, warning for one that went wrong elsewhere."""
    outcome = record.outcome
    if outcome is Outcome.INTERNAL:
        _exchange_line("error", record)
    elif record.failopen is not None or outcome is Outcome.UPSTREAM_ERROR:
        _exchange_line("warning", record)
    else:
        _exchange_line("info", record)


def fields(record: Record) -> dict[str, object]:
    """What a log line says of `record`; a figure that is not known is absent. Durations in milliseconds."""
    line: dict[str, object] = {
        "outcome": record.outcome,
        "method": safe(record.method, METHOD_LENGTH),
        "path": safe_path(record.path),
        "request_id": safe(record.request_id, ID_LENGTH),
        "duration_ms": _ms(record.duration_s),
        "request_bytes": record.request_bytes,
        "response_bytes": record.response_bytes,
    }
    if record.status is not None:
        line["status"] = record.status
    if record.api is not None:
        line["api"] = record.api
        line["stream"] = record.stream
    sized = record.sized
    if sized is not None:
        line["model"] = sized.model
        line["tokens"] = sized.tokens
        line["source"] = "exact" if sized.exact else "estimate"
        line["prefix_hash"] = sized.prefix_hash
    decision = record.decision
    if decision is not None:
        line["role"] = decision.role
        line["pool"] = decision.pool
        if decision.workers:
            line["worker"] = decision.workers[0]
        line["reasons"] = decision.reasons
        line["cached_predicted"] = decision.cached_tokens
    for key, value in (
        ("decision_ms", _ms(record.decision_s)),
        ("failopen", record.failopen),
        ("refused", record.refused),
        ("served_pool", record.served_pool),
        ("served_worker", record.served_worker),
        ("attempts", record.attempts),
        ("cached_delivered", record.delivered_cached_tokens),
        ("prompt_tokens_reported", record.prompt_tokens_reported),
        ("itl_ms", _ms(record.itl_s)),
        ("completion_tokens", record.completion_tokens),
    ):
        if value is not None:
            line[key] = value
    if record.ttft_s is not None:
        line["ttft_ms"] = _ms(record.ttft_s)
        line["ttft_source"] = record.ttft_source
    return line


def mismatches(record: Record) -> bool:
    """Whether a successful answer reports another number of prompt tokens than what we called exact."""
    sized, reported, status = record.sized, record.prompt_tokens_reported, record.status
    if sized is None or not sized.exact or not reported or status is None or not 200 <= status < 300:
        return False
    return sized.tokens != reported and record.outcome in (Outcome.COMPLETED, Outcome.LEFT)


class Mismatches:
    """Warns of a model whose exact counts are not the engine's, at most once in WARN_EVERY_S for each."""

    def __init__(self) -> None:
        self._warned: dict[str, float] = {}

    def note(self, record: Record, now: float) -> None:
        """`now` is monotonic, in seconds."""
        sized = record.sized
        if sized is None or not mismatches(record):
            return
        if now - self._warned.get(sized.model, -math.inf) < WARN_EVERY_S:
            return
        self._warned[sized.model] = now
        structlog.get_logger("eluvix").warning(
            "prompt tokens are not the engine's: check the model's tokenizer and chat template",
            model=sized.model,
            counted=sized.tokens,
            reported=record.prompt_tokens_reported,
            request_id=safe(record.request_id, ID_LENGTH),
        )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _render_json(_logger: object, _method: str, event: MutableMapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(event, default=str, option=orjson.OPT_UTC_Z)
    except TypeError:
        # Nested surrogates, integers beyond 64 bits, odd keys: a log line is never worth an exception.
        return json.dumps(event, default=str, skipkeys=True, ensure_ascii=False).encode("utf-8", "replace")


def _spell_out(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str) and (len(value) > _VALUE_LENGTH or not value.isprintable()):
            # A traceback keeps its lines; what an exception says can still come from a client.
            lines = value.split("\n") if key == "exception" else [value]
            event[key] = "\n".join(safe(line, _VALUE_LENGTH) for line in lines)
    return event


def _encode(_logger: object, _method: str, text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _through_structlog(logger: Any, level: str, record: Record) -> None:
    getattr(logger, level)("exchange", **fields(record))


class _JsonExchanges:
    def __init__(self, lines: _Lines, least: int) -> None:
        self._lines = lines
        self._least = least

    def __call__(self, level: str, record: Record) -> None:
        if _LEVELS[level] >= self._least:
            line = fields(record)
            line["level"] = level
            line["timestamp"] = datetime.now(UTC)
            line["message"] = "exchange"
            self._lines.msg(_render_json(None, level, line))


class _Lines:
    """Writes lines; a standard error that is gone or full loses the line, never the request that it is about."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target

    def msg(self, line: bytes) -> None:
        try:
            self._target.write(line + b"\n")
            self._target.flush()
        except (OSError, ValueError):
            pass

    debug = info = warning = error = critical = msg


class _FromStandardLibrary(logging.Handler):
    """aiohttp, grpc and asyncio log through the standard library; their lines get the same form."""

    def emit(self, record: logging.LogRecord) -> None:
        # structlog knows the five named levels only; whatever lies between counts as the one below.
        level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.CRITICAL)
        structlog.get_logger().log(level, record.getMessage(), logger=record.name, exc_info=record.exc_info or None)


_exchange_line: Callable[[str, Record], None] = partial(_through_structlog, structlog.get_logger())
