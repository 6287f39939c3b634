from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from eluvix_extproc.config.models import Settings
from eluvix_extproc.core import headers
from eluvix_extproc.core.headers import HeaderSettings, Timing, prompt_headers, timing_headers
from eluvix_extproc.core.record import Sized, Source
from eluvix_extproc.errors import ConfigError
from eluvix_extproc.render import Profile, render
from eluvix_extproc.render.plan import ROUTING_HEADERS, SIDECAR_CLUSTER
from tests.render.real_envoy import assert_valid

Make = Callable[..., Settings]
TLS = Path(__file__).parent / "tls"
SIZED = Sized(model="m", tokens=1, exact=True, prefix_hash="0" * 64, kv_bytes=1024)
DNS_POOL = {"name": "d", "role": "colocated", "cluster": "llm", "workers": {"dns": "decode.llm.svc:8000"}}
VARIANTS: dict[str, dict[str, Any]] = {
    "tcp": {},
    "processes": {"server": {"listen": "0.0.0.0:50051", "processes": 3}},
    "sockets": {"server": {"listen": "unix:/run/eluvix/extproc.sock", "processes": 2}},
    "names": {"envoy": {"extProcHost": "extproc.llm.svc"}, "pools": [DNS_POOL]},
    "large bodies": {"server": {"maxBodyBytes": 1 << 30, "maxHeldBytes": 1 << 30}, "timing": {"maxHold": "2h"}},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("profile", Profile)
def test_real_envoy_accepts_it(profile: Profile, variant: str, settings: Make, tmp_path: Path) -> None:
    assert_valid(render(profile, settings(**VARIANTS[variant])), tmp_path)


@pytest.mark.parametrize("mutual", [False, True])
@pytest.mark.parametrize("host", ["extproc.example", "192.0.2.5"])
def test_real_envoy_accepts_tls_to_the_sidecar(host: str, mutual: bool, settings: Make, tmp_path: Path) -> None:
    tls = {"cert": "/c", "key": "/k", **({"clientCa": "/a"} if mutual else {})}
    text = render(Profile.HYBRID, settings(server={"tls": tls}, envoy={"extProcHost": host}), str(TLS))
    context = cluster(yaml.safe_load(text), SIDECAR_CLUSTER)["transport_socket"]["typed_config"]
    assert context["common_tls_context"]["alpn_protocols"] == ["h2"]
    assert ("tls_certificates" in context["common_tls_context"]) is mutual
    assert_valid(text, tmp_path)


def test_clients_own_routing_headers_go_before_a_route_is_chosen(settings: Make) -> None:
    manager = connection_manager(rendered(settings()))
    assert [each["name"] for each in manager["http_filters"]] == [
        "envoy.filters.http.ext_proc",
        "envoy.filters.http.router",
    ]
    mutations = manager["early_header_mutation_extensions"][0]["typed_config"]["mutations"]
    removed = {each["remove"] for each in mutations}
    assert removed == {
        "x-eluvix-cluster", "x-eluvix-retries", "x-eluvix-pd-role", "x-eluvix-kv-prefix-hash",
        "x-gateway-destination-endpoint", "x-prefiller-host-port", "x-data-parallel-rank",
    }


def test_every_header_that_the_sidecar_sets_for_envoy_is_one_that_clients_cannot(settings: Make) -> None:
    ours = {headers.CLUSTER, headers.ROLE, headers.PREFIX_HASH, headers.DESTINATION, headers.NO_RETRIES[0]}
    assert ours | headers.STEERING == set(ROUTING_HEADERS)


def test_workers_own_copies_of_answer_headers_are_removed(settings: Make) -> None:
    timing = Timing(1.0, Source.MEASURED, 1.0, Source.MEASURED)
    said = [*prompt_headers(HeaderSettings(), "decode", SIZED), *timing_headers(HeaderSettings(), timing)]
    removed = connection_manager(rendered(settings()))["route_config"]["response_headers_to_remove"]
    assert {name for name, _ in said} | {"x-eluvix-decision", "x-eluvix-failopen"} == set(removed)


def test_every_route_waits_for_streams(settings: Make) -> None:
    once, decided, default = routes(rendered(settings()))
    assert once["route"]["cluster_header"] == decided["route"]["cluster_header"] == "x-eluvix-cluster"
    assert default["route"]["cluster"] == "llm-decode"
    assert default["match"] == {"prefix": "/"}
    assert {route["route"]["timeout"] for route in (once, decided, default)} == {"0s"}


def test_only_what_was_decided_whole_is_retried_large_bodies_included_and_never_a_4xx(settings: Make) -> None:
    """A failure of the sidecar within a body would send what is kept for a retry twice."""
    once, decided, default = routes(rendered(settings()))
    matched = [header["name"] for header in once["match"]["headers"]]
    assert matched == ["x-eluvix-cluster", headers.NO_RETRIES[0]]
    assert "retry_policy" not in once["route"]
    assert decided["request_body_buffer_limit"] == 33_554_432
    policy = decided["route"]["retry_policy"]
    assert policy["retriable_status_codes"] == [503]
    assert not {"retriable-4xx", "5xx", "reset"} & set(policy["retry_on"].split(","))
    assert "retry_policy" not in default["route"]


def test_the_default_route_follows_the_configuration(settings: Make) -> None:
    tree = rendered(settings(envoy={"defaultPool": "p"}))
    assert routes(tree)[-1]["route"]["cluster"] == "llm-prefill"


@pytest.mark.parametrize(
    ("profile", "request_body", "response_body"),
    [
        (Profile.HYBRID, "STREAMED", "STREAMED"),
        (Profile.FULL_DUPLEX, "FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"),
        (Profile.BUFFERED, "BUFFERED", "STREAMED"),
    ],
)
def test_each_profile_tells_envoy_its_body_mode(
    profile: Profile, request_body: str, response_body: str, settings: Make
) -> None:
    config = ext_proc(rendered(settings(timing={"maxHold": "90s"}), profile))
    mode = config["processing_mode"]
    assert (mode["request_body_mode"], mode["response_body_mode"]) == (request_body, response_body)
    assert (mode["request_trailer_mode"], mode["response_trailer_mode"]) == ("SEND", "SEND")
    assert config["failure_mode_allow"] is True
    assert config["metadata_options"]["receiving_namespaces"]["untyped"] == ["envoy.lb", "eluvix"]
    if profile is Profile.FULL_DUPLEX:
        assert "message_timeout" not in config
    else:
        assert config["send_body_without_waiting_for_header_response"] is True
        assert config["max_message_timeout"] == "120s"


def test_buffers_and_windows_hold_what_the_sidecar_holds(settings: Make) -> None:
    held = 20 << 20
    tree = rendered(settings(server={"maxHeldBytes": held}))
    assert tree["static_resources"]["listeners"][0]["per_connection_buffer_limit_bytes"] > held
    http2 = connection_manager(tree)["http2_protocol_options"]
    assert http2["initial_connection_window_size"] >= http2["initial_stream_window_size"] > held
    buffered = rendered(settings(), Profile.BUFFERED)["static_resources"]["listeners"][0]
    assert buffered["per_connection_buffer_limit_bytes"] > 33_554_432


def test_one_endpoint_for_each_process(settings: Make) -> None:
    tcp = rendered(settings(server={"listen": "127.0.0.2:7000", "processes": 2}))
    assert endpoints(tcp, SIDECAR_CLUSTER) == [
        {"socket_address": {"address": "127.0.0.2", "port_value": port}} for port in (7000, 7001)
    ]
    sockets = rendered(settings(server={"listen": "unix:/run/e/x.sock", "processes": 2}))
    assert endpoints(sockets, SIDECAR_CLUSTER) == [{"pipe": {"path": f"/run/e/x-{n}.sock"}} for n in range(2)]


def test_workers_are_pinned_by_the_sidecars_list(settings: Make) -> None:
    tree = rendered(settings())
    policy = cluster(tree, "llm-decode")["load_balancing_policy"]["policies"][0]["typed_extension_config"]
    assert policy["typed_config"]["override_host_sources"] == [
        {"metadata": {"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint"}]}},
        {"header": "x-gateway-destination-endpoint"},
    ]
    assert endpoints(tree, "llm-decode") == [
        {"socket_address": {"address": "192.0.2.21", "port_value": 8000}},
        {"socket_address": {"address": "2001:db8::1", "port_value": 80}},
    ]


def test_a_dead_sidecar_leaves_no_host_to_try(settings: Make) -> None:
    sidecar = cluster(rendered(settings()), SIDECAR_CLUSTER)
    assert sidecar["common_lb_config"] == {"healthy_panic_threshold": {"value": 0}}
    assert sidecar["health_checks"][0]["grpc_health_check"] == {}
    options = next(iter(sidecar["typed_extension_protocol_options"].values()))
    assert options["explicit_http_config"]["http2_protocol_options"]["connection_keepalive"]


def test_what_envoy_cannot_be_told_is_said() -> None:
    pool = {"name": "d", "role": "decode", "cluster": SIDECAR_CLUSTER, "workers": {"static": ["192.0.2.1:80"]}}
    with pytest.raises(ConfigError, match=r"pools\[0\].cluster"):
        render("hybrid", Settings.model_validate({"pools": [pool]}))
    with pytest.raises(ConfigError, match=r"server.listen: port 0"):
        render(
            "hybrid",
            Settings.model_validate({"pools": [{**pool, "cluster": "llm"}], "server": {"listen": "127.0.0.1:0"}}),
        )


def rendered(settings: Settings, profile: Profile = Profile.HYBRID) -> Any:
    return yaml.safe_load(render(profile, settings))


def connection_manager(tree: Any) -> Any:
    return tree["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


def routes(tree: Any) -> Any:
    return connection_manager(tree)["route_config"]["virtual_hosts"][0]["routes"]


def ext_proc(tree: Any) -> Any:
    return connection_manager(tree)["http_filters"][0]["typed_config"]


def cluster(tree: Any, name: str) -> Any:
    return next(each for each in tree["static_resources"]["clusters"] if each["name"] == name)


def endpoints(tree: Any, name: str) -> list[Any]:
    return [
        each["endpoint"]["address"]
        for each in cluster(tree, name)["load_assignment"]["endpoints"][0]["lb_endpoints"]
    ]
