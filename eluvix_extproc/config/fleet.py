"""The entries of `models` and `pools`: what the workers serve, and where they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from eluvix_extproc.config.section import Section
from eluvix_extproc.config.values import ClusterName, DnsTarget, FilePath, ModelName, Name, WorkerAddress
from eluvix_extproc.core.fleet import Role


class EstimateSettings(Section):
    bytes_per_token: float = Field(
        default=4.0, gt=0, le=64, description="Bytes of UTF-8 text that count as one token."
    )


class TokenizerSettings(Section):
    file: FilePath | None = Field(
        default=None, description="The model's `tokenizer.json` (Hugging Face format). Counts are exact."
    )
    chat_template: FilePath | None = Field(
        default=None,
        description="Jinja chat template that the engine uses. Only with `file`; without it the template is looked for "
        "beside the tokenizer (`chat_template.jinja`, `tokenizer_config.json`), and where there is none chats are "
        "declared as an estimate.",
    )
    tiktoken: Name | None = Field(default=None, description="Name of a tiktoken encoding, e.g. `o200k_base`.")
    estimate: EstimateSettings | None = Field(
        default=None, description="Count bytes instead of tokens. The answer's `x-eluvix-tokens` says `estimate`."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if sum(way is not None for way in (self.file, self.tiktoken, self.estimate)) != 1:
            raise ValueError("needs exactly one of file, tiktoken and estimate")
        if self.chat_template is not None and self.file is None:
            raise ValueError("chatTemplate goes with file only")
        return self


class ArchitectureFile(Section):
    config: FilePath = Field(description="The model's own `config.json` (Hugging Face format).")


ARCHITECTURE_TAGS = ("<name>", "<file>")


def _architecture_kind(value: Any) -> str:
    return ARCHITECTURE_TAGS[0 if isinstance(value, str) else 1]


Architecture = Annotated[
    Annotated[Name, Tag(ARCHITECTURE_TAGS[0])] | Annotated[ArchitectureFile, Tag(ARCHITECTURE_TAGS[1])],
    Discriminator(_architecture_kind),
]


class ModelSettings(Section):
    name: ModelName = Field(description="The model's name here, in metrics and logs. Clients may use it too.")
    served: Annotated[tuple[ModelName, ...], Field(strict=False)] = Field(
        default=(), description="Other names of the same model that clients put into `model`."
    )
    adapters: Annotated[tuple[ModelName, ...], Field(strict=False)] = Field(
        default=(),
        description="LoRA adapter names that clients put into `model`. They are counted like the model itself but "
        "never share a KV prefix with it.",
    )
    tokenizer: TokenizerSettings = Field(
        default=TokenizerSettings(estimate=EstimateSettings()),
        description="How prompts are counted: exactly one of `file`, `tiktoken` and `estimate`.",
    )
    architecture: Architecture | None = Field(
        default=None,
        description="The geometry that the KV-cache size is computed from: a name of the built-in catalogue, or "
        "`{config: /path/config.json}`. Without it `x-eluvix-kv-cache-kb` is absent.",
    )
    kv_cache_dtype: Literal["auto", "bf16", "fp16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8"] = Field(
        default="bf16",
        description="Type of a KV-cache element, as the engine was told by `--kv-cache-dtype`. `auto` is the model's "
        "own type.",
    )
    block_size: int = Field(
        default=16,
        ge=1,
        le=4_096,
        description="Tokens in one KV-cache block of the engine (`--block-size`), for `explain`. Where it is said, a "
        "worker that reports another size is logged, and marked in `/fleet`.",
    )
    block_hash_seed: str = Field(
        default="",
        max_length=256,
        description="The engines' `PYTHONHASHSEED`, where they have one: with it `explain` prints the same block "
        "hashes as the engine.",
    )

    def names(self) -> tuple[str, ...]:
        """Every name that clients may use, the model's own first."""
        return tuple(dict.fromkeys((self.name, *self.served, *self.adapters)))


def said_block_sizes(models: Iterable[ModelSettings]) -> frozenset[int]:
    """Without the default of those that say nothing."""
    return frozenset(model.block_size for model in models if "block_size" in model.model_fields_set)


class WorkerSource(Section):
    static: Annotated[tuple[WorkerAddress, ...], Field(strict=False, min_length=1)] | None = Field(
        default=None, description="Workers by address, `ip:port`, IPv6 in brackets."
    )
    dns: DnsTarget | None = Field(
        default=None,
        description="`name:port`; every address that the name resolves to is a worker (a headless Service, say).",
    )

    @model_validator(mode="before")
    @classmethod
    def _no_kubernetes(cls, data: Any) -> Any:
        if isinstance(data, dict) and "kubernetes" in data:
            raise ValueError("this version does not watch Kubernetes; use dns with a headless Service, or static")
        return data

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.static is None) == (self.dns is None):
            raise ValueError("needs exactly one of static and dns")
        return self


class PoolSettings(Section):
    name: Name = Field(description="The pool's name in metrics, logs and `/fleet`.")
    role: Annotated[Role, Field(strict=False)] = Field(
        description="What its workers are for. `prefill` and `disaggregated-conductor` take isolated requests, "
        "`decode` and `colocated` the interactive ones. A lone pool takes all, and is `colocated` in headers."
    )
    cluster: ClusterName = Field(description="The Envoy cluster that reaches these workers, as Envoy names it.")
    engine: Literal["vllm", "sglang"] = Field(
        default="vllm", description="Which engine the workers run; tells how their load is read from their metrics."
    )
    kv_connector: Literal["none", "nixl", "mooncake", "lmcache"] = Field(
        default="none",
        description="How the engine moves KV cache between workers. Descriptive in this version: shown in `/fleet`, "
        "it changes no routing.",
    )
    workers: WorkerSource = Field(description="Where its workers are found: exactly one of `static` and `dns`.")
