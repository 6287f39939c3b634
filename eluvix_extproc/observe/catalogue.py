"""Every metric in one table: what the process exposes and what docs/metrics.md says are both made from it.

Prometheus base units (seconds, bytes). Label values come from closed sets or from the configuration; request ids,
hashes and whatever a client wrote are never labels.

Bucket bounds of `gen_ai_*` are those of the OpenTelemetry semantic conventions for generative AI metrics (document
"gen-ai-metrics", v1.37), so that dashboards made for other servers fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eluvix_extproc.core.fleet import Role
from eluvix_extproc.core.record import Outcome

NONE = "none"
ROLES = (*Role, NONE)
SERVING = ("gen_ai_request_model", "role", "pool")

# As wire.h2_server tells them.
CONNECTION_FAULTS = (
    "rapid_reset", "stream_errors", "ping_flood", "settings_flood", "empty_data_flood", "idle_frame_flood",
    "continuation_flood", "zero_window", "handshake_timeout", "enhance_your_calm", "protocol_error", "internal_error",
    "flow_control_error", "settings_timeout", "stream_closed", "frame_size_error", "refused_stream", "cancel",
    "compression_error",
)  # fmt: skip

_TOKEN_BOUNDS = tuple(float(4**exponent) for exponent in range(14))
_PROMPT_BOUNDS = (64.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131072.0, 262144.0,
                  1048576.0)
_TTFT_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_ITL_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_DURATION_BOUNDS = tuple(round(0.01 * 2**exponent, 2) for exponent in range(14))
_DECISION_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_ERROR_BOUNDS = (0.0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """`values` holds the closed set of each label's values, or () for one that the configuration bounds; a metric
    whose labels are all closed shows each of its series from the start, so that the first event is an increase."""

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    tells: str
    action: str
    labels: tuple[str, ...] = ()
    values: tuple[tuple[str, ...], ...] = ()
    bounds: tuple[float, ...] = ()


CATALOGUE: tuple[Metric, ...] = (
    Metric(
        "eluvix_requests_total", "counter",
        "Finished exchanges by the role that was chosen (`none`: no decision was taken) and how they ended.",
        "The traffic and its health. A rise of `upstream_error` is the workers' or Envoy's route; of `internal` a "
        "defect here: report it with the log line; of `cancelled` clients that give up, look at TTFT.",
        ("role", "outcome"), (ROLES, tuple(Outcome)),
    ),
    Metric(
        "eluvix_decision_seconds", "histogram",
        "Time from a request's arrival to our answer to its headers, its body's arrival included.",
        "What the sidecar adds before a worker sees the request. If it rises with idle CPU, clients upload slowly; "
        "with busy CPU, raise `server.processes`; near `server.decisionTimeout`, see `eluvix_failopen_total`.",
        bounds=_DECISION_BOUNDS,
    ),
    Metric(
        "eluvix_prompt_tokens", "histogram",
        "Prompt tokens of the requests that were read, by how they were counted.",
        "Choose `switchyard.prefillIsolationThresholdTokens` from it. Much `estimate` means a model without a "
        "tokenizer file, or bodies beyond `server.maxHeldBytes`.",
        ("source",), (("exact", "estimate"),), _PROMPT_BOUNDS,
    ),
    Metric(
        "eluvix_prompt_token_error_ratio", "histogram",
        "|our count - usage.prompt_tokens| / usage.prompt_tokens, where the answer told its usage, by the configured "
        "model (`none`: another name).",
        "For `exact` all of it belongs in `le=\"0\"`, see `eluvix_prompt_token_mismatches_total`. For `estimate` the "
        "median falls under 0.05 within some fifty answers of a model; if it stays above the distance of prompts from "
        "the isolation threshold, give that model its tokenizer file.",
        ("model", "source"), ((), ("exact", "estimate")), _ERROR_BOUNDS,
    ),
    Metric(
        "eluvix_prompt_token_mismatches_total", "counter",
        "Answers whose usage.prompt_tokens differs from a count that we called exact, by the configured model (`none`: "
        "another name).",
        "Alert when it rises: the tokenizer, the chat template or an option of the engine is not what is configured "
        "for that model, docs/tokens.md lists the candidates. The log names the model and both counts.",
        ("model",), ((),),
    ),
    Metric(
        "eluvix_isolations_total", "counter",
        "Requests kept away from the decode workers as heavy prefills, by the role that took them.",
        "Its share of `eluvix_requests_total` is how much of the traffic is heavy. Zero with long prompts about: the "
        "threshold is too high or no prefill worker is ready.",
        ("role",), (tuple(Role),),
    ),
    Metric(
        "eluvix_prefix_lookups_total", "counter",
        "Decisions by whether the chosen worker was believed to hold a prefix of the prompt (`unknown`: nothing of "
        "the prompt could be hashed).",
        "hit / (hit + miss) is the affinity's worth. If it falls, conversations are spread by load, the index is too "
        "small (see `eluvix_prefix_index_bytes`), or the traffic repeats little.",
        ("result",), (("hit", "miss", "unknown"),),
    ),
    Metric(
        "eluvix_prefix_cached_tokens_total", "counter",
        "Prompt tokens found in KV cache: `predicted` for every decision, `delivered` as told by "
        "`usage.prompt_tokens_details.cached_tokens`, `checked` the predictions of just those exchanges whose answer "
        "told what was delivered.",
        "delivered / checked should be near 1. Well below: workers evict what we believe they hold, or another "
        "router steers them too. Without `delivered`, start vLLM with `--enable-prompt-tokens-details`.",
        ("kind",), (("predicted", "delivered", "checked"),),
    ),
    Metric(
        "eluvix_failopen_total", "counter",
        "Requests that went on unrouted, by reason.",
        "Alert on it: they work, but on the default route, without isolation or affinity. docs/operations.md says "
        "what each `reason` asks for.",
        ("reason",), ((),),
    ),
    Metric(
        "eluvix_refused_total", "counter",
        "Requests that we answered ourselves, by error code.",
        "Client errors mostly. `no_worker` is the fleet's: a pool without a ready worker under "
        "`onPrefillUnavailable: fail`.",
        ("code",), ((),),
    ),
    Metric(
        "eluvix_internal_errors_total", "counter",
        "Defects caught here, by the part of the sidecar they came from.",
        "Should stay at zero; the log holds the traceback. Report it.",
        ("where",), ((),),
    ),
    Metric(
        "eluvix_streams_watched_total", "counter",
        "Streamed answers that were seen to their end, so that their own ITL is known.",
        "watched / (watched + left) is the share of exactly measured streams; `timing.itl` sets it.",
    ),
    Metric(
        "eluvix_streams_left_total", "counter",
        "Streamed answers that were left to Envoy after their first token.",
        "With `timing.itl: auto`, growing much faster than `watched` only says that traffic is beyond the CPU budget "
        "of watching.",
    ),
    Metric(
        "eluvix_in_flight", "gauge",
        "Requests of this process in flight on a pool (`none`: on workers that have left the fleet), streams that "
        "were left counted to their expected end.",
        "Compare pools: one that grows while others idle is short of workers. It is per process: sum over replicas.",
        ("pool",), ((),),
    ),
    Metric(
        "eluvix_workers", "gauge",
        "Workers of a pool that may and may not be chosen.",
        "Alert when `ready` is 0: that pool's requests fall back or are refused.",
        ("pool", "state"), ((), ("ready", "unready")),
    ),
    Metric(
        "eluvix_prefix_index_bytes", "gauge",
        "Memory that the prefix index accounts for.",
        "At its bound and with a falling hit share: give the index more.",
    ),
    Metric(
        "eluvix_prefix_index_entries", "gauge",
        "Prefixes that the index knows.",
        "A sudden fall is a restart or a wave of eviction.",
    ),
    Metric(
        "eluvix_config_reloads_total", "counter",
        "Configuration reloads; `refused` left the running configuration as it was.",
        "Alert on `refused`: the file does not say what runs. `eluvix-extproc validate` names the line.",
        ("result",), (("applied", "refused"),),
    ),
    Metric(
        "eluvix_scrape_failures_total", "counter",
        "Scrapes of a worker's load that failed or could not be read.",
        "The load of those workers is unknown and they are chosen by our own in-flight counts alone. Check the "
        "workers' `/metrics` from this pod.",
    ),
    Metric(
        "eluvix_connections_ended_total", "counter",
        "Connections to `server.listen` that were ended for what the peer did, by reason: an HTTP/2 error or a way of "
        "making us work for nothing (`zero_window` is a single stream that was not read). With `transport: h2` only.",
        "None come from Envoy in good order. Something else may reach the port (see SECURITY.md), or the proxy's "
        "HTTP/2 differs from ours: report it with the reason.",
        ("reason",), (CONNECTION_FAULTS,),
    ),
    Metric(
        "gen_ai_server_time_to_first_token_seconds", "histogram",
        "From a request's arrival to its first generated token, where it was measured; failed answers are not in it.",
        "The user's wait. Compare roles: isolation should keep decode and colocated low while prefill is high.",
        SERVING, ((), ROLES, ()), _TTFT_BOUNDS,
    ),
    Metric(
        "gen_ai_server_time_per_output_token_seconds", "histogram",
        "Mean time per token after the first, of answers seen to their end.",
        "The user's reading speed and the thing that isolation protects: watch its p99 on decode workers.",
        SERVING, ((), ROLES, ()), _ITL_BOUNDS,
    ),
    Metric(
        "gen_ai_server_request_duration_seconds", "histogram",
        "From a request's arrival to the end of its answer, completed ones only; streams that were left are not in it.",
        "For objectives on whole answers; with `timing.itl: never` it holds the non-streamed ones only.",
        SERVING, ((), ROLES, ()), _DURATION_BOUNDS,
    ),
    Metric(
        "gen_ai_client_token_usage", "histogram",
        "Tokens of an answered request: `input` from its usage or else our exact count, `output` from its usage or "
        "else the token events seen; `output` is missing for streams that were left.",
        "Capacity planning: its `_sum` is tokens in and out by model and pool.",
        ("gen_ai_token_type", *SERVING), (("input", "output"), (), ROLES, ()), _TOKEN_BOUNDS,
    ),
    Metric(
        "eluvix_build_info", "gauge",
        "Always 1; the running version.",
        "Tell replicas of different versions apart during a rollout.",
        ("version",), ((),),
    ),
)

BY_NAME = {metric.name: metric for metric in CATALOGUE}
