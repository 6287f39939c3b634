"""Client-supplied strings, made fit for a log line or a page."""

from __future__ import annotations

PATH_LENGTH = 200
ID_LENGTH = 128
METHOD_LENGTH = 16


def safe(text: str, length: int) -> str:
    r"""At most about `length` characters of `text`, with everything that does not print spelt out.

    Control characters, escape sequences, direction overrides and the surrogates that stand for bytes that are not
    UTF-8 become `\x1b`, `\u202e`, `\udc80`: the result is one line, harmless on a terminal and always encodable.
    """
    if len(text) > length:
        text = text[:length] + "…"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def safe_path(path: str) -> str:
    """`path` without query and fragment: those can hold keys and prompts."""
    return safe(path.partition("?")[0].partition("#")[0], PATH_LENGTH)
