"""What every request format tells routing, and what all of them have in common."""

from __future__ import annotations

import json
from itertools import chain as concatenated
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.core.prefix import chain
from eluvix_extproc.core.prompt import Api, PrefixChain, Prompt, TokenCount
from eluvix_extproc.errors import FailOpen, MalformedBody, RequestError
from eluvix_extproc.prompt import parse

COUNT = TokenCount(1000, False)
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def parsed(api: Api, body: Any, **kwargs: Any) -> Prompt:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse(api, raw, body_bytes=len(raw), **kwargs)


def joined(turns: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return list(concatenated.from_iterable(turns))


def of(prompt: Prompt) -> PrefixChain:
    return chain(prompt, COUNT, model="m", adapter="")


# ---- conversations ---------------------------------------------------------------------------------------------------
# Turn by turn, as an agent sends them: each list is one more turn of the user's and of the assistant's.

_CALL = {"type": "tool_use", "id": "t1", "name": "now", "input": {}}
_THINKING = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
ANTHROPIC_TURNS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "What time is it?"}],
    [{"role": "assistant", "content": [_THINKING, {"type": "text", "text": "I look."}, _CALL]},
     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "noon"}]}],
    [{"role": "assistant", "content": "Noon."}, {"role": "user", "content": [IMAGE, {"type": "text", "text": "And?"}]}],
    [{"role": "assistant", "content": [{"type": "text", "text": "A cat."}]}, {"role": "user", "content": "Thanks"}],
]  # fmt: skip
RESPONSES_TURNS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "What time is it?"}],
    [{"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
     {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "now", "arguments": "{}", "status": "completed"},
     {"type": "function_call_output", "call_id": "c1", "output": "noon"}],
    [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
      "content": [{"type": "output_text", "text": "Noon.", "annotations": []}]},
     {"role": "user", "content": [{"type": "input_text", "text": "And?"}, {"type": "input_image", "image_url": "u"}]}],
    [{"role": "assistant", "content": "A cat."}, {"role": "user", "content": "Thanks"}],
]  # fmt: skip
CHAT_TURNS: list[list[dict[str, Any]]] = [
    [{"role": "system", "content": "s"}, {"role": "user", "content": "What time is it?"}],
    [{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "now"}}]},
     {"role": "tool", "tool_call_id": "c", "content": "noon"}],
    [{"role": "assistant", "content": "Noon."}, {"role": "user", "content": "Thanks"}],
]  # fmt: skip
CONVERSATIONS = [
    pytest.param(Api.OPENAI_CHAT, "messages", CHAT_TURNS, id="chat"),
    pytest.param(Api.ANTHROPIC_MESSAGES, "messages", ANTHROPIC_TURNS, id="anthropic"),
    pytest.param(Api.OPENAI_RESPONSES, "input", RESPONSES_TURNS, id="responses"),
]


@pytest.mark.parametrize(("api", "member", "turns"), CONVERSATIONS)
def test_every_turn_of_a_conversation_has_its_key_and_its_beginning(
    api: Api, member: str, turns: list[list[dict[str, Any]]]
) -> None:
    bodies = [
        {"model": "m", "max_tokens": 9, member: joined(turns[: number + 1])} for number in range(len(turns))
    ]
    chains = [of(parsed(api, body)) for body in bodies]
    assert len({found.root for found in chains}) == 1
    for before, after in pairwise(chains):
        keys = [point.key for point in after.points]
        assert [point.key for point in before.points] == keys[: len(before.points)]
        assert len(keys) > len(before.points)


def test_marks_that_wander_with_the_turns_leave_the_key_alone() -> None:
    """Claude Code marks the latest turns for caching, and sends a marked text as a block."""
    marked = {"cache_control": {"type": "ephemeral"}}
    tool = {"name": "now", "input_schema": {"type": "object"}}
    first = {
        "model": "m",
        "system": [{"type": "text", "text": "You are an agent.", **marked}],
        "tools": [{**tool, **marked}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello", **marked}]}],
    }
    later = {
        "model": "m",
        "system": [{"type": "text", "text": "You are an agent."}],
        "tools": [tool],
        "messages": [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi"},
            {"role": "user", "content": [{"type": "text", "text": "More", **marked}]},
        ],
    }
    one, two = of(parsed(Api.ANTHROPIC_MESSAGES, first)), of(parsed(Api.ANTHROPIC_MESSAGES, later))
    assert one.root == two.root
    assert [point.key for point in one.points] == [point.key for point in two.points][: len(one.points)]


@pytest.mark.parametrize(
    ("api", "one", "other"),
    [
        (Api.ANTHROPIC_MESSAGES, [IMAGE], [{**IMAGE, "source": {**IMAGE["source"], "data": "BBBB"}}]),  # type: ignore[dict-item]
        (Api.ANTHROPIC_MESSAGES, [{"type": "document", "source": {"data": "A"}}, {"type": "text", "text": "x"}],
         [{"type": "document", "source": {"data": "B"}}, {"type": "text", "text": "x"}]),
        (Api.OPENAI_CHAT, [{"type": "image_url", "image_url": {"url": "data:a"}}],
         [{"type": "image_url", "image_url": {"url": "data:b"}}]),
        (Api.OPENAI_RESPONSES, [{"type": "input_image", "image_url": "a"}],
         [{"type": "input_image", "image_url": "b"}]),
    ],
)  # fmt: skip
def test_what_a_picture_holds_is_part_of_the_key(api: Api, one: list[Any], other: list[Any]) -> None:
    member = "input" if api is Api.OPENAI_RESPONSES else "messages"
    first, second = (
        parsed(api, {"model": "m", member: [{"role": "user", "content": content}]}) for content in (one, other)
    )
    assert of(first).root != of(second).root


def test_what_stands_beside_a_prompt_of_sglang_is_part_of_the_key() -> None:
    plain, cat, dog = (
        parsed(Api.SGLANG_GENERATE, {"text": "What is it?", **extra})
        for extra in ({}, {"image_data": "cat"}, {"image_data": ["dog"]})
    )
    assert len({of(prompt).root for prompt in (plain, cat, dog)}) == 3
    assert (plain.elsewhere, cat.elsewhere) == (False, True)


# ---- what routing needs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "body", "expected"),
    [
        (Api.ANTHROPIC_MESSAGES,
         {"model": "m", "stream": True, "max_tokens": 7, "messages": [{"role": "user", "content": "x"}],
          "metadata": {"user_id": "u"}, "cache_salt": "s"},
         {"stream": True, "max_tokens": 7, "user": "u", "salt": "s"}),
        (Api.ANTHROPIC_COUNT_TOKENS, {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]},
         {"stream": False}),
        (Api.OPENAI_RESPONSES, {"model": "m", "stream": True, "input": "x", "max_output_tokens": 7, "user": "u",
                                "prompt_cache_key": "k", "cache_salt": "s"},
         {"stream": True, "max_tokens": 7, "user": "u", "cache_key": "k", "salt": "s", "elsewhere": False}),
        (Api.OPENAI_RESPONSES, {"model": "m", "previous_response_id": "resp_1"}, {"elsewhere": True, "messages": ()}),
        (Api.OPENAI_RESPONSES, {"model": "m", "input": "x", "truncation": "auto"}, {"elsewhere": True}),
        (Api.OPENAI_RESPONSES, {"model": "m", "input": "x", "tools": [{"type": "web_search"}]}, {"elsewhere": True}),
        (Api.OPENAI_EMBEDDINGS, {"model": "m", "input": "x"}, {"texts": ("x",), "elsewhere": False}),
        (Api.OPENAI_EMBEDDINGS, {"model": "m", "input": ["x", "y"]}, {"texts": ("x", "y")}),
        (Api.OPENAI_EMBEDDINGS, {"model": "m", "input": [1, 2]}, {"token_ids": ((1, 2),)}),
        (Api.OPENAI_EMBEDDINGS, {"model": "m", "input": [[1], [2, 3]]}, {"token_ids": ((1,), (2, 3))}),
        (Api.RERANK, {"model": "m", "query": "q", "documents": ["a", {"text": "b"}]},
         {"texts": ("q\na", "q\nb"), "elsewhere": True}),
        (Api.VLLM_GENERATE, {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 4, "n": 2}, "stream": True},
         {"model": "", "token_ids": ((1, 2, 3),), "max_tokens": 4, "samples": 2, "stream": True}),
        (Api.VLLM_GENERATE, {"token_ids": [1], "content_parts": [{"type": "image_url"}]}, {"elsewhere": True}),
        (Api.SGLANG_GENERATE, {"text": "x", "sampling_params": {"max_new_tokens": 4}, "lora_path": "l"},
         {"model": "l", "texts": ("x",), "max_tokens": 4}),
        (Api.SGLANG_GENERATE, {"input_ids": [[1, 2], [3]]}, {"token_ids": ((1, 2), (3,))}),
        (Api.SGLANG_GENERATE, {"input_embeds": [[0.1]]}, {"elsewhere": True}),
        (Api.OPENAI_CHAT, {"model": "m", "messages": [{"role": "user"}], "prompt_cache_key": "k", "user": "u"},
         {"cache_key": "k", "user": "u", "elsewhere": False}),
        (Api.OPENAI_CHAT, {"model": "m", "messages": [{"role": "user"}], "chat_template": "x"}, {"elsewhere": True}),
        (Api.OPENAI_CHAT, {"model": "m", "messages": [{"role": "user"}], "truncate_prompt_tokens": 5},
         {"elsewhere": True}),
        (Api.OPENAI_CHAT, {"model": "m", "messages": [{"role": "user"}], "add_special_tokens": False},
         {"elsewhere": False}),
        (Api.OPENAI_CHAT, {"model": "m", "messages": [{"role": "user"}], "reasoning_effort": "none",
                           "chat_template_kwargs": {"a": 1}},
         {"template_kwargs": b'{"a":1,"enable_thinking":false,"reasoning_effort":"none"}'}),
        (Api.OPENAI_CHAT, {"model": "m", "messages": [{"role": "user"}], "documents": [{"t": 1}]},
         {"template_kwargs": b'{"documents":[{"t":1}]}'}),
        (Api.OPENAI_COMPLETIONS, {"model": "m", "prompt": "x", "add_special_tokens": False, "user": "u"},
         {"add_special_tokens": False, "user": "u"}),
        (Api.OPENAI_COMPLETIONS, {"model": "m", "prompt": "x", "prompt_embeds": "AA"}, {"elsewhere": True}),
    ],
)  # fmt: skip
def test_the_fields_that_routing_needs(api: Api, body: dict[str, Any], expected: dict[str, Any]) -> None:
    prompt = parsed(api, body)
    assert prompt.api is api
    assert {name: getattr(prompt, name) for name in expected} == expected


def test_a_claude_code_request_keeps_its_billing_line_out_of_the_prompt_and_the_key() -> None:
    def sent(billing: str) -> Prompt:
        system = [{"type": "text", "text": billing}, {"type": "text", "text": "You are an agent."}]
        return parsed(Api.ANTHROPIC_MESSAGES, {"model": "m", "system": system, "messages": [{"role": "user"}]})

    prompt = sent("x-anthropic-billing-header: cch=1")
    assert json.loads(prompt.messages[0].raw) == {"role": "system", "content": "You are an agent."}
    assert of(prompt).root == of(sent("x-anthropic-billing-header: cch=2")).root != of(sent("Hello")).root


def test_a_conversation_that_begins_with_the_results_of_tools_keeps_its_key() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "noon"}, IMAGE]}
    first = [{"role": "user", "content": [result]}]
    later = [*first, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    one, two = (of(parsed(Api.ANTHROPIC_MESSAGES, {"messages": turns})) for turns in (first, later))
    assert one.root == two.root
    assert [point.key for point in one.points] == [point.key for point in two.points][: len(one.points)]


def test_one_conversation_in_three_formats_has_one_key() -> None:
    plain = [{"role": "user", "content": "Hello"}]
    prompts = [
        parsed(Api.OPENAI_CHAT, {"messages": [{"role": "system", "content": "s"}, *plain]}),
        parsed(Api.ANTHROPIC_MESSAGES, {"system": [{"type": "text", "text": "s"}], "messages": plain}),
        parsed(Api.OPENAI_RESPONSES, {"instructions": "s", "input": "Hello"}),
        parsed(Api.OPENAI_RESPONSES, {"instructions": "s", "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}]}),
    ]  # fmt: skip
    assert len({of(prompt).root for prompt in prompts}) == 1


def test_pictures_stand_in_the_ids_where_their_placeholders_do() -> None:
    def sent(*digests: str) -> Prompt:
        places = [{"offset": 2 + 4 * at, "length": 3} for at in range(len(digests))]
        features = {"mm_hashes": {"image": list(digests)}, "mm_placeholders": {"image": places}, "kwargs_data": None}
        return parsed(Api.VLLM_GENERATE, {"token_ids": [1, 2, *[9, 9, 9, 3] * len(digests)], "features": features})

    one, two, other = sent("cat"), sent("cat", "dog"), sent("dog")
    assert one.token_ids[0] == two.token_ids[0][:6] != other.token_ids[0]
    assert (one.token_ids[0][:2], one.token_ids[0][5]) == ((1, 2), 3)
    assert min(one.token_ids[0][2:5]) >= 2**31 and one.elsewhere
    assert one.salt == two.salt == ""


def test_several_conversations_to_embed_are_counted_by_their_text() -> None:
    chat = [{"role": "user", "content": "one"}]
    alone = parsed(Api.OPENAI_EMBEDDINGS, {"model": "m", "messages": chat})
    batch = parsed(Api.OPENAI_EMBEDDINGS, {"model": "m", "messages": [chat, chat]})
    objects = parsed(Api.OPENAI_EMBEDDINGS, {"model": "m", "input": [{"text": "a"}, {"text": "b", "image": "i"}]})
    assert parsed(Api.OPENAI_EMBEDDINGS, {"model": "m", "input": [chat]}).messages == alone.messages
    assert (len(alone.messages), alone.elsewhere, alone.add_generation_prompt) == (1, False, False)
    assert (len(batch.texts), batch.elsewhere, "one" in batch.texts[0]) == (2, True, True)
    assert (objects.elsewhere, objects.texts[0]) == (True, "a")


def test_a_query_is_not_multiplied_beyond_measure() -> None:
    body = {"query": "q" * 100_000, "documents": ["d"] * 20_000}
    assert sum(map(len, parsed(Api.RERANK, body).texts)) == 120_000


# ---- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "body", "param"),
    [
        (Api.ANTHROPIC_MESSAGES, {"model": "m"}, "messages"),
        (Api.ANTHROPIC_MESSAGES, {"model": "m", "messages": []}, "messages"),
        (Api.ANTHROPIC_MESSAGES, {"model": "m", "messages": [1]}, "messages.0"),
        (Api.ANTHROPIC_MESSAGES, {"model": "m", "messages": [{"role": "user"}, {}]}, "messages.1.role"),
        (Api.ANTHROPIC_MESSAGES, {"model": 1, "messages": [{"role": "user"}]}, "model"),
        (Api.ANTHROPIC_MESSAGES, {"model": "m", "messages": [{"role": "user"}], "tools": {}}, "tools"),
        (Api.OPENAI_RESPONSES, {"model": "m"}, "input"),
        (Api.OPENAI_RESPONSES, {"model": "m", "input": 5}, "input"),
        (Api.OPENAI_RESPONSES, {"model": "m", "input": ["x"]}, "input[0]"),
        (Api.OPENAI_RESPONSES, {"model": "m", "input": [{"content": "x"}]}, "input[0].role"),
        (Api.OPENAI_EMBEDDINGS, {"model": "m"}, "input"),
        (Api.OPENAI_EMBEDDINGS, {"model": "m", "input": []}, "input"),
        (Api.OPENAI_EMBEDDINGS, {"model": "m", "input": {"a": 1}}, "input"),
        (Api.RERANK, {"query": "q", "documents": []}, "documents"),
        (Api.VLLM_GENERATE, {"model": "m"}, "token_ids"),
        (Api.VLLM_GENERATE, {"token_ids": []}, "token_ids"),
        (Api.VLLM_GENERATE, {"token_ids": "text"}, "token_ids"),
        (Api.VLLM_GENERATE, {"token_ids": [[1], [2]]}, "token_ids"),
        (Api.VLLM_GENERATE, {"token_ids": [-1]}, "token_ids"),
        (Api.SGLANG_GENERATE, {"text": 5}, "text"),
        (Api.SGLANG_GENERATE, {"text": [1, 2]}, "text"),
        (Api.SGLANG_GENERATE, {"input_ids": "x"}, "input_ids"),
    ],
)
def test_what_no_engine_could_read(api: Api, body: dict[str, Any], param: str) -> None:
    with pytest.raises(MalformedBody) as error:
        parsed(api, body)
    assert error.value.param == param


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (Api.SGLANG_GENERATE, {"model": "llama", "prompt": "what another service calls generate"}),
        (Api.RERANK, {"items": [1]}),
        (Api.RERANK, {"query": "q", "texts": ["a"]}),
        (Api.RERANK, {"documents": ["d"]}),
    ],
)
def test_another_services_request_is_let_through(api: Api, body: dict[str, Any]) -> None:
    with pytest.raises(FailOpen) as error:
        parsed(api, body)
    assert error.value.reason == "unknown_format"


_MEMBERS = (
    "model", "messages", "prompt", "input", "system", "instructions", "tools", "documents", "query", "text",
    "input_ids", "token_ids", "sampling_params", "metadata", "reasoning", "thinking", "output_config", "stream",
    "chat_template_kwargs", "reasoning_effort", "image_data", "features", "content_parts", "cache_salt",
    "prompt_cache_key", "user", "previous_response_id",
)  # fmt: skip
_NAMES = (
    "role", "type", "content", "text", "name", "arguments", "function", "tool_calls", "tool_use_id", "source",
    "input", "thinking", "output", "call_id", "summary", "status", "cache_control", "url", "input_schema",
)  # fmt: skip
_WORDS = ("user", "assistant", "system", "text", "image", "tool_use", "tool_result", "thinking", "message",
          "function_call", "function_call_output", "reasoning", "output_text", "function", "disabled")  # fmt: skip
_VALUES: Any = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=6),
        st.sampled_from(_WORDS), st.just("\ud83d"),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(st.sampled_from(_NAMES), st.text(max_size=3)), inner)
    ),
    max_leaves=12,
)  # fmt: skip


@given(st.sampled_from(list(Api)), st.dictionaries(st.sampled_from(_MEMBERS), _VALUES, max_size=6), st.data())
def test_whatever_a_client_sends_is_a_prompt_or_its_fault(api: Api, body: dict[str, Any], data: st.DataObject) -> None:
    raw = json.dumps(body).encode()
    size = data.draw(st.integers(1, len(raw)))
    for part, complete in ((raw, True), (raw[:size], False)):
        try:
            prompt = parse(api, part, body_bytes=len(raw), complete=complete)
        except (RequestError, FailOpen):
            continue
        assert sum(map(bool, (prompt.messages, prompt.texts, prompt.token_ids))) <= 1
        assert prompt.api is api
        of(prompt)


@pytest.mark.parametrize("api", list(Api))
@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"content":[', b'{"input":['])
def test_deep_nesting_is_the_clients_fault(api: Api, opening: bytes) -> None:
    for member in (b"messages", b"input", b"tools", b"system", b"text", b"documents", b"prompt"):
        raw = b'{"model":"m","query":"q","%b":%b' % (member, opening * 20_000)
        for complete in (True, False):
            with pytest.raises((RequestError, FailOpen)):
                parse(api, raw, body_bytes=len(raw), complete=complete)


@pytest.mark.parametrize("api", list(Api))
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"content":', "}"), ('[{"content":', "}]")])
def test_nesting_that_can_just_be_decoded(api: Api, opening: str, closing: str) -> None:
    for depth in range(100, 1000, 75):
        nested = f"{opening * depth}1{closing * depth}"
        for member in (
            f'"messages":[{{"role":"user","content":{nested}}}]', f'"messages":[{{"role":"assistant","x":{nested}}}]',
            f'"messages":[{{"role":"user","content":[{{"type":"tool_result","content":{nested}}}]}}]',
            f'"messages":[{{"role":"user","content":[{{"type":"tool_use","input":{nested}}}]}}]',
            f'"messages":[{{"role":"user"}}],"tools":[{{"name":"x","input_schema":{nested}}}]',
            f'"messages":[{{"role":"user"}}],"system":{nested}', f'"messages":[{{"role":"user"}}],"thinking":{nested}',
            f'"input":[{{"type":"function_call","arguments":{nested}}}]', f'"input":[{{"type":"x","y":{nested}}}]',
            f'"input":"x","tools":[{{"type":"function","parameters":{nested}}}]', f'"query":{nested},"documents":[1]',
            f'"text":"x","sampling_params":{nested}', f'"token_ids":[1],"features":{nested}',
        ):
            raw = f'{{"model":"m",{member}}}'.encode()
            try:
                of(parse(api, raw, body_bytes=len(raw)))
            except (RequestError, FailOpen):
                pass


def _cuts(api: Api, body: dict[str, Any]) -> list[Prompt]:
    raw = json.dumps(body).encode()
    return [parse(api, raw[:size], body_bytes=len(raw), complete=False) for size in range(1, len(raw))]


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (Api.ANTHROPIC_MESSAGES, {"model": "m", "system": "s", "messages": joined(ANTHROPIC_TURNS)}),
        (Api.OPENAI_RESPONSES, {"model": "m", "instructions": "s", "input": joined(RESPONSES_TURNS)}),
        (Api.OPENAI_RESPONSES, {"model": "m", "input": "a long text"}),
        (Api.OPENAI_EMBEDDINGS, {"model": "m", "input": ["one", "two"]}),
        (Api.RERANK, {"model": "m", "query": "q", "documents": ["one", {"text": "two"}]}),
        (Api.VLLM_GENERATE, {"model": "m", "token_ids": list(range(30))}),
        (Api.SGLANG_GENERATE, {"text": "a long text", "sampling_params": {}}),
        (Api.SGLANG_GENERATE, {"model": "m", "input_ids": list(range(30))}),
        (Api.SGLANG_GENERATE, {"model": "m", "input_ids": [[1, 2, 3], [4, 5]]}),
        (Api.OPENAI_EMBEDDINGS, {"model": "m", "messages": [{"role": "user", "content": "x"}]}),
    ],
)
def test_every_head_of_a_body_is_read_as_far_as_it_goes(api: Api, body: dict[str, Any]) -> None:
    whole = parsed(api, body)
    cuts = _cuts(api, body)
    last = cuts[-1]
    middle = cuts[int(len(cuts) * 0.7)]
    assert middle.messages or middle.texts or middle.token_ids
    assert (len(last.messages), last.texts, last.token_ids) == (len(whole.messages), whole.texts, whole.token_ids)
    assert not last.complete


def test_a_head_that_ends_in_the_system_prompt_is_a_prompt() -> None:
    for api, name, rest in (
        (Api.ANTHROPIC_MESSAGES, "system", {"messages": [{"role": "user", "content": "x"}]}),
        (Api.OPENAI_RESPONSES, "instructions", {"input": "x"}),
    ):
        raw = json.dumps({"model": "m", name: "word " * 40, **rest}).encode()
        (message,) = parse(api, raw[:100], body_bytes=len(raw), complete=False).messages
        assert message.role == "system" and message.text.startswith("word word")
