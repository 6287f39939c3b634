"""`explain` says what the sidecar would do, to a person and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.cli import main
from eluvix_extproc.config.load import parse as parse_config
from eluvix_extproc.core.actions import Decide
from eluvix_extproc.core.blocks import vllm_chain
from eluvix_extproc.core.events import Decided
from eluvix_extproc.core.hints import Session, VolatileLines
from eluvix_extproc.core.index import MemoryIndex
from eluvix_extproc.core.ledger import Ledger
from eluvix_extproc.core.pace import Pace
from eluvix_extproc.core.prompt import Api
from eluvix_extproc.explain.explanation import Request, explain, fleet_of
from eluvix_extproc.models import build_models
from eluvix_extproc.routing import Affinity, Router
from eluvix_extproc.tokens.learned import Learned

CONFIG = """
switchyard: {prefillIsolationThresholdTokens: 100}
affinity: {ignoreLines: ["^Today"]}
models:
  - {name: m, served: [n], adapters: [lora], architecture: llama-3.1-8b, blockSize: 16, tokenizer: {estimate: {}}}
pools:
  - {name: prefill, role: prefill, cluster: llm-prefill, workers: {static: [10.0.0.1:8000]}}
  - {name: decode, role: decode, cluster: llm-decode, workers: {static: [10.0.1.1:8000, 10.0.1.2:8000]}}
"""
SETTINGS = parse_config(CONFIG, "c.yaml", {})
CHAT = {"model": "m", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG)
    return path


def run(config: Path, body: Any, *options: str) -> Result:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return CliRunner().invoke(main, ["explain", "--config", str(config), "--body", "-", *options], input=raw)


def told(config: Path, body: Any, *options: str) -> dict[str, Any]:
    result = run(config, body, "--json", *options)
    value: dict[str, Any] = json.loads(result.stdout)
    return {**value, "exit": result.exit_code}


def test_for_a_person(config: Path) -> None:
    result = run(config, CHAT, "--in-flight", "10.0.1.1:8000=3", "--cached", "10.0.1.2:8000=9")
    assert result.exit_code == 0, result.output
    key = told(config, CHAT)["prefix"]["key"]
    assert result.stdout.splitlines() == [
        "api        openai.chat",
        "model      m: m",
        "tokens     15 (estimate)",
        "  [0] system           7 tokens, 9 bytes",
        "  [1] user             5 tokens, 4 bytes",
        "kv cache   1920.0 KiB",
        f"prefix key {key}",
        "  known to the index at 7, 12 tokens",
        "blocks     not foreseen: the tokens are not known exactly",
        "pool       prefill (prefill)",
        "  1. 10.0.0.1:8000: load 0, holds 0 tokens",
        "pool       decode (decode)",
        "  1. 10.0.1.2:8000: load 0, holds 9 tokens",
        "  2. 10.0.1.1:8000: load 3, holds 0 tokens",
        "decision   decode: decode, cluster llm-decode",
        "  workers  10.0.1.2:8000, 10.0.1.1:8000",
        "  because  isolation:uncached=6<100",
        "  because  affinity:shared=9",
        "  because  load:0",
        "  because  load:others-unknown",
        "  sets     x-eluvix-cluster: llm-decode",
        "  sets     x-eluvix-pd-role: decode",
        "  sets     x-gateway-destination-endpoint: 10.0.1.2:8000,10.0.1.1:8000",
        f"  sets     x-eluvix-kv-prefix-hash: {key}",
    ]


def test_a_prefix_worth_following_and_its_window(config: Path) -> None:
    body = {**CHAT, "messages": [*CHAT["messages"], {"role": "user", "content": "x" * 4000}]}
    pools = told(config, body, "--cached", "10.0.1.2:8000=900", "--in-flight", "10.0.1.2:8000=2")["switchyard"]["pools"]
    assert pools[1]["workers"] == [
        {"address": "10.0.1.2:8000", "load": 2, "held_tokens": 900, "worth_following": True,
         "load_window": pytest.approx(2 + 900 / 1024)},
        {"address": "10.0.1.1:8000", "load": 0, "held_tokens": 0, "worth_following": False, "load_window": None},
    ]  # fmt: skip


def test_token_ids_have_block_hashes(config: Path) -> None:
    ids = list(range(1, 40))
    found = told(config, {"model": "m", "prompt": ids, "cache_salt": "s"}, "--path", "/v1/completions")
    assert found["tokens"]["source"] == "exact"
    assert found["blocks"]["hashes"] == vllm_chain(ids, 16, salt="s") and found["blocks"]["count"] == 2
    adapted = told(config, {"model": "lora", "prompt": ids}, "--path", "/v1/completions")
    assert adapted["blocks"]["hashes"] == [] and "adapter" in adapted["blocks"]["unknown"]


def test_every_format_is_explained(config: Path) -> None:
    for path, body, api in (
        ("/v1/messages", {"model": "m", "messages": [{"role": "user", "content": "x"}]}, "anthropic.messages"),
        ("/v1/responses", {"model": "m", "input": "x"}, "openai.responses"),
        ("/v1/embeddings", {"model": "m", "input": "x"}, "openai.embeddings"),
        ("/rerank", {"model": "m", "query": "x", "documents": ["y"]}, "rerank"),
        ("/inference/v1/generate", {"token_ids": [1]}, "vllm.generate"),
        ("/generate", {"text": "x"}, "sglang.generate"),
    ):
        found = told(config, body, "--path", path)
        assert (found["api"], found["exit"]) == (api, 0), found


@pytest.mark.parametrize(
    ("body", "options", "status", "shape"),
    [
        (b"{", (), 400, {"error"}),
        (b"{", ("--path", "/v1/messages"), 400, {"type", "error"}),
        ({"model": "other", "messages": [{"role": "user"}]}, (), 404, {"error"}),
    ],
)
def test_what_would_be_refused(config: Path, body: Any, options: tuple[str, ...], status: int, shape: set[str]) -> None:
    found = told(config, body, *options)
    assert found["exit"] == 1 and found["decision"] is None
    assert (found["error"]["status"], found["error"]["body"].keys()) == (status, shape)
    assert f"answered with {status}" in run(config, body, *options).stdout


def test_what_goes_on_without_a_decision(config: Path) -> None:
    unread = run(config, CHAT, "--path", "/v1/models")
    assert unread.exit_code == 1 and "passes through untouched" in unread.stdout
    upload = run(config, CHAT, "--header", "Content-Type=multipart/form-data")
    assert upload.exit_code == 1 and "passes through untouched" in upload.stdout
    foreign = run(config, {"prompt": "x"}, "--path", "/generate")
    assert foreign.exit_code == 1 and "let through unrouted: unknown_format" in foreign.stdout


def test_a_session_and_volatile_lines_show(config: Path) -> None:
    dated = {**CHAT, "messages": [{"role": "system", "content": "Today\nBe brief."}, CHAT["messages"][1]]}
    found = told(config, dated, "--header", "X-Session-Id=1")
    assert found["prefix"]["session"] and found["prefix"]["volatile_lines_left_out"]


@pytest.mark.parametrize(
    "options",
    [
        ["--config", "-", "--body", "-"],
        ["--config", "/nowhere.yaml", "--body", "-"],
        ["--config", "{config}", "--body", "/nowhere.json"],
        ["--config", "{config}", "--body", "-", "--header", "novalue"],
        ["--config", "{config}", "--body", "-", "--in-flight", "10.0.0.1:8000=many"],
    ],
)
def test_what_cannot_be_used(config: Path, options: list[str]) -> None:
    arguments = [option.replace("{config}", str(config)) for option in options]
    result = CliRunner().invoke(main, ["explain", *arguments], input=b"{}")
    assert result.exit_code == 2 and result.output


# ---- the same decision as the sidecar's ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


_MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text(max_size=600)}),
    min_size=1,
    max_size=4,
)


@given(
    messages=_MESSAGES,
    model=st.sampled_from(["m", "n", "lora", "other", ""]),
    busy=st.lists(st.sampled_from(["10.0.0.1:8000", "10.0.1.1:8000", "10.0.1.2:8000"]), max_size=6),
    session=st.sampled_from(["", "a"]),
)
def test_the_routers_own_decision(
    executor: ThreadPoolExecutor, messages: list[dict[str, str]], model: str, busy: list[str], session: str
) -> None:
    body = json.dumps({"model": model, "messages": messages}).encode()
    ledger = Ledger()
    for address in busy:
        ledger.acquire(address)
    affinity = SETTINGS.affinity
    router = Router(
        build_models(SETTINGS, Learned()), SETTINGS.switchyard.policy(), 1 << 20, 1 << 20,
        fleet=lambda: fleet_of(SETTINGS), index=MemoryIndex(1 << 20), ledger=ledger, pace=Pace(), executor=executor,
        clock=lambda: 0.0, defect=lambda where, error: pytest.fail(str(error)),
        affinity=Affinity(
            Session(affinity.session_headers, affinity.session_fields), VolatileLines(affinity.ignore_lines)
        ),
    )  # fmt: skip
    headers = {":path": "/v1/chat/completions", **({"x-session-id": session} if session else {})}
    in_flight = dict(ledger.counts())
    verdict = router.decide(Decide(Api.OPENAI_CHAT, headers, body, True, len(body), 0.0))
    assert isinstance(verdict, tuple)
    found = explain(SETTINGS, Request(headers, body, in_flight, {}))
    event = verdict[0]
    if not isinstance(event, Decided):
        assert str(found.error) == str(event.error)
        return
    assert found.decision == event.decision
    assert found.count is not None and found.count.total == event.sized.tokens
    assert found.chain is not None and found.chain.root.hex() == event.sized.prefix_hash
    assert found.kv_bytes == event.sized.kv_bytes
