"""Start to end of a sidecar behind a real Envoy: drain, reload, workers that come and go."""

from __future__ import annotations

import json
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from eluvix_extproc.wire.pb import health_pb2
from tests.support.client import Answer, chat, post
from tests.support.processes import wait_until
from tests.support.stack import THRESHOLD, Stack

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
LOW = {"switchyard": {"prefillIsolationThresholdTokens": 64}}
STREAM_TOKENS = 600   # 3 s


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack("hybrid", {"timing": {"itl": "always"}}) as running:
        yield running


@contextmanager
def streaming(stack: Stack, mark: str) -> Iterator[Future[Answer]]:
    """A long answer that has begun."""
    begun = threading.Event()

    def took(answer: Answer) -> bool:
        if len(answer.chunks) >= 5:
            begun.set()
        return False

    body = chat(mark, stream=True, max_tokens=STREAM_TOKENS)
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(post, stack.port, body, headers={"x-test": mark}, stop_after=took)
        wait_until(lambda: begun.is_set() or answer.done(), "the stream to begin")
        assert not answer.done()
        yield answer


def whole_stream(stack: Stack, mark: str, answer: Answer) -> None:
    assert (answer.status, answer.ended) == (200, True)
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert answer.body.count(b'"content":') >= STREAM_TOKENS
    line = stack.exchange(mark)
    assert (line["outcome"], line["completion_tokens"]) == ("completed", STREAM_TOKENS)


def role_of(stack: Stack, mark: str, tokens: int = 300) -> str | None:
    """Where a prompt of about that many tokens goes; `mark` makes it one that nobody holds."""
    answer = post(stack.port, chat(f"{mark} " + "abc " * tokens), headers={"x-test": mark})
    assert answer.status == 200, answer.body
    return answer.ours("pd-role")


def fresh(mark: str) -> Callable[[], str]:
    numbers = iter(range(10_000))
    return lambda: f"{mark}-{next(numbers)}"


def health(stack: Stack, service: str) -> int:
    with grpc.insecure_channel(str(stack.settings.server.listen)) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        answer = check(health_pb2.HealthCheckRequest(service=service).SerializeToString(), timeout=10)
    return int(health_pb2.HealthCheckResponse.FromString(answer).status)


def reloads(stack: Stack, result: str) -> float:
    return stack.metric("eluvix_config_reloads_total", result=result)


# ---- start and stop --------------------------------------------------------------------------------------------------


def test_health_while_it_serves(stack: Stack) -> None:
    for service in ("", "readiness", "liveness", SERVICE):
        assert health(stack, service) == health_pb2.HealthCheckResponse.SERVING, service
    with pytest.raises(grpc.RpcError) as unknown:
        health(stack, "someone.else")
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("profile", ["hybrid", "full-duplex"])
def test_sigterm_drains(profile: str, mark: str) -> None:
    """Health first, so that Envoy turns away; what is under way ends by itself; no request is lost in between."""
    marks = fresh(mark)
    drain = {"server": {"drainTimeout": "30s"}, "timing": {"itl": "always"}}
    with Stack(profile, drain) as stack, streaming(stack, mark) as under_way:
        stack.sidecar.signal(signal.SIGTERM)
        wait_until(lambda: stack.sidecar.log_contains('"message":"draining"'), "the drain to begin")
        for service in ("", "readiness", SERVICE):
            assert health(stack, service) == health_pb2.HealthCheckResponse.NOT_SERVING, service
        assert health(stack, "liveness") == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(urllib.error.HTTPError) as not_ready:
            urllib.request.urlopen(f"{stack.sidecar.admin}/readyz", timeout=10)
        assert (not_ready.value.code, json.load(not_ready.value)["reason"]) == (503, "draining")
        roles = []
        while not stack.sidecar.exited():
            roles.append(role_of(stack, marks(), 5))
        assert "decode" in roles
        assert stack.sidecar.wait() == 0
        assert role_of(stack, marks(), 5) is None
        whole_stream(stack, mark, under_way.result())


# ---- reload ----------------------------------------------------------------------------------------------------------


def by_file(stack: Stack, text: str) -> None:
    stack.sidecar.config_file.write_text(text)


def by_rename(stack: Stack, text: str) -> None:
    beside = stack.sidecar.config_file.with_suffix(".new")
    beside.write_text(text)
    beside.replace(stack.sidecar.config_file)


def by_sighup(stack: Stack, text: str) -> None:
    stack.sidecar.config_file.write_text(text)
    stack.sidecar.signal(signal.SIGHUP)


@pytest.mark.parametrize("change", [by_file, by_rename, by_sighup])
def test_a_changed_file_takes_effect(stack: Stack, mark: str, change: Callable[[Stack, str], None]) -> None:
    """For requests to come; an exchange under way keeps what it began with."""
    marks, before = fresh(mark), stack.sidecar.config_file.read_text()
    assert role_of(stack, marks()) == "decode"
    applied = reloads(stack, "applied")
    with streaming(stack, mark) as under_way:
        change(stack, yaml.safe_dump({**yaml.safe_load(before), **LOW}))
        wait_until(lambda: reloads(stack, "applied") > applied, "the reload")
        assert role_of(stack, marks()) == "prefill"
        change(stack, before)
        wait_until(lambda: reloads(stack, "applied") > applied + 1, "the reload back")
        assert role_of(stack, marks()) == "decode"
        whole_stream(stack, mark, under_way.result())


def test_a_configmaps_swap_takes_effect(mark: str, tmp_path: Path) -> None:
    """Kubernetes mounts `file -> ..data/file` with `..data -> ..version`, and swaps `..data` by a rename."""
    marks = fresh(mark)
    stack = Stack("hybrid", decode=1)
    text = stack.sidecar.config_file.read_text()

    def publish(version: str, content: str) -> None:
        folder = tmp_path / f"..{version}"
        folder.mkdir()
        (folder / "eluvix.yaml").write_text(content)
        (tmp_path / "..tmp").symlink_to(folder.name)
        (tmp_path / "..tmp").replace(tmp_path / "..data")

    publish("one", text)
    stack.sidecar.config_file = tmp_path / "eluvix.yaml"
    stack.sidecar.config_file.symlink_to(Path("..data", "eluvix.yaml"))
    with stack:
        assert role_of(stack, marks()) == "decode"
        publish("two", yaml.safe_dump({**yaml.safe_load(text), **LOW}))
        wait_until(lambda: reloads(stack, "applied") == 1, "the reload")
        assert role_of(stack, marks()) == "prefill"
        assert reloads(stack, "refused") == 0


def _without(section: str) -> Callable[[dict[str, Any]], str]:
    return lambda config: yaml.safe_dump({name: value for name, value in config.items() if name != section})


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (lambda config: "pools: [", "eluvix.yaml"),
        (lambda config: "", "pools"),
        (_without("pools"), "pools"),
        (lambda config: yaml.safe_dump({**config, **LOW, "swichyard": {}}), "swichyard"),
        (lambda config: yaml.safe_dump({**config, **LOW, "models": [{"name": "m", "architecture": "none"}]}), "none"),
        (
            lambda config: yaml.safe_dump({**config, **LOW, "server": {**config["server"], "listen": "127.0.0.1:1"}}),
            "server.listen",
        ),
        (lambda config: yaml.safe_dump({**config, **LOW, "index": {"maxBytes": 1_000_000}}), "index"),
    ],
    ids=["no-yaml", "empty", "no-pools", "unknown-key", "unknown-architecture", "fixed-listen", "fixed-index"],
)
def test_what_cannot_be_taken_is_refused_whole(
    stack: Stack, mark: str, bad: Callable[[dict[str, Any]], str], told: str
) -> None:
    """The threshold that stands beside the mistake does not take effect either; the log says what was wrong."""
    marks, before = fresh(mark), stack.sidecar.config_file.read_text()
    refused, applied, logged = reloads(stack, "refused"), reloads(stack, "applied"), len(stack.sidecar.log())
    by_rename(stack, bad(yaml.safe_load(before)))
    wait_until(lambda: reloads(stack, "refused") > refused, "the refusal")
    line = next(line for line in stack.sidecar.log()[logged:].splitlines() if "reload refused" in line)
    assert any(told in problem for problem in json.loads(line)["problems"])
    assert role_of(stack, marks()) == "decode"
    by_rename(stack, before)
    wait_until(lambda: reloads(stack, "applied") > applied, "the reload back")


def test_a_file_that_is_away_for_a_moment_changes_nothing(stack: Stack, mark: str) -> None:
    refused, applied = reloads(stack, "refused"), reloads(stack, "applied")
    away = stack.sidecar.config_file.with_suffix(".away")
    stack.sidecar.config_file.rename(away)
    wait_until(lambda: reloads(stack, "refused") > refused, "the refusal")
    assert role_of(stack, mark) == "decode"
    away.rename(stack.sidecar.config_file)
    wait_until(lambda: reloads(stack, "applied") > applied, "the reload")


# ---- workers ---------------------------------------------------------------------------------------------------------


def test_a_worker_that_dies_is_left_out_and_one_that_returns_is_used(stack: Stack, mark: str) -> None:
    """No request fails: until its end is known, Envoy's retry takes the next worker of the sidecar's list."""
    marks, gone = fresh(mark), stack.decode[0]

    def served_by() -> str:
        name = marks()
        assert role_of(stack, name, 5) == "decode"
        return str(stack.received_once(name)["worker"])

    try:
        gone.kill()
        served = {served_by() for _ in range(10)}
        stack.wait_for_fleet(len(stack.workers) - 1)
        served |= {served_by() for _ in range(10)}
        assert served == {stack.decode[1].address}
    finally:
        gone.start()
    stack.wait_for_fleet(len(stack.workers))
    wait_until(lambda: served_by() == gone.address, "the worker that returned to be chosen")


def test_pools_change_by_reload(stack: Stack, mark: str) -> None:
    """A worker that is no longer named gets nothing; a pool that is no longer there is not chosen."""
    marks = fresh(mark)
    before = yaml.safe_load(stack.sidecar.config_file.read_text())
    kept = stack.decode[1].address
    decode = next(pool for pool in before["pools"] if pool["name"] == "decode")
    changed = {**before, "pools": [{**decode, "workers": {"static": [kept]}}]}
    applied = reloads(stack, "applied")
    by_sighup(stack, yaml.safe_dump(changed))
    wait_until(lambda: reloads(stack, "applied") > applied, "the reload")
    try:
        assert set(stack.fleet_workers()) == {kept}
        for _ in range(6):
            name = marks()
            assert role_of(stack, name, 2 * THRESHOLD) == "colocated"
            assert stack.received_once(name)["worker"] == kept
    finally:
        by_sighup(stack, yaml.safe_dump(before))
    wait_until(lambda: reloads(stack, "applied") > applied + 1, "the reload back")
    stack.wait_for_fleet(len(stack.workers))
    assert role_of(stack, marks(), 2 * THRESHOLD) == "prefill"
