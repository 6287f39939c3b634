"""docs/configuration.md and the JSON schema, made from the models.

`python -m eluvix_extproc.config.docs` rewrites the former in the current folder's checkout; a test holds it to the
models.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticUndefined, core_schema

from eluvix_extproc.config.checks import dotted
from eluvix_extproc.config.keys import ITEM, Key, all_keys, is_section
from eluvix_extproc.config.models import Settings
from eluvix_extproc.config.section import Section
from eluvix_extproc.config.values import DURATION_PATTERN, Listen, format_duration, parse_duration, tcp_only
from eluvix_extproc.core.fleet import Role

REFERENCE = Path("docs/configuration.md")

_HEAD = """\
<!-- Made by `python -m eluvix_extproc.config.docs` from the models in eluvix_extproc/config. Do not edit. -->
# Configuration

One YAML file, given as `--config FILE`. `eluvix-extproc validate --config FILE` checks it and names every problem with
file and line; `eluvix-extproc schema` prints a JSON schema for editors. The least that works:

```yaml
pools:
  - name: llm
    role: colocated
    cluster: llm
    workers: {static: [10.0.0.1:8000]}
```

How it is read:

- Keys are spelled exactly as below. Unknown or repeated keys are errors; a key without a value counts as absent.
- Scalars are those of YAML 1.2: only `true` and `false` are booleans, only plain decimal numbers are numbers, and
  nothing is converted. `on`, `1:30` and `"4096"` are strings and are refused where a boolean or number belongs.
- Durations have a unit: `500ms`, `2s`, `5m`, `1h`; from 1 ms to 24 h.
- File names that are not absolute start at the folder of the configuration file.
- Aliases (`*name`) work within narrow bounds, merge keys (`<<`) do not.

Every scalar can also be set by an environment variable, which wins over the file. Its name is `ELUVIX_` and the path in
capitals, joined by `_`, elements of a list by number from 0: `ELUVIX_SWITCHYARD_PREFILLISOLATIONTHRESHOLDTOKENS`,
`ELUVIX_POOLS_0_CLUSTER`. It can change an element that the file has, not add one. An `ELUVIX_` variable that names no
key is an error, except those that Kubernetes makes for a Service (`ELUVIX_…_SERVICE_HOST`, `ELUVIX_…_PORT_…`).
"""


def reference() -> str:
    """The text of docs/configuration.md."""
    parts = [_HEAD]
    top = [key for key in all_keys() if len(key.path) == 1]
    scalars = [key for key in top if key.scalar is not None]
    if scalars:
        parts.append(_table("Top level", "", scalars))
    for section in (key for key in top if key.scalar is None):
        below = [k for k in all_keys() if k.path[0] == section.path[0] and k.field is not None and len(k.path) > 1]
        is_list = any(key.path[1] == ITEM for key in below)
        assert section.field is not None
        title = f"`{section.path[0]}`" + (", a list" if is_list else "")
        default = " Required." if section.field.is_required() else ""
        parts.append(_table(title, f"{section.field.description}{default}", below))
    return "\n".join(parts)


def schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a configuration file."""
    found = Settings.model_json_schema(by_alias=True, schema_generator=_Schema)
    found["title"] = "Eluvix ext_proc configuration"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


class _Schema(GenerateJsonSchema):
    """Leaves out what pydantic would add of its own: titles, and defaults in another form than YAML's."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        inner = self.generate_inner(schema["schema"])
        default = schema.get("default")
        if default is None or default == () or isinstance(default, Section):
            return inner
        if inner.get("pattern") == DURATION_PATTERN:
            default = format_duration(default)
        return {**inner, "default": str(default) if isinstance(default, Listen) else default}


def _table(title: str, text: str, keys: list[Key]) -> str:
    lines = [f"## {title}", ""]
    if text:
        lines += [text, ""]
    lines += ["| key | type | default | what it does |", "|---|---|---|---|"]
    lines += [_row(key) for key in keys]
    return "\n".join(lines) + "\n"


def _row(key: Key) -> str:
    assert key.field is not None
    name = dotted(key.path).replace(f".{ITEM}", ITEM)
    cells = (f"`{name}`", _type(key), _default(key), str(key.field.description))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type(key: Key) -> str:
    assert key.field is not None
    kind = key.kinds[0]
    if is_section(kind):
        return "section"
    if len(key.kinds) > 1:
        return "string or section"
    if get_origin(kind) is tuple:
        return "list of sections" if is_section(get_args(kind)[0]) else "list of strings"
    if get_origin(kind) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(kind))
    if kind is Role:
        return " or ".join(f"`{role.value}`" for role in Role)
    if kind is Listen:
        return "`ip:port`" if _uses(key.field, tcp_only) else "`ip:port` or `unix:/path`"
    if _is_duration(key.field):
        return "duration"
    return {bool: "`true` or `false`", int: "whole number", float: "number"}.get(kind, "string") + _bounds(key.field)


def _bounds(field: FieldInfo) -> str:
    words = []
    for bound in field.metadata:
        if isinstance(bound, Gt):
            words.append(f"more than {bound.gt}")
        if isinstance(bound, Ge):
            words.append(f"at least {bound.ge}")
        if isinstance(bound, Le):
            words.append(f"at most {bound.le}")
    return f", {', '.join(words)}" if words else ""


def _default(key: Key) -> str:
    assert key.field is not None
    value = key.field.default
    if value is PydanticUndefined:
        return "required"
    if value is None or value == ():
        return "none"
    if isinstance(value, float) and value.is_integer() and not _is_duration(key.field):
        return f"`{value:.0f}`"
    if isinstance(value, Section):
        given = value.model_dump(mode="json", by_alias=True, exclude_none=True)
        return f"`{json.dumps(given)}`".replace('"', "").replace(".0}", "}") if given else "see below"
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value)
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{format_duration(value) if _is_duration(key.field) else value}`"


def _is_duration(field: FieldInfo) -> bool:
    return _uses(field, parse_duration)


def _uses(field: FieldInfo, validator: Callable[..., Any]) -> bool:
    return any(getattr(item, "func", None) is validator for item in field.metadata)


if __name__ == "__main__":
    REFERENCE.write_text(reference(), encoding="utf-8")
