from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import pytest

from eluvix_extproc.config.models import PoolSettings
from eluvix_extproc.discovery.discovery import Discovery
from eluvix_extproc.discovery.dns import DnsName, system_resolver

TARGET = "decode.llm.svc:8000"
Answer = Iterable[str] | Exception


class FakeResolver:
    """Answers what is set, and counts."""

    def __init__(self, *ips: str) -> None:
        self.answer: Answer = ips
        self.asked: list[tuple[str, int]] = []
        self.hang = asyncio.Event()
        self.hang.set()

    async def __call__(self, host: str, port: int) -> Iterable[str]:
        self.asked.append((host, port))
        await self.hang.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def name(resolver: FakeResolver) -> DnsName:
    return DnsName(TARGET, resolver, believe_empty_after=3)


async def test_addresses_are_in_order_without_doubles_and_v6_in_brackets() -> None:
    resolver = FakeResolver("10.0.0.10", "fd00::1", "10.0.0.9", "10.0.0.10")
    dns = name(resolver)
    assert await dns.refresh(1.0)
    assert dns.addresses == ("10.0.0.9:8000", "10.0.0.10:8000", "[fd00::1]:8000")
    assert resolver.asked == [("decode.llm.svc", 8000)]
    assert not await dns.refresh(1.0)


@pytest.mark.parametrize("failure", [socket.gaierror(socket.EAI_AGAIN, "try again"), OSError("no"), ["not an ip"]])
async def test_a_failed_answer_keeps_the_known_set_and_is_counted(failure: Answer) -> None:
    resolver = FakeResolver("10.0.0.1")
    dns = name(resolver)
    await dns.refresh(1.0)
    resolver.answer = failure
    for _ in range(5):
        assert not await dns.refresh(1.0)
    assert dns.addresses == ("10.0.0.1:8000",)
    assert dns.failures == 5


async def test_an_empty_answer_is_believed_after_three_in_a_row() -> None:
    resolver = FakeResolver("10.0.0.1")
    dns = name(resolver)
    await dns.refresh(1.0)
    changes = []
    for answer in ((), (), ("10.0.0.1",), (), (), ()):
        resolver.answer = answer
        changes.append(await dns.refresh(1.0))
    assert changes == [False, False, False, False, False, True]
    assert dns.addresses == ()
    assert dns.failures == 0


async def test_a_hanging_lookup_is_waited_for_and_not_started_twice() -> None:
    resolver = FakeResolver("10.0.0.1")
    resolver.hang.clear()
    dns = name(resolver)
    assert not await dns.refresh(0.0)
    assert not await dns.refresh(0.0)
    assert (len(resolver.asked), dns.failures) == (1, 2)
    resolver.hang.set()
    assert await dns.refresh(5.0)
    assert len(resolver.asked) == 1


async def test_the_system_resolves_loopback_and_says_empty_for_what_does_not_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "127.0.0.1" in await system_resolver("127.0.0.1", 80)

    async def no_such_name(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "getaddrinfo", no_such_name)
    assert list(await system_resolver("absent.invalid", 80)) == []


def pool(label: str, *static: str, dns: str | None = None) -> PoolSettings:
    workers = {"dns": dns} if dns is not None else {"static": static}
    return PoolSettings.model_validate({"name": label, "role": "decode", "cluster": label, "workers": workers})


@asynccontextmanager
async def discovering(
    pools: Iterable[PoolSettings], resolver: FakeResolver, on_change: Callable[[], None] = lambda: None
) -> AsyncIterator[Discovery]:
    discovery = Discovery(pools, resolve=resolver, interval_s=0.005, timeout_s=5.0)
    await discovery.start(on_change)
    try:
        yield discovery
    finally:
        await discovery.stop()


async def test_static_workers_are_known_from_the_start_and_dns_ones_once_started() -> None:
    pools = [pool("a", "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.1:8000"), pool("b", dns=TARGET)]
    resolver = FakeResolver("10.0.1.1")
    idle = Discovery(pools, resolve=resolver)
    assert idle.addresses("a") == ("10.0.0.1:8000", "10.0.0.2:8000")
    assert idle.addresses("b") == idle.addresses("absent") == ()
    async with discovering(pools, resolver) as discovery:
        assert discovery.addresses("b") == ("10.0.1.1:8000",)


async def test_a_change_is_told_and_a_fault_in_being_told_does_not_end_it() -> None:
    resolver = FakeResolver("10.0.1.1")
    told = asyncio.Queue[None]()

    def on_change() -> None:
        told.put_nowait(None)
        raise RuntimeError("a defect in who is told")

    async with discovering([pool("b", dns=TARGET)], resolver, on_change) as discovery:
        for ip in ("10.0.1.2", "10.0.1.3"):
            resolver.answer = [ip]
            async with asyncio.timeout(30):
                await told.get()
            assert discovery.addresses("b") == (f"{ip}:8000",)


async def test_other_pools_keep_what_is_known_and_drop_what_is_not_named() -> None:
    resolver = FakeResolver("10.0.1.1")
    async with discovering([pool("b", dns=TARGET)], resolver) as discovery:
        resolver.answer = OSError("down")
        await discovery.reconfigure([pool("b2", dns=TARGET), pool("c", dns="other.svc:9000"), pool("d", "10.0.0.4:1")])
        assert discovery.addresses("b2") == ("10.0.1.1:8000",)
        assert discovery.addresses("c") == discovery.addresses("b") == ()
        assert discovery.addresses("d") == ("10.0.0.4:1",)
        failures = discovery.failures
        assert failures >= 1
        await discovery.reconfigure([pool("d", "10.0.0.4:1")])
        assert discovery.failures >= failures
        asked = len(resolver.asked)
        await asyncio.sleep(0.05)
        assert len(resolver.asked) == asked


async def test_it_stops_while_a_lookup_hangs() -> None:
    resolver = FakeResolver("10.0.1.1")
    async with discovering([pool("b", dns=TARGET)], resolver):
        resolver.hang.clear()
        seen = len(resolver.asked)
        async with asyncio.timeout(30):
            while len(resolver.asked) == seen:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
