"""Manifests that attach the sidecar to an Istio gateway that is already there.

Istio builds Envoy's listeners, routes and clusters itself, so what a bootstrap says in one place is said here in
several: an EnvoyFilter for what Istio has no word for, a VirtualService for the routes, DestinationRules for the
clusters. Steering works through the VirtualService: the sidecar sets `x-eluvix-cluster` and has the route chosen again.
"""

from __future__ import annotations

from eluvix_extproc.config.models import PoolSettings, Settings
from eluvix_extproc.config.values import split_host_port
from eluvix_extproc.errors import ConfigError
from eluvix_extproc.render.bootstrap import without_client_headers
from eluvix_extproc.render.istio_target import IstioTarget
from eluvix_extproc.render.istio_workload import config_map, deployment, service
from eluvix_extproc.render.plan import ANSWER_HEADERS, Plan, Profile, make_plan
from eluvix_extproc.render.pools import override_host_policy
from eluvix_extproc.render.sidecar import ext_proc_filter
from eluvix_extproc.render.tree import Tree, dump_documents, note
from eluvix_extproc.render.typed import any_of, check

_CLUSTER = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
_HTTP_FILTER = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter"
_LISTENER = "type.googleapis.com/envoy.config.listener.v3.Listener"
_ROUTE = "type.googleapis.com/envoy.config.route.v3.Route"
_CONNECTION_MANAGER = "envoy.filters.network.http_connection_manager"
_HEADER = (
    "{}\n\nWritten by `eluvix-extproc render istio`; change the configuration it was rendered from and render again."
)


def render_istio(settings: Settings, target: IstioTarget) -> dict[str, str]:
    """Manifests by file name, in the order in which to apply them.

    Raises ConfigError when the configuration does not fit Istio, with what to write instead.
    """
    _refuse_unfit(settings)
    plan = make_plan(Profile.HYBRID, settings)
    documents: dict[str, tuple[str, list[Tree]]] = {
        "configmap.yaml": ("The sidecar's configuration.", [config_map(settings, target)]),
        "deployment.yaml": ("The sidecar itself. Scale it by replicas.", [deployment(settings, target)]),
        "service.yaml": ("Where the gateway reaches the sidecar.", [service(settings, target)]),
        "destinationrule.yaml": (
            "How the gateway treats the sidecar and the pools: connections, and who is put aside when.",
            [_sidecar_rule(target), *(_pool_rule(pool, target) for pool in settings.pools)],
        ),
        "envoyfilter.yaml": (
            "What the gateway's Envoy needs that Istio has no word for. Needs Istio 1.28 or later.",
            [envoy_filter(plan, target)],
        ),
        "virtualservice.yaml": (
            "Where requests go. Merge the routes into yours if these hosts have a VirtualService already.",
            [_virtual_service(settings, target)],
        ),
    }
    return {name: dump_documents(trees, _HEADER.format(about)) for name, (about, trees) in documents.items()}


def istio_cluster(pool: PoolSettings) -> str:
    """The name that Istio gives to the pool's cluster. Raises ConfigError for a pool without a DNS name."""
    host, port = _destination(pool)
    return f"outbound|{port}||{host}"


def envoy_filter(plan: Plan, target: IstioTarget) -> Tree:
    return {
        "apiVersion": "networking.istio.io/v1alpha3",
        "kind": "EnvoyFilter",
        "metadata": {"name": target.name, "namespace": target.gateway_namespace},
        "spec": {
            "workloadSelector": {"labels": dict([target.gateway_label])},
            "configPatches": [
                _filter(plan, target),
                *_around_it(plan),
                *(_pin_patch(pool) for pool in plan.settings.pools),
            ],
        },
    }


def _filter(plan: Plan, target: IstioTarget) -> Tree:
    value = ext_proc_filter(plan, target.sidecar_cluster)
    check(_HTTP_FILTER, value)
    router = {"name": _CONNECTION_MANAGER, "subFilter": {"name": "envoy.filters.http.router"}}
    return note(
        "directly before the router, so that what authenticates and limits comes first",
        {
            "applyTo": "HTTP_FILTER",
            "match": {"context": "GATEWAY", "listener": {"filterChain": {"filter": router}}},
            "patch": {"operation": "INSERT_BEFORE", "value": value},
        },
    )


def _around_it(plan: Plan) -> list[Tree]:
    listener = {
        "per_connection_buffer_limit_bytes": note(
            "above server.maxHeldBytes: Envoy stops reading here, and the sidecar reads that much before it answers",
            plan.buffer_bytes,
        ),
    }
    manager = {
        "name": _CONNECTION_MANAGER,
        "typed_config": any_of(
            "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            stream_idle_timeout=note(
                "the only timer that always ends a stuck exchange; longer than an engine's longest silence",
                f"{plan.idle_timeout_s}s",
            ),
            http2_protocol_options={
                "initial_stream_window_size": plan.stream_window_bytes,
                "initial_connection_window_size": plan.connection_window_bytes,
            },
            **without_client_headers(),
        ),
    }
    route = {
        "request_body_buffer_limit": note(
            "the largest body that a retry can repeat (server.maxBodyBytes)", plan.settings.server.max_body_bytes
        ),
    }
    check(_LISTENER, listener)
    check(_ROUTE, route)
    check("type.googleapis.com/envoy.config.listener.v3.Filter", manager)
    return [
        {"applyTo": "LISTENER", "match": {"context": "GATEWAY"}, "patch": {"operation": "MERGE", "value": listener}},
        {
            "applyTo": "NETWORK_FILTER",
            "match": {"context": "GATEWAY", "listener": {"filterChain": {"filter": {"name": _CONNECTION_MANAGER}}}},
            "patch": {"operation": "MERGE", "value": manager},
        },
        *(
            {
                "applyTo": "HTTP_ROUTE",
                "match": {"context": "GATEWAY", "routeConfiguration": {"vhost": {"route": {"name": name}}}},
                "patch": {"operation": "MERGE", "value": route},
            }
            for name in _route_names(plan.settings)
        ),
    ]


def _pin_patch(pool: PoolSettings) -> Tree:
    host, port = _destination(pool)
    value = {"load_balancing_policy": override_host_policy()}
    check(_CLUSTER, value)
    return note(
        f"pool {pool.name}: the sidecar names the worker; Istio's own balancing is for requests without a pin",
        {
            "applyTo": "CLUSTER",
            "match": {"context": "GATEWAY", "cluster": {"service": host, "portNumber": port}},
            "patch": {"operation": "MERGE", "value": value},
        },
    )


def _virtual_service(settings: Settings, target: IstioTarget) -> Tree:
    *decided, default = _route_names(settings)
    routes: list[Tree] = []
    for name, pool in zip(decided, settings.pools, strict=True):
        steered = {"x-eluvix-cluster": {"exact": istio_cluster(pool)}}
        goes_on = {**steered, "x-eluvix-retries": {"exact": "off"}}
        routes += [
            {
                "name": f"{name}-once",
                "match": [{"headers": goes_on}],
                **_towards(pool),
                "retries": note("more of the body follows its decision", {"attempts": 0}),
            },
            {"name": name, "match": [{"headers": steered}], **_towards(pool)},
        ]
    fallback = {"name": default, **_towards(settings.default_pool()), "retries": _NO_RETRIES}
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": {"name": target.name, "namespace": target.namespace},
        "spec": {
            "hosts": list(target.hosts),
            "gateways": [target.gateway],
            "http": [*routes, note("not decided: no LLM request, or failed open", fallback)],
        },
    }


_NO_RETRIES = note(
    "when the sidecar fails in the middle of a body, Envoy sends what it keeps for a retry a second time (envoy#45470)",
    {"attempts": 0},
)


def _towards(pool: PoolSettings) -> dict[str, Tree]:
    host, port = _destination(pool)
    return {
        "route": [{"destination": {"host": host, "port": {"number": port}}}],
        "timeout": "0s",
        "headers": {"response": {"remove": list(ANSWER_HEADERS)}},
        "retries": {"attempts": 2, "retryOn": "connect-failure,refused-stream,reset-before-request,503"},
    }


def _sidecar_rule(target: IstioTarget) -> Tree:
    return _rule(
        target.name,
        target,
        target.sidecar_host,
        {
            "connectionPool": {"tcp": {"connectTimeout": "0.5s"}, "http": {"h2UpgradePolicy": "UPGRADE"}},
            "loadBalancer": {"simple": "LEAST_REQUEST"},
            "outlierDetection": note(
                "a dead replica is put aside on its first failed connection, all of them if need be: the gateway then "
                "fails open at once",
                {
                    "splitExternalLocalOriginErrors": True,
                    "consecutiveLocalOriginFailures": 1,
                    "interval": "1s",
                    "baseEjectionTime": "5s",
                    "maxEjectionPercent": 100,
                    "minHealthPercent": 0,
                },
            ),
        },
    )


def _pool_rule(pool: PoolSettings, target: IstioTarget) -> Tree:
    return _rule(
        f"{target.name}-{pool.name.lower().replace('_', '-').rstrip('-.')}",
        target,
        _destination(pool)[0],
        {
            "connectionPool": {
                "tcp": {"connectTimeout": "1s"},
                "http": {
                    "idleTimeout": note(
                        "shorter than the engines' own 5 s, else a request meets a connection that they just close",
                        "4s",
                    ),
                },
            },
            "loadBalancer": {
                "simple": "LEAST_REQUEST",
                "localityLbSetting": note(
                    "Envoy refuses a cluster that has both locality weights and the pin's own policy",
                    {"enabled": False},
                ),
            },
            "outlierDetection": note(
                "5xx answers, resets and refused connections count; a 4xx is the client's fault and never does",
                {
                    "splitExternalLocalOriginErrors": True,
                    "consecutive5xxErrors": 5,
                    "consecutiveLocalOriginFailures": 3,
                    "interval": "2s",
                    "baseEjectionTime": "5s",
                    "maxEjectionPercent": 50,
                },
            ),
        },
    )


def _rule(name: str, target: IstioTarget, host: str, policy: Tree) -> Tree:
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "DestinationRule",
        "metadata": {"name": name, "namespace": target.namespace},
        "spec": {"host": host, "trafficPolicy": policy},
    }


def _route_names(settings: Settings) -> list[str]:
    return [*(f"eluvix-{pool.name}" for pool in settings.pools), "eluvix-default"]


def _destination(pool: PoolSettings) -> tuple[str, int]:
    if pool.workers.dns is None:
        raise ConfigError([f"pool {pool.name}: Istio finds workers by Service; give workers.dns, not static"])
    return split_host_port(pool.workers.dns)


def _refuse_unfit(settings: Settings) -> None:
    problems = []
    server = settings.server
    if server.listen.unix or not server.listen.wildcard:
        problems.append("server.listen: the gateway reaches the sidecar through a Service; listen on 0.0.0.0 or [::]")
    if server.processes > 1:
        problems.append("server.processes: a Service is one endpoint a pod; leave it at 1 and scale by replicas")
    if server.tls is not None:
        problems.append("server.tls: the mesh's own mutual TLS covers this way; leave it out")
    for n, pool in enumerate(settings.pools):
        if pool.workers.dns is None:
            problems.append(f"pools[{n}].workers: Istio finds workers by Service; give dns, not static")
        elif pool.cluster != istio_cluster(pool):
            problems.append(f"pools[{n}].cluster: must be {istio_cluster(pool)}, the name that Istio gives it")
    if problems:
        raise ConfigError(problems)
