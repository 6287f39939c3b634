from __future__ import annotations

import subprocess
import sys

import pytest

from eluvix_extproc.config.fleet import TokenizerSettings
from eluvix_extproc.errors import ConfigError
from eluvix_extproc.tokens import ESTIMATE, EXACT, build
from tests.tokens.prompts import TINY, chat, completion, message


def test_a_file_is_counted_exactly() -> None:
    template = TINY.with_name("chat_template.jinja")
    settings = TokenizerSettings.model_validate({"file": str(TINY), "chatTemplate": str(template)})
    counter = build(settings, memo_bytes=1 << 20)
    assert counter.source == EXACT
    assert counter.count(chat(message("user", "hi"))).exact


def test_an_estimate_takes_its_ratio() -> None:
    counter = build(TokenizerSettings.model_validate({"estimate": {"bytesPerToken": 2.0}}))
    assert counter.source == ESTIMATE
    assert counter.count(completion("x" * 10)).total == 5


def test_an_encoding_that_does_not_exist_is_refused_at_build() -> None:
    with pytest.raises(ConfigError, match="no_such_base"):
        build(TokenizerSettings(tiktoken="no_such_base"))


def test_an_estimate_loads_no_tokenizer_library() -> None:
    script = (
        "import sys; from eluvix_extproc.tokens import Estimate, build; import eluvix_extproc.tokens.exact, "
        "eluvix_extproc.tokens.tiktoken; print(sorted({'tokenizers', 'fastokens', 'tiktoken'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
