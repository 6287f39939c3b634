"""docs/attach.md shows one Envoy configuration, before and after, as differences: both must be right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from eluvix_extproc.config.models import Settings
from eluvix_extproc.render import Profile, render
from eluvix_extproc.render.plan import ANSWER_HEADERS
from tests.render.real_envoy import assert_valid

GUIDE = (Path(__file__).parents[2] / "docs/attach.md").read_text()
DIFFERENCE = "".join(re.findall(r"```diff\n(.*?)```", GUIDE, re.DOTALL))
BEFORE = "".join(line[1:] + "\n" for line in DIFFERENCE.splitlines() if not line.startswith("+"))
AFTER = "".join(line[1:] + "\n" for line in DIFFERENCE.splitlines() if not line.startswith("-"))


def test_real_envoy_accepts_it_before_and_after(tmp_path: Path) -> None:
    assert_valid(BEFORE, tmp_path)
    assert_valid(AFTER, tmp_path)


def test_what_it_adds_is_what_render_writes_for_the_configuration_it_shows() -> None:
    config = re.search(r"The sidecar's configuration is\n\n```yaml\n(.*?)```", GUIDE, re.DOTALL)
    assert config is not None
    rendered = yaml.safe_load(render(Profile.HYBRID, Settings.model_validate(yaml.safe_load(config[1]))))
    guide = yaml.safe_load(AFTER)
    ours, theirs = connection_manager(rendered), connection_manager(guide)
    for key in ("early_header_mutation_extensions", "http_filters", "http2_protocol_options", "stream_idle_timeout"):
        assert theirs[key] == ours[key]
    key = "per_connection_buffer_limit_bytes"
    assert guide["static_resources"]["listeners"][0][key] == rendered["static_resources"]["listeners"][0][key]

    clusters, wanted = by_name(guide), by_name(rendered)
    assert clusters["eluvix_extproc"] == wanted["eluvix_extproc"]
    for name in ("llm", "llm-prefill"):
        for key in ("load_balancing_policy", "typed_extension_protocol_options", "load_assignment"):
            assert clusters[name][key] == wanted[name][key]

    for tree in (guide, rendered):
        removed = connection_manager(tree)["route_config"]["response_headers_to_remove"]
        assert removed == list(ANSWER_HEADERS)
    for mine, other in zip(routes(guide), routes(rendered), strict=True):
        assert mine["match"] == other["match"]
        assert mine.get("request_body_buffer_limit") == other.get("request_body_buffer_limit")
        retries = mine["route"].pop("retry_policy", {})
        assert retries.items() <= other["route"].get("retry_policy", {}).items()
        assert bool(retries) == ("retry_policy" in other["route"])
        assert mine["route"].items() <= other["route"].items()


def connection_manager(tree: Any) -> Any:
    return tree["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


def routes(tree: Any) -> Any:
    return connection_manager(tree)["route_config"]["virtual_hosts"][0]["routes"]


def by_name(tree: Any) -> dict[str, Any]:
    return {each["name"]: each for each in tree["static_resources"]["clusters"]}
