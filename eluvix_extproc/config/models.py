"""The configuration as frozen models: snake_case here, camelCase in YAML, nothing unknown, nothing converted.

Every description is what docs/configuration.md says of the key, so it is written for the platform engineer who sets it.
Durations are float seconds once parsed. The entries of `models` and `pools` are in `config/fleet.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from eluvix_extproc.config.checks import raise_disagreements
from eluvix_extproc.config.fleet import ModelSettings as ModelSettings
from eluvix_extproc.config.fleet import PoolSettings as PoolSettings
from eluvix_extproc.config.section import Section
from eluvix_extproc.config.values import (
    Duration,
    FilePath,
    HeaderName,
    Host,
    HttpPath,
    Listen,
    ListenAddress,
    Name,
    Pattern,
    TcpAddress,
)
from eluvix_extproc.core.fleet import Role
from eluvix_extproc.core.switchyard.types import Policy


class TlsSettings(Section):
    cert: FilePath = Field(description="PEM file with the server's certificate chain.")
    key: FilePath = Field(description="PEM file with the private key of `cert`.")
    client_ca: FilePath | None = Field(
        default=None,
        description="PEM file with the authorities whose client certificates are accepted. When set, Envoy must "
        "present one (mutual TLS).",
    )


class ServerSettings(Section):
    listen: ListenAddress = Field(
        default=Listen("0.0.0.0", 50051),
        description="Where Envoy reaches the sidecar: `ip:port`, or `unix:/path`. With `processes` > 1 each process "
        "has its own: ports N, N+1, … or `extproc-0.sock`, `extproc-1.sock`, ….",
    )
    processes: int = Field(
        default=1,
        ge=1,
        le=64,
        description="How many processes serve; one uses at most one core for Python. Envoy needs an endpoint for each.",
    )
    transport: Literal["grpcio", "h2"] = Field(
        default="grpcio",
        description="What speaks gRPC with Envoy: `grpcio` is gRPC's own library, `h2` our own HTTP/2, which takes a "
        "fraction of its CPU. Both serve the same and take the same settings.",
    )
    tls: TlsSettings | None = Field(default=None, description="Serve over TLS. Plain text when absent.")
    max_body_bytes: int = Field(
        default=33_554_432,
        ge=1_024,
        le=1_073_741_824,
        description="Longest request body, as sent and as decompressed. Beyond it the client gets 413 in its API's own "
        "error shape.",
    )
    max_held_bytes: int = Field(
        default=1_048_576,
        ge=1_024,
        le=1_073_741_824,
        description="How much of a body is held while deciding. Beyond it the decision is taken on what was read and "
        "the rest streams through. Keep it at or below Envoy's request body buffer limit.",
    )
    decision_timeout: Duration = Field(
        default=2.0,
        description="Time for a decision, from the arrival of the request. Beyond it the request takes the default "
        "route, counted in `eluvix_failopen_total`. Keep it below Envoy's `message_timeout`.",
    )
    drain_timeout: Duration = Field(
        default=300.0,
        description="After SIGTERM, how long streams in flight may go on before they are ended. Give the pod a longer "
        "`terminationGracePeriodSeconds`.",
    )


class AdminSettings(Section):
    listen: ListenAddress = Field(
        default=Listen("127.0.0.1", 9090),
        description="Where `/healthz`, `/readyz`, `/metrics`, `/fleet`, `/decisions` and `/config` are served; one for "
        "each process, as for `server.listen`. They need no login: keep it on loopback or on a network that only "
        "operators reach.",
    )


class SwitchyardSettings(Section):
    prefill_isolation_threshold_tokens: int = Field(
        default=4_096,
        ge=0,
        le=1_000_000_000,
        description="Requests of at least this many tokens (see `prefillIsolationBasis`) are isolated from the "
        "interactive ones. 0 isolates every request.",
    )
    prefill_isolation_basis: Literal["uncached", "prompt"] = Field(
        default="uncached",
        description="What the threshold is held against: `uncached` is the prompt minus what the best worker is "
        "believed to hold in its KV cache, `prompt` the whole prompt.",
    )
    prefill_isolation_route: Literal["auto", "prefill", "disaggregated-conductor"] = Field(
        default="auto",
        description="Role of the pool that isolated requests go to. `auto` takes `disaggregated-conductor` where the "
        "fleet has it, else `prefill`.",
    )
    kv_prefix_affinity: bool = Field(
        default=True,
        description="Prefer the worker that served the longest known prefix of the prompt, unless it is overloaded.",
    )
    on_prefill_unavailable: Literal["fallback", "fail"] = Field(
        default="fallback",
        description="When a request is to be isolated and no worker can take it: `fallback` to a decode or colocated "
        "pool (marked in role header and metric), or `fail` with 503.",
    )
    fallback_workers: int = Field(
        default=3,
        ge=1,
        le=16,
        description="How many workers a decision names in order of preference: the first is chosen, the others are for "
        "Envoy's retries.",
    )

    @field_validator("prefill_isolation_route", mode="before")
    @classmethod
    def _no_handoff(cls, value: Any) -> Any:
        if value == "handoff":
            raise ValueError("this version has no handoff; use auto, prefill or disaggregated-conductor")
        return value

    def policy(self) -> Policy:
        return Policy(
            prefill_isolation_threshold_tokens=self.prefill_isolation_threshold_tokens,
            prefill_isolation_basis=self.prefill_isolation_basis,
            prefill_isolation_route=self.prefill_isolation_route,
            kv_prefix_affinity=self.kv_prefix_affinity,
            on_prefill_unavailable=self.on_prefill_unavailable,
            fallback_workers=self.fallback_workers,
        )


class AffinitySettings(Section):
    ignore_lines: Annotated[tuple[Pattern, ...], Field(strict=False, max_length=32)] = Field(
        default=(),
        description="Regular expressions. Lines that one of them matches (anywhere in the line; anchor with `^`) are "
        "left out of the prefix key when they are among the first 16 lines of a system or developer message: dates, "
        "billing or session lines that change while the conversation is the same. The body, the token count and what "
        "is known of KV caches are never touched.",
    )
    session_headers: Annotated[tuple[HeaderName, ...], Field(strict=False, max_length=16)] = Field(
        default=("x-session-id", "x-claude-code-session-id"),
        description="Request headers by which clients name a conversation; the first that a request has counts. Where "
        "no known prefix decides, requests with the same name go to the worker that served the last one. Envoy must "
        "send them: see `forward_rules` in docs/attach.md.",
    )
    session_fields: Annotated[tuple[Literal["prompt_cache_key", "user"], ...], Field(strict=False)] = Field(
        default=("prompt_cache_key",),
        description="Members of the request's body that are used like `sessionHeaders`, where no such header is there. "
        "`user` (in Anthropic's API `metadata.user_id`) brings all that one user does to one worker.",
    )


class HeaderSettings(Section):
    ttft: bool = Field(default=True, description="Send `x-eluvix-ttft-ms` on responses.")
    itl: bool = Field(default=True, description="Send `x-eluvix-itl-ms` on responses.")
    kv_cache: bool = Field(default=True, description="Send `x-eluvix-kv-cache-kb` on responses.")
    pd_role: bool = Field(default=True, description="Send `x-eluvix-pd-role` on responses.")
    prefix_hash: bool = Field(default=True, description="Send `x-eluvix-kv-prefix-hash` on responses.")
    debug: Literal["on-request", "never"] = Field(
        default="on-request",
        description="`x-eluvix-decision`, the reasons of the decision: `on-request` sends it when the request has "
        "`x-eluvix-debug: 1`.",
    )


class TimingSettings(Section):
    itl: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="How much of a streamed answer is watched to measure its inter-token latency: `always` to the end, "
        "`never` past the first token, `auto` for as many answers as fit `cpuShare`. In full-duplex mode every answer "
        "is watched, whatever is set here.",
    )
    cpu_share: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="Share of one core that `itl: auto` may spend on watching streams, per process.",
    )
    max_hold: Duration = Field(
        default=300.0,
        description="How long response headers may be held for the first token. After it they go out without a TTFT.",
    )


class IndexSettings(Section):
    type: Literal["memory"] = Field(
        default="memory", description="Where known prefixes are kept: in the memory of each process."
    )
    max_bytes: int = Field(
        default=67_108_864,
        ge=65_536,
        le=68_719_476_736,
        description="Memory for the prefix index, per process. The least recently used prefixes leave first.",
    )

    @model_validator(mode="before")
    @classmethod
    def _no_valkey(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("type") == "valkey":
            raise ValueError("this version has no shared index in Valkey; use type: memory")
        return data


class ScrapeSettings(Section):
    interval: Duration = Field(default=1.0, description="How often each worker's load is read.")
    timeout: Duration = Field(default=1.0, description="How long one reading may take.")
    unready_after: int = Field(
        default=3,
        ge=1,
        le=100,
        description="A worker gets no new requests after this many failed readings in a row; a refused connection "
        "counts double. The next good reading brings it back.",
    )
    path: HttpPath = Field(default="/metrics", description="HTTP path of the workers' Prometheus metrics.")


class LoggingSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least level to log.")
    format: Literal["json", "console"] = Field(
        default="json", description="`json` is one object a line for machines, `console` is for people."
    )


class EnvoySettings(Section):
    listen: TcpAddress = Field(
        default=Listen("0.0.0.0", 8080), description="Where the rendered Envoy listens for clients."
    )
    admin: TcpAddress = Field(
        default=Listen("127.0.0.1", 9901), description="Where the rendered Envoy serves its admin interface."
    )
    ext_proc_host: Host = Field(
        default="127.0.0.1",
        description="Where Envoy reaches the sidecar when `server.listen` is a wildcard such as 0.0.0.0.",
    )
    default_pool: Name | None = Field(
        default=None,
        description="Pool whose cluster the catch-all route names, for requests that go on without a decision. By "
        "default the first `colocated` pool, else the first `decode` pool, else the first of all.",
    )


class Settings(Section):
    server: ServerSettings = Field(default=ServerSettings(), description="The ext_proc server that Envoy calls.")
    admin: AdminSettings = Field(default=AdminSettings(), description="The HTTP endpoint for operators.")
    switchyard: SwitchyardSettings = Field(
        default=SwitchyardSettings(), description="The policy that steers each request."
    )
    affinity: AffinitySettings = Field(
        default=AffinitySettings(), description="What tells where a conversation belongs besides the prompt itself."
    )
    headers: HeaderSettings = Field(default=HeaderSettings(), description="Which headers answers carry.")
    timing: TimingSettings = Field(default=TimingSettings(), description="How answers are timed.")
    models: Annotated[tuple[ModelSettings, ...], Field(strict=False)] = Field(
        default=(), description="The models that the workers serve. With none, every model name is accepted."
    )
    unknown_model: Literal["reject", "pass"] = Field(
        default="reject",
        description="A request for a model that no entry of `models` has: `reject` answers 404, `pass` counts it by "
        "estimate and steers it all the same. Without `models` no name is unknown.",
    )
    pools: Annotated[tuple[PoolSettings, ...], Field(strict=False, min_length=1)] = Field(
        description="The fleet: the workers of each role behind one Envoy cluster."
    )
    index: IndexSettings = Field(default=IndexSettings(), description="What is known of who holds which prefix.")
    scrape: ScrapeSettings = Field(default=ScrapeSettings(), description="How the workers' load is read.")
    logging: LoggingSettings = Field(default=LoggingSettings(), description="What is logged and how.")
    envoy: EnvoySettings = Field(
        default=EnvoySettings(), description="The Envoy that `render` prints. `serve` does not use it."
    )

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        raise_disagreements(self)
        return self

    def default_pool(self) -> PoolSettings:
        """The pool of the catch-all route; see `envoy.defaultPool`."""
        for pool in self.pools:
            if pool.name == self.envoy.default_pool:
                return pool
        for role in (Role.COLOCATED, Role.DECODE):
            for pool in self.pools:
                if pool.role is role:
                    return pool
        return self.pools[0]
