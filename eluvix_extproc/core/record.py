"""What is known of an exchange when it is over: the one value that metrics, logs and `/decisions` are made from."""

from __future__ import annotations

from enum import StrEnum

from eluvix_extproc.core.prompt import Api
from eluvix_extproc.core.switchyard.types import Decision
from eluvix_extproc.core.value import Value


class Outcome(StrEnum):
    """How an exchange ended; the `outcome` label of `eluvix_requests_total`."""

    COMPLETED = "completed"      # the response's end of stream was seen, status below 400
    LEFT = "left"                # we left a healthy stream after its first token; its end was not seen
    UPSTREAM_ERROR = "upstream_error"   # status >= 400 from behind Envoy, or an SSE error event
    REFUSED = "refused"          # we answered: 4xx or 503
    CANCELLED = "cancelled"      # the stream to us ended before the response did
    PASSED = "passed"            # not a request that we read: passed through
    INTERNAL = "internal"        # a defect here; Envoy was told to go on without us


class Source(StrEnum):
    """How a timing figure came about: the values of `x-eluvix-timing`."""

    MEASURED = "measured"
    DERIVED = "derived"
    WORKER_MEAN = "worker-mean"
    UNKNOWN = "unknown"


class Evidence(Value, frozen=True):
    """What an estimate was made of, to be held against the answer's usage.

    `features` are in the estimate's own order; usage outside `least` to `most` tokens is not believed. `model` is the
    client's name for a model that is not configured, else "".
    """

    features: tuple[float, ...]
    least: int
    most: int
    model: str = ""


class Sized(Value, frozen=True):
    """What routing found out about the prompt. `kv_bytes` is None when the model's geometry is not known, `evidence`
    where nothing can be learned from the answer."""

    model: str                    # the configured model's name, "" when none is known
    tokens: int
    exact: bool
    prefix_hash: str              # 64 hex digits, "" when nothing of the prompt is known
    kv_bytes: int | None = None
    evidence: Evidence | None = None
    sequences: int = 1            # that the answer generates: prompts of a batch times samples of each


class Record(Value, frozen=True):
    """Seconds throughout; None is not known. `started` is monotonic.

    `served_worker` and `served_pool` are who answered in the end, which after a retry or a fail-open is not the first
    choice of `decision`. `completion_tokens` is the response's `usage` when it told one, else the number of token
    events seen (`completion_exact` says which). `delivered_cached_tokens` is
    `usage.prompt_tokens_details.cached_tokens`.
    """

    outcome: Outcome
    method: str
    path: str
    api: Api | None
    request_id: str
    started: float
    duration_s: float
    status: int | None = None
    stream: bool = False
    sized: Sized | None = None
    decision: Decision | None = None
    decision_s: float | None = None          # from the request's arrival to our answer to its headers
    failopen: str | None = None              # the reason, when the request went on unrouted
    refused: str | None = None               # the error code, when we answered it
    served_worker: str | None = None
    served_pool: str | None = None
    attempts: int | None = None              # upstream attempts, as Envoy tells them
    request_bytes: int = 0
    response_bytes: int = 0
    ttft_s: float | None = None
    ttft_source: Source = Source.UNKNOWN
    itl_s: float | None = None               # of this response itself; None when it was left or had one token
    completion_tokens: int | None = None
    completion_exact: bool = False
    prompt_tokens_reported: int | None = None    # usage.prompt_tokens
    delivered_cached_tokens: int | None = None
    first_token_at: float | None = None      # monotonic; with the worker's means, when a left stream is expected to end
