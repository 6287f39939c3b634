"""One reading of one worker's metrics over HTTP."""

from __future__ import annotations

import errno
from dataclasses import dataclass

import aiohttp

from eluvix_extproc.workers.metrics import Sample, parse

_MAX_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Alive:
    """It answered. `sample` is None when what it answered holds no metrics: another path, or switched off."""

    sample: Sample | None


@dataclass(frozen=True, slots=True)
class Failed:
    """It did not, or with a 5xx. `refused`: nothing listens there. `reason` is one of few, for counters."""

    reason: str
    refused: bool = False


def new_session() -> aiohttp.ClientSession:
    # 60 KB a second from each worker are cheaper to read than to inflate.
    headers = {"Accept": "text/plain", "Accept-Encoding": "identity", "User-Agent": "eluvix-extproc"}
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        auto_decompress=False,
    )


async def scrape(session: aiohttp.ClientSession, address: str, path: str, timeout_s: float) -> Alive | Failed:
    """Read `http://address/path` within `timeout_s`. Raises nothing but cancellation."""
    url = f"http://{address}{path}"
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with session.get(url, timeout=timeout, allow_redirects=False) as response:
            if response.status >= 500:
                return Failed("status")
            if response.status != 200:
                return Alive(None)
            return Alive(await _body(response))
    except TimeoutError:
        return Failed("timeout")
    except aiohttp.ClientConnectorError as problem:
        return Failed("refused", True) if problem.os_error.errno == errno.ECONNREFUSED else Failed("connect")
    except (aiohttp.ClientError, OSError):
        return Failed("broken")


async def _body(response: aiohttp.ClientResponse) -> Sample | None:
    text = bytearray()
    async for chunk in response.content.iter_any():
        text += chunk
        if len(text) > _MAX_BYTES:
            return None
    sample = parse(bytes(text))
    return None if sample == Sample() else sample
