"""The clusters that requests are steered to, one for each pool."""

from __future__ import annotations

from eluvix_extproc.config.models import PoolSettings
from eluvix_extproc.render.sidecar import HTTP_OPTIONS, address
from eluvix_extproc.render.tree import Tree, note
from eluvix_extproc.render.typed import any_of

PIN = "x-gateway-destination-endpoint"


def pool_cluster(pool: PoolSettings) -> Tree:
    discovery, addresses = _workers(pool)
    return {
        "name": pool.cluster,
        **discovery,
        "connect_timeout": "1s",
        "load_balancing_policy": override_host_policy(),
        "health_checks": note(
            "for requests without a pin; a pin ignores them, so the sidecar keeps its own view of who is well",
            [{
                "timeout": "2s",
                "interval": "5s",
                "no_traffic_interval": "5s",
                "unhealthy_threshold": 3,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/health"},
            }],
        ),
        "outlier_detection": note(
            "5 consecutive 5xx answers (the default), or 3 resets or refused connections; a 4xx is the client's fault "
            "and never counts",
            {
                "split_external_local_origin_errors": True,
                "consecutive_local_origin_failure": 3,
                "enforcing_consecutive_local_origin_failure": 100,
                "enforcing_success_rate": 0,
                "enforcing_local_origin_success_rate": 0,
                "interval": "2s",
                "base_ejection_time": "5s",
                "max_ejection_percent": 50,
            },
        ),
        "circuit_breakers": note(
            "streams last for minutes: the defaults of 1,024 requests and 3 retries are too few",
            {
                "thresholds": [{
                    "max_connections": 65536,
                    "max_pending_requests": 65536,
                    "max_requests": 65536,
                    "retry_budget": {"budget_percent": {"value": 20}, "min_retry_concurrency": 20},
                }],
            },
        ),
        "typed_extension_protocol_options": {
            HTTP_OPTIONS: any_of(
                HTTP_OPTIONS,
                common_http_protocol_options=note(
                    "shorter than the engines' own 5 s, else a request meets a connection that they are just closing",
                    {"idle_timeout": "4s"},
                ),
                explicit_http_config={"http_protocol_options": {"enable_trailers": True}},
            ),
        },
        "upstream_connection_options": {
            "tcp_keepalive": {"keepalive_probes": 3, "keepalive_time": 30, "keepalive_interval": 10},
        },
        "load_assignment": {
            "cluster_name": pool.cluster,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(where)}} for where in addresses]}],
        },
    }


def override_host_policy() -> Tree:
    """A LoadBalancingPolicy: the worker that the sidecar names, else the least loaded."""
    return {"policies": [{"typed_extension_config": _override_host()}]}


def _override_host() -> Tree:
    return {
        "name": "envoy.load_balancing_policies.override_host",
        "typed_config": any_of(
            "envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost",
            override_host_sources=note(
                "the sidecar's ordered list of workers: each retry takes the next one",
                [{"metadata": {"key": "envoy.lb", "path": [{"key": PIN}]}}, {"header": PIN}],
            ),
            fallback_policy=note(
                "no pin, or none of it is in this cluster",
                {
                    "policies": [{
                        "typed_extension_config": {
                            "name": "envoy.load_balancing_policies.least_request",
                            "typed_config": any_of(
                                "envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest"
                            ),
                        },
                    }],
                },
            ),
        ),
    }


def _workers(pool: PoolSettings) -> tuple[dict[str, Tree], list[str]]:
    if pool.workers.dns is not None:
        return {
            "type": "STRICT_DNS",
            "dns_lookup_family": "V4_PREFERRED",
        }, [pool.workers.dns]
    return {"type": "STATIC"}, list(pool.workers.static or ())
