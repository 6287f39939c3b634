"""Where the sidecar listens, behind a real Envoy: Unix sockets, several processes, TLS, addresses that are taken."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
import yaml

from eluvix_extproc.render.sidecar import TLS_FOLDER
from eluvix_extproc.wire.pb import health_pb2
from tests.support.client import Answer, chat, post
from tests.support.processes import Process, free_port, wait_until
from tests.support.stack import Stack

CLUSTER = "cluster.eluvix_extproc"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: that of a Unix socket may have 100 bytes."""
    with tempfile.TemporaryDirectory(prefix="eluvix-") as path:
        yield Path(path)


def ask(stack: Stack, text: str, stream: bool = False) -> Answer:
    answer = post(stack.port, chat(text, stream=stream, max_tokens=3))
    assert (answer.status, answer.ended) == (200, True), answer
    return answer


def two_free_ports() -> int:
    """The first of two in a row."""
    while True:
        port = free_port()
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


# ---- Unix sockets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stale", [False, True], ids=["fresh", "stale"])
def test_a_unix_socket(folder: Path, stale: bool, mark: str) -> None:
    """A file that a killed process left behind is in nobody's way."""
    path = folder / "extproc.sock"
    if stale:
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(str(path))
    with Stack("hybrid", {"server": {"listen": f"unix:{path}"}}, decode=1) as stack:
        assert ask(stack, mark).ours("pd-role") == "decode"
        assert ask(stack, mark, stream=True).ours("ttft-ms") is not None


# ---- several processes -----------------------------------------------------------------------------------------------


def children(parent: int) -> list[int]:
    """Of the process, by /proc: field 4 of stat, behind the name in brackets, is the parent."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(stat.rpartition(")")[2].split()[1]) == parent:
            found.append(int(folder.name))
    return found


def served(admin: int) -> float:
    """Exchanges that the process with this admin port has seen."""
    return _metric(admin, "eluvix_requests_total")


def _metric(admin: int, name: str, label: str = "") -> float:
    page = urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=10).read().decode()
    lines = (line for line in page.splitlines() if line.startswith(f"{name}{{") and label in line)
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def _reachable(admin: int) -> bool:
    try:
        return served(admin) >= 0
    except OSError:
        return False


def healthy(stack: Stack) -> int:
    return stack.envoy.stats(f"{CLUSTER}.membership_healthy").get(f"{CLUSTER}.membership_healthy", 0)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_several_processes_share_the_load_and_stand_in_for_each_other(kind: str, folder: Path, mark: str) -> None:
    """Both serve. One is killed with streams in flight: every request still gets its full answer, and the parent
    starts it anew. SIGHUP reaches both, and SIGTERM ends all."""
    listen = f"unix:{folder}/extproc.sock" if kind == "unix" else f"127.0.0.1:{two_free_ports()}"
    admin = two_free_ports()
    overrides = {
        "server": {"listen": listen, "processes": 2},
        "admin": {"listen": f"127.0.0.1:{admin}"},
        "timing": {"itl": "always"},
    }
    with Stack("hybrid", overrides) as stack, ThreadPoolExecutor(8) as threads:
        wait_until(lambda: healthy(stack) == 2 and _reachable(admin + 1), "both processes to be healthy")

        def both_serve() -> bool:
            assert ask(stack, mark).ours("pd-role") == "decode"
            return min(served(admin), served(admin + 1)) > 0

        wait_until(both_serve, "both to have served")

        streams = [
            threads.submit(post, stack.port, chat(f"{mark}-stream-{n}", stream=True, max_tokens=300)) for n in range(8)
        ]
        wait_until(lambda: stack.in_flight() > 0, "streams in flight")
        victim, survivor = children(stack.sidecar.pid)
        os.kill(victim, signal.SIGKILL)
        for n in range(30):
            ask(stack, f"{mark}-after-{n}", stream=bool(n % 2))
        for stream in streams:
            answer = stream.result()
            assert (answer.status, answer.ended) == (200, True)
            assert answer.body.count(b'"content":') >= 300 and answer.body.endswith(b"data: [DONE]\n\n")
        wait_until(lambda: stack.sidecar.log_contains('"message":"process ended"'), "the parent to notice")
        wait_until(lambda: healthy(stack) == 2, "both to be healthy again")
        assert survivor in children(stack.sidecar.pid) and victim not in children(stack.sidecar.pid)
        assert ask(stack, f"{mark}-back").ours("pd-role") == "decode"

        wait_until(lambda: _reachable(admin) and _reachable(admin + 1), "both admin servers")
        stack.sidecar.signal(signal.SIGHUP)
        applied = "eluvix_config_reloads_total"
        wait_until(lambda: all(_metric(admin + n, applied, "applied") for n in (0, 1)), "both to have reloaded")
        stack.sidecar.signal(signal.SIGTERM)
        assert stack.sidecar.wait(20) == 0


# ---- TLS -------------------------------------------------------------------------------------------------------------


class Certificates:
    """Of one authority, in a folder as Envoy expects them; the sidecar's for 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.authority.cert_pem.write_to_path(str(folder / "ca.crt"))
        self._issue("server", "127.0.0.1")
        self._issue("tls", "envoy.gateway")

    def _issue(self, name: str, identity: str) -> None:
        issued = self.authority.issue_cert(identity)
        issued.private_key_pem.write_to_path(str(self.folder / f"{name}.key"))
        issued.cert_chain_pems[0].write_to_path(str(self.folder / f"{name}.crt"))

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def settings(self, mutual: bool) -> dict[str, str]:
        found = {"cert": str(self.folder / "server.crt"), "key": str(self.folder / "server.key")}
        return {**found, "clientCa": str(self.folder / "ca.crt")} if mutual else found


@pytest.mark.parametrize("mutual", [False, True], ids=["tls", "mtls"])
def test_tls(mutual: bool, folder: Path, mark: str) -> None:
    """Envoy as we render it talks to us over TLS. Who has no certificate of the authority gets nowhere with mTLS, and
    plain text never does."""
    certificates = Certificates(folder)
    overrides = {"server": {"tls": certificates.settings(mutual)}}
    edit: Callable[[str], str] = lambda bootstrap: bootstrap.replace(TLS_FOLDER, str(folder))  # noqa: E731
    with Stack("hybrid", overrides, decode=1, edit=edit) as stack:
        assert ask(stack, mark).ours("pd-role") == "decode"
        assert stack.envoy.stats(f"{CLUSTER}.ssl.handshake")[f"{CLUSTER}.ssl.handshake"] > 0
        address = str(stack.settings.server.listen)
        ca, key, cert = (certificates.read(name) for name in ("ca.crt", "tls.key", "tls.crt"))
        with_certificate = grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, cert))
        without = grpc.secure_channel(address, grpc.ssl_channel_credentials(ca))
        plain = grpc.insecure_channel(address)
        assert _answers(with_certificate)
        assert _answers(without) is not mutual
        assert not _answers(plain)


def _answers(channel: grpc.Channel) -> bool:
    with channel:
        try:
            answer = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            return False
    return bool(health_pb2.HealthCheckResponse.FromString(answer).status == health_pb2.HealthCheckResponse.SERVING)


# ---- addresses that cannot be had ------------------------------------------------------------------------------------


class _Serve(Process):
    """`serve` that is expected to end."""

    name = "serve"

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.file = self.folder / "eluvix.yaml"
        self.file.write_text(yaml.safe_dump(config))

    def run(self) -> tuple[int, str]:
        """Exit code and all output."""
        ended = subprocess.run(
            [sys.executable, "-m", "eluvix_extproc.cli", "serve", "--config", str(self.file)],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return ended.returncode, ended.stdout + ended.stderr


def config_of(**changed: Any) -> dict[str, Any]:
    pools = [{"name": "p", "role": "decode", "cluster": "c", "workers": {"static": ["127.0.0.1:9"]}}]
    free = {"server": {"listen": f"127.0.0.1:{free_port()}"}, "admin": {"listen": f"127.0.0.1:{free_port()}"}}
    return {**free, "pools": pools, **changed}


@pytest.mark.parametrize("section", ["server", "admin"])
def test_an_address_in_use_is_told(section: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, output = _Serve(config_of(**{section: {"listen": address}})).run()
    assert code == 1
    line = next(line for line in output.splitlines() if "cannot start" in line)
    assert address.rpartition(":")[2] in line and "Traceback" not in output


def test_a_socket_where_none_can_be_is_told(folder: Path) -> None:
    code, output = _Serve(config_of(server={"listen": f"unix:{folder}/missing/extproc.sock"})).run()
    assert code == 1
    assert "cannot start" in output and "missing/extproc.sock" in output and "Traceback" not in output


def test_a_certificate_that_is_none_is_told(folder: Path) -> None:
    for name in ("a.crt", "a.key"):
        (folder / name).write_text("no certificate")
    tls = {"cert": str(folder / "a.crt"), "key": str(folder / "a.key")}
    code, output = _Serve(config_of(server={"listen": f"127.0.0.1:{free_port()}", "tls": tls})).run()
    assert code == 1
    assert "cannot start" in output and "Traceback" not in output
