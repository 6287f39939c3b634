import pytest
from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.config.values import Listen, dns_target, format_duration, parse_duration, worker_address


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("2s", 2.0), ("1.5m", 90.0), ("24h", 86_400.0), ("0.001s", 0.001)]
)
def test_a_duration_is_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("bad", [2, 2.5, "2", "s", "-1s", "1 s", "0s", "0.5ms", "25h", "1e3s", "2d", "1:30", None])
def test_anything_else_is_no_duration(bad: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_duration(bad)


@given(st.decimals(min_value=0, max_value=99_999, places=6), st.sampled_from(["ms", "s", "m", "h"]))
def test_a_duration_written_back_reads_the_same(amount: object, unit: str) -> None:
    try:
        seconds = parse_duration(f"{amount}{unit}")
    except ValueError:
        return
    assert parse_duration(format_duration(seconds)) == seconds


def test_durations_are_written_short() -> None:
    assert [format_duration(s) for s in (300.0, 0.5, 1.25, 0.0015)] == ["300s", "500ms", "1250ms", "0.0015s"]


def test_each_process_has_its_own_endpoint() -> None:
    assert Listen.parse("0.0.0.0:50051").endpoints(3) == ("0.0.0.0:50051", "0.0.0.0:50052", "0.0.0.0:50053")
    assert Listen.parse("[::1]:50051").endpoints(2) == ("[::1]:50051", "[::1]:50052")
    socket = Listen.parse("unix:/run/eluvix/extproc.sock")
    assert socket.endpoints() == ("unix:/run/eluvix/extproc.sock",)
    assert socket.endpoints(2) == ("unix:/run/eluvix/extproc-0.sock", "unix:/run/eluvix/extproc-1.sock")


def test_wildcards_are_known_in_both_families() -> None:
    assert Listen.parse("0.0.0.0:1").wildcard
    assert Listen.parse("[::]:1").wildcard
    assert not Listen.parse("localhost:1").wildcard
    assert not Listen.parse("unix:/a.sock").wildcard


@pytest.mark.parametrize(
    "bad", ["", ":1", "50051", "0.0.0.0", "1.2.3.4:65536", "::1:50051", "[::1]", "example.com:1", "unix:rel.sock",
            "unix:", "unix:/" + "x" * 101, "1.2.3.4:²"]
)  # fmt: skip
def test_an_impossible_listen_address_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Listen.parse(bad)


def test_a_worker_has_one_spelling() -> None:
    assert worker_address("10.0.0.1:8000") == "10.0.0.1:8000"
    assert worker_address("[2001:DB8:0::1]:8000") == "[2001:db8::1]:8000"


@pytest.mark.parametrize(
    "bad", ["10.0.0.1", "10.0.0.1:0", "0.0.0.0:80", "::1:80", "host:80", "10.0.0.256:80", "[fe80::1%eth0]:80", "1:80"]
)
def test_an_address_that_is_none_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        worker_address(bad)


def test_dns_targets() -> None:
    assert dns_target("Decode.llm.svc.:8000") == "decode.llm.svc:8000"
    for bad in ("decode", "a..b:80", "-a:80", "a b:80", "a:0"):
        with pytest.raises(ValueError, match=r"."):
            dns_target(bad)
