"""Two real engines with a gateway before each, started once and together.

`turns` has a real vocabulary and is asked most; `text_turns` differs in all that a tokenizer and a template can differ
in, and in the seed of its hash chain, and has a LoRA adapter. Both models are also known by a name that the sidecar has
no tokenizer for.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.engine import install, models
from tests.engine.engine import Engine
from tests.engine.gateway import Gateway

KEPT_LOGS = install.ROOT / "build" / "engine-logs"


def pytest_configure() -> None:
    """Asked to end, pytest would leave the engines behind."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def gateways(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Gateway]]:
    """By the model's name."""
    if not install.is_installed(install.FOLDER):
        pytest.exit("the engine is not installed: make test-engine does that", returncode=1)
    folder = tmp_path_factory.mktemp("models")
    turns, text_turns = models.turns(), models.text_turns()
    engines = [
        Engine(models.make(turns, folder / turns.name), turns.name),
        Engine(
            models.make(text_turns, folder / text_turns.name), text_turns.name,
            hash_seed="7", adapter=models.make_adapter(folder / "adapter"),
        ),
    ]  # fmt: skip
    # In this order: whoever interrupts the start ends the engines first, and then the threads that wait for them.
    with ThreadPoolExecutor() as together, ExitStack() as running:
        for engine in engines:
            running.push(engine)
        list(together.map(Engine.start, engines))
        found = {engine.model: running.enter_context(Gateway(engine)) for engine in engines}
        yield found
        if request.session.testsfailed:
            _keep_logs(found)


@pytest.fixture(scope="session")
def turns(gateways: dict[str, Gateway]) -> Gateway:
    return gateways["turns"]


@pytest.fixture(scope="session")
def text_turns(gateways: dict[str, Gateway]) -> Gateway:
    return gateways["text-turns"]


@pytest.fixture(scope="session", params=["turns", "text-turns"])
def gateway(request: pytest.FixtureRequest, gateways: dict[str, Gateway]) -> Gateway:
    """Each in turn."""
    return gateways[request.param]


def _keep_logs(gateways: dict[str, Gateway]) -> None:
    shutil.rmtree(KEPT_LOGS, ignore_errors=True)
    KEPT_LOGS.mkdir(parents=True)
    for name, gateway in gateways.items():
        for process in (gateway.engine, gateway.stack.sidecar, gateway.stack.envoy):
            path = KEPT_LOGS / f"{name}-{process.name}.txt"
            path.write_text(process.log())
    print(f"\nThe logs of the engines and gateways are in {KEPT_LOGS}")
