from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest

from eluvix_extproc.errors import BodyTooLarge, FailOpen, MalformedBody
from eluvix_extproc.prompt import decoded

BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}' * 50


def zipped(data: bytes, level: int = 9) -> bytes:
    return gzip.compress(data, level, mtime=0)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("", BODY),
        ("identity", BODY),
        ("gzip", zipped(BODY)),
        (" GZIP ", zipped(BODY)),
        ("x-gzip", zipped(BODY)),
        ("gzip", zipped(BODY[:100]) + zipped(BODY[100:])),
        ("deflate", zlib.compress(BODY)),
    ],
    ids=range(7),
)
def test_what_was_sent_comes_out(name: str, sent: bytes) -> None:
    assert decoded(sent, name, len(BODY)) == BODY
    with pytest.raises(BodyTooLarge):
        decoded(sent, name, len(BODY) - 1)


def test_a_bomb_costs_no_more_than_the_limit() -> None:
    bomb = zipped(bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge):
            decoded(bomb, "gzip", 100_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["gzip", "deflate"])
def test_a_head_is_decoded_as_far_as_it_goes(name: str) -> None:
    sent = zipped(BODY, 0) if name == "gzip" else zlib.compress(BODY, 0)
    part = decoded(sent[:500], name, 10_000, complete=False)
    assert len(part) > 400 and BODY.startswith(part)
    with pytest.raises(MalformedBody):
        decoded(sent[:500], name, 10_000)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("gzip", BODY),
        ("gzip", b""),
        ("deflate", BODY),
        ("deflate", zlib.compress(BODY) + b"x"),
        ("gzip", zipped(BODY) + b"garbage"),
        ("gzip", zipped(BODY)[:-5] + b"\0\0\0\0\0"),
        ("gzip", zipped(b"") * 5_000),
    ],
    ids=range(7),
)
def test_corrupt(name: str, sent: bytes) -> None:
    with pytest.raises(MalformedBody):
        decoded(sent, name, 1_000_000)


@pytest.mark.parametrize("name", ["br", "zstd", "gzip, gzip", "unheard-of"])
def test_other_encodings_pass_unread(name: str) -> None:
    with pytest.raises(FailOpen) as caught:
        decoded(BODY, name, 1_000_000)
    assert caught.value.reason == "content_encoding"
