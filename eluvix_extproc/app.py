"""The composition root: builds everything, and owns start order, reload, signals and drain.

Start: tokenizers, fleet, admin server (so that probes see why we are not ready), ext_proc server, then health SERVING.
Stop: health NOT_SERVING, a pause in which Envoy notices, streams to their end, then the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import structlog
from prometheus_client import CollectorRegistry

from eluvix_extproc.admin.server import AdminServer, AdminState
from eluvix_extproc.config.checks import referenced_files
from eluvix_extproc.config.fleet import said_block_sizes
from eluvix_extproc.config.models import Settings
from eluvix_extproc.config.watch import FileWatch, redacted
from eluvix_extproc.core.headers import HeaderSettings
from eluvix_extproc.core.hints import Session, VolatileLines
from eluvix_extproc.core.index import MemoryIndex
from eluvix_extproc.core.ledger import Ledger
from eluvix_extproc.core.pace import Always, Never, Pace, Watch, WatchBudget
from eluvix_extproc.core.record import Outcome, Record
from eluvix_extproc.core.sides import Limits
from eluvix_extproc.discovery.discovery import Discovery
from eluvix_extproc.errors import ConfigError
from eluvix_extproc.models import build_models
from eluvix_extproc.observe import log
from eluvix_extproc.observe.decisions import Decisions
from eluvix_extproc.observe.metrics import Metrics, State
from eluvix_extproc.routing import Affinity, Models, Router
from eluvix_extproc.tokens.learned import Learned
from eluvix_extproc.wire import aio, h2_server
from eluvix_extproc.wire.deadlines import Deadlines
from eluvix_extproc.wire.health import Health
from eluvix_extproc.wire.session import Services
from eluvix_extproc.workers.keeper import FleetKeeper

# Threads for work over a millisecond. Tokenizers release the GIL, so more threads than cores only means that a short
# request does not queue behind long ones.
STUDY_THREADS = 4
# Envoy's health checks notice within this: 1 s apart in what `render` prints, one NOT_SERVING is enough, and Envoy's
# worker threads know at most a second later.
NOTICE_S = 2.5
WATCH_INTERVAL_S = 1.0
# Metrics, log lines and /decisions follow the end of an exchange within this.
OBSERVE_WITHIN_S = 0.05
# Exchanges free themselves by reference counts; the collector is for what libraries leave in cycles.
GC_THRESHOLD = (10_000, 10, 10)

logger = structlog.get_logger("eluvix")


class App:
    """One serving process; make it inside its event loop.

    `reload` gives the settings anew, or raises ConfigError; `process` is its number.
    """

    def __init__(
        self, settings: Settings, reload: Callable[[], Settings], file_watch: FileWatch | None, process: int = 0
    ) -> None:
        self._settings = settings
        self._load = reload
        self._process = process
        self._file_watch = file_watch
        self._watch_files(settings)
        self._clock = time.monotonic
        self._executor = ThreadPoolExecutor(STUDY_THREADS, thread_name_prefix="study")
        self._index = MemoryIndex(settings.index.max_bytes)
        self._ledger = Ledger()
        self._pace = Pace()
        self._metrics = Metrics(CollectorRegistry())
        self._decisions = Decisions()
        self._learned = Learned()
        self._mismatches = log.Mismatches()
        self._health = Health()
        self._deadlines = Deadlines(self._clock)
        self._records: list[tuple[Watch, Models, Record]] = []
        self._not_ready: str | None = "starting"
        self._server: aio.AioServer | h2_server.H2Server
        if settings.server.transport == "h2":
            self._server = h2_server.H2Server(lambda: self._services, self._health, self._metrics.connection_ended)
        else:
            self._server = aio.AioServer(lambda: self._services, self._health)
        self._keeper = FleetKeeper(
            settings.pools,
            settings.scrape,
            Discovery(settings.pools),
            clock=self._clock,
            in_flight=self._ledger.counts,
            on_gone=self._worker_gone,
            on_itl=self._pace.observe_scrape,
            on_failed=self._metrics.scrape_failed,
            block_sizes=said_block_sizes(settings.models),
        )
        self._metrics.mirror(
            State(
                fleet=lambda: self._keeper.fleet,
                in_flight=self._ledger.counts,
                index_bytes=lambda: self._index.bytes_used,
                index_entries=lambda: len(self._index),
            )
        )
        self._admin = AdminServer(
            settings.admin.listen.endpoints(settings.server.processes)[process],
            AdminState(
                fleet=lambda: self._keeper.fleet,
                in_flight=self._ledger.counts,
                itl=self._pace.itl_s,
                decisions=self._latest_decisions,
                config=lambda: redacted(self._settings),
                ready=lambda: self._not_ready,
                metrics_text=self._metrics_pages,
                now=self._clock,
            ),
        )
        self._watch = _watch(settings)
        self._services: Services

    @property
    def admin_address(self) -> str:
        return self._admin.address

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain; a second signal ends at once."""
        stopping = asyncio.Event()
        reloading = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal, stopping, number)
        loop.add_signal_handler(signal.SIGHUP, reloading.set)
        await self.start()
        watcher = asyncio.create_task(self._watch_configuration(reloading))
        try:
            await stopping.wait()
        finally:
            watcher.cancel()
            await self.stop()

    def _on_stop_signal(self, stopping: asyncio.Event, number: int) -> None:
        if stopping.is_set():
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.raise_signal(signal.SIGKILL)
        stopping.set()

    async def start(self) -> None:
        """Raises ConfigError or RuntimeError (an address in use) with nothing left running."""
        settings = self._settings
        await self._admin.start()
        try:
            self._services = self._build(settings, await self._build_models(settings))
            await self._keeper.start()
            tls = settings.server.tls
            endpoint = settings.server.listen.endpoints(settings.server.processes)[self._process]
            if isinstance(self._server, h2_server.H2Server):
                self._server.listen(endpoint, h2_server.credentials(tls.cert, tls.key, tls.client_ca) if tls else None)
            else:
                self._server.listen(endpoint, aio.credentials(tls.cert, tls.key, tls.client_ca) if tls else None)
            await self._server.start()
        except BaseException:
            await self._keeper.stop()
            await self._admin.stop()
            raise
        # What is there now stays: without this, each full collection would look through all of it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLD)
        self._not_ready = None
        self._health.set_serving(True)
        logger.info("serving", listen=endpoint, admin=self._admin.address, process=self._process)

    async def stop(self) -> None:
        """Health first, then streams to their end, at most `drainTimeout`."""
        self._not_ready = "draining"
        self._health.set_serving(False)
        drain = self._settings.server.drain_timeout
        logger.info("draining", seconds=drain)
        await asyncio.sleep(min(NOTICE_S, drain))
        await self._server.stop(drain)
        self._observe_kept()
        await self._keeper.stop()
        await self._admin.stop()
        self._executor.shutdown(wait=False, cancel_futures=True)
        logger.info("stopped")

    async def reload(self) -> None:
        """Take the new configuration whole or, with a logged reason, not at all. Exchanges under way keep theirs."""
        try:
            settings = await asyncio.to_thread(self._load)
            _refuse_fixed_changes(self._settings, settings)
            services = self._build(settings, await self._build_models(settings))
        except ConfigError as error:
            self._metrics.config_reloaded(False)
            logger.error("reload refused", problems=error.problems)
            return
        await self._keeper.reconfigure(settings.pools, settings.scrape, said_block_sizes(settings.models))
        self._settings, self._services = settings, services
        self._watch_files(settings)
        log.configure(settings.logging.level, settings.logging.format)
        self._metrics.config_reloaded(True)
        logger.info("reloaded")

    def _watch_files(self, settings: Settings) -> None:
        if self._file_watch is not None:
            self._file_watch.also(name for _, name in referenced_files(settings))

    async def _watch_configuration(self, asked: asyncio.Event) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asked.wait(), WATCH_INTERVAL_S)
            changed = self._file_watch is not None and self._file_watch.changed()
            if asked.is_set() or changed:
                asked.clear()
                try:
                    await self.reload()
                except Exception as error:
                    self._defect("reload", error)
            self._ledger.expire(self._clock())

    async def _build_models(self, settings: Settings) -> Models:
        return await asyncio.get_running_loop().run_in_executor(self._executor, build_models, settings, self._learned)

    def _build(self, settings: Settings, models: Models) -> Services:
        watch = _watch(settings)
        self._watch = watch
        return Services(
            limits=Limits(
                max_body_bytes=settings.server.max_body_bytes,
                max_held_bytes=settings.server.max_held_bytes,
                decision_timeout_s=settings.server.decision_timeout,
                max_hold_s=settings.timing.max_hold,
            ),
            headers=HeaderSettings(
                ttft=settings.headers.ttft,
                itl=settings.headers.itl,
                kv_cache=settings.headers.kv_cache,
                pd_role=settings.headers.pd_role,
                prefix_hash=settings.headers.prefix_hash,
                debug=settings.headers.debug == "on-request",
            ),
            surroundings=_Surroundings(self._keeper, self._pace, watch),
            decider=Router(
                models,
                settings.switchyard.policy(),
                settings.server.max_body_bytes,
                settings.server.max_held_bytes,
                fleet=lambda: self._keeper.fleet,
                index=self._index,
                ledger=self._ledger,
                pace=self._pace,
                executor=self._executor,
                clock=self._clock,
                defect=self._defect,
                affinity=_affinity(settings),
            ),
            observe=partial(self._observe, watch, models),
            defect=self._defect,
            clock=self._clock,
            deadlines=self._deadlines,
        )

    def _observe(self, watch: Watch, models: Models, record: Record) -> None:
        """Keep the record for the next batch: many at a time cost a third of what they cost one by one."""
        if not self._records:
            asyncio.get_running_loop().call_later(OBSERVE_WITHIN_S, self._observe_kept)
        self._records.append((watch, models, record))

    def _observe_kept(self) -> None:
        records, self._records = self._records, []
        for watch, models, record in records:
            try:
                self._observe_one(watch, record)
                models.learn(record)
            except Exception as error:
                self._defect("observe", error)

    def _latest_decisions(self, limit: int) -> list[dict[str, object]]:
        self._observe_kept()
        return self._decisions.latest(limit)

    def _metrics_pages(self) -> Iterator[bytes]:
        self._observe_kept()
        return self._metrics.pages()

    def _observe_one(self, watch: Watch, record: Record) -> None:
        self._metrics.observe(record)
        if record.outcome is not Outcome.PASSED:
            self._decisions.append(record, time.time())  # noqa: TID251 - for people, never for a difference
        log.log_exchange(record)
        self._mismatches.note(record, self._clock())
        worker = record.served_worker
        if worker is None:
            return
        now = self._clock()
        if record.outcome is Outcome.COMPLETED and record.completion_tokens:
            sized = record.sized
            model, sequences = (sized.model, sized.sequences) if sized else ("", 1)
            self._pace.output_seen(worker, model, max(1, record.completion_tokens // sequences), now)
            if record.itl_s is not None:
                self._pace.token_seen(worker, record.itl_s, now, record.completion_tokens - 1)
                watch.measured(worker, now)
        if record.status is not None and record.status >= 500:
            self._keeper.note_failure(worker)
        elif record.status is not None and record.status < 400:
            self._keeper.note_success(worker)

    def _worker_gone(self, worker: str) -> None:
        self._index.forget(worker)
        self._pace.forget(worker)
        self._watch.forget(worker)

    def _defect(self, where: str, error: BaseException) -> None:
        self._metrics.internal_error(where)
        logger.error("internal error", where=where, exc_info=error)


class _Surroundings:
    """What exchanges may ask; see core.sides.Surroundings."""

    def __init__(self, keeper: FleetKeeper, pace: Pace, watch: Watch) -> None:
        self._keeper = keeper
        self._pace = pace
        self.admit = watch.admit
        self.charge = watch.charge

    def itl_s(self, worker: str) -> float | None:
        return self._pace.itl_s(worker)

    def pool_of(self, cluster: str | None) -> tuple[str, str] | None:
        fleet = self._keeper.fleet
        pool = fleet.by_cluster.get(cluster or "")
        return None if pool is None else (pool.name, fleet.role_of(pool).value)


def _affinity(settings: Settings) -> Affinity:
    affinity = settings.affinity
    return Affinity(Session(affinity.session_headers, affinity.session_fields), VolatileLines(affinity.ignore_lines))


def _watch(settings: Settings) -> Watch:
    if settings.timing.itl == "auto":
        return WatchBudget(settings.timing.cpu_share)
    return Always() if settings.timing.itl == "always" else Never()


def _refuse_fixed_changes(old: Settings, new: Settings) -> None:
    """What is bound once a process cannot change without a restart, and half a reload is none."""
    fixed = {
        "server.listen": (old.server.listen, new.server.listen),
        "server.processes": (old.server.processes, new.server.processes),
        "server.transport": (old.server.transport, new.server.transport),
        "server.tls": (old.server.tls, new.server.tls),
        "admin.listen": (old.admin.listen, new.admin.listen),
        "index": (old.index, new.index),
    }
    problems = [f"{name}: cannot change while running; restart" for name, (a, b) in fixed.items() if a != b]
    if problems:
        raise ConfigError(problems)
