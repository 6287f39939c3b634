from __future__ import annotations

from sys import getsizeof

from eluvix_extproc.core.memo import Memo
from eluvix_extproc.core.prompt import Message
from eluvix_extproc.core.recall import SHORTEST_KEPT, Recall, beginning, joined_keys, longest, message_bytes


def read(recall: Recall, raw: bytes) -> Message:
    return Message("user", b"c" + raw, raw.decode(), raw, 0, recall.keys([raw])[0])


def test_a_message_is_found_by_its_json() -> None:
    recall = Recall(1 << 20, seed=7)
    raws = [b"a" * SHORTEST_KEPT, b"b" * SHORTEST_KEPT]
    messages = [read(recall, raw) for raw in raws]
    recall.keep(messages)
    found = recall.find([raws[1], b"c" * 300], recall.keys([raws[1], b"c" * 300]))
    assert found[0] is messages[1] and found[1] is None


def test_equal_keys_are_no_proof() -> None:
    recall = Recall(1 << 20, seed=7)
    kept = read(recall, b"a" * SHORTEST_KEPT)
    recall.keep([kept])
    assert recall.find([b"another" * 50], [kept.key]) == [None]


def test_short_messages_are_read_again() -> None:
    recall = Recall(1 << 20, seed=7)
    recall.keep([read(recall, b"a" * (SHORTEST_KEPT - 1))])
    assert recall.used_bytes == 0


def test_what_is_kept_is_bounded_by_what_it_occupies() -> None:
    recall = Recall(20_000, seed=7)
    for number in range(100):
        message = read(recall, b"%03d" % number * 300)
        assert message_bytes(message) >= getsizeof(message.raw) + getsizeof(message.text) + getsizeof(message.canonical)
        recall.keep([message])
        assert recall.used_bytes <= 20_000
    assert recall.used_bytes > 10_000


def test_the_longest_known_beginning_is_found() -> None:
    recall, memo = Recall(0, seed=7), Memo[str](10_000)
    messages = [read(recall, raw) for raw in (b"one", b"two", b"three")]
    keys = joined_keys(messages)
    memo.put(beginning(keys, 1, 5), "one", 3)
    memo.put(beginning(keys, 2, 5), "two", 3)
    assert longest(memo, keys, 5) == (2, "two")
    assert longest(memo, joined_keys([messages[0], messages[2]]), 5) == (1, "one")
    assert longest(memo, keys, 6) is None and longest(memo, b"", 5) is None


def test_messages_without_keys_have_none_together() -> None:
    recall = Recall(0, seed=7)
    bare = Message("user", b"", "", b"raw")
    assert joined_keys([read(recall, b"one"), bare]) == b""
