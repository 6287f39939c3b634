"""From a file and the environment to `Settings`, or to every problem at once, each with its place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from eluvix_extproc.config.checks import DISAGREEMENT, At, Problem, check_files, dotted
from eluvix_extproc.config.document import Document, plain_scalar, read_document
from eluvix_extproc.config.environment import overlay
from eluvix_extproc.config.fleet import ARCHITECTURE_TAGS
from eluvix_extproc.config.keys import nearest, unknown_key
from eluvix_extproc.config.models import Settings
from eluvix_extproc.config.values import PATTERNS
from eluvix_extproc.errors import ConfigError


class ConfigUnreadable(ConfigError):
    """There is no text to judge: no such file, not permitted, not UTF-8."""


def load(path: str | Path, environ: Mapping[str, str], *, files: bool = False) -> Settings:
    """Read and parse `path`. With `files` the files that it names must be there too.

    Relative file names in it start at its own folder. ConfigUnreadable, or ConfigError with all problems.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigUnreadable([f"{path}: {reason}"]) from None
    return parse(decode(raw, str(path)), str(path), environ, base=path.parent, files=files)


def decode(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigUnreadable([f"{name}: is not UTF-8 text"]) from None


def parse(
    text: str, name: str, environ: Mapping[str, str], *, base: Path | None = None, files: bool = False
) -> Settings:
    """As `load`, from text; `name` is what problems call it, `base` the folder that relative file names start at."""
    document = read_document(text, name)
    data, origin, from_environ = overlay(document.data, environ)
    problems = list(document.problems)
    settings: Settings | None = None
    try:
        context = {"base": base.absolute()} if base is not None else None
        settings = Settings.model_validate({} if data is None else data, context=context)
    except ValidationError as error:
        problems += _explained(error, data)
    if settings is not None and files:
        problems += check_files(settings)
    if problems or from_environ:
        raise ConfigError(_lines(problems, document, origin) + from_environ)
    assert settings is not None
    return settings


def _lines(problems: list[Problem], document: Document, origin: Mapping[At, str]) -> list[str]:
    """In the order of the file, what the environment set at the end."""
    in_file = sorted((p for p in problems if p.at not in origin), key=lambda p: document.line(p.at))
    set_by_environ = [f"{origin[p.at]}: {dotted(p.at)}: {p.message}" for p in problems if p.at in origin]
    return [document.describe(problem) for problem in in_file] + set_by_environ


def _explained(error: ValidationError, data: Any) -> list[Problem]:
    problems: list[Problem] = []
    details = error.errors(include_url=False)
    for detail in details:
        if detail["type"] == DISAGREEMENT:
            problems += detail["ctx"]["problems"]
            continue
        at = _without_union_tags(detail["loc"], data)
        # A list whose elements are all at fault counts as empty as well; the elements' own problems say it.
        if detail["type"] == "too_short" and detail["input"]:
            continue
        problems.append(Problem(at, _message(detail, at)))
    return problems


def _without_union_tags(loc: tuple[str | int, ...], data: Any) -> At:
    """pydantic puts the tried member of a union into the place, which no file has."""
    at: list[str | int] = []
    for part in loc:
        if part in ARCHITECTURE_TAGS and not (isinstance(data, dict) and part in data):
            continue
        at.append(part)
        if isinstance(data, dict):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int):
            data = data[part]
    return tuple(at)


def _message(detail: ErrorDetails, at: At) -> str:
    kind, given, ctx = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return unknown_key(at)
    if kind == "missing":
        return "is required"
    if kind == "value_error":
        return f"{ctx['error']}{_got(given)}"
    if kind in ("literal_error", "enum"):
        expected = str(ctx["expected"]).replace("'", "").replace(" or ", ", ")
        near = nearest(given, expected.split(", ")) if isinstance(given, str) else None
        return f"must be one of {expected}{_got(given)}" + (f", did you mean {near}?" if near else "")
    if kind == "string_pattern_mismatch":
        return f"must be {PATTERNS.get(ctx['pattern'], 'of the form ' + str(ctx['pattern']))}{_got(given)}"
    if kind == "too_short":
        return "must have at least one element"
    wanted = _WANTED.get(kind)
    if wanted is not None:
        bounds = {name: _plain(bound) for name, bound in ctx.items()}
        kind_given = {dict: ", not a section", list: ", not a list", type(None): ", not empty"}.get(type(given), "")
        return f"must be {wanted.format(**bounds)}{_got(given) or kind_given}{_hint(kind, given)}"
    return f"{detail['msg']}{_got(given)}"


_WANTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a string",
    "tuple_type": "a list",
    "model_type": "a section of keys",
    "model_attributes_type": "a section of keys",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "string_too_short": "a string that is not empty",
}


def _plain(bound: Any) -> Any:
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound


def _got(given: Any) -> str:
    if isinstance(given, bool):
        return f", not {str(given).lower()}"
    if isinstance(given, (str, int, float)):
        text = repr(given)
        return f", not {text if len(text) <= 80 else text[:77] + '…'}"
    return ""


def _hint(kind: str, given: Any) -> str:
    if kind == "string_type" and isinstance(given, (bool, int, float)):
        return " (put it in quotes)"
    if kind in ("int_type", "float_type", "bool_type") and isinstance(given, str) and plain_scalar(given) != given:
        return " (take off the quotes)"
    return ""
