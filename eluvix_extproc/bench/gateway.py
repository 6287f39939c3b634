"""What is measured: one Envoy with a listener for each way through it, the sidecars, the echoes and the stub workers.

All ways share the workers and Envoy's configuration as `render` prints it, and differ in who processes: nobody
(`alone`), the sidecar or the echo, each in two variants that leave a streamed answer after its first token or watch
it to the end.
"""

from __future__ import annotations

import copy
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import yaml

from eluvix_extproc.bench.requests import MODEL
from eluvix_extproc.config.load import parse
from eluvix_extproc.render.bootstrap import render
from eluvix_extproc.render.plan import SIDECAR_CLUSTER, Profile
from eluvix_extproc.sim.processes import Envoy, Process, Sidecar, free_port, http_ok, wait_until

ALONE, SIDECAR, ECHO, SIDECAR_WATCHING, ECHO_WATCHING, H2_ECHO, H2_ECHO_WATCHING = (
    "alone", "sidecar", "echo", "sidecar-watching", "echo-watching", "h2-echo", "h2-echo-watching",
)  # fmt: skip
_EXT_PROC = "envoy.filters.http.ext_proc"


class Stub(Process):
    name = "stub"

    def __init__(self, ports: list[int]) -> None:
        super().__init__()
        self._ports = ports

    def command(self) -> list[str]:
        return [sys.executable, "-m", "eluvix_extproc.bench.stub", *map(str, self._ports)]

    def ready(self) -> bool:
        return all(http_ok(f"http://127.0.0.1:{port}/health") for port in self._ports)


class Echo(Process):
    """Ready at once: it is Envoy's health check that tells when it serves."""

    name = "echo"

    def __init__(self, port: int, *, stay: bool, duplex: bool, h2: bool) -> None:
        super().__init__()
        flags = {"--stay": stay, "--duplex": duplex, "--h2": h2}
        self._arguments = [f"127.0.0.1:{port}", *(flag for flag, given in flags.items() if given)]

    def command(self) -> list[str]:
        return [sys.executable, "-m", "eluvix_extproc.bench.echo", *self._arguments]

    def ready(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Way:
    """One way through Envoy; `processor` is None for Envoy alone."""

    name: str
    port: int
    processor: Process | None


class Gateway:
    """Starts everything on entry. `ways` by name; in FULL_DUPLEX, where nothing may leave, all of them watch."""

    def __init__(
        self,
        profile: str,
        ways: tuple[str, ...],
        *,
        tokenizer: str | None = None,
        decision_timeout_s: int = 2,
        transport: str | None = None,
    ) -> None:
        self._profile = Profile(profile)
        self._tokenizer = tokenizer
        self._decision_timeout_s = decision_timeout_s
        self._transport = transport
        self._workers = [free_port() for _ in range(3)]
        self._envoy_admin = free_port()
        self._processes = ExitStack()
        self.ways: dict[str, Way] = {}
        duplex = self._profile is Profile.FULL_DUPLEX
        bootstrap = yaml.safe_load(render(self._profile, parse(yaml.safe_dump(self._config(1, 2)), "bench", {})))
        prototype = bootstrap["static_resources"]["listeners"].pop()
        self._children: list[Process] = [Stub(self._workers)]
        for name in ways:
            port, served = free_port(), free_port()
            processor = self._processor(name, served, duplex)
            self.ways[name] = Way(name, port, processor)
            bootstrap["static_resources"]["listeners"].append(_listener(prototype, name, port))
            if processor is not None:
                self._children.append(processor)
                bootstrap["static_resources"]["clusters"].append(_cluster(bootstrap, name, served))
        clusters = bootstrap["static_resources"]["clusters"]
        clusters.remove(next(cluster for cluster in clusters if cluster["name"] == SIDECAR_CLUSTER))
        self.envoy = Envoy(yaml.safe_dump(bootstrap), self._envoy_admin)

    def __enter__(self) -> Self:
        with ExitStack() as stack, ThreadPoolExecutor(len(self._children) + 1) as starters:
            for process in (*self._children, self.envoy):
                stack.push(process.__exit__)
            list(starters.map(lambda process: process.start(), (*self._children, self.envoy)))
            self._processes = stack.pop_all()
        try:
            for way in self.ways.values():
                if way.processor is not None:
                    wait_until(lambda name=way.name: self.envoy.sidecar_healthy(name), f"Envoy to reach {way.name}")  # type: ignore[misc]
        except BaseException:
            self._processes.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._children:   # all at once: each sidecar takes a while to drain
            process.signal(signal.SIGTERM)
        self._processes.close()

    def messages(self, way: str) -> Messages:
        """What crossed between Envoy and the way's processor so far."""
        found = self.envoy.stats(f"^http.{way}.ext_proc")

        def count(name: str) -> int:
            return next((value for key, value in found.items() if key.endswith("." + name)), 0)

        return Messages(
            count("stream_msgs_sent"), count("stream_msgs_received"), count("streams_started"),
            count("failure_mode_allowed") + count("streams_failed") + count("message_timeouts"),
        )  # fmt: skip

    def _processor(self, name: str, port: int, duplex: bool) -> Process | None:
        if name == ALONE:
            return None
        watching = name.endswith("-watching")
        if not name.startswith(SIDECAR):
            return Echo(port, stay=watching, duplex=duplex, h2=name.startswith(H2_ECHO))
        admin = free_port()
        config = self._config(port, admin)
        config["timing"] = {"itl": "always" if watching else "never"}
        return Sidecar(yaml.safe_dump(config), admin)

    def _config(self, port: int, admin: int) -> dict[str, Any]:
        tokenizer = {"file": self._tokenizer} if self._tokenizer else {"estimate": {"bytesPerToken": 4}}
        first, *others = (f"127.0.0.1:{worker}" for worker in self._workers)
        return {
            "server": {
                "listen": f"127.0.0.1:{port}",
                "decisionTimeout": f"{self._decision_timeout_s}s",
                "drainTimeout": "1s",
                **({"transport": self._transport} if self._transport else {}),
            },
            "admin": {"listen": f"127.0.0.1:{admin}"},
            "models": [{"name": MODEL, "architecture": "llama-3.1-8b", "tokenizer": tokenizer}],
            "pools": [
                {"name": "prefill", "role": "prefill", "cluster": "llm-prefill", "workers": {"static": [first]}},
                {"name": "decode", "role": "decode", "cluster": "llm-decode", "workers": {"static": others}},
            ],
            # A scrape costs by time, not by request: it would charge slow rounds more than fast ones.
            "scrape": {"interval": "60s"},
            "envoy": {"listen": "127.0.0.1:3", "admin": f"127.0.0.1:{self._envoy_admin}"},
        }


@dataclass(frozen=True, slots=True)
class Messages:
    """By Envoy's own counters: messages to and from the processor, its streams, and whatever failed."""

    sent: int
    received: int
    streams: int
    failed: int

    def since(self, before: Messages) -> Messages:
        return Messages(
            self.sent - before.sent, self.received - before.received,
            self.streams - before.streams, self.failed - before.failed,
        )  # fmt: skip


def _listener(prototype: Any, way: str, port: int) -> Any:
    listener = copy.deepcopy(prototype)
    listener["name"] = way
    listener["address"]["socket_address"]["port_value"] = port
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["stat_prefix"] = way
    if way == ALONE:
        manager["http_filters"] = [each for each in manager["http_filters"] if each["name"] != _EXT_PROC]
    else:
        ext_proc = next(each for each in manager["http_filters"] if each["name"] == _EXT_PROC)
        ext_proc["typed_config"]["grpc_service"]["envoy_grpc"]["cluster_name"] = way
    return listener


def _cluster(bootstrap: Any, way: str, port: int) -> Any:
    clusters = bootstrap["static_resources"]["clusters"]
    cluster = copy.deepcopy(next(each for each in clusters if each["name"] == SIDECAR_CLUSTER))
    cluster["name"] = cluster["load_assignment"]["cluster_name"] = way
    endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    endpoint["address"]["socket_address"]["port_value"] = port
    return cluster
