"""The keeper over real HTTP workers on loopback. Reported cases R4 (a worker that is gone) and R8 (load unknown)."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from eluvix_extproc.core.fleet import Load, Role, Worker
from eluvix_extproc.discovery.discovery import Discovery
from eluvix_extproc.workers.keeper import FleetKeeper
from tests.workers.support import FakeWorker, Told, keeping, pool, settings, until

CAPTURE = (Path(__file__).parents[1] / "data" / "engines" / "vllm-0.32-metrics.prom").read_text()


def only(keeper: FleetKeeper) -> Worker:
    (worker,) = (worker for pool in keeper.fleet.pools for worker in pool.workers)
    return worker


def load(keeper: FleetKeeper) -> Load:
    found = only(keeper).load
    assert found is not None
    return found


async def test_the_fleet_is_there_before_the_first_scrape() -> None:
    pools = [pool("prefill", "10.0.0.1:8000", role="prefill"), pool("decode", "10.0.0.2:8000", "10.0.0.3:8000")]
    keeper = FleetKeeper(
        pools,
        settings(),
        Discovery(pools),
        clock=lambda: 0.0,
        in_flight=dict,
        on_gone=lambda _: None,
        on_itl=lambda *_: None,
    )
    prefill, decode = keeper.fleet.pools
    assert (prefill.role, prefill.cluster, prefill.workers) == (
        Role.PREFILL,
        "llm-prefill",
        (Worker("10.0.0.1:8000"),),
    )
    assert decode.ready == (Worker("10.0.0.2:8000"), Worker("10.0.0.3:8000"))
    await keeper.stop()


async def test_a_real_vllms_metrics_become_its_load() -> None:
    told = Told()
    async with FakeWorker(CAPTURE) as worker:
        told.in_flight[worker.address] = 4
        async with keeping([pool("decode", worker.address)], told=told) as keeper:
            generation = keeper.fleet.generation
            await until(lambda: only(keeper).load is not None)
            assert load(keeper) == Load(1_000.0, 0.0, 0.0, 0.0, None, 4, 32)
            assert keeper.fleet.generation > generation
            assert keeper.scrapes == {"ok": 1}


def marked(keeper: FleetKeeper, as_configured: bool | None) -> bool:
    found = only(keeper).load
    return found is not None and found.block_size_as_configured is as_configured


async def test_a_block_size_other_than_the_configured_ones_is_marked_and_logged_once() -> None:
    async with FakeWorker(CAPTURE) as worker:
        pools = [pool("decode", worker.address)]
        async with keeping(pools) as keeper:
            with capture_logs() as logged:
                for sizes, as_configured in (((), None), ((16,), False), ((16, 64), False), ((16, 32), True)):
                    await keeper.reconfigure(pools, settings(), sizes)
                    for _ in range(2):
                        await keeper.scrape(worker.address)
                        await until(partial(marked, keeper, as_configured))
            assert [line for line in logged if line["log_level"] == "warning"] == [
                {"event": "block size is not as configured", "log_level": "warning", "worker": worker.address,
                 "block_size": 32, "configured": [16]}
            ]  # fmt: skip


async def test_a_snapshot_that_a_reader_holds_does_not_change() -> None:
    async with FakeWorker() as worker, keeping([pool("decode", worker.address)]) as keeper:
        held = keeper.fleet
        await until(lambda: only(keeper).load is not None)
        assert held.pools[0].workers == (Worker(worker.address),)


@pytest.mark.parametrize(("role", "waiting"), [("decode", 2.0), ("prefill", 9.0)])
async def test_requests_that_wait_for_their_kv_cache_are_no_load_on_a_decode_worker(role: str, waiting: float) -> None:
    text = (
        "vllm:num_requests_waiting 9\n"
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 2\n'
        'vllm:num_requests_waiting_by_reason{reason="deferred"} 7\n'
    )
    async with FakeWorker(text) as worker, keeping([pool("p", worker.address, role=role)]) as keeper:
        await until(lambda: only(keeper).load is not None)
        assert load(keeper).waiting == waiting
        assert load(keeper).running is None


async def test_itl_is_the_mean_over_the_interval() -> None:
    told = Told()
    text = "vllm:inter_token_latency_seconds_sum {}\nvllm:inter_token_latency_seconds_count {}\n"
    worker = FakeWorker(text.format(100, 1_000))
    async with worker, keeping([pool("decode", worker.address)], told=told) as keeper:
        await until(lambda: only(keeper).load is not None)
        assert load(keeper).itl_s is None
        worker.text, told.now = text.format(102, 1_100), 1_001.0
        await keeper.scrape(worker.address)
        await until(lambda: load(keeper).itl_s == pytest.approx(0.02))
        ((address, itl_s, now),) = told.itl
        assert (address, now) == (worker.address, 1_001.0)
        assert itl_s == pytest.approx(0.02)
        told.now = 1_002.0
        await keeper.scrape(worker.address)
        await until(lambda: load(keeper).at == 1_002.0)
        assert load(keeper).itl_s is None
        assert len(told.itl) == 1


async def test_without_metrics_a_worker_is_alive_and_its_load_unknown() -> None:
    async with FakeWorker() as worker, keeping([pool("decode", worker.address)]) as keeper:
        await until(lambda: only(keeper).load is not None)
        worker.status = 404
        for _ in range(5):
            await keeper.scrape(worker.address)
        await until(lambda: only(keeper).load is None)
        assert only(keeper).ready
        worker.status, worker.text = 200, "<html>a login page</html>"
        await keeper.scrape(worker.address)
        assert only(keeper) == Worker(worker.address)
        assert keeper.scrapes["no_metrics"] == 6


@pytest.mark.parametrize("fault", ["status", "timeout"])
async def test_a_sick_worker_becomes_unready_keeps_its_last_load_and_its_cache(fault: str) -> None:
    told = Told()
    async with FakeWorker() as worker, keeping([pool("decode", worker.address)], told=told) as keeper:
        await until(lambda: only(keeper).load is not None)
        before, told.now = load(keeper), 1_030.0
        if fault == "status":
            worker.status = 500
        else:
            worker.delay_s = 60.0
            await keeper.reconfigure([pool("decode", worker.address)], settings(timeout="50ms"))
        for ready in (True, True, False):
            await keeper.scrape(worker.address)
            assert only(keeper).ready is ready
        assert load(keeper) == before
        assert keeper.scrapes[fault] == 3
        worker.status, worker.delay_s = 200, 0.0
        await keeper.reconfigure([pool("decode", worker.address)], settings())
        await keeper.scrape(worker.address)
        assert only(keeper).ready
        assert told.gone == []


async def test_a_killed_worker_is_unready_at_the_second_refusal_and_its_cache_forgotten_once() -> None:
    told = Told()
    async with FakeWorker() as worker, keeping([pool("decode", worker.address)], told=told) as keeper:
        await until(lambda: only(keeper).load is not None)
        await worker.kill()
        # The connection that was kept alive fails first, which is no refusal on every system.
        while keeper.scrapes["refused"] < 2:
            await keeper.scrape(worker.address)
        assert not only(keeper).ready
        await keeper.scrape(worker.address)
        assert told.gone == [worker.address]
        assert keeper.fleet.pools[0].ready == ()
        await worker.start()
        await keeper.scrape(worker.address)
        assert only(keeper).ready


async def test_what_envoy_reports_counts_until_the_next_good_scrape() -> None:
    async with FakeWorker() as worker, keeping([pool("decode", worker.address)]) as keeper:
        await until(lambda: only(keeper).load is not None)
        for ready in (True, True, False):
            keeper.note_failure(worker.address)
            assert only(keeper).ready is ready
        await keeper.scrape(worker.address)
        assert only(keeper).ready
        for _ in range(2):
            keeper.note_failure(worker.address)
        keeper.note_success(worker.address)
        keeper.note_failure(worker.address)
        assert only(keeper).ready
        keeper.note_failure("10.9.9.9:1")
        keeper.note_success("10.9.9.9:1")


async def test_a_worker_that_leaves_dns_leaves_the_fleet_and_one_that_comes_is_scraped() -> None:
    told = Told()
    answers = ["127.0.0.1", "127.0.0.9"]

    async def resolve(_host: str, _port: int) -> list[str]:
        return answers

    async with FakeWorker() as worker:
        decode = pool("decode", dns=f"decode.svc:{worker.port}")
        async with keeping([decode], told=told, resolve=resolve) as keeper:
            addresses = [w.address for w in keeper.fleet.pools[0].workers]
            assert addresses == [worker.address, f"127.0.0.9:{worker.port}"]
            await until(lambda: keeper.fleet.pools[0].workers[0].load is not None)
            answers = ["127.0.0.9", "127.0.0.10"]
            await until(lambda: worker.address not in keeper.fleet.pool_of)
            assert told.gone == [worker.address]
            assert f"127.0.0.10:{worker.port}" in keeper.fleet.pool_of
            requests = worker.requests
            keeper.note_failure(worker.address)
            answers = ["127.0.0.1"]
            await until(lambda: worker.requests > requests)
            await until(lambda: only(keeper).load is not None)


async def test_a_failing_resolver_changes_nothing() -> None:
    failures = 0
    fail = False

    async def resolve(_host: str, _port: int) -> list[str]:
        nonlocal failures
        if fail:
            failures += 1
            raise socket.gaierror(socket.EAI_AGAIN, "try again")
        return ["127.0.0.9"]

    told = Told()
    async with keeping([pool("decode", dns="decode.svc:9")], told=told, resolve=resolve) as keeper:
        fail = True
        await until(lambda: failures >= 4)
        assert only(keeper).address == "127.0.0.9:9"
        assert told.gone == []


async def test_other_pools_are_taken_as_a_whole_and_workers_that_stay_keep_their_state() -> None:
    told = Told()
    stays, leaves, comes = FakeWorker(), FakeWorker(), FakeWorker()
    async with stays, leaves, comes, keeping([pool("decode", stays.address, leaves.address)], told=told) as keeper:
        await until(lambda: all(w.load is not None for w in keeper.fleet.pools[0].workers))
        keeper.note_failure(stays.address)
        before = keeper.fleet.pools[0].workers[0]
        await keeper.reconfigure(
            [pool("decode", stays.address), pool("prefill", comes.address, role="prefill")],
            settings(unreadyAfter=1),
        )
        decode, prefill = keeper.fleet.pools
        assert decode.workers == (Worker(stays.address, ready=False, load=before.load),)
        assert told.gone == [leaves.address]
        assert [w.address for w in prefill.workers] == [comes.address]
        await until(lambda: keeper.fleet.pools[1].workers[0].load is not None)


async def test_scrapes_of_one_worker_never_overlap() -> None:
    async with FakeWorker() as slow, FakeWorker() as quick:
        slow.delay_s = 0.05
        scrape = settings(interval="10ms")
        async with keeping([pool("decode", slow.address, quick.address)], scrape):
            await until(lambda: slow.requests >= 5)
            assert slow.most_concurrent == 1
            assert quick.requests > slow.requests


async def test_one_address_in_two_pools_is_one_worker() -> None:
    async with FakeWorker() as worker:
        pools = [pool("prefill", worker.address, role="prefill"), pool("decode", worker.address)]
        async with keeping(pools) as keeper:
            await until(lambda: keeper.fleet.pools[0].workers[0].load is not None)
            assert keeper.fleet.pools[0].workers == keeper.fleet.pools[1].workers
            assert worker.requests == 1


async def test_an_unchanged_fleet_keeps_its_generation() -> None:
    async with keeping([pool("decode", "127.0.0.9:9")]) as keeper:
        before = keeper.fleet
        await keeper.reconfigure([pool("decode", "127.0.0.9:9")], settings())
        keeper.note_success("127.0.0.9:9")
        assert keeper.fleet is before


def more_than(worker: FakeWorker, requests: int) -> bool:
    return worker.requests > requests


async def test_a_fault_in_who_is_told_does_not_end_the_scrapes() -> None:
    text = "vllm:inter_token_latency_seconds_sum 1\nvllm:inter_token_latency_seconds_count {}\n"

    def broken(*_: object) -> None:
        raise RuntimeError("a defect in who is told")

    async with FakeWorker(text.format(1)) as worker:
        pools = [pool("decode", worker.address)]
        keeper = FleetKeeper(
            pools,
            settings(interval="10ms"),
            Discovery(pools),
            clock=lambda: 0.0,
            in_flight=dict,
            on_gone=broken,
            on_itl=broken,
        )
        await keeper.start()
        await until(lambda: worker.requests > 0)
        for count in range(2, 5):
            worker.text = text.format(count)
            seen = worker.requests
            await until(partial(more_than, worker, seen + 1))
        await keeper.stop()
