"""Where a problem is said to be, and in which words."""

from pathlib import Path

import pytest

from eluvix_extproc.config.load import ConfigUnreadable, load, parse
from eluvix_extproc.config.models import Settings
from eluvix_extproc.errors import ConfigError

POOLS = "pools:\n  - {name: a, role: decode, cluster: c, workers: {static: ['10.0.0.1:80']}}\n"


def problems(text: str, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.yaml", environ or {})
    return caught.value.problems


def good(text: str, environ: dict[str, str] | None = None) -> Settings:
    return parse(text, "f.yaml", environ or {})


def test_all_problems_at_once_in_the_order_of_the_file() -> None:
    text = """\
server:
  processes: "2"
  maxBodyByte: 5
  processes: 3
swtchyard: {}
switchyard:
  kvPrefixAffinity: on
  fallbackWorkers: 1:30
  maxHeldBytes: 3
models:
  - name: 1
    architecture: {con: 1}
pools:
  - {name: a b, role: decoed, cluster: c, workers: {static: [10.0.0.1:8000, 'x:1']}}
"""
    assert problems(text) == [
        "f.yaml:2: server.processes: is there twice, first on line 2, again on line 4",
        "f.yaml:2: server.processes: must be a whole number, not '2' (take off the quotes)",
        "f.yaml:3: server.maxBodyByte: unknown key, did you mean maxBodyBytes?",
        "f.yaml:5: swtchyard: unknown key, did you mean switchyard?",
        "f.yaml:7: switchyard.kvPrefixAffinity: must be true or false, not 'on'",
        "f.yaml:8: switchyard.fallbackWorkers: must be a whole number, not '1:30'",
        "f.yaml:9: switchyard.maxHeldBytes: unknown key here, did you mean server.maxHeldBytes?",
        "f.yaml:11: models[0].name: must be a string, not 1 (put it in quotes)",
        "f.yaml:12: models[0].architecture.config: is required",
        "f.yaml:12: models[0].architecture.con: unknown key, did you mean config?",
        "f.yaml:14: pools[0].name: must be letters, digits, '.', '_' and '-', 63 at most, not 'a b'",
        "f.yaml:14: pools[0].role: must be one of prefill, decode, disaggregated-conductor, colocated, not 'decoed', "
        "did you mean decode?",
        "f.yaml:14: pools[0].workers.static[1]: a worker is an IP address and port, as 10.0.0.1:8000 (a name goes in "
        "workers.dns), not 'x:1'",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "f.yaml:1: pools: is required"),
        ("pools: []", "f.yaml:1: pools: must have at least one element"),
        ("pools: 3", "f.yaml:1: pools: must be a list, not 3"),
        ("<file>: 1", "f.yaml:1: <file>: unknown key; known here: server, admin, switchyard, affinity, headers, timing, models, "
         "unknownModel, pools, index, scrape, logging, envoy"),
        (POOLS + "models: [{name: m, architecture: {<file>: 1}}]",
         "f.yaml:3: models[0].architecture.<file>: unknown key; known here: config"),
        (POOLS + "models: [{name: m, architecture: 1}]",
         "f.yaml:3: models[0].architecture: must be a section of keys, not 1"),
        ("- 1", "f.yaml:1: configuration: must be a section of keys, not a list"),
        (POOLS + "scrape:\n  zzz: 1",
         "f.yaml:4: scrape.zzz: unknown key; known here: interval, timeout, unreadyAfter, path"),
        (POOLS + "server:\n  max_body_bytes: 1",
         "f.yaml:4: server.max_body_bytes: unknown key, did you mean maxBodyBytes?"),
        (POOLS + "scrape:\n\n  interval: 2",
         "f.yaml:5: scrape.interval: a duration needs its unit, e.g. 2s, 2ms or 2m, not 2"),
        (POOLS + "timing: {cpuShare: 0}", "f.yaml:3: timing.cpuShare: must be more than 0, not 0"),
        (POOLS + "server: {processes: 010}", "f.yaml:3: server.processes: must be a whole number, not '010'"),
        (POOLS + "server: {processes: 0x10}", "f.yaml:3: server.processes: must be a whole number, not '0x10'"),
        (POOLS + "switchyard: {prefillIsolationRoute: prefill}",
         "f.yaml:3: switchyard.prefillIsolationRoute: no pool has the role prefill"),
        (POOLS + "envoy:\n  listen: unix:/a.sock", "f.yaml:4: envoy.listen: must be ip:port, not 'unix:/a.sock'"),
        (POOLS + "models: [{name: !!binary eA==}]",
         "f.yaml:3: models[0].name: the tag tag:yaml.org,2002:binary is not supported"),
        (POOLS + "server: !!python/object:os.system {}",
         "f.yaml:3: server: the tag tag:yaml.org,2002:python/object:os.system is not supported"),
        (POOLS + "server: &a {processes: 1}\nadmin: {<<: *a}",
         "f.yaml:4: admin: line 4: merge keys (<<) are not supported"),
    ],
)  # fmt: skip
def test_a_problem_and_its_place(text: str, problem: str) -> None:
    assert problem in problems(text)


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("a: 1\nb: [", 2, "no valid YAML"),
        ("a: *nowhere", 1, "no valid YAML"),
        ("---\na: 1\n---\nb: 1", 3, "no valid YAML"),
        ('a: "\\UFFFFFFFF"', 1, "no valid YAML"),
        ("%YAML " + "9" * 5_000 + ".1\n--- a", 1, "no valid YAML"),
        ("a: &a [*a]", 1, "contains itself"),
        ("[" * 5_000, 1, "nested deeper"),
        ("a: " + "[" * 40 + "]" * 40, 1, "nested deeper"),
        ("#" * 1_100_000, 1, "bytes long at most"),
    ],
)
def test_what_is_no_document(text: str, line: int, word: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(f"f.yaml:{line}: ")
    assert word in problem


def test_aliases_cannot_multiply() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True):
        bomb += f"{after}: &{after} [{','.join([f'*{before}'] * 9)}]\n"
    (problem,) = problems(bomb)
    assert "aliases expand to more than 1000 values" in problem


def test_an_alias_repeats_a_value() -> None:
    text = POOLS.replace("cluster: c", "cluster: &c c") + "models: [{name: *c}]"
    assert good(text).models[0].name == "c"


def test_words_that_old_yaml_reads_as_something_else_are_strings() -> None:
    names = "[on, off, no, y, 1:30, 0x10, 010, 1_000, 2001-01-01, '12', .nan, 1e3, 1., .5]"
    (model,) = good(POOLS + f"models: [{{name: m, served: {names}}}]").models
    numbers = ("1:30", "0x10", "010", "1_000", "2001-01-01", "12", ".nan", "1e3", "1.", ".5")
    assert model.served == ("on", "off", "no", "y", *numbers)


def test_variables_win_over_the_file() -> None:
    settings = good(
        POOLS + "server: {processes: 3}\nmodels: [{name: m, served: [x]}]",
        {
            "ELUVIX_SERVER_PROCESSES": "2",
            "ELUVIX_SERVER_LISTEN": "unix:/run/e.sock",
            "ELUVIX_SERVER_TLS_CERT": "/c",
            "ELUVIX_SERVER_TLS_KEY": "/k",
            "ELUVIX_SWITCHYARD_PREFILLISOLATIONTHRESHOLDTOKENS": "99",
            "ELUVIX_HEADERS_TTFT": "false",
            "ELUVIX_TIMING_MAXHOLD": "5s",
            "ELUVIX_TIMING_CPUSHARE": "0.5",
            "ELUVIX_UNKNOWNMODEL": "pass",
            "ELUVIX_POOLS_0_CLUSTER": "123",
            "ELUVIX_POOLS_0_WORKERS_STATIC_0": "[::1]:8",
            "ELUVIX_MODELS_0_SERVED_0": "true",
            "ELUVIX_MODELS_0_ARCHITECTURE": "llama-3.1-8b",
            "ELUVIX_MODELS_0_TOKENIZER_ESTIMATE_BYTESPERTOKEN": "3",
            "PATH": "/bin",
        },
    )
    assert settings.server.processes == 2
    assert settings.server.listen.unix == "/run/e.sock"
    assert settings.server.tls is not None
    assert settings.switchyard.prefill_isolation_threshold_tokens == 99
    assert not settings.headers.ttft
    assert (settings.timing.max_hold, settings.timing.cpu_share) == (5.0, 0.5)
    assert settings.unknown_model == "pass"
    assert settings.pools[0].cluster == "123"
    assert settings.pools[0].workers.static == ("[::1]:8",)
    assert settings.models[0].served == ("true",)
    assert settings.models[0].architecture == "llama-3.1-8b"
    estimate = settings.models[0].tokenizer.estimate
    assert estimate is not None
    assert estimate.bytes_per_token == 3


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("ELUVIX_TIMING_CPUSHARE", "7", "ELUVIX_TIMING_CPUSHARE: timing.cpuShare: must be at most 1, not 7"),
        ("ELUVIX_SERVER_PROCESSES", "two",
         "ELUVIX_SERVER_PROCESSES: server.processes: must be a whole number, not 'two'"),
        ("ELUVIX_SERVER_PROCESES", "1", "ELUVIX_SERVER_PROCESES: no such key, did you mean ELUVIX_SERVER_PROCESSES?"),
        ("ELUVIX_POOLS_O_CLUSTER", "x", "ELUVIX_POOLS_O_CLUSTER: no such key, did you mean ELUVIX_POOLS_N_CLUSTER?"),
        ("ELUVIX_POOLS_5_CLUSTER", "x", "ELUVIX_POOLS_5_CLUSTER: the file has 1 elements in pools, numbered from 0"),
        ("ELUVIX_POOLS_" + "9" * 5_000 + "_CLUSTER", "x", "the file has 1 elements in pools"),
        ("ELUVIX_INDEX_TYPE", "valkey", "this version has no shared index in Valkey"),
        ("ELUVIX_ENVOY_DEFAULTPOOL", "z", "ELUVIX_ENVOY_DEFAULTPOOL: envoy.defaultPool: no pool is named 'z'"),
    ],
)  # fmt: skip
def test_a_problem_names_its_variable(name: str, value: str, problem: str) -> None:
    (only,) = problems(POOLS, {name: value})
    assert problem in only


def test_a_problem_with_a_whole_section_is_told_where_the_file_has_it() -> None:
    assert problems("\n" + POOLS + "index:\n  maxBytes: 70000", {"ELUVIX_INDEX_TYPE": "valkey"}) == [
        "f.yaml:4: index: this version has no shared index in Valkey; use type: memory"
    ]


def test_variables_that_kubernetes_makes_for_a_service_are_left_alone() -> None:
    links = {
        "ELUVIX_EXTPROC_SERVICE_HOST": "10.1.2.3",
        "ELUVIX_EXTPROC_SERVICE_PORT": "50051",
        "ELUVIX_EXTPROC_SERVICE_PORT_GRPC": "50051",
        "ELUVIX_EXTPROC_PORT": "tcp://10.1.2.3:50051",
        "ELUVIX_EXTPROC_PORT_50051_TCP": "tcp://10.1.2.3:50051",
        "ELUVIX_EXTPROC_PORT_50051_TCP_ADDR": "10.1.2.3",
        "ELUVIX_PORT": "tcp://10.1.2.3:50051",
    }
    assert good(POOLS, links) == good(POOLS)


def test_variables_alone_do_not_replace_the_fleet() -> None:
    found = problems("", {"ELUVIX_POOLS_0_CLUSTER": "x"})
    assert "ELUVIX_POOLS_0_CLUSTER: the file has 0 elements in pools, numbered from 0" in found


def test_relative_files_start_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "tok.json").write_text("{}")
    file = tmp_path / "c.yaml"
    file.write_text(POOLS + "models: [{name: m, tokenizer: {file: tok.json}}]")
    assert load(file, {}, files=True).models[0].tokenizer.file == str(tmp_path / "tok.json")


def test_missing_files_are_told_with_the_line_that_names_them() -> None:
    text = POOLS + "models:\n  - name: m\n    tokenizer:\n      file: /no/tok.json"
    assert good(text).models[0].tokenizer.file == "/no/tok.json"
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.yaml", {}, files=True)
    assert caught.value.problems == ["f.yaml:6: models[0].tokenizer.file: /no/tok.json: No such file or directory"]


def test_what_cannot_be_read_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"a: \xff")
    for path, reason in ((tmp_path / "no", "No such file"), (tmp_path, "directory"), (tmp_path / "latin", "UTF-8")):
        with pytest.raises(ConfigUnreadable, match=reason):
            load(path, {})


def test_a_byte_order_mark_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes(b"\xef\xbb\xbf" + POOLS.encode())
    assert load(tmp_path / "c.yaml", {}) == good(POOLS)
