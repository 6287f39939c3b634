"""Requests that the engine refuses, with the bodies that vLLM 0.32 answers them with."""

from __future__ import annotations

BUSY = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)


class Refusal(Exception):
    """An answer in the API's error shape; `param` names the field at fault."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def overloaded() -> Refusal:
    return Refusal(503, "Service Unavailable", BUSY)


def shutting_down() -> Refusal:
    return Refusal(500, "Internal Server Error", "The engine is shutting down.")


def unknown_model(model: str, known: tuple[str, ...]) -> Refusal:
    message = f"The model `{model}` does not exist. Valid aliases: {', '.join(known)}."
    return Refusal(404, "NotFoundError", message, "model")


def wrong_content_type() -> Refusal:
    return _invalid("Unsupported Media Type: Only 'application/json' is allowed", None)


def not_json(position: int, reason: str) -> Refusal:
    detail = {
        "type": "json_invalid",
        "loc": f"body.{position}",
        "msg": "JSON decode error",
        "input": "<dict of 0 items>",
        "ctx": {"error": reason},
    }
    return _invalid(str(detail), f"body.{position}")


def not_an_object(value: object) -> Refusal:
    message = "Input should be a valid dictionary or object to extract fields from"
    return _field("model_attributes_type", "body", message, f"<{type(value).__name__}>")


def missing(field: str, present: int) -> Refusal:
    return _field("missing", f"body.{field}", "Field required", f"<dict of {present} items>")


def wrong_type(field: str, kind: str, value: object) -> Refusal:
    if kind == "int" and isinstance(value, str):
        message = "Input should be a valid integer, unable to parse string as an integer"
        return _field("int_parsing", f"body.{field}", message, value)
    noun = {"int": "integer", "list": "list", "bool": "boolean", "dict": "dictionary", "str": "string"}[kind]
    return _field(f"{kind}_type", f"body.{field}", f"Input should be a valid {noun}", f"<{type(value).__name__}>")


def bad_value(field: str, message: str, value: object = None) -> Refusal:
    tail = f"(parameter={field})" if value is None else f"(parameter={field}, value={value})"
    return Refusal(400, "BadRequestError", f"{message} {tail}", field)


def prompt_too_long(limit: int) -> Refusal:
    return bad_value(
        "input_tokens",
        f"This model's maximum context length is {limit} tokens. However, your prompt contains at least {limit + 1} "
        "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
        "prompt.",
        limit + 1,
    )


def output_too_long(limit: int, prompt: int, output: int) -> Refusal:
    return bad_value(
        "input_tokens",
        f"This model's maximum context length is {limit} tokens. However, you requested {output} output tokens and "
        f"your prompt contains at least {prompt} input tokens, for a total of at least {prompt + output} tokens. "
        "Please reduce the length of the input prompt or the number of requested output tokens.",
        prompt,
    )


def _field(kind: str, loc: str, message: str, given: object) -> Refusal:
    return _invalid(str({"type": kind, "loc": loc, "msg": message, "input": given}), loc)


def _invalid(detail: str, param: str | None) -> Refusal:
    return Refusal(400, "Bad Request", f"1 validation error:\n  {detail}", param)
