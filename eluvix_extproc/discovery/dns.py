"""The addresses behind one DNS name, kept through a resolver's bad moments.

A name server that is restarting answers nothing, or, worse, answers that the name does not exist. Neither means that
the workers are gone: a failed answer keeps the last known set, and an empty one is believed only after several in a
row. What is then stale about the set, scrapes find out.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable

from eluvix_extproc.config.values import join_host_port, split_host_port

# host, port -> IP literals; an empty answer means that the name has no addresses, OSError that there was no answer.
Resolve = Callable[[str, int], Awaitable[Iterable[str]]]

_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


async def system_resolver(host: str, port: int) -> Iterable[str]:
    """A and AAAA records as the system's resolver gives them, /etc/hosts and search domains included."""
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as problem:
        if problem.errno in _NO_SUCH_NAME:
            return ()
        raise
    # A zone (fe80::1%eth0) holds on this host only, so such an address cannot be told to Envoy.
    return {str(info[4][0]) for info in infos if "%" not in str(info[4][0])}


class DnsName:
    """`target` is `name:port`; `addresses` is the believed set, `ip:port` in the order of the addresses."""

    def __init__(self, target: str, resolve: Resolve, believe_empty_after: int) -> None:
        self.target = target
        self.addresses: tuple[str, ...] = ()
        self.failures = 0
        self._host, self._port = split_host_port(target)
        self._resolve = resolve
        self._believe_empty_after = believe_empty_after
        self._empty_in_a_row = 0
        self._lookup: asyncio.Future[Iterable[str]] | None = None

    async def refresh(self, timeout_s: float) -> bool:
        """Ask once, for at most `timeout_s`; whether the believed set changed. Never raises but when cancelled."""
        if self._lookup is None:
            self._lookup = asyncio.ensure_future(self._resolve(self._host, self._port))
        # The system's lookup runs in a thread that cannot be stopped: wait for the same one again next time.
        done, _ = await asyncio.wait({self._lookup}, timeout=timeout_s)
        if not done:
            self.failures += 1
            return False
        lookup, self._lookup = self._lookup, None
        try:
            return self._believe(lookup.result())
        except (OSError, ValueError):
            self.failures += 1
            return False

    def close(self) -> None:
        lookup, self._lookup = self._lookup, None
        if lookup is not None and not lookup.cancel() and not lookup.cancelled():
            lookup.exception()  # else asyncio complains that nobody looked at it

    def _believe(self, answer: Iterable[str]) -> bool:
        ips = sorted({ipaddress.ip_address(ip) for ip in answer}, key=lambda ip: (ip.version, int(ip)))
        if ips:
            self._empty_in_a_row = 0
        else:
            self._empty_in_a_row += 1
            if self._empty_in_a_row < self._believe_empty_after:
                return False
        before, self.addresses = self.addresses, tuple(join_host_port(str(ip), self._port) for ip in ips)
        return self.addresses != before
