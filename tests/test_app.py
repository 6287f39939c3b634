"""The composition root in this process: starts whole or not at all, reloads whole or not at all, drains."""

from __future__ import annotations

import asyncio
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import yaml

from eluvix_extproc import app as app_module
from eluvix_extproc.app import App
from eluvix_extproc.config.load import parse
from eluvix_extproc.config.models import Settings
from eluvix_extproc.errors import ConfigError
from eluvix_extproc.wire.pb import health_pb2

HEALTH = health_pb2.HealthCheckResponse
PATIENCE_S = 20.0


def config(**changed: Any) -> dict[str, Any]:
    pools = [{"name": "p", "role": "decode", "cluster": "c", "workers": {"static": ["127.0.0.1:9"]}}]
    return {
        "server": {"listen": "127.0.0.1:0", "drainTimeout": "1s"}, "admin": {"listen": "127.0.0.1:0"}, "pools": pools,
        "models": [{"name": "m"}], **changed,
    }  # fmt: skip


def settings(**changed: Any) -> Settings:
    return parse(yaml.safe_dump(config(**changed)), "test", {})


def two_free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        for probe in (one, other):
            probe.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


class Source:
    """What a reload reads."""

    def __init__(self) -> None:
        self.next: Settings | ConfigError = settings()

    def __call__(self) -> Settings:
        if isinstance(self.next, ConfigError):
            raise self.next
        return self.next


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
async def running(source: Source) -> AsyncIterator[App]:
    app = App(settings(), source, None)
    await app.start()
    yield app
    await app.stop()


async def get(app: App, path: str) -> tuple[int, str]:
    def fetch() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{app.admin_address}{path}", timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(fetch)


async def reloads(app: App) -> dict[str, float]:
    _, page = await get(app, "/metrics")
    lines = [line for line in page.splitlines() if line.startswith("eluvix_config_reloads_total{")]
    return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in lines}


@pytest.mark.parametrize("taken", ["server", "admin"])
async def test_an_address_in_use_leaves_nothing_running(taken: str, source: Source) -> None:
    """The other address is free again afterwards, and so is the taken one once its holder is gone."""
    ports = dict(zip(("server", "admin"), two_free_ports(), strict=True))
    listens = {name: {"listen": f"127.0.0.1:{port}"} for name, port in ports.items()}
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", ports[taken]))
        holder.listen()
        with pytest.raises((OSError, RuntimeError)):
            await App(settings(**listens), source, None).start()
    app = App(settings(**{**listens, "server": {**listens["server"], "drainTimeout": "1s"}}), source, None)
    await app.start()
    assert (await get(app, "/readyz"))[0] == 200
    await app.stop()


async def test_a_tokenizer_that_cannot_be_loaded_stops_the_start(tmp_path: Path, source: Source) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    model = {"name": "m", "tokenizer": {"file": str(tmp_path / "tokenizer.json")}}
    with pytest.raises(ConfigError) as refused:
        await App(settings(models=[model]), source, None).start()
    assert any("models: m:" in problem for problem in refused.value.problems)


async def test_it_is_ready_when_started_and_not_once_it_drains(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    port, _ = two_free_ports()
    told: list[tuple[int, str, int]] = []
    monkeypatch.setattr(app_module, "NOTICE_S", 0.3)
    app = App(settings(server={"listen": f"127.0.0.1:{port}", "drainTimeout": "1s"}), source, None)
    await app.start()

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")

        async def look() -> None:
            ready, reason = await get(app, "/readyz")
            told.append((ready, reason, HEALTH.FromString(await check(b"", timeout=PATIENCE_S)).status))

        await look()
        stopping = asyncio.create_task(app.stop())
        await asyncio.sleep(0)
        await look()
        await asyncio.wait_for(stopping, PATIENCE_S)
    assert [ready for ready, _, _ in told] == [200, 503]
    assert "draining" in told[1][1]
    assert [serving for _, _, serving in told] == [HEALTH.SERVING, HEALTH.NOT_SERVING]


async def test_scrapes_that_fail_are_counted(running: App) -> None:
    await running._keeper.scrape("127.0.0.1:9")    # nothing listens there
    _, page = await get(running, "/metrics")
    assert "eluvix_scrape_failures_total " in page and "eluvix_scrape_failures_total 0.0" not in page


async def test_a_reload_is_shown_and_counted(running: App, source: Source) -> None:
    source.next = settings(switchyard={"prefillIsolationThresholdTokens": 77})
    await running.reload()
    assert '"prefillIsolationThresholdTokens":77' in (await get(running, "/config"))[1]
    assert (await reloads(running))["applied"] == 1


@pytest.mark.parametrize(
    ("named", "changed"),
    [
        ("server.listen", {"server": {"listen": "127.0.0.1:1"}}),
        ("server.processes", {"server": {"listen": "127.0.0.1:0", "processes": 1}}),
        ("server.tls", {"server": {"listen": "127.0.0.1:0", "tls": {"cert": "/c", "key": "/k"}}}),
        ("admin.listen", {"admin": {"listen": "127.0.0.1:2"}}),
        ("index", {"index": {"maxBytes": 70_000}}),
    ],
)
async def test_what_is_bound_once_does_not_change(
    running: App, source: Source, named: str, changed: dict[str, Any]
) -> None:
    """Not even in part: what stands beside it stays as it was."""
    new = settings(**changed, switchyard={"prefillIsolationThresholdTokens": 77})
    if named == "server.processes":
        new = new.model_copy(update={"server": new.server.model_copy(update={"processes": 2})})
    source.next = new
    await running.reload()
    assert "77" not in (await get(running, "/config"))[1]
    assert (await reloads(running))["refused"] == 1


async def test_an_unreadable_configuration_changes_nothing(running: App, source: Source) -> None:
    before = (await get(running, "/config"))[1]
    source.next = ConfigError(["eluvix.yaml:3: no such key"])
    await running.reload()
    assert (await get(running, "/config"))[1] == before
    assert (await reloads(running))["refused"] == 1


async def test_a_reload_replaces_pools(running: App, source: Source) -> None:
    workers = {"static": ["127.0.0.1:19", "127.0.0.1:29"]}
    source.next = settings(pools=[{"name": "other", "role": "prefill", "cluster": "d", "workers": workers}])
    await running.reload()
    _, shown = await get(running, "/fleet")
    assert "127.0.0.1:19" in shown and "127.0.0.1:29" in shown and '"127.0.0.1:9"' not in shown
