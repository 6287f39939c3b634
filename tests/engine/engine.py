"""A real vLLM engine as a process of the tests: its own environment, its own ports, its log kept when a test failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.engine import install
from tests.support.processes import Process, free_port, http_ok

BLOCK_SIZE = 32             # CPU attention wants multiples of 32
_STOP_S = 20.0

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_COLOR": "0",
    "TORCH_COMPILE_DISABLE": "1",
    # One thread, and the model in the scheduler's process: what is tested here costs no time to speak of, but a start
    # does.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
# Of the shell's own: what keeps Python from compiling a module once for all, and what would seed the hash chain.
_NOT_INHERITED = ("PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "PYTHONPATH")


class Engine(Process):
    """`vllm serve` of one model folder, under the name `model` and a second one.

    `events` is the endpoint of its KV events; `hash_seed` seeds its hash chain. `adapter` is a LoRA adapter's folder,
    which is served under the name `adapted`.
    """

    name = "engine"
    start_s = 300.0     # the first start compiles thousands of modules, on a machine that may be busy

    def __init__(self, folder: Path, model: str, hash_seed: str = "", adapter: Path | None = None) -> None:
        super().__init__()
        self.model_folder = folder
        self.model = model
        self.served = (model, f"{model}-guessed")
        self.hash_seed = hash_seed
        self.adapter, self.adapted = adapter, f"{model}-adapter"
        self.port, events = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.events = f"tcp://127.0.0.1:{events}"
        self._publishes = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            # The engine binds where the endpoint has a `*`, else it connects.
            "endpoint": f"tcp://*:{events}",
            "topic": f"kv@{self.address}@{model}",
        }

    def command(self) -> list[str]:
        adapters = ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"{self.adapted}={self.adapter}"]
        return [
            "setsid",    # a session of its own, so that what the engine starts can be ended with it, whatever it does
            str(install.FOLDER / "bin" / "vllm"), "serve", str(self.model_folder),
            "--served-model-name", *self.served, "--host", "127.0.0.1", "--port", str(self.port),
            "--distributed-executor-backend", "uni", "--enforce-eager", "--generation-config", "vllm",
            "--max-num-seqs", "16", "--block-size", str(BLOCK_SIZE), "--kv-cache-memory-bytes", str(128 << 20),
            "--enable-prefix-caching", "--prefix-caching-hash-algo", "sha256_cbor",
            "--kv-events-config", json.dumps(self._publishes),
            "--enable-prompt-tokens-details", "--enable-request-id-headers",
            "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
            "--enable-scale-out",    # /inference/v1/generate and the render endpoints
            *(adapters if self.adapter else ()),
        ]  # fmt: skip

    def ready(self) -> bool:
        return http_ok(f"http://{self.address}/health")

    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        cache = str(install.FOLDER / "cache")
        seed = {"PYTHONHASHSEED": self.hash_seed} if self.hash_seed else {}
        return {**inherited, **_ENVIRONMENT, **seed, "VLLM_CACHE_ROOT": cache, "HF_HOME": cache}

    def stop(self) -> None:
        if self._child is None:
            return
        self.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.wait(_STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
