"""The demo as a user runs it, for real but in its short form; and what its figures and marks are made of."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO

from eluvix_extproc.sim.demo_client import Answer, prose
from eluvix_extproc.sim.demo_isolation import percentile
from eluvix_extproc.sim.demo_outage import problems_of
from eluvix_extproc.sim.demo_table import Screen, row
from eluvix_extproc.sim.processes import wait_until

DEMO = [sys.executable, "-m", "eluvix_extproc.cli", "demo", "--quick"]
WRONG = "NOT AS EXPECTED"


def group_is_gone(leader: int) -> bool:
    """The kernel ends the children of a process that was killed right after it, not with it."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return True
    return False


@contextmanager
def demo(*options: str) -> Iterator[subprocess.Popen[str]]:
    """In a process group of its own, of which nothing may be left."""
    running = subprocess.Popen([*DEMO, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               start_new_session=True)  # fmt: skip
    try:
        yield running
    finally:
        try:
            wait_until(lambda: group_is_gone(running.pid), "all processes of the demo to be gone", 15)
        finally:
            if not group_is_gone(running.pid):
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()


def test_it_shows_every_kind_of_request_and_leaves_nothing_behind() -> None:
    with demo() as running:
        output, _ = running.communicate(timeout=120)
    assert running.returncode == 0, output
    assert WRONG not in output
    assert max(map(len, output.splitlines())) <= 110
    assert "\x1b" not in output, "colours are for terminals"
    rows = {line[:24].rstrip(): line[24:].split() for line in output.splitlines()}
    assert rows["chat, light, streamed"][:4] == ["200", "15", "est.", "decode"]
    assert rows["completion of token ids"][1:4] == ["500", "exact", "decode"]
    assert rows["chat, heavy, streamed"][3:5] == ["prefill", "prefill-1"]
    assert rows["the same, not streamed"][3:5] == ["prefill", "prefill-1"]
    first, second = rows["conversation 1"], rows["conversation 2, streamed"]
    assert (first[4], first[-1]) == (second[4], second[-1])
    assert int(first[-3]) < int(second[-3])
    assert rows["chat naming its cluster"][3] == "decode"
    assert rows["GET /v1/models"][0] == "200"
    assert rows["chat, unknown model"] == ["404", "-", "-", "-", "-", "-", "-", "-", "-"]
    assert rows["stream, sidecar killed"][0] == "200"
    assert rows["chat, without a sidecar"][:3] == ["200", "-", "-"]
    assert "light streams: ITL p99" in output
    assert "Everything above held true" in output


def test_it_takes_its_children_along_when_it_is_ended() -> None:
    with demo() as running:
        assert running.stdout is not None
        assert running.stdout.read(30) == "  starting 3 simulated workers"
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGTERM


def test_percentiles_are_by_nearest_rank() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1)) == (50.0, 99.0, 100.0)
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([], 0.99) == 0.0


def test_prose_has_the_size_that_is_asked_for() -> None:
    text = prose(6000, "Summarise.")
    assert text.startswith("Summarise. ")
    assert 6000 <= len(text) / 4 < 6010


def test_a_figure_that_was_not_measured_on_the_answer_is_marked() -> None:
    headers = {
        "x-eluvix-tokens": "4213;source=exact", "x-eluvix-pd-role": "prefill", "x-sim-worker": "10.0.0.1:1",
        "x-eluvix-ttft-ms": "12.3", "x-eluvix-itl-ms": "20.00", "x-eluvix-timing": "ttft=measured,itl=worker-mean",
        "x-eluvix-kv-prefix-hash": "ab" * 32,
    }  # fmt: skip
    out = StringIO()
    Screen(out).table_row(row("a", answer(headers=headers), {"10.0.0.1:1": "prefill-9"}, ("no",)))
    line, problem = out.getvalue().splitlines()
    assert line.split() == ["a", "200", "4213", "exact", "prefill", "prefill-9", "12.3", "~20.0", "-", "-", "abababab"]
    assert problem == f"  {WRONG}: no"


def test_an_answer_that_was_cut_short_is_told() -> None:
    assert problems_of(answer(token_at=(1.0, 2.0)), tokens=2) == ()
    assert problems_of(answer(token_at=(1.0,)), tokens=2)
    assert problems_of(answer(whole=False))
    assert problems_of(answer(status=503))


def answer(status: int = 200, headers: dict[str, str] | None = None, token_at: tuple[float, ...] = (),
           whole: bool = True) -> Answer:  # fmt: skip
    return Answer(status, headers or {}, "text", {}, {}, 0.0, token_at, whole)
