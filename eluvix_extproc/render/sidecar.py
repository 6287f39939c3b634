"""The ext_proc filter and the cluster behind it: how Envoy talks to us."""

from __future__ import annotations

import ipaddress

from eluvix_extproc.config.values import split_host_port
from eluvix_extproc.render.plan import SIDECAR_CLUSTER, Plan, Profile
from eluvix_extproc.render.tree import Tree, note
from eluvix_extproc.render.typed import any_of

EXT_PROC = "envoy.filters.http.ext_proc"
TLS_FOLDER = "/etc/envoy/eluvix-tls"
"""Where Envoy finds ca.crt (and tls.crt, tls.key for mutual TLS) when the sidecar serves TLS."""

HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

_FAILURE = {
    Profile.HYBRID: "with the sidecar down, killed or stuck, at any point: the request goes on whole, to the default "
    "pool unless it was steered already",
    Profile.FULL_DUPLEX: "only effective when no healthy sidecar is known before the request (see the health checks "
    "below) or there is no body; once a body message was processed this mode fails closed, whatever is written here",
    Profile.BUFFERED: "with the sidecar down, killed or stuck: the request goes on whole, to the default pool",
}
_BODY_MODES = {
    Profile.HYBRID: ("STREAMED", "STREAMED"),
    Profile.FULL_DUPLEX: ("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"),
    Profile.BUFFERED: ("BUFFERED", "STREAMED"),
}


_READ = (
    ":method",
    ":path",
    ":status",
    "content-type",
    "content-length",
    "content-encoding",
    "upgrade",
    "x-request-id",
    "x-gateway-destination-endpoint",
    "x-prefiller-host-port",
    "x-data-parallel-rank",
)
"""Headers of requests and answers that the sidecar looks at, besides its own and those of `affinity`."""


def ext_proc_filter(plan: Plan, cluster: str = SIDECAR_CLUSTER) -> Tree:
    """An HTTP filter, to stand after whatever authenticates and directly before the router."""
    return {"name": EXT_PROC, "typed_config": ext_proc_config(plan, cluster)}


def ext_proc_config(plan: Plan, cluster: str) -> Tree:
    request_body, response_body = _BODY_MODES[plan.profile]
    read = dict.fromkeys((*_READ, *plan.settings.affinity.session_headers))
    fields: dict[str, Tree] = {
        "grpc_service": _grpc_service(cluster),
        "failure_mode_allow": note(_FAILURE[plan.profile], True),
        "status_on_error": note("where it does fail closed: 503, which clients retry, not 500",
                                {"code": "ServiceUnavailable"}),
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": request_body,
            "request_trailer_mode": note("else the end of a body with trailers is never seen", "SEND"),
            "response_header_mode": "SEND",
            "response_body_mode": response_body,
            "response_trailer_mode": "SEND",
        },
        **_waiting(plan),
        "forward_rules": note(
            "what the sidecar reads; credentials and cookies never leave Envoy, and shorter messages cost less",
            {"allowed_headers": {"patterns": [*({"exact": name} for name in read), {"prefix": "x-eluvix-"}]}},
        ),
        "request_attributes": note("HTTP/2 clients may send trailers behind any body", ["request.protocol"]),
        "response_attributes": note(
            "who answered in the end, which after a retry or a fail-open is not who was chosen",
            ["upstream.address", "upstream.request_attempt_count", "xds.cluster_name"],
        ),
        "metadata_options": note(
            "without envoy.lb the worker pin is silently ignored; eluvix brings ttft_ms and itl_ms to the access log",
            {"receiving_namespaces": {"untyped": ["envoy.lb", "eluvix"]}},
        ),
    }
    return any_of("envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor", **fields)


def sidecar_cluster(plan: Plan, tls_folder: str) -> Tree:
    cluster: dict[str, Tree] = {
        "name": SIDECAR_CLUSTER,
        "type": _discovery(plan),
        "connect_timeout": "0.5s",
        "lb_policy": "LEAST_REQUEST",
        "common_lb_config": note(
            "no healthy process: no host, so that Envoy fails open at once instead of trying dead ones",
            {"healthy_panic_threshold": {"value": 0}},
        ),
        "health_checks": note(
            "a process that drains says NOT_SERVING and gets no new requests",
            [{
                "timeout": "1s",
                "interval": "1s",
                "no_traffic_interval": "1s",
                "unhealthy_threshold": 3,
                "healthy_threshold": 1,
                "grpc_health_check": {},
            }],
        ),
        "outlier_detection": note(
            "between two health checks, a dead process is put aside on its first failed connection",
            {
                "split_external_local_origin_errors": True,
                "consecutive_local_origin_failure": 1,
                "enforcing_consecutive_local_origin_failure": 100,
                "enforcing_success_rate": 0,
                "interval": "1s",
                "base_ejection_time": "5s",
                "max_ejection_percent": 100,
            },
        ),
        "circuit_breakers": note(
            "an exchange is one gRPC stream for as long as it lasts; the default of 1,024 would fail open under load",
            {"thresholds": [{"max_requests": 65536, "max_pending_requests": 65536, "max_connections": 65536}]},
        ),
        "typed_extension_protocol_options": {
            HTTP_OPTIONS: any_of(
                HTTP_OPTIONS,
                explicit_http_config={
                    "http2_protocol_options": {
                        "connection_keepalive": note(
                            "ends the streams of a host that vanished without a FIN, which nothing else would in "
                            "FULL_DUPLEX",
                            {"interval": "5s", "timeout": "2s"},
                        ),
                    },
                },
            ),
        },
        **_transport_socket(plan, tls_folder),
        "load_assignment": {
            "cluster_name": SIDECAR_CLUSTER,
            "endpoints": note(
                "one endpoint for each process: Envoy then spreads evenly, which one shared port does not",
                [{"lb_endpoints": [{"endpoint": {"address": address(where)}} for where in plan.sidecar]}],
            ),
        },
    }
    return cluster


def address(where: str) -> Tree:
    """Envoy's Address of `host:port`, `[v6]:port` or `unix:/path`."""
    if where.startswith("unix:"):
        return {"pipe": {"path": where.removeprefix("unix:")}}
    host, port = split_host_port(where)
    return {"socket_address": {"address": host, "port_value": port}}


def is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _grpc_service(cluster: str) -> Tree:
    return {
        "envoy_grpc": {"cluster_name": cluster},
        "retry_policy": {
            "retry_on": "connect-failure,refused-stream,reset,unavailable",
            "num_retries": note("before the sidecar's first answer, another process takes over", 2),
            "retry_back_off": {"base_interval": "0.01s", "max_interval": "0.1s"},
            **another_host(),
        },
        "initial_metadata": [{"key": "x-request-id", "value": "%REQ(x-request-id)%"}],
    }


def another_host() -> dict[str, Tree]:
    """Fields of a RetryPolicy. Hosts are drawn at random until one is new, so few draws often end on an old one."""
    predicate = {
        "name": "envoy.retry_host_predicates.previous_hosts",
        "typed_config": any_of("envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"),
    }
    return {"retry_host_predicate": [predicate], "host_selection_retry_max_attempts": 20}


def _waiting(plan: Plan) -> dict[str, Tree]:
    if plan.profile is Profile.FULL_DUPLEX:
        return {}    # Envoy runs no message timer in this mode; the sidecar's own deadlines bound every wait.
    message = {
        Profile.HYBRID: "restarts with every message that Envoy sends; longer than a pause in a client's upload. The "
        "sidecar's own deadlines are shorter: this is for a sidecar that hangs",
        Profile.BUFFERED: "the sidecar's own decision deadline is shorter: this is for a sidecar that hangs",
    }[plan.profile]
    return {
        "message_timeout": note(message, f"{plan.message_timeout_s}s"),
        "max_message_timeout": note(
            "lets the sidecar extend its time while it waits for the first token (timing.maxHold and a margin)",
            f"{plan.max_message_timeout_s}s",
        ),
        "send_body_without_waiting_for_header_response": note(
            "headers are held until the body told where to go, and response headers until the first token", True
        ),
    }


def _discovery(plan: Plan) -> str:
    if not plan.sidecar_host or is_ip(plan.sidecar_host):
        return "STATIC"
    return "STRICT_DNS"


def _transport_socket(plan: Plan, tls_folder: str) -> dict[str, Tree]:
    tls = plan.settings.server.tls
    if tls is None:
        return {}
    common: dict[str, Tree] = {
        "alpn_protocols": note("gRPC servers refuse a handshake without it", ["h2"]),
        "validation_context": {"trusted_ca": {"filename": f"{tls_folder}/ca.crt"}, **_expected_name(plan)},
    }
    if tls.client_ca is not None:
        common["tls_certificates"] = note(
            "the sidecar asks for a client certificate (server.tls.clientCa)",
            [{
                "certificate_chain": {"filename": f"{tls_folder}/tls.crt"},
                "private_key": {"filename": f"{tls_folder}/tls.key"},
            }],
        )
    return {
        "transport_socket": {
            "name": "envoy.transport_sockets.tls",
            "typed_config": any_of(
                "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                **({} if not plan.sidecar_host or is_ip(plan.sidecar_host) else {"sni": plan.sidecar_host}),
                common_tls_context=common,
            ),
        },
    }


def _expected_name(plan: Plan) -> dict[str, Tree]:
    host = plan.sidecar_host
    if not host:
        return {}
    kind = "IP_ADDRESS" if is_ip(host) else "DNS"
    return {
        "match_typed_subject_alt_names": note(
            "the certificate must be the sidecar's, not just anyone's of that authority",
            [{"san_type": kind, "matcher": {"exact": host}}],
        ),
    }
