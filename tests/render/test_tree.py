from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.render.tree import WIDTH, dump, dump_documents, note, plain

KEYS = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | KEYS | st.sampled_from(["on", "1:30", "", "~", "# no", "%X%"])
COMMENTS = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=200)


def noted(children: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return children | st.builds(note, COMMENTS, children)


TREES = st.recursive(
    noted(SCALARS),
    lambda children: noted(st.lists(children, max_size=4) | st.dictionaries(KEYS, children, max_size=4)),
    max_leaves=25,
)


@given(st.dictionaries(KEYS, TREES, min_size=1, max_size=4))
def test_reads_back_as_the_same_tree_whatever_is_commented(tree: dict[str, object]) -> None:
    assert yaml.safe_load(dump(tree, header="made by a test")) == plain(tree)


def test_a_short_reason_stands_beside_its_value_and_a_long_one_above() -> None:
    long = "because " * 20
    assert dump({"a": note("why", 1)}) == "a: 1   # why\n"
    lines = dump({"a": {"b": note(long, 1)}}).splitlines()
    assert lines[0] == "a:"
    assert lines[-1] == "  b: 1"
    assert all(line.startswith("  # because") and len(line) <= WIDTH for line in lines[1:-1])


def test_a_reason_for_a_list_entry_stands_above_its_dash() -> None:
    long = "x" * (WIDTH - 4)
    assert dump({"a": [{"b": note(long, 1)}]}).splitlines() == ["a:", f"# {long}", "- b: 1"]


def test_text_of_several_lines_stays_readable() -> None:
    text = "pools:\n- name: a\n\n  role: decode\n"
    dumped = dump({"data": {"extproc.yaml": text}})
    assert "    - name: a\n" in dumped
    assert yaml.safe_load(dumped) == {"data": {"extproc.yaml": text}}


def test_several_documents() -> None:
    assert list(yaml.safe_load_all(dump_documents([{"a": 1}, {"b": note("why", [2])}], header="x"))) == [
        {"a": 1},
        {"b": [2]},
    ]
