from __future__ import annotations

import orjson

from eluvix_extproc.core.record import Outcome
from eluvix_extproc.observe.decisions import Decisions, to_json
from tests.observe.records import record


def test_the_ring_gives_the_last_ones_first_and_forgets_the_oldest() -> None:
    ring = Decisions(capacity=3)
    for number in range(5):
        ring.append(record(request_id=str(number)), wall=float(number))
    assert [(each["request_id"], each["ended_at"]) for each in ring.latest(2)] == [("4", 4.0), ("3", 3.0)]
    assert [each["request_id"] for each in ring.latest(100)] == ["4", "3", "2"]
    assert len(ring) == 3


def test_what_was_passed_through_is_not_kept() -> None:
    ring = Decisions()
    ring.append(record(outcome=Outcome.PASSED), 0.0)
    assert ring.latest(10) == []


def test_an_exchange_as_json() -> None:
    shown = to_json(record(), 1_700_000_000.5)
    assert shown["workers"] == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert shown["reasons"] == ["affinity:hit=4096", "isolation:uncached=117<4096"]
    assert (shown["tokens"], shown["source"], shown["role"]) == (4_213, "exact", "decode")
    assert (shown["cached_predicted"], shown["cached_delivered"]) == (4_096, 4_080)
    assert (shown["ttft_ms"], shown["itl_ms"], shown["duration_ms"]) == (200.0, 20.0, 2_500.0)
    assert shown["ended_at"] == 1_700_000_000.5
    assert orjson.loads(orjson.dumps(shown))["outcome"] == "completed"


def test_what_is_not_known_is_null_and_every_key_is_there() -> None:
    bare = record(sized=None, decision=None, ttft_s=None, itl_s=None, api=None, served_worker=None)
    shown = to_json(bare, 0.0)
    assert shown.keys() == to_json(record(), 0.0).keys()
    assert [shown[key] for key in ("tokens", "source", "role", "ttft_ms", "itl_ms", "api")] == [None] * 6


def test_strings_of_clients_are_cut_and_encodable_and_lose_their_query() -> None:
    ring = Decisions()
    ring.append(record(path="/v1/" + "a" * 9_000 + "?key=secret", request_id="\udcff\x1b[31m" + "b" * 9_000), 0.0)
    ring.append(record(path="/v1/chat?key=secret", request_id="<script>"), 0.0)
    text = orjson.dumps(ring.latest(2)).decode()
    assert "secret" not in text
    assert len(text) < 4_000
    assert "\\\\udcff\\\\x1b[31m" in text
