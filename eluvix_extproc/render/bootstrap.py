"""A whole Envoy configuration: one listener, the sidecar in front of the router, one cluster for each pool."""

from __future__ import annotations

from eluvix_extproc.config.models import Settings
from eluvix_extproc.config.values import Listen
from eluvix_extproc.render.plan import ANSWER_HEADERS, ROUTING_HEADERS, Plan, Profile, make_plan
from eluvix_extproc.render.pools import pool_cluster
from eluvix_extproc.render.sidecar import (
    EXT_PROC,
    TLS_FOLDER,
    address,
    another_host,
    ext_proc_filter,
    sidecar_cluster,
)
from eluvix_extproc.render.tree import Tree, dump, note
from eluvix_extproc.render.typed import BOOTSTRAP, any_of, check

_ABOUT = {
    Profile.HYBRID: "HYBRID: bodies stream past the sidecar, which holds only the headers. Loses nothing when the "
    "sidecar fails. Start here.",
    Profile.FULL_DUPLEX: "FULL_DUPLEX: bodies stream through the sidecar. For gateways that impose it; a request that "
    "is under way when the sidecar fails is lost.",
    Profile.BUFFERED: "BUFFERED: Envoy collects the whole request body first. For Envoys or policies that allow "
    "nothing else.",
}


def render(profile: Profile | str, settings: Settings, tls_folder: str = TLS_FOLDER) -> str:
    """A complete, commented bootstrap as YAML. Raises ConfigError when Envoy cannot be told what `settings` say.

    `tls_folder` is where Envoy, not the sidecar, finds ca.crt, tls.crt and tls.key.
    """
    profile = Profile(profile)
    tree = bootstrap(make_plan(profile, settings), tls_folder)
    check(BOOTSTRAP, tree)
    header = (
        f"Envoy with Eluvix ext_proc, {_ABOUT[profile]}\n\n"
        f"Written by `eluvix-extproc render {profile}`; change the configuration it was rendered from and render "
        "again.\nFor Envoy 1.36 and later."
    )
    return dump(tree, header)


def bootstrap(plan: Plan, tls_folder: str) -> Tree:
    clusters = [sidecar_cluster(plan, tls_folder), *(pool_cluster(pool) for pool in plan.settings.pools)]
    return {
        "admin": note("keep it off the network: it can stop Envoy", {"address": _listens(plan.settings.envoy.admin)}),
        "static_resources": {"listeners": [_listener(plan)], "clusters": clusters},
    }


def without_client_headers() -> Tree:
    """Fields of a connection manager that remove clients' own routing headers.

    Not a header_mutation filter: Envoy chooses the route before it runs any filter, so that a client's
    `x-eluvix-cluster` would steer every request for which the sidecar does not have the route chosen again, which are
    those that pass it untouched and those that fail open.
    """
    return {
        "early_header_mutation_extensions": note(
            "clients may not steer themselves. As an HTTP filter this would come too late: the route is chosen before",
            [{
                "name": "envoy.http.early_header_mutation.header_mutation",
                "typed_config": any_of(
                    "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
                    mutations=[{"remove": name} for name in ROUTING_HEADERS],
                ),
            }],
        ),
    }


def routes(plan: Plan) -> list[Tree]:
    body_limit = note(
        "the largest body that a retry can repeat (server.maxBodyBytes); at the default of 1 MiB larger ones are not",
        plan.settings.server.max_body_bytes,
    )
    decided: Tree = {"name": "x-eluvix-cluster", "present_match": True}
    goes_on: Tree = {"name": "x-eluvix-retries", "present_match": True}
    return [
        note(
            "decided, but more of the body follows: not repeated, for when the sidecar fails in the middle of a body, "
            "Envoy sends what it keeps for a retry a second time (envoy#45470)",
            {
                "match": {"prefix": "/", "headers": [decided, goes_on]},
                "route": {"cluster_header": "x-eluvix-cluster", **_waits(plan)},
            },
        ),
        note(
            "decided: the sidecar has set the cluster and cleared the route cache",
            {
                "match": {"prefix": "/", "headers": [decided]},
                "route": {"cluster_header": "x-eluvix-cluster", **_waits(plan), "retry_policy": _retry_policy()},
                "request_body_buffer_limit": body_limit,
            },
        ),
        note(
            "not decided: no LLM request, or failed open",
            {
                "match": {"prefix": "/"},
                "route": note(
                    "no retry_policy, for the same reason",
                    {"cluster": plan.settings.default_pool().cluster, **_waits(plan)},
                ),
            },
        ),
    ]


def access_log() -> Tree:
    """One JSON object a request on standard output. No bodies and no client credentials."""
    return {
        "name": "envoy.access_loggers.stdout",
        "typed_config": any_of(
            "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
            log_format={
                "json_format": {
                    "time": "%START_TIME%",
                    "request_id": "%REQ(x-request-id)%",
                    "method": "%REQ(:method)%",
                    "path": "%PATH(NQ)%",
                    "code": "%RESPONSE_CODE%",
                    "details": "%RESPONSE_CODE_DETAILS%",
                    "flags": "%RESPONSE_FLAGS%",
                    "role": "%REQ(x-eluvix-pd-role)%",
                    "cluster": "%UPSTREAM_CLUSTER_RAW%",
                    "upstream": "%UPSTREAM_HOST%",
                    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
                    "tokens": "%RESP(x-eluvix-tokens)%",
                    "ttft_ms": "%DYNAMIC_METADATA(eluvix:ttft_ms)%",
                    "itl_ms": "%DYNAMIC_METADATA(eluvix:itl_ms)%",
                    "failed_open": f"%FILTER_STATE({EXT_PROC}:FIELD:failed_open)%",
                    "bytes_in": "%BYTES_RECEIVED%",
                    "bytes_out": "%BYTES_SENT%",
                    "duration_ms": "%DURATION%",
                },
            },
        ),
    }


def _listener(plan: Plan) -> Tree:
    return {
        "name": "llm",
        "address": _listens(plan.settings.envoy.listen),
        "per_connection_buffer_limit_bytes": note(_buffer_reason(plan), plan.buffer_bytes),
        "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": _connection_manager(plan),
        }]}],
    }


def _listens(where: Listen) -> Tree:
    return address(str(where))


def _buffer_reason(plan: Plan) -> str:
    if plan.profile is Profile.BUFFERED:
        return "above server.maxBodyBytes, so that it is the sidecar that refuses, in the API's own error shape"
    return "above server.maxHeldBytes: Envoy stops reading here, and the sidecar reads that much before it answers"


def _connection_manager(plan: Plan) -> Tree:
    return any_of(
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="llm",
        use_remote_address=note("at the edge; behind another proxy: false, or xff_num_trusted_hops", True),
        stream_idle_timeout=note(
            "the only timer that always ends a stuck exchange; longer than an engine's longest silence",
            f"{plan.idle_timeout_s}s",
        ),
        http2_protocol_options={
            "initial_stream_window_size": note("the same, for HTTP/2 clients", plan.stream_window_bytes),
            "initial_connection_window_size": note(
                "so that one client's held requests do not stop its others", plan.connection_window_bytes
            ),
        },
        upgrade_configs=note("such as /v1/realtime", [{"upgrade_type": "websocket"}]),
        access_log=[access_log()],
        **without_client_headers(),
        http_filters=[
            ext_proc_filter(plan),
            {
                "name": "envoy.filters.http.router",
                "typed_config": any_of("envoy.extensions.filters.http.router.v3.Router"),
            },
        ],
        route_config={
            "name": "llm",
            "virtual_hosts": [{"name": "llm", "domains": ["*"], "routes": routes(plan)}],
            "response_headers_to_remove": note("a worker's own copies of what the sidecar says", list(ANSWER_HEADERS)),
        },
    )


def _waits(plan: Plan) -> dict[str, Tree]:
    return {
        "timeout": note("the default of 15 s cuts streams short", "0s"),
        "idle_timeout": f"{plan.idle_timeout_s}s",
    }


def _retry_policy() -> Tree:
    return {
        "retry_on": note(
            "not `reset`: a request that crashes its worker would go on to crash the next. Never a 4xx",
            "connect-failure,refused-stream,reset-before-request,retriable-status-codes",
        ),
        "retriable_status_codes": [503],
        "num_retries": note("each takes the next worker of the sidecar's list", 2),
        "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.25s"},
        **another_host(),
    }
