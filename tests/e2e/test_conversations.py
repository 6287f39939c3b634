"""A conversation keeps its key and its worker, turn after turn and on every replica."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.client import Answer, chat, post
from tests.support.stack import Stack


def turns(port: int, mark: str, count: int, **options: Any) -> Iterator[Answer]:
    """The answers of a conversation whose every turn repeats all that was said, behind a system prompt that all
    conversations share."""
    system = {"role": "system", "content": "You answer briefly and in plain words. " * 4}
    messages = [system, {"role": "user", "content": f"{mark}: " + "tell me of caches " * 20}]
    for number in range(count):
        answer = post(port, chat(messages=messages, max_tokens=24), **options)
        assert answer.status == 200, answer.body
        yield answer
        messages.append({"role": "assistant", "content": answer.json["choices"][0]["message"]["content"]})
        messages.append({"role": "user", "content": f"go on, turn {number}, " + "with more detail " * 5})


def cached(answer: Answer) -> int:
    return int(answer.json["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_conversation_keeps_its_key_and_its_worker(stack: Stack, http2: bool, mark: str) -> None:
    """One hash for all turns, one worker, and that worker finds ever more of the prompt in its KV cache."""
    stack.wait_idle()
    answers = list(turns(stack.port, mark, 4, http2=http2))
    assert len({answer.ours("kv-prefix-hash") for answer in answers}) == 1
    assert len({answer.headers["x-sim-worker"] for answer in answers}) == 1
    found = [cached(answer) for answer in answers]
    assert found[0] <= found[1] < found[2] < found[3]
    assert found[1] > 0


def test_different_conversations_have_different_keys(stack: Stack) -> None:
    """What a user begins with is in the key, so is the system prompt."""
    system, first = {"role": "system", "content": "Be brief."}, [{"role": "user", "content": uuid.uuid4().hex}]
    bodies = [chat(messages=first), chat(messages=[system, *first]), chat(uuid.uuid4().hex)]
    assert len({post(stack.port, body).ours("kv-prefix-hash") for body in bodies}) == 3


def test_whitespace_and_key_order_do_not_change_the_key(stack: Stack, mark: str) -> None:
    """The key is of what the engine reads, not of how a client writes JSON."""
    text = mark.encode()
    bodies = [
        b'{"model":"sim-model","messages":[{"role":"user","content":"%s"}],"max_tokens":1}' % text,
        b'{ "max_tokens": 1, "messages": [ {"content": "%s", "role": "user"} ], "model": "sim-model" }' % text,
        b'{"model":"sim-model","messages":[{"role":"user","content":"%s"}],"max_tokens":2,"user":"x"}' % text,
    ]
    assert len({post(stack.port, body).ours("kv-prefix-hash") for body in bodies}) == 1


def test_the_key_is_the_same_in_every_body_mode(stacks: Any, mark: str) -> None:
    """Also for bodies of which only the head is read."""
    for body in (chat(mark), chat(f"{mark} " + "long " * 400_000)):
        headers = {"x-sim-fault": '{"status": 200}'}
        keys = {post(stacks(p).port, body, headers=headers).ours("kv-prefix-hash") for p in ("hybrid", "full-duplex",
                "buffered")}  # fmt: skip
        assert len(keys) == 1 and None not in keys


@pytest.fixture(scope="module")
def replica(stacks: Any) -> Iterator[tuple[Stack, Stack]]:
    """A gateway, and a second one before the same workers that shares nothing with it."""
    first = stacks("hybrid")
    with Stack("hybrid", {"server": {"drainTimeout": "100ms"}}, beside=first) as second:
        yield first, second


def test_replicas_that_share_nothing_agree(replica: tuple[Stack, Stack]) -> None:
    """With equal load both send a conversation that neither has seen to the same worker, under the same key."""
    used = set()
    for _ in range(6):
        mark = uuid.uuid4().hex
        answers = []
        for stack in replica:
            for other in replica:
                other.wait_idle()
            answers.append(next(turns(stack.port, mark, 1)))
        one, two = answers
        assert one.ours("kv-prefix-hash") == two.ours("kv-prefix-hash")
        assert one.headers["x-sim-worker"] == two.headers["x-sim-worker"]
        used.add(one.headers["x-sim-worker"])
    assert used <= {worker.address for worker in replica[0].decode}


def test_a_conversation_may_change_replicas_between_turns(replica: tuple[Stack, Stack], mark: str) -> None:
    """A turn that comes in at the other replica still finds its worker, which still finds its KV cache."""
    for stack in replica:
        stack.wait_idle()
    first = next(turns(replica[0].port, mark, 1))
    for stack in replica:
        stack.wait_idle()
    *_, second = turns(replica[1].port, mark, 2)
    assert second.headers["x-sim-worker"] == first.headers["x-sim-worker"]
    assert second.ours("kv-prefix-hash") == first.ours("kv-prefix-hash")
    assert cached(second) > 0
