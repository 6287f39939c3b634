from __future__ import annotations

import pytest

from eluvix_extproc.render.tree import note
from eluvix_extproc.render.typed import BOOTSTRAP, any_of, check

SUPPRESSED = b"\x20\x01"    # field 4, true
ROUTER = "envoy.extensions.filters.http.router.v3.Router"


def test_what_envoy_knows_becomes_its_message() -> None:
    assert check(f"type.googleapis.com/{ROUTER}", {"suppress_envoy_headers": note("why", True)}) == SUPPRESSED


@pytest.mark.parametrize(
    "tree",
    [
        {"static_ressources": {}},
        {"static_resources": {"clusters": [{"name": "a", "type": "STATICK"}]}},
        {"static_resources": {"clusters": [{"name": 7}]}},
        {"static_resources": {"clusters": [{"typed_extension_protocol_options": {"x": any_of(ROUTER, no_such=1)}}]}},
        {"static_resources": {"clusters": [{"typed_extension_protocol_options": {"x": any_of(ROUTER + "Z")}}]}},
    ],
    ids=["field", "enum", "type", "field in a typed_config", "message"],
)
def test_what_envoy_does_not_know_is_refused(tree: object) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        check(BOOTSTRAP, tree)
