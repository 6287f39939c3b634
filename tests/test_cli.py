import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from eluvix_extproc import __version__
from eluvix_extproc.cli import VERBS, main

GOOD = "pools:\n  - {name: a, role: decode, cluster: c, workers: {static: ['10.0.0.1:80']}}\n"


def run(*args: str, stdin: str | bytes = "", env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, args, input=stdin, env=env)


@pytest.mark.parametrize("args", [["version"], ["--help"], ["validate", "--help"]])
def test_light_verbs_import_nothing_heavy(args: list[str]) -> None:
    code = (
        "import sys\n"
        "from eluvix_extproc.cli import main\n"
        f"main({args!r}, standalone_mode=False)\n"
        "heavy = {'grpc', 'aiohttp', 'envoy_data_plane', 'tokenizers', 'prometheus_client'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_every_verb_is_there_and_has_its_summary() -> None:
    listed = run("--help").output
    with click.Context(main) as context:
        for name, verb in VERBS.items():
            command = main.get_command(context, name)
            assert isinstance(command, click.Command)
            assert verb.summary.endswith(".")
            assert name in listed


def test_version() -> None:
    assert run("version").output == f"eluvix-extproc {__version__}\n"


def test_a_good_configuration(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(GOOD)
    done = run("validate", "--config", str(file))
    assert done.exit_code == 0
    assert done.output.startswith(f"{file}: good\n")
    assert "a: role decode, cluster c, static, workers: 1" in done.output


def test_problems_go_to_standard_error_with_exit_code_1() -> None:
    done = run("validate", "--config", "-", stdin=GOOD + "sever: {}\n")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "<stdin>:3: sever: unknown key, did you mean server?\n"


def test_files_that_it_names_are_looked_for() -> None:
    done = run("validate", "--config", "-", stdin=GOOD + "models: [{name: m, tokenizer: {file: /no/such}}]\n")
    assert done.exit_code == 1
    assert "/no/such: No such file or directory" in done.stderr


def test_the_environment_counts() -> None:
    done = run("validate", "--config", "-", stdin=GOOD, env={"ELUVIX_SERVER_PROCESSES": "2"})
    assert "0.0.0.0:50051, 0.0.0.0:50052" in done.stdout
    done = run("validate", "--config", "-", stdin=GOOD, env={"ELUVIX_SERVER_PROCESSES": "many"})
    assert done.exit_code == 1
    assert done.stderr.startswith("ELUVIX_SERVER_PROCESSES: ")


def test_unusable_input_is_exit_code_2(tmp_path: Path) -> None:
    missing = run("validate", "--config", str(tmp_path / "no.yaml"))
    assert (missing.exit_code, "No such file" in missing.stderr) == (2, True)
    assert run("validate", "--config", "-", stdin=b"\xff\xfe").exit_code == 2
    assert run("validate").exit_code == 2
    assert run("no-such-verb").exit_code == 2


def test_the_summary_says_what_isolation_does() -> None:
    two = GOOD + "  - {name: b, role: prefill, cluster: d, workers: {dns: 'p.svc:80'}}\n"
    assert "from 4096 uncached tokens" in run("validate", "--config", "-", stdin=two).output
    assert "none, no pool has" in run("validate", "--config", "-", stdin=two.replace("prefill", "decode")).output


def test_schema_is_json() -> None:
    assert json.loads(run("schema").output)["properties"]["pools"]["minItems"] == 1
