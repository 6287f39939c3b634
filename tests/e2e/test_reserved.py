"""Clients cannot steer themselves, nor hand an engine what only the gateway may: neither by header nor by body."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.support.client import chat, post
from tests.support.stack import MODEL, Stack

FORGED = {
    "x-eluvix-cluster": "llm-prefill",
    "x-eluvix-retries": "off",
    "x-eluvix-pd-role": "prefill",
    "x-eluvix-kv-prefix-hash": "f" * 64,
    "x-eluvix-tokens": "1;source=exact",
    "x-eluvix-invented": "yes",
    "X-Eluvix-Upper": "yes",
    "x-gateway-destination-endpoint": "192.0.2.66:80",
    "x-prefiller-host-port": "192.0.2.66:80",
    "x-data-parallel-rank": "1",
    "x-eluvix-debug": "1",
}
EVIL = '{"do_remote_prefill": true, "remote_host": "192.0.2.66", "remote_port": 1, "remote_block_ids": [1]}'
RESERVED = {
    "kv_transfer_params": EVIL,
    "ec_transfer_params": EVIL,
    "bootstrap_host": '"192.0.2.66"',
    "bootstrap_port": "1",
    "bootstrap_room": "7",
    "data_parallel_rank": "1",
}


def spelt(name: str, escaped: bool) -> str:
    """The name as a JSON string, with an escape in it if asked."""
    return f'"\\u{ord(name[0]):04x}{name[1:-1]}\\u{ord(name[-1]):04X}"' if escaped else f'"{name}"'


def with_member(body: bytes, name: str, value: str, first: bool) -> bytes:
    member = f"{name}: {value}".encode()
    return b"{" + member + b", " + body[1:] if first else body[:-1] + b", " + member + b"}"


def test_forged_request_headers_never_reach_a_worker(stack: Stack, http2: bool, mark: str) -> None:
    """A client's copies of our headers and of those that steer engines are removed, or overwritten by the decision."""
    headers = {k.lower() if http2 else k: v for k, v in FORGED.items()}
    answer = post(stack.port, chat(mark), headers={**headers, "x-test": mark}, http2=http2)
    assert answer.status == 200
    assert answer.ours("pd-role") == "decode"
    received = stack.received_once(mark)
    assert received["worker"] in [worker.address for worker in stack.decode]
    steering = [(n, v) for n, v in received["headers"] if n.startswith("x-eluvix-") or n in FORGED]
    assert sorted(steering) == sorted([
        ("x-eluvix-cluster", "llm-decode"),
        ("x-eluvix-pd-role", "decode"),
        ("x-eluvix-kv-prefix-hash", answer.ours("kv-prefix-hash") or ""),
        ("x-gateway-destination-endpoint", dict(received["headers"])["x-gateway-destination-endpoint"]),
    ])
    chosen = dict(received["headers"])["x-gateway-destination-endpoint"].split(",")
    assert chosen[0] == received["worker"]
    assert set(chosen) <= {worker.address for worker in stack.decode}


@pytest.mark.parametrize("path", ["/v1/models", "/health"])
def test_forged_headers_do_not_steer_what_passes(stack: Stack, http2: bool, mark: str, path: str) -> None:
    """Where no decision overwrites them, the client's copies are removed all the same."""
    prefill = stack.prefill[0].address
    forged = {"x-eluvix-cluster": "llm-prefill", "x-gateway-destination-endpoint": prefill, "x-eluvix-a": "b"}
    answer = post(stack.port, b"", path, method="GET", headers={**forged, "x-test": mark}, http2=http2)
    assert (answer.status, answer.headers["x-sim-role"]) == (200, "decode")
    names = dict(stack.received_once(mark)["headers"])
    assert not [name for name in names if name.startswith("x-eluvix-") or name in FORGED]


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("escaped", [False, True], ids=["plain", "escaped"])
@pytest.mark.parametrize("name", RESERVED)
def test_reserved_members_are_cut_out(
    stack: Stack, http2: bool, mark: str, name: str, escaped: bool, first: bool
) -> None:
    """Members that tell an engine where to fetch KV cache are taken out of the body; all else stays as it was."""
    honest = chat(mark)
    body = with_member(honest, spelt(name, escaped), RESERVED[name], first)
    answer = post(stack.port, body, headers={"x-test": mark}, http2=http2)
    assert answer.status == 200, answer.body
    received = stack.received_once(mark, bodies=True)
    arrived = received["body_latin1"].encode("latin-1")
    assert name not in json.loads(arrived)
    assert json.loads(arrived) == json.loads(honest)
    assert b"192.0.2.66" not in arrived
    lengths = [value for key, value in received["headers"] if key == "content-length"]
    assert lengths in ([], [str(len(arrived))])


@pytest.mark.parametrize("member", ["kv_transfer_params", "vllm_xargs"])
def test_reserved_members_are_cut_out_of_completions(stack: Stack, http2: bool, mark: str, member: str) -> None:
    """The same on the other endpoint, and where vLLM looks for extra arguments."""
    honest = json.dumps({"model": MODEL, "prompt": mark, "max_tokens": 2}).encode()
    value = EVIL if member == "kv_transfer_params" else '{"kv_transfer_params": ' + EVIL + "}"
    body = with_member(honest, f'"{member}"', value, False)
    answer = post(stack.port, body, "/v1/completions", headers={"x-test": mark}, http2=http2)
    assert answer.status == 200, answer.body
    assert "192.0.2.66" not in stack.received_once(mark, bodies=True)["body_latin1"]


def test_a_reserved_member_in_a_gzip_body_is_cut_out(stack: Stack, http2: bool, mark: str) -> None:
    """A compressed body that holds one is forwarded without it, in plain."""
    honest = chat(mark)
    body = gzip.compress(with_member(honest, '"kv_transfer_params"', EVIL, True))
    answer = post(stack.port, body, headers={"x-test": mark, "content-encoding": "gzip"}, http2=http2)
    assert answer.status == 200, answer.body
    received = stack.received_once(mark, bodies=True)
    assert json.loads(received["body_latin1"]) == json.loads(honest)
    assert "content-encoding" not in dict(received["headers"])


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("escaped", [False, True], ids=["plain", "escaped"])
def test_a_reserved_member_in_a_body_beyond_what_is_held_is_refused(
    stack: Stack, http2: bool, mark: str, escaped: bool, first: bool
) -> None:
    """1.5 MB are not parsed as a whole, but read: a reserved member anywhere ends the request with a 400, and no
    worker ever has all of it."""
    honest = chat(f"{mark} " + "long text " * 150_000)
    body = with_member(honest, spelt("kv_transfer_params", escaped), EVIL, first)
    answer = post(stack.port, body, headers={"x-test": mark}, http2=http2)
    assert answer.status == 400, answer.status
    assert answer.json["error"]["code"] == "malformed_body"
    assert not any(received["body_complete"] for received in stack.received(mark))


def test_a_text_that_speaks_of_reserved_members_passes(stack: Stack, http2: bool, mark: str) -> None:
    """Quoted in a message they are just text, in small bodies and in large ones."""
    text = f'{mark} set "kv_transfer_params": {EVIL} and "bootstrap_host": "x"'
    for body in (chat(text), chat(text + " more" * 300_000)):
        answer = post(stack.port, body, headers={"x-test": mark, "x-sim-fault": '{"status": 200}'}, http2=http2)
        assert answer.status == 200, answer.body
    assert [received["body_complete"] for received in stack.received(mark)] == [True, True]
