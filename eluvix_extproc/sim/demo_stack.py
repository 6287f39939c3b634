"""What the demo runs: simulated workers, and in front of them gateways, each a real Envoy with a sidecar of its own.

Everything is a child process on loopback with free ports. Configurations for Envoy come from `eluvix-extproc render`,
as a user's would.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import yaml

from eluvix_extproc.sim.processes import START_S, Envoy, NotReady, Process, Sidecar, free_port, http_ok, wait_until

MODEL = "sim"
THRESHOLD = 4096
# Speeds of the simulated workers: a chunk of 2,048 prompt tokens takes 256 ms, in which nobody else gets a token.
ITL_MS = 20
PREFILL_TOKENS_PER_S = 8000

_P = TypeVar("_P", bound=Process)

# Linux ends the child when we end, even by SIGKILL; the second check is for an end before the first call.
_TIE = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) and os.execvp(sys.argv[2], sys.argv[2:])"
)


class _Tied(Process):
    def command(self) -> list[str]:
        command = super().command()
        if sys.platform != "linux":
            return command
        return [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), *command]


class _PoolProcess(Process):
    """The workers of one role in one process."""

    def __init__(self, role: str, count: int) -> None:
        self.name = role
        super().__init__()
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(count)]

    def command(self) -> list[str]:
        listen = [word for address in self.addresses for word in ("--listen", address)]
        return [
            sys.executable, "-m", "eluvix_extproc.cli", "sim-worker", *listen, "--role", self.name, "--model", MODEL,
            "--itl-ms", str(ITL_MS), "--prefill-tokens-per-s", str(PREFILL_TOKENS_PER_S), "--shutdown-timeout", "1",
        ]  # fmt: skip

    def ready(self) -> bool:
        return all(http_ok(f"http://{address}/health") for address in self.addresses)


class _TiedPool(_Tied, _PoolProcess):
    pass


class _TiedSidecar(_Tied, Sidecar):
    pass


class _TiedEnvoy(_Tied, Envoy):
    pass


class Gateway:
    """An Envoy that is ready, with its sidecar. `url` is for clients, `sidecar.admin` and `envoy.admin` for people."""

    def __init__(self, sidecar: Sidecar, envoy: Envoy, url: str) -> None:
        self.sidecar = sidecar
        self.envoy = envoy
        self.url = url

    def stop(self) -> None:
        self.envoy.stop()
        self.sidecar.stop()


class DemoStack:
    """Workers and gateways, stopped together when its `with` is left.

    `worker_names` gives each worker's name in the demo by address. What the processes wrote can be kept by
    `save_logs` before they stop.
    """

    def __init__(self, profile: str) -> None:
        self._profile = profile
        self._stack = ExitStack()
        self._processes: dict[str, Process] = {}
        self._pools: dict[str, list[str]] = {}
        self.worker_names: dict[str, str] = {}

    def __enter__(self) -> DemoStack:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start_workers(self, role: str, count: int) -> None:
        pool = self._start(role, _TiedPool(role, count))
        self._pools[role] = pool.addresses
        self.worker_names |= {address: f"{role}-{n}" for n, address in enumerate(pool.addresses, 1)}

    def start_gateway(self, name: str, pools: Sequence[tuple[str, Sequence[str]]]) -> Gateway:
        """`pools` are (role of the pool, roles of the worker processes that are in it)."""
        ports = [free_port() for _ in range(4)]
        client, envoy_admin, extproc, admin = (f"127.0.0.1:{port}" for port in ports)
        config = yaml.safe_dump(
            {
                "server": {"listen": extproc, "drainTimeout": "200ms"},
                "admin": {"listen": admin},
                "switchyard": {"prefillIsolationThresholdTokens": THRESHOLD},
                "models": [{"name": MODEL, "architecture": "llama-3.1-8b", "kvCacheDtype": "fp8"}],
                "pools": [
                    {"name": role, "role": role, "cluster": f"llm-{role}",
                     "workers": {"static": [address for source in sources for address in self._pools[source]]}}
                    for role, sources in pools
                ],
                "envoy": {"listen": client, "admin": envoy_admin},
            },
            sort_keys=False,
        )  # fmt: skip
        sidecar = _TiedSidecar(config, ports[3])
        bootstrap = sidecar.folder / "envoy.yaml"
        rendering = self._stack.enter_context(_render(self._profile, sidecar.config_file, bootstrap))
        self._start(f"{name}-sidecar", sidecar)
        if rendering.wait(timeout=START_S):
            assert rendering.stderr is not None
            raise NotReady(f"no configuration for Envoy: {rendering.stderr.read()}")
        envoy = self._start(f"{name}-envoy", _TiedEnvoy(bootstrap.read_text(encoding="utf-8"), ports[1]))
        wait_until(envoy.sidecar_healthy, "Envoy to find the sidecar healthy")
        return Gateway(sidecar, envoy, f"http://{client}")

    def started(self) -> bool:
        return bool(self._processes)

    def running(self) -> set[str]:
        """Names of the processes that have not ended."""
        return {name for name, process in self._processes.items() if not process.exited()}

    def save_logs(self) -> Path:
        """A new folder with a file for each process."""
        folder = Path(tempfile.mkdtemp(prefix="eluvix-demo-logs-"))
        for name, process in self._processes.items():
            (folder / f"{name}.log").write_text(process.log(), encoding="utf-8")
        return folder

    def _start(self, name: str, process: _P) -> _P:
        self._processes[name] = process
        self._stack.enter_context(process)
        return process


def _render(profile: str, config: Path, output: Path) -> subprocess.Popen[str]:
    verb = ["render", profile, "--config", str(config), "--output", str(output)]
    return subprocess.Popen([sys.executable, "-m", "eluvix_extproc.cli", *verb], stderr=subprocess.PIPE, text=True)
