from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from eluvix_extproc.render.cli import render_command

ENVOY = Path(__file__).parents[2] / "envoy"


@pytest.mark.parametrize("what", ["hybrid", "full-duplex", "buffered"])
def test_prints_what_the_repository_keeps(what: str) -> None:
    result = CliRunner().invoke(render_command, [what, "--config", str(ENVOY / "example.yaml")])
    assert result.exit_code == 0
    assert result.output == (ENVOY / f"{what}.yaml").read_text()


def test_reads_standard_input_and_writes_a_file(tmp_path: Path) -> None:
    file = tmp_path / "envoy.yaml"
    text = (ENVOY / "example.yaml").read_text()
    result = CliRunner().invoke(render_command, ["hybrid", "--config", "-", "--output", str(file)], input=text)
    assert (result.exit_code, result.output) == (0, "")
    assert file.read_text() == (ENVOY / "hybrid.yaml").read_text()


def test_writes_the_manifests_of_istio_into_a_folder(tmp_path: Path) -> None:
    config = str(ENVOY / "istio/example.yaml")
    result = CliRunner().invoke(render_command, ["istio", "--config", config, "--output", str(tmp_path / "out")])
    assert result.exit_code == 0
    for file in (tmp_path / "out").iterdir():
        assert file.read_text() == (ENVOY / "istio" / file.name).read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["hybrid", "--config", "/no/such.yaml"], "/no/such.yaml: No such file"),
        (["istio", "--config", str(ENVOY / "example.yaml")], "pools[0].workers: Istio finds workers by Service"),
        (["istio", "--config", str(ENVOY / "istio/example.yaml"), "--gateway", "nameless"], "must have the form a/b"),
        (["hybrid", "--config", str(ENVOY / "example.yaml"), "--output", "/no/such/folder/x"], "/no/such/folder/x: No"),
        (["hybrid", "--config", "-"], "<stdin>:1: pools: must"),
    ],
)
def test_unusable_input_ends_with_2_and_says_why(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(render_command, arguments, input="pools: []")
    assert result.exit_code == 2
    assert words in result.output
