"""Whatever is written loads back equal, and whatever is thrown at the loader ends in settings or a ConfigError."""

from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from eluvix_extproc.config.environment import variable
from eluvix_extproc.config.keys import all_keys
from eluvix_extproc.config.load import parse
from eluvix_extproc.config.models import Settings
from eluvix_extproc.errors import ConfigError

POOL = {"name": "a", "role": "decode", "cluster": "c", "workers": {"static": ["10.0.0.1:80"]}}

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)
tricky = st.sampled_from(["on", "no", "1:30", "123", "1e3", "null", "~x", "org/Model é", "- a", "#"])
model_names = st.one_of(names, tricky)
durations = st.builds("{}{}".format, st.integers(1, 5_000), st.sampled_from(["ms", "s"]))
addresses = st.builds("10.{}.0.1:{}".format, st.integers(0, 255), st.integers(1, 65_535))


def maybe(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


tokenizers = st.one_of(
    st.fixed_dictionaries({"file": model_names}, optional={"chatTemplate": model_names}),
    st.fixed_dictionaries({"tiktoken": names}),
    st.fixed_dictionaries({"estimate": maybe(bytesPerToken=st.floats(0.1, 64))}),
)
models = st.builds(
    lambda number, rest, served: {"name": f"model-{number}", "served": [f"{number}{name}" for name in served], **rest},
    st.integers(0, 99),
    maybe(
        tokenizer=tokenizers,
        architecture=st.one_of(names, st.fixed_dictionaries({"config": model_names})),
        kvCacheDtype=st.sampled_from(["auto", "fp8", "bf16"]),
        blockSize=st.integers(1, 4_096),
    ),
    st.lists(model_names.filter(lambda name: name[-1] != " "), unique=True, max_size=2),
)
pools = st.lists(addresses, min_size=1, max_size=6, unique=True).map(
    lambda found: [
        {**POOL, "name": f"p{n}", "cluster": f"c|{n}/x", "workers": {"static": [address]}}
        for n, address in enumerate(found)
    ]
)
configurations = st.fixed_dictionaries(
    {"pools": pools},
    optional={
        "server": maybe(
            listen=st.sampled_from(["0.0.0.0:50051", "[::1]:7", "unix:/run/a.sock"]),
            processes=st.integers(1, 64),
            decisionTimeout=durations,
            maxBodyBytes=st.integers(1_048_576, 2**30),
        ),
        "switchyard": maybe(kvPrefixAffinity=st.booleans(), prefillIsolationThresholdTokens=st.integers(0, 10**9)),
        "timing": maybe(cpuShare=st.floats(0.001, 1), maxHold=durations),
        "models": st.lists(models, max_size=3, unique_by=lambda model: model["name"]),
        "unknownModel": st.sampled_from(["reject", "pass"]),
    },
)


@given(configurations)
@settings(max_examples=60, deadline=None)
def test_what_is_dumped_loads_back_equal(configuration: dict[str, Any]) -> None:
    made = Settings.model_validate(configuration)
    dumped = yaml.safe_dump(made.model_dump(mode="json", by_alias=True))
    assert parse(dumped, "f", {}) == made


known_words = st.sampled_from([part for key in all_keys() for part in key.path])
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["10.0.0.1:80", "2s", "decode", "[::1]:1", "unix:/a", "auto", "on", "9" * 400]),
)  # fmt: skip
mappings = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(known_words, st.text(max_size=5)), inner, max_size=5)
    ),
    max_leaves=15,
)


@given(mappings, st.sampled_from(all_keys()), st.text(max_size=6))
@settings(max_examples=150, deadline=None)
def test_any_mapping_ends_in_settings_or_a_config_error(data: Any, key: Any, value: str) -> None:
    text = yaml.safe_dump(data, allow_unicode=True)
    check(text, {variable(key.path).replace("_N", "_0"): value})
    if isinstance(data, dict):
        check(yaml.safe_dump({"pools": [POOL], **data}), {})


@given(st.one_of(st.text(max_size=60), st.text(alphabet="[]{}:,&*!|>-'\"%@#?a1 \n\t<~", max_size=40)))
@settings(max_examples=300, deadline=None)
def test_any_text_ends_in_settings_or_a_config_error(text: str) -> None:
    check(text, {})


def check(text: str, environ: dict[str, str]) -> None:
    try:
        assert isinstance(parse(text, "f", environ), Settings)
    except ConfigError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.startswith(("f:", "ELUVIX_")), problem
            problem.encode()
