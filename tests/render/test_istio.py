"""Istio itself does not run here. Its part, applying an EnvoyFilter's patches to the Envoy configuration that it
generates, is played by the few lines at the end; the result is judged by real Envoy."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from eluvix_extproc.config.load import load
from eluvix_extproc.config.models import Settings
from eluvix_extproc.errors import ConfigError
from eluvix_extproc.render.istio import render_istio
from eluvix_extproc.render.istio_target import IstioTarget
from eluvix_extproc.render.plan import ANSWER_HEADERS
from tests.render.real_envoy import assert_valid

FOLDER = Path(__file__).parents[2] / "envoy/istio"
MANAGER = "envoy.filters.network.http_connection_manager"
MANAGER_TYPE = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
CLUSTERS = {
    "outbound|50051||eluvix-extproc.llm.svc.cluster.local": ("eluvix-extproc.llm.svc.cluster.local", 50051),
    "outbound|8000||llm-prefill.llm.svc.cluster.local": ("llm-prefill.llm.svc.cluster.local", 8000),
    "outbound|8000||llm-decode.llm.svc.cluster.local": ("llm-decode.llm.svc.cluster.local", 8000),
}
ROUTES = ["eluvix-prefill-once", "eluvix-prefill", "eluvix-decode-once", "eluvix-decode", "eluvix-default"]


def test_real_envoy_accepts_the_gateway_after_every_patch(tmp_path: Path) -> None:
    gateway = patched_gateway()
    manager = gateway["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    assert [each["name"] for each in manager["http_filters"]] == [
        "envoy.filters.http.jwt_authn",
        "envoy.filters.http.ext_proc",
        "envoy.filters.http.router",
    ]
    early = manager["early_header_mutation_extensions"][0]["typed_config"]["mutations"]
    assert {"remove": "x-eluvix-cluster"} in early
    assert_valid(yaml.safe_dump(gateway), tmp_path)


def test_the_filter_names_the_cluster_that_istio_makes_of_the_service() -> None:
    ext_proc = patched_gateway_filter("envoy.filters.http.ext_proc")
    service, rule = document("service.yaml"), document("destinationrule.yaml")
    port = service["spec"]["ports"][0]
    host = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc.cluster.local"
    assert ext_proc["grpc_service"]["envoy_grpc"]["cluster_name"] == f"outbound|{port['port']}||{host}"
    assert rule["spec"]["host"] == host
    assert port["name"] == "grpc"
    assert ext_proc["processing_mode"]["request_body_mode"] == "STREAMED"
    assert ext_proc["failure_mode_allow"] is True


def test_routes_follow_the_sidecars_header_and_end_in_a_catch_all() -> None:
    *decided, default = document("virtualservice.yaml")["spec"]["http"]
    assert [each["name"] for each in [*decided, default]] == ROUTES
    for route in decided:
        cluster = route["match"][0]["headers"]["x-eluvix-cluster"]["exact"]
        destination = route["route"][0]["destination"]
        assert CLUSTERS[cluster] == (destination["host"], destination["port"]["number"])
        once = route["match"][0]["headers"].get("x-eluvix-retries")
        assert (once == {"exact": "off"}) == route["name"].endswith("-once")
        assert (route["retries"]["attempts"] == 0) == route["name"].endswith("-once")
    assert "match" not in default
    assert default["retries"] == {"attempts": 0}
    assert all(each["headers"]["response"]["remove"] == list(ANSWER_HEADERS) for each in [*decided, default])
    assert default["route"][0]["destination"]["host"] == "llm-decode.llm.svc.cluster.local"
    assert {each["timeout"] for each in [*decided, default]} == {"0s"}


def test_the_workload_runs_without_privileges_and_outlives_its_streams() -> None:
    pod = document("deployment.yaml")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    config = settings_of(document("configmap.yaml")["data"]["extproc.yaml"])
    assert pod["terminationGracePeriodSeconds"] > config.server.drain_timeout
    assert container["readinessProbe"]["grpc"] == {"port": config.server.listen.port, "service": "readiness"}


def test_the_config_map_holds_the_configuration_it_was_rendered_from() -> None:
    assert settings_of(document("configmap.yaml")["data"]["extproc.yaml"]) == load(FOLDER / "example.yaml", {})


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"server": {"listen": "unix:/run/x.sock"}}, "server.listen"),
        ({"server": {"listen": "127.0.0.1:50051"}}, "server.listen"),
        ({"server": {"processes": 2}}, "server.processes"),
        ({"server": {"tls": {"cert": "/c", "key": "/k"}}}, "server.tls"),
        ({"pools": [{"name": "d", "role": "decode", "cluster": "llm", "workers": {"dns": "d.llm.svc:80"}}]},
         r"must be outbound\|80\|\|d.llm.svc"),
    ],
)
def test_what_does_not_fit_istio_is_said(sections: dict[str, Any], words: str) -> None:
    base = yaml.safe_load((FOLDER / "example.yaml").read_text())
    with pytest.raises(ConfigError, match=words):
        render_istio(Settings.model_validate(base | sections), IstioTarget())


def document(name: str) -> Any:
    return next(yaml.safe_load_all((FOLDER / name).read_text()))


def settings_of(text: str) -> Settings:
    return Settings.model_validate(yaml.safe_load(text))


def patched_gateway_filter(name: str) -> Any:
    manager = patched_gateway()["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    return next(each["typed_config"] for each in manager["http_filters"] if each["name"] == name)


def patched_gateway() -> Any:
    """A gateway as Istio would generate it, with the EnvoyFilter's patches applied."""
    gateway = copy.deepcopy(GATEWAY)
    listener = gateway["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]
    routes = manager["typed_config"]["route_config"]["virtual_hosts"][0]["routes"]
    for patch in document("envoyfilter.yaml")["spec"]["configPatches"]:
        match, value = patch["match"], patch["patch"]["value"]
        assert match["context"] == "GATEWAY"
        if patch["applyTo"] == "HTTP_FILTER":
            assert patch["patch"]["operation"] == "INSERT_BEFORE"
            filters = manager["typed_config"]["http_filters"]
            wanted = match["listener"]["filterChain"]["filter"]["subFilter"]["name"]
            filters.insert([each["name"] for each in filters].index(wanted), value)
        elif patch["applyTo"] == "NETWORK_FILTER":
            merge(manager, value)
        elif patch["applyTo"] == "LISTENER":
            merge(listener, value)
        elif patch["applyTo"] == "HTTP_ROUTE":
            name = match["routeConfiguration"]["vhost"]["route"]["name"]
            merge(next(each for each in routes if each["name"] == name), value)
        else:
            assert patch["applyTo"] == "CLUSTER"
            wanted = (match["cluster"]["service"], match["cluster"]["portNumber"])
            name = next(name for name, where in CLUSTERS.items() if where == wanted)
            merge(next(each for each in gateway["static_resources"]["clusters"] if each["name"] == name), value)
    return gateway


def merge(into: dict[str, Any], value: dict[str, Any]) -> None:
    for key, child in value.items():
        if isinstance(child, dict) and isinstance(into.get(key), dict):
            merge(into[key], child)
        else:
            into[key] = child


GATEWAY: dict[str, Any] = {
    "static_resources": {
        "listeners": [{
            "name": "0.0.0.0_8080",
            "address": {"socket_address": {"address": "0.0.0.0", "port_value": 8080}},
            "filter_chains": [{"filters": [{
                "name": MANAGER,
                "typed_config": {
                    "@type": MANAGER_TYPE,
                    "stat_prefix": "outbound_0.0.0.0_8080",
                    "http_filters": [
                        {"name": "envoy.filters.http.jwt_authn", "typed_config": {
                            "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
                        }},
                        {"name": "envoy.filters.http.router", "typed_config": {
                            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                        }},
                    ],
                    "route_config": {"name": "http.8080", "virtual_hosts": [{
                        "name": "*:8080",
                        "domains": ["*"],
                        "routes": [
                            {"name": name, "match": {"prefix": "/"}, "route": {"cluster": list(CLUSTERS)[-1]}}
                            for name in ROUTES
                        ],
                    }]},
                },
            }]}],
        }],
        "clusters": [
            {
                "name": name,
                "type": "STATIC",
                "lb_policy": "LEAST_REQUEST",
                "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
                "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [
                    {"endpoint": {"address": {"socket_address": {"address": "192.0.2.1", "port_value": port}}}},
                ]}]},
            }
            for name, (_, port) in CLUSTERS.items()
        ],
    },
}
