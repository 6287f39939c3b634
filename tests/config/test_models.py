"""What the sections accept by themselves and together. Places and wording of errors are in test_load.py."""

from typing import Any

import pytest
from pydantic import ValidationError

from eluvix_extproc.config.checks import check_files, disagreements, referenced_files
from eluvix_extproc.config.fleet import said_block_sizes
from eluvix_extproc.config.models import Settings
from eluvix_extproc.core.fleet import Role
from eluvix_extproc.core.switchyard.types import Policy


def pool(name: str, role: str, address: str | None = None) -> dict[str, Any]:
    workers = {"static": [address]} if address else {"dns": f"{name}.svc:8000"}
    return {"name": name, "role": role, "cluster": f"llm-{name}", "workers": workers}


def settings(*pools: dict[str, Any], **sections: Any) -> Settings:
    return Settings.model_validate({"pools": list(pools) or [pool("all", "colocated")], **sections})


def places(*pools: dict[str, Any], **sections: Any) -> list[str]:
    """Where the sections disagree."""
    with pytest.raises(ValidationError) as caught:
        settings(*pools, **sections)
    (only,) = caught.value.errors()
    return [".".join(map(str, problem.at)) for problem in only["ctx"]["problems"]]


def test_pools_are_all_that_is_needed() -> None:
    least = settings()
    assert least.switchyard.policy() == Policy()
    assert least.server.listen.endpoints() == ("0.0.0.0:50051",)
    assert least.server.decision_timeout == 2.0
    assert least.models == ()
    assert disagreements(least) == []
    with pytest.raises(ValidationError):
        Settings.model_validate({})
    with pytest.raises(ValidationError):
        Settings.model_validate({"pools": []})


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        settings().server.processes = 2  # type: ignore[misc]


def test_a_block_size_is_said_or_it_is_the_default() -> None:
    models = settings(models=[{"name": "a"}, {"name": "b", "blockSize": 16}, {"name": "c", "blockSize": 32}]).models
    assert models[0].block_size == 16 and said_block_sizes(models[:1]) == frozenset()
    assert said_block_sizes(models) == {16, 32}


def test_the_policy_is_the_switchyard_section() -> None:
    policy = settings(
        switchyard={
            "prefillIsolationThresholdTokens": 7,
            "prefillIsolationBasis": "prompt",
            "kvPrefixAffinity": False,
            "onPrefillUnavailable": "fail",
            "fallbackWorkers": 5,
        }
    ).switchyard.policy()
    assert policy == Policy(7, "prompt", "auto", False, "fail", 5)


@pytest.mark.parametrize(
    "tokenizer",
    [{}, {"file": "a", "tiktoken": "o200k"}, {"tiktoken": "o200k", "chatTemplate": "t"}, {"chatTemplate": "t"}],
)
def test_a_tokenizer_is_exactly_one_of_three(tokenizer: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        settings(models=[{"name": "m", "tokenizer": tokenizer}])


def test_a_model_without_tokenizer_is_estimated() -> None:
    (model,) = settings(models=[{"name": "m"}]).models
    assert model.tokenizer.estimate is not None
    assert model.tokenizer.estimate.bytes_per_token == 4.0


def test_an_architecture_is_a_name_or_a_file() -> None:
    named, filed = settings(
        models=[{"name": "a", "architecture": "llama-3.3-70b"}, {"name": "b", "architecture": {"config": "/c.json"}}]
    ).models
    assert named.architecture == "llama-3.3-70b"
    assert filed.architecture is not None
    assert not isinstance(filed.architecture, str)
    assert filed.architecture.config == "/c.json"


def test_clients_may_use_the_name_the_served_names_and_the_adapters() -> None:
    (model,) = settings(models=[{"name": "m", "served": ["org/M", "m"], "adapters": ["lora"]}]).models
    assert model.names() == ("m", "org/M", "lora")


def test_one_name_means_one_model() -> None:
    assert places(models=[{"name": "m", "served": ["x"]}, {"name": "n", "adapters": ["x"]}]) == ["models.1.adapters"]
    assert places(models=[{"name": "m"}, {"name": "m"}]) == ["models.1.name"]
    assert places(models=[{"name": "m", "adapters": ["m"]}]) == ["models.0.adapters"]


def test_pools_are_distinct() -> None:
    one, two = pool("a", "decode", "10.0.0.1:1"), pool("a", "prefill", "10.0.0.1:1")
    assert places(one, two) == ["pools.1.name", "pools.1.cluster", "pools.1.workers.static.0"]
    ipv6 = pool("b", "decode", "[::1]:1"), pool("c", "decode", "[0:0::1]:1")
    assert places(*ipv6) == ["pools.1.workers.static.0"]


def test_the_isolation_route_needs_its_pool() -> None:
    wanted = {"prefillIsolationRoute": "prefill"}
    assert places(pool("a", "decode"), switchyard=wanted) == ["switchyard.prefillIsolationRoute"]
    settings(pool("a", "decode"), pool("b", "prefill"), switchyard=wanted)


def test_interactive_requests_need_a_pool() -> None:
    assert places(pool("a", "prefill"), pool("b", "prefill")) == ["pools"]
    settings(pool("a", "prefill"))


@pytest.mark.parametrize(
    ("sections", "place"),
    [
        ({"server": {"maxHeldBytes": 2048, "maxBodyBytes": 1024}}, "server.maxHeldBytes"),
        ({"server": {"listen": "0.0.0.0:65535", "processes": 2}}, "server.listen"),
        ({"server": {"listen": "0.0.0.0:0", "processes": 2}}, "server.listen"),
        ({"server": {"processes": 2}, "admin": {"listen": "127.0.0.1:0"}}, "admin.listen"),
        ({"server": {"listen": "0.0.0.0:9089", "processes": 2}}, "admin.listen"),
        ({"server": {"listen": "0.0.0.0:9091", "processes": 2}}, "admin.listen"),
        ({"server": {"listen": "unix:/run/e.sock"}, "admin": {"listen": "unix:/run/e.sock"}}, "admin.listen"),
        ({"envoy": {"defaultPool": "nope"}}, "envoy.defaultPool"),
    ],
)
def test_sections_that_disagree(sections: dict[str, Any], place: str) -> None:
    assert places(**sections) == [place]


def test_neighbouring_ports_and_other_hosts_do_not_clash() -> None:
    settings(server={"listen": "0.0.0.0:9088", "processes": 2})
    settings(server={"listen": "127.0.0.2:9090"})
    settings(server={"listen": "unix:/run/e.sock", "processes": 8})
    settings(server={"listen": "127.0.0.1:0"}, admin={"listen": "127.0.0.1:0"})


@pytest.mark.parametrize(
    ("section", "word"),
    [
        ({"switchyard": {"prefillIsolationRoute": "handoff"}}, "handoff"),
        ({"index": {"type": "valkey", "url": "redis://x"}}, "Valkey"),
        ({"pools": [{**pool("a", "decode"), "workers": {"kubernetes": {"inferencePool": "a/b"}}}]}, "Kubernetes"),
    ],
)
def test_what_this_version_cannot_do_is_refused_in_words(section: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError, match=f"this version.*{word}"):
        Settings.model_validate({"pools": [pool("all", "colocated")], **section})


@pytest.mark.parametrize(
    "server",
    [{"processes": "1"}, {"processes": True}, {"processes": 1.0}, {"decisionTimeout": 2}, {"max_body_bytes": 4096}],
)
def test_nothing_is_converted(server: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        settings(server=server)


def test_a_key_without_a_value_is_absent() -> None:
    assert settings(server=None, models=None, headers={"ttft": None}) == settings()
    with pytest.raises(ValidationError):
        settings(sever=None)


def test_the_default_pool() -> None:
    pools = pool("p", "prefill"), pool("d", "decode"), pool("c", "colocated")
    assert settings(*pools).default_pool().name == "c"
    assert settings(*pools[:2]).default_pool().name == "d"
    assert settings(pools[0]).default_pool().role is Role.PREFILL
    assert settings(*pools, envoy={"defaultPool": "p"}).default_pool().name == "p"


def test_files_are_looked_for_only_when_asked(tmp_path: Any) -> None:
    there = tmp_path / "tokenizer.json"
    there.write_text("{}")
    found = settings(
        server={"tls": {"cert": "/no/cert", "key": str(there)}},
        models=[
            {"name": "m", "tokenizer": {"file": str(there), "chatTemplate": str(tmp_path)}},
            {"name": "n", "architecture": {"config": "/no/config.json"}},
        ],
    )
    assert len(referenced_files(found)) == 5
    problems = {".".join(map(str, at)): message for at, message in check_files(found)}
    assert problems == {
        "server.tls.cert": "/no/cert: No such file or directory",
        "models.0.tokenizer.chatTemplate": f"{tmp_path}: is not a regular file",
        "models.1.architecture.config": "/no/config.json: No such file or directory",
    }
