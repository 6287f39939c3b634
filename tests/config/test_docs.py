from pathlib import Path

import jsonschema
import pytest
import yaml

from eluvix_extproc.config.docs import REFERENCE, reference, schema
from eluvix_extproc.config.keys import all_keys
from eluvix_extproc.config.load import parse

ROOT = Path(__file__).parents[2]

EVERYTHING = """\
server: {listen: "unix:/run/e.sock", processes: 2, tls: {cert: /c, key: /k}, decisionTimeout: 500ms}
switchyard: {prefillIsolationRoute: prefill, kvPrefixAffinity: false}
models:
  - {name: m, served: [x], tokenizer: {file: /t, chatTemplate: /j}, architecture: llama-3.3-70b, kvCacheDtype: fp8}
  - {name: n, architecture: {config: /c.json}, tokenizer: {estimate: {bytesPerToken: 3}}}
pools:
  - {name: p, role: prefill, cluster: c, kvConnector: nixl, workers: {static: ["10.0.0.1:80"]}}
  - {name: d, role: decode, cluster: d, workers: {dns: "decode.svc:80"}}
"""


def test_the_reference_is_what_the_models_say() -> None:
    written = (ROOT / REFERENCE).read_text(encoding="utf-8")
    assert written == reference(), "run: python -m eluvix_extproc.config.docs"


def test_every_key_is_described_and_in_the_reference() -> None:
    text = reference()
    for key in all_keys():
        if key.field is not None:
            assert key.field.description, key.path
            assert key.field.description.rstrip().endswith("."), key.path
            assert key.path[-1] in text


def test_the_least_example_of_the_reference_is_good() -> None:
    example = reference().split("```yaml\n")[1].split("```")[0]
    assert parse(example, "f", {}).pools[0].name == "llm"


def test_the_schema_takes_what_the_loader_takes() -> None:
    found = schema()
    jsonschema.Draft202012Validator.check_schema(found)
    jsonschema.validate(yaml.safe_load(EVERYTHING), found)
    settings = parse(EVERYTHING, "f", {})
    jsonschema.validate(settings.model_dump(mode="json", by_alias=True), found)


@pytest.mark.parametrize(
    ("good", "bad"),
    [("fp8", "fp7"), ("500ms", "'500'"), ("processes: 2", "processes: '2'"), ("served", "serve"), ("false", "'no'")],
)
def test_the_schema_refuses_what_the_loader_refuses(good: str, bad: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(EVERYTHING.replace(good, bad)), schema())


def test_the_schema_gives_defaults_as_yaml_writes_them() -> None:
    server = schema()["$defs"]["ServerSettings"]["properties"]
    assert server["listen"]["default"] == "0.0.0.0:50051"
    assert server["decisionTimeout"]["default"] == "2s"
    assert schema()["$defs"]["ScrapeSettings"]["properties"]["unreadyAfter"]["default"] == 3
