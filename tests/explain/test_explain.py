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
from eluvix_extproc.core.blocks import sglang_chain, vllm_chain
from eluvix_extproc.core.events import Decided, Undecidable
from eluvix_extproc.core.hints import Session, VolatileLines, hint_key
from eluvix_extproc.core.index import MemoryIndex
from eluvix_extproc.core.ledger import Ledger
from eluvix_extproc.core.pace import Pace
from eluvix_extproc.core.prompt import Api, PrefixPoint
from eluvix_extproc.core.switchyard.affinity import Score
from eluvix_extproc.explain.explanation import Request, explain, fleet_of
from eluvix_extproc.explain.standing import behind
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
        "  2. 10.0.1.1:8000: load 3, holds 0 tokens; it is busier",
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
         "load_window": pytest.approx(2 + 900 / 1024), "not_first": None},
        {"address": "10.0.1.1:8000", "load": 0, "held_tokens": 0, "worth_following": False, "load_window": None,
         "not_first": "it holds nothing of the prompt"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("first", "other", "why"),
    [
        (Score("a", 2, 900, True, 2.9), Score("b", 0, 0, False, None), "it holds nothing of the prompt"),
        (Score("a", 2, 900, True, 2.9), Score("b", 0, 20, False, None), "what it holds is too short to follow"),
        (Score("a", 2, 900, True, 2.9), Score("b", 1, 800, True, 2.8), "it holds less of the prompt"),
        (Score("a", 1, 900, True, 2.9), Score("b", 2, 900, True, 2.9), "it is busier"),
        (Score("a", 0, 0, False, None), Score("b", 3, 900, True, 2.9), "its load is beyond its window"),
        (Score("a", 0, 0, False, None), Score("b", 3, 0, False, None), "it is busier"),
        (Score("a", 0, 0, False, None), Score("b", 0, 0, False, None),
         "equal, and later in the hash order of the conversation"),
    ],
)  # fmt: skip
def test_why_a_worker_is_not_the_first(first: Score, other: Score, why: str) -> None:
    assert behind(first, other) == why


def test_a_name_that_would_have_to_be_resolved(tmp_path: Path) -> None:
    named = tmp_path / "c.yaml"
    named.write_text("pools: [{name: d, role: decode, cluster: llm, workers: {dns: 'workers.example:8000'}}]")
    (pool,) = told(named, CHAT)["switchyard"]["pools"]
    assert pool["unresolved"] and [worker["address"] for worker in pool["workers"]] == ["workers.example:8000"]
    assert "a name that is not resolved here" in run(named, CHAT).stdout


@pytest.mark.parametrize(
    "models", ["", "unknownModel: pass\nmodels: [{name: m, tokenizer: {estimate: {bytesPerToken: 0.5}}}]"]
)
def test_models_that_are_not_configured_are_counted_by_size(tmp_path: Path, models: str) -> None:
    config = tmp_path / "c.yaml"
    pool = "{name: d, role: decode, cluster: llm, workers: {static: ['10.0.0.1:8000']}}"
    config.write_text(f"{models}\npools: [{pool}]")
    found = told(config, {"model": "other", "prompt": "x" * 4000}, "--path", "/v1/completions")
    assert found["exit"] == 0 and 1000 <= found["tokens"]["total"] <= 1100


IDS = list(range(1, 40))


def test_token_ids_have_block_hashes(config: Path) -> None:
    found = told(config, {"model": "m", "prompt": IDS, "cache_salt": "s"}, "--path", "/v1/completions")
    assert found["tokens"]["source"] == "exact"
    assert found["blocks"]["hashes"] == vllm_chain(IDS, 16, salt="s") and found["blocks"]["count"] == 2


def test_blocks_are_named_as_the_chosen_pools_engine_does(tmp_path: Path) -> None:
    mixed = tmp_path / "c.yaml"
    mixed.write_text(CONFIG.replace("role: prefill,", "role: prefill, engine: sglang,"))
    for ids, chain_of in ((IDS, vllm_chain), (list(range(200)), sglang_chain)):
        found = told(mixed, {"model": "m", "prompt": ids}, "--path", "/v1/completions")
        assert found["blocks"]["hashes"] == chain_of(ids, 16)
    salted = told(mixed, {"model": "m", "prompt": list(range(200)), "cache_salt": "s"}, "--path", "/v1/completions")
    assert salted["blocks"]["hashes"] == [] and "version" in salted["blocks"]["unknown"]


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("/v1/completions", {"model": "lora", "prompt": IDS}, "adapter"),
        ("/v1/completions", {"prompt": [IDS, IDS]}, "several prompts"),
        ("/v1/completions", {"prompt": IDS, "truncate_prompt_tokens": 20}, "or of less"),
        ("/v1/completions", {"prompt": IDS, "prompt_embeds": "AAAA"}, "of more than is in the body"),
        ("/inference/v1/generate", {"token_ids": IDS, "features": {"mm_hashes": {}}}, "of more than is in the body"),
        ("/v1/completions", {"prompt": "text"}, "not known exactly"),
    ],
)
def test_blocks_that_cannot_be_told(config: Path, path: str, body: Any, why: str) -> None:
    blocks = told(config, body, "--path", path)["blocks"]
    assert blocks["hashes"] == [] and why in blocks["unknown"]


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
        (b"zipped", ("--header", "content-encoding=gzip"), 400, {"error"}),
        ({**CHAT, "pad": "x" * (1 << 20), "kv_transfer_params": {"do_remote_prefill": True}}, (), 400, {"error"}),
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
    assert "passes through untouched" in run(config, b"").stdout
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
        ["--config", "{config}", "--body", "-", "--cached", "10.9.9.9:8000=1"],
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


_TEXTS = st.text(max_size=600) | st.sampled_from(["Today is Monday\nBe brief.", "word " * 900])
_MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": _TEXTS}),
    min_size=1,
    max_size=4,
)
_ADDRESSES = ("10.0.0.1:8000", "10.0.1.1:8000", "10.0.1.2:8000")


@given(
    messages=_MESSAGES,
    model=st.sampled_from(["m", "n", "lora", "other", ""]),
    busy=st.lists(st.sampled_from(_ADDRESSES), max_size=6),
    session=st.sampled_from(["", "a"]),
    turns=st.integers(0, 2),
)
def test_the_routers_own_decision(
    executor: ThreadPoolExecutor,
    messages: list[dict[str, str]],
    model: str,
    busy: list[str],
    session: str,
    turns: int,
) -> None:
    """With `turns` of the same conversation before, of which the index and the ledger know."""
    ledger, index, affinity = Ledger(), MemoryIndex(1 << 20), SETTINGS.affinity
    router = Router(
        build_models(SETTINGS, Learned()), SETTINGS.switchyard.policy(), 1 << 20, 1 << 20,
        fleet=lambda: fleet_of(SETTINGS), index=index, ledger=ledger, pace=Pace(), executor=executor,
        clock=lambda: 0.0, defect=lambda where, error: pytest.fail(str(error)),
        affinity=Affinity(
            Session(affinity.session_headers, affinity.session_fields), VolatileLines(affinity.ignore_lines)
        ),
    )  # fmt: skip
    headers = {":path": "/v1/chat/completions", **({"x-session-id": session} if session else {})}
    for turn in range(1, turns + 1):
        decide(router, headers, model, messages[:turn])
    for address in busy:
        ledger.acquire(address)
    body = json.dumps({"model": model, "messages": messages}).encode()
    alone = explain(SETTINGS, Request(headers, body, {}, {}))
    cached: dict[str, int] = {}
    served_by: frozenset[str] = frozenset()
    if alone.chain is not None:
        cached = index.lookup(alone.chain.points)
        served_by = frozenset(index.lookup([PrefixPoint(hint_key(alone.session or alone.chain.root), 0)]))
    found = explain(SETTINGS, Request(headers, body, dict(ledger.counts()), cached, served_by))
    event = decide(router, headers, model, messages)
    if not isinstance(event, Decided):
        assert str(found.error) == str(event.error)
        return
    assert found.decision == event.decision
    assert found.count is not None and found.count.total == event.sized.tokens
    assert found.chain is not None and found.chain.root.hex() == event.sized.prefix_hash
    assert found.kv_bytes == event.sized.kv_bytes


def decide(
    router: Router, headers: dict[str, str], model: str, messages: list[dict[str, str]]
) -> Decided | Undecidable:
    body = json.dumps({"model": model, "messages": messages}).encode()
    verdict = router.decide(Decide(Api.OPENAI_CHAT, headers, body, True, len(body), 0.0))
    assert isinstance(verdict, tuple)
    return verdict[0]
