"""A whole gateway on loopback: simulated workers, the sidecar, and real Envoy with the configuration that we render."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import yaml

from eluvix_extproc.config.load import parse
from eluvix_extproc.config.models import Settings
from eluvix_extproc.render.bootstrap import render
from tests.support.processes import Envoy, Sidecar, Worker, free_port, wait_until

MODEL = "sim-model"
THRESHOLD = 1024


class Stack:
    """Two decode workers and a prefill worker behind Envoy in one body mode; `overrides` go into our configuration.

    `profile` is hybrid, full-duplex or buffered. Attributes: workers by role, sidecar, envoy, `url`, `port`.
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
    ) -> None:
        self.profile = profile
        options = ("--model", MODEL, "--itl-ms", "5", "--base-ttft-ms", "5", *worker_options)
        self.decode = [Worker("--role", "decode", *options) for _ in range(decode)]
        self.prefill = [Worker("--role", "prefill", *options) for _ in range(prefill)]
        self.port, self._admin_port = free_port(), free_port()
        self._overrides = overrides or {}
        self._edit = edit
        self._processes = ExitStack()
        self.config = self._config(free_port(), free_port())
        self.settings: Settings = parse(yaml.safe_dump(self.config), "test", {})
        self.sidecar = Sidecar(yaml.safe_dump(self.config), self.settings.admin.listen.port)
        bootstrap = render(profile, self.settings)
        self.envoy = Envoy(edit(bootstrap) if edit else bootstrap, self._admin_port)
        self.url = f"http://127.0.0.1:{self.port}"

    def _config(self, extproc: int, admin: int) -> dict[str, Any]:
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
        for section, values in self._overrides.items():
            config[section] = {**config.get(section, {}), **values} if isinstance(values, dict) else values
        return config

    @property
    def workers(self) -> list[Worker]:
        return [*self.decode, *self.prefill]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for process in (*self.workers, self.sidecar, self.envoy):
                stack.enter_context(process)
            self._processes = stack.pop_all()
        self.wait_for_sidecar()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.close()

    def wait_for_sidecar(self) -> None:
        wait_until(self.envoy.sidecar_healthy, "Envoy to find the sidecar healthy")
