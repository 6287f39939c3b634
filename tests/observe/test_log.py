from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import orjson
import pytest
import structlog

from eluvix_extproc.core.record import Outcome, Source
from eluvix_extproc.observe import log
from tests.observe.records import record

HOSTILE = 'x\r\n{"outcome":"forged"}\x1b[2J\u202e\udc80\x9b'


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@pytest.fixture
def lines() -> io.BytesIO:
    return io.BytesIO()


def only(lines: io.BytesIO) -> dict[str, object]:
    (line,) = lines.getvalue().splitlines()
    parsed = orjson.loads(line)
    assert isinstance(parsed, dict)
    return parsed


def test_an_exchange_is_one_line_of_json(lines: io.BytesIO) -> None:
    log.configure("info", "json", lines)
    log.log_exchange(record(path="/v1/chat/completions?api_key=secret#x"))
    line = only(lines)
    assert b"secret" not in lines.getvalue()
    assert line.pop("timestamp")
    assert line == {
        "message": "exchange", "level": "info", "outcome": "completed", "method": "POST",
        "path": "/v1/chat/completions", "request_id": "8a1e0c2e-7d7c-4f5e-9d6a-0a3f8be8a0c1", "status": 200,
        "api": "openai.chat", "stream": True, "model": "llama-3.3-70b", "tokens": 4213, "source": "exact",
        "prefix_hash": "ab" * 32, "role": "decode", "pool": "decode", "worker": "10.0.0.1:8000",
        "reasons": ["affinity:hit=4096", "isolation:uncached=117<4096"], "cached_predicted": 4096,
        "cached_delivered": 4080, "served_pool": "decode", "served_worker": "10.0.0.1:8000", "attempts": 1,
        "decision_ms": 3.0, "ttft_ms": 200.0, "ttft_source": "measured", "itl_ms": 20.0, "duration_ms": 2500.0,
        "completion_tokens": 116, "prompt_tokens_reported": 4213, "request_bytes": 20000, "response_bytes": 9000,
    }  # fmt: skip


def test_what_is_not_known_is_absent(lines: io.BytesIO) -> None:
    log.configure("info", "json", lines)
    log.log_exchange(record(sized=None, decision=None, ttft_s=None, ttft_source=Source.UNKNOWN, itl_s=None, api=None))
    assert only(lines).keys().isdisjoint({"tokens", "role", "ttft_ms", "ttft_source", "itl_ms", "api", "failopen"})


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, "info"),
        ({"outcome": Outcome.LEFT}, "info"),
        ({"outcome": Outcome.PASSED}, "info"),
        ({"outcome": Outcome.CANCELLED}, "info"),
        ({"outcome": Outcome.REFUSED, "refused": "malformed_body"}, "info"),
        ({"outcome": Outcome.UPSTREAM_ERROR}, "warning"),
        ({"failopen": "deadline"}, "warning"),
        ({"outcome": Outcome.INTERNAL, "failopen": "internal"}, "error"),
    ],
)
def test_the_level_says_whose_trouble_it_is(lines: io.BytesIO, changes: dict[str, object], level: str) -> None:
    log.configure("info", "json", lines)
    log.log_exchange(record(**changes))
    line = only(lines)
    assert line["level"] == level
    assert {key: line[key] for key in changes} == changes


def test_the_configured_level_filters(lines: io.BytesIO) -> None:
    log.configure("warning", "json", lines)
    log.log_exchange(record())
    structlog.get_logger().info("quiet")
    logging.getLogger("aiohttp").info("quiet")
    assert lines.getvalue() == b""


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_client_cannot_forge_a_line_or_reach_the_terminal(lines: io.BytesIO, form: log.Format) -> None:
    log.configure("info", form, lines)
    log.log_exchange(record(request_id=HOSTILE, path="/" + HOSTILE, method=HOSTILE))
    log.log_exchange(record(request_id="r" * 50_000, path="/" + "p" * 50_000, method="M" * 50_000))
    text = lines.getvalue().decode()
    assert text.count("\n") == 2
    assert all(char.isprintable() for char in text.replace("\n", ""))
    assert len(text) < 6_000


@pytest.mark.parametrize("form", ["json", "console"])
def test_other_events_with_hostile_values_and_tracebacks_are_written_too(lines: io.BytesIO, form: log.Format) -> None:
    log.configure("info", form, lines)
    structlog.get_logger().info("event", value=HOSTILE, nested=[chr(0xDC80)], big=1 << 80, odd={1: object})
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        structlog.get_logger().exception("failed")
    text = lines.getvalue().decode()
    assert "ValueError" in text and "failed" in text and "event" in text
    assert all(char.isprintable() for char in text.replace("\n", ""))
    if form == "json":
        assert [orjson.loads(line)["message"] for line in text.splitlines()] == ["event", "failed"]


def test_the_standard_library_logs_in_the_same_form(lines: io.BytesIO) -> None:
    log.configure("info", "json", lines)
    logging.getLogger("asyncio").log(35, "slow %s", "callback")
    line = only(lines)
    assert (line["message"], line["level"], line["logger"]) == ("slow callback", "warning", "asyncio")


def test_a_closed_standard_error_loses_the_line_and_nothing_else(lines: io.BytesIO) -> None:
    log.configure("info", "json", lines)
    lines.close()
    log.log_exchange(record())
    later = io.BytesIO()
    log.configure("info", "json", later)
    log.log_exchange(record())
    assert only(later)["outcome"] == "completed"


def test_a_wrong_tokenizer_is_warned_of_once_in_a_while(lines: io.BytesIO) -> None:
    log.configure("info", "json", lines)
    mismatches = log.Mismatches()
    wrong = record(prompt_tokens_reported=4_000)
    for now in (0.0, 1.0, log.WARN_EVERY_S - 1):
        mismatches.note(wrong, now)
        mismatches.note(record(), now)
    line = only(lines)
    assert (line["level"], line["model"], line["counted"], line["reported"]) == (
        "warning", "llama-3.3-70b", 4_213, 4_000,
    )  # fmt: skip
    mismatches.note(wrong, log.WARN_EVERY_S)
    assert len(lines.getvalue().splitlines()) == 2
