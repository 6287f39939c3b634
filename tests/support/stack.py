"""A whole gateway on loopback: simulated workers, the sidecar, and real Envoy with the configuration that we render."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import yaml

from eluvix_extproc.config.load import parse
from eluvix_extproc.config.models import Settings
from eluvix_extproc.render.bootstrap import render
from tests.support.processes import Envoy, Process, Sidecar, Worker, free_port, wait_until

MODEL = "sim-model"
THRESHOLD = 1024


class Stack:
    """Two decode workers and a prefill worker behind Envoy in one body mode; `overrides` go into our configuration.

    `profile` is hybrid, full-duplex or buffered. Attributes: workers by role, sidecar, envoy, `url`, `port`.
    `beside` another stack it is a second replica: its own sidecar and Envoy before the other's workers. `engines` are
    processes that run already, to stand where the simulated decode workers would.
    """

    def __init__(
        self,
        profile: str,
        overrides: dict[str, Any] | None = None,
        *,
        decode: int = 2,
        prefill: int = 1,
        worker_options: tuple[str, ...] = (),
        edit: Any = None,
        beside: Stack | None = None,
        engines: Sequence[Any] = (),
    ) -> None:
        self.profile = profile
        options = ("--model", MODEL, "--itl-ms", "5", "--base-ttft-ms", "5", *worker_options)
        if engines:
            self.decode, self.prefill = list(engines), []
        else:
            self.decode = beside.decode if beside else [Worker("--role", "decode", *options) for _ in range(decode)]
            self.prefill = beside.prefill if beside else [Worker("--role", "prefill", *options) for _ in range(prefill)]
        self.port, self._admin_port = free_port(), free_port()
        self._listens = free_port(), free_port()
        self._starts_workers = not (beside or engines)
        self._processes = ExitStack()
        config = self._config(overrides or {})
        self.settings: Settings = parse(yaml.safe_dump(config), "test", {})
        self.sidecar = Sidecar(yaml.safe_dump(config), self.settings.admin.listen.port)
        bootstrap = render(profile, self.settings)
        self.envoy = Envoy(edit(bootstrap) if edit else bootstrap, self._admin_port)
        self.url = f"http://127.0.0.1:{self.port}"

    def _config(self, overrides: dict[str, Any]) -> dict[str, Any]:
        extproc, admin = self._listens
        config: dict[str, Any] = {
            "server": {"listen": f"127.0.0.1:{extproc}", "drainTimeout": "5s"},
            "admin": {"listen": f"127.0.0.1:{admin}"},
            "switchyard": {"prefillIsolationThresholdTokens": THRESHOLD},
            "models": [{"name": MODEL, "architecture": "llama-3.1-8b"}],
            "pools": [
                {"name": role, "role": role, "cluster": f"llm-{role}",
                 "workers": {"static": [worker.address for worker in workers]}}
                for role, workers in (("decode", self.decode), ("prefill", self.prefill)) if workers
            ],
            "envoy": {"listen": f"127.0.0.1:{self.port}", "admin": f"127.0.0.1:{self._admin_port}"},
        }  # fmt: skip
        for section, values in overrides.items():
            config[section] = {**config.get(section, {}), **values} if isinstance(values, dict) else values
        return config

    @property
    def workers(self) -> list[Worker]:
        return [*self.decode, *self.prefill]

    def worker(self, address: str) -> Worker:
        return next(worker for worker in self.workers if worker.address == address)

    def __enter__(self) -> Self:
        mine: list[Process] = [*self.workers] if self._starts_workers else []
        with ExitStack() as stack, ThreadPoolExecutor() as together:
            for process in (*mine, self.sidecar, self.envoy):
                stack.push(process)
            list(together.map(Process.start, (*mine, self.sidecar, self.envoy)))
            self._processes = stack.pop_all()
        self.wait_for_sidecar()
        self.wait_for_fleet(len(self.workers))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.close()

    def wait_for_sidecar(self) -> None:
        wait_until(self.envoy.sidecar_healthy, "Envoy to find the sidecar healthy")

    def wait_for_fleet(self, ready: int) -> None:
        """Until exactly that many workers are ready to be chosen."""
        wait_until(lambda: sum(w["ready"] for w in self.fleet_workers().values()) == ready, f"{ready} ready workers")

    def reload(self, overrides: dict[str, Any]) -> None:
        """Make the sidecar take the stack's own configuration with these overrides instead."""
        before = self.metric("eluvix_config_reloads_total", result="applied")
        self.sidecar.config_file.write_text(yaml.safe_dump(self._config(overrides)))
        self.sidecar.signal(signal.SIGHUP)
        wait_until(lambda: self.metric("eluvix_config_reloads_total", result="applied") > before, "the reload")

    # ---- what the parts say --------------------------------------------------------------------------------------

    def received(self, mark: str, bodies: bool = False) -> list[dict[str, Any]]:
        """What workers received of the requests that bear `x-test: mark`; `worker` is who. Headers as a list of
        pairs, names in lower case."""
        found = []
        for worker in self.workers:
            if worker.exited():
                continue
            for request in _journal(worker, bodies):
                request["headers"] = [(name.lower(), value) for name, value in request["headers"]]
                if ("x-test", mark) in request["headers"]:
                    found.append({**request, "worker": worker.address})
        return found

    def received_once(self, mark: str, bodies: bool = False) -> dict[str, Any]:
        """The one request that workers received with that mark."""
        found = self.received(mark, bodies)
        assert len(found) == 1, f"workers received {len(found)} requests marked {mark}"
        return found[0]

    def exchange(self, mark: str) -> dict[str, Any]:
        """The sidecar's log line of a request that one worker received."""
        return self.exchange_of(self._request_id(mark))

    def exchange_of(self, request_id: str) -> dict[str, Any]:
        """The sidecar's log line of the request with that `x-request-id`."""
        return _line_of(self.sidecar, request_id, "message", "exchange")

    def access(self, mark: str) -> dict[str, Any]:
        """Envoy's access log line of a request that one worker received."""
        return _line_of(self.envoy, self._request_id(mark), "path", None)

    def _request_id(self, mark: str) -> str:
        wait_until(lambda: bool(self.received(mark)), f"a worker to receive {mark}")
        return str(dict(self.received(mark)[0]["headers"])["x-request-id"])

    def fleet_workers(self) -> dict[str, dict[str, Any]]:
        """Workers by address, as `/fleet` shows them."""
        fleet = json.loads(_get(f"{self.sidecar.admin}/fleet"))
        return {worker["address"]: worker for pool in fleet["pools"] for worker in pool["workers"]}

    def in_flight(self) -> int:
        return sum(worker["in_flight"] for worker in self.fleet_workers().values())

    def wait_idle(self) -> None:
        """Until nothing is in flight, and what was scraped of the workers says so too."""
        wait_until(lambda: all(map(_idle, self.fleet_workers().values())), "an idle fleet")

    def metric(self, name: str, **labels: str) -> float:
        """The sum over the series of that name that have these labels."""
        total = 0.0
        for line in _get(f"{self.sidecar.admin}/metrics").decode().splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(f'{k}="{v}"' in series for k, v in labels.items()):
                total += float(value)
        return total


def plan_faults(worker: Worker, *faults: dict[str, Any]) -> None:
    """Replace what goes wrong with requests to come at that worker; none clears it."""
    url = f"http://{worker.address}/sim/faults"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(faults).encode()), timeout=10):
        pass


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return bytes(answer.read())


def _journal(worker: Worker, bodies: bool) -> list[dict[str, Any]]:
    page = _get(f"http://{worker.address}/sim/requests{'?bodies=1' if bodies else ''}")
    requests: list[dict[str, Any]] = json.loads(page)["requests"]
    return requests


def _idle(worker: dict[str, Any]) -> bool:
    load = worker["load"]
    return not (worker["in_flight"] or (load and (load["running"] or load["waiting"])))


def _line_of(process: Process, request_id: str, key: str, value: str | None) -> dict[str, Any]:
    """The JSON log line with that request id and, where `value` is given, that value of `key`."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        for line in process.log().splitlines():
            if request_id in line and line.startswith("{"):
                fields = json.loads(line)
                if fields.get("request_id") == request_id and value in (None, fields.get(key)):
                    found.append(fields)
        return bool(found)

    wait_until(look, f"{process.name}'s log of request {request_id}", timeout=10.0)
    return found[0]
