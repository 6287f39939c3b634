"""The admin server over real sockets."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from eluvix_extproc.admin.server import AdminServer, AdminState
from eluvix_extproc.core.fleet import Fleet, Load, Pool, Role, Worker
from eluvix_extproc.observe.decisions import Decisions
from eluvix_extproc.observe.metrics import Metrics
from tests.observe.records import record

FLEET = Fleet(
    (
        Pool(
            "decode",
            Role.DECODE,
            "llm-decode",
            (
                Worker("10.0.0.1:8000", load=Load(90.0, 3, 0, 0.5, 0.02, 0, 32, block_size_as_configured=False)),
                Worker("10.0.0.2:8000", ready=False),
            ),
        ),
        Pool("prefill", Role.PREFILL, "llm-prefill"),
    ),
    generation=7,
)


def state(**changes: Any) -> AdminState:
    metrics, decisions = Metrics(CollectorRegistry()), Decisions()
    for number in range(60):
        decisions.append(record(request_id=f"<img src=x onerror=alert({number})>"), wall=float(number))
        metrics.observe(record())
    return replace(
        AdminState(
            ready=lambda: None,
            fleet=lambda: FLEET,
            in_flight=lambda: {"10.0.0.1:8000": 4},
            itl={"10.0.0.1:8000": 0.0213}.get,
            decisions=decisions.latest,
            config=lambda: {"admin": {"listen": "127.0.0.1:9090"}},
            metrics_text=metrics.pages,
            now=lambda: 100.0,
        ),
        **changes,
    )


@asynccontextmanager
async def served(
    admin: AdminState | None = None, listen: str = "127.0.0.1:0"
) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    server = AdminServer(listen, state() if admin is None else admin)
    await server.start()
    try:
        base = "http://" + server.address.replace("0.0.0.0", "127.0.0.1")
        async with aiohttp.ClientSession(base) as client:
            yield client, server.address
    finally:
        await server.stop()


async def get(path: str, admin: AdminState | None = None) -> tuple[int, Any, Mapping[str, str]]:
    async with served(admin) as (client, _), client.get(path) as response:
        return response.status, await response.json(), response.headers


async def test_health_is_that_the_process_answers_whatever_its_readiness() -> None:
    status, body, _ = await get("/healthz", state(ready=lambda: "starting"))
    assert (status, body) == (200, {"alive": True})


@pytest.mark.parametrize("reason", ["starting", "draining"])
async def test_not_ready_says_why(reason: str) -> None:
    status, body, _ = await get("/readyz", state(ready=lambda: reason))
    assert (status, body) == (503, {"ready": False, "reason": reason})


async def test_ready() -> None:
    status, body, _ = await get("/readyz")
    assert (status, body) == (200, {"ready": True})


@pytest.mark.parametrize("fleet", [Fleet(()), Fleet(FLEET.pools[1:]), Fleet((replace(FLEET.pools[0], workers=()),))])
async def test_without_a_ready_worker_it_is_ready_with_a_warning(fleet: Fleet) -> None:
    status, body, _ = await get("/readyz", state(fleet=lambda: fleet))
    assert (status, body) == (200, {"ready": True, "warning": "no pool has a ready worker"})


async def test_metrics_are_in_the_text_format() -> None:
    async with served() as (client, _), client.get("/metrics") as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = {family.name: family for family in text_string_to_metric_families(await response.text())}
    (counted,) = [sample for sample in families["eluvix_requests"].samples if sample.value]
    assert (counted.labels, counted.value) == ({"role": "decode", "outcome": "completed"}, 60)


async def test_the_fleet_with_load_age_in_flight_and_pace() -> None:
    status, body, _ = await get("/fleet")
    assert status == 200
    assert body == {
        "generation": 7,
        "pools": [
            {
                "name": "decode", "role": "decode", "cluster": "llm-decode", "engine": "vllm",
                "ready": 1, "in_flight": 4, "workers": [
                    {
                        "address": "10.0.0.1:8000", "ready": True, "in_flight": 4, "itl_ms": 21.3,
                        "load": {"age_s": 10.0, "running": 3, "waiting": 0, "kv_usage": 0.5, "itl_ms": 20.0,
                                 "block_size": 32, "block_size_as_configured": False},
                    },
                    {"address": "10.0.0.2:8000", "ready": False, "in_flight": 0, "itl_ms": None, "load": None},
                ],
            },
            {
                "name": "prefill", "role": "prefill", "cluster": "llm-prefill", "engine": "vllm", "ready": 0,
                "in_flight": 0, "workers": [],
            },
        ],
    }  # fmt: skip


async def test_a_lone_pool_shows_the_role_that_its_answers_carry() -> None:
    _, body, _ = await get("/fleet", state(fleet=lambda: Fleet(FLEET.pools[:1])))
    assert [pool["role"] for pool in body["pools"]] == ["colocated"]


@pytest.mark.parametrize(("query", "count"), [("", 50), ("?limit=2", 2), ("?limit=1000", 60)])
async def test_decisions_come_last_first_up_to_the_limit(query: str, count: int) -> None:
    status, body, _ = await get("/decisions" + query)
    assert status == 200
    assert [each["ended_at"] for each in body["decisions"]] == [float(59 - n) for n in range(count)]


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "", "ten", "1e3", "٣", "9" * 5_000])
async def test_a_bad_limit_is_refused(limit: str) -> None:
    status, body, _ = await get(f"/decisions?limit={limit}")
    assert (status, body) == (400, {"error": "limit is a whole number from 1 to 1000"})


async def test_the_configuration() -> None:
    assert (await get("/config"))[:2] == (200, {"admin": {"listen": "127.0.0.1:9090"}})


@pytest.mark.parametrize("path", ["/nothing", "/fleet/", "/metrics/x", "/../etc/passwd", "/%00"])
async def test_an_unknown_path_is_404_in_json(path: str) -> None:
    status, body, headers = await get(path)
    assert (status, body) == (404, {"error": "not found"})
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/", "/config", "/decisions"])
async def test_nothing_but_get(method: str, path: str) -> None:
    async with served() as (client, _), client.request(method, path, data=b"x") as response:
        assert response.status == 405
        assert response.headers["Allow"] == "GET, HEAD"
        assert await response.json() == {"error": "GET only"}


async def test_head_answers_probes_without_a_body() -> None:
    async with served() as (client, _), client.head("/readyz") as response:
        assert (response.status, await response.read()) == (200, b"")


async def test_a_fault_of_the_state_is_a_500_that_tells_nothing_and_ends_nothing() -> None:
    def broken() -> Fleet:
        raise RuntimeError("secret detail")

    async with served(state(fleet=broken)) as (client, _):
        async with client.get("/fleet") as response:
            assert (response.status, await response.json()) == (500, {"error": "internal error"})
        async with client.get("/healthz") as response:
            assert response.status == 200


async def test_the_page_stands_alone_and_its_policy_allows_just_its_own_script_and_style() -> None:
    async with served() as (client, _), client.get("/") as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        policy = dict(part.strip().split(" ", 1) for part in response.headers["Content-Security-Policy"].split(";"))
        page = await response.text()
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy[f"{tag}-src"] == f"'sha256-{digest}'"
    assert not re.search(r"(src|href)=\"(?!data:,|/)", page)
    assert "innerHTML" not in page and "insertAdjacentHTML" not in page and "document.write" not in page
    assert not re.search(r"\son[a-z]+=|\sstyle=", page), "inline handlers and styles are against the policy"


async def test_the_page_can_be_read_and_worked_without_a_mouse() -> None:
    async with served() as (client, _), client.get("/") as response:
        page = await response.text()
    assert '<html lang="en">' in page and "color-scheme: light dark" in page
    assert len(re.findall(r'role="region" tabindex="0" aria-labelledby="(\w+)-title"', page)) == page.count("<table>")
    assert page.count('scope="col"') == page.count("<th ")
    assert '<button id="pause" type="button" aria-pressed="false">' in page
    assert 'role="status"' in page


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9090", 200),
        ("localhost:9090", 200),
        ("LOCALHOST", 200),
        ("[::1]:9090", 200),
        ("attacker.example", 421),
        ("127.0.0.1.attacker.example:9090", 421),
        ("10.0.0.1", 421),
    ],
)
async def test_on_loopback_a_name_that_a_web_page_could_own_is_refused(host: str, status: int) -> None:
    async with served() as (client, _), client.get("/decisions", headers={"Host": host}) as response:
        assert response.status == status


async def test_off_loopback_any_name_may_be_used() -> None:
    host = {"Host": "extproc.llm.svc:9090"}
    async with served(listen="0.0.0.0:0") as (client, _), client.get("/healthz", headers=host) as response:
        assert response.status == 200


async def test_a_unix_socket(tmp_path: Path) -> None:
    listen = f"unix:{tmp_path}/admin.sock"
    server = AdminServer(listen, state())
    await server.start()
    try:
        assert server.address == listen
        connector = aiohttp.UnixConnector(f"{tmp_path}/admin.sock")
        async with aiohttp.ClientSession("http://a", connector=connector) as client, client.get("/healthz") as response:
            assert response.status == 200
    finally:
        await server.stop()


async def test_start_stop_and_an_address_that_is_taken() -> None:
    with pytest.raises(ValueError, match="host:port"):
        AdminServer("9090", state())
    first = AdminServer("127.0.0.1:0", state())
    await first.start()
    second = AdminServer(first.address, state())
    try:
        with pytest.raises(OSError):
            await second.start()
        await second.stop()
    finally:
        await first.stop()
    await second.start()
    assert second.address == first.address
    await second.stop()
    await second.stop()
