"""The parent of several processes, as a real process with real children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PATIENCE_S = 20.0
PARENT = """
import asyncio, sys
from eluvix_extproc import supervisor
supervisor.RESTART_S = (0.01, 0.02)
child, folder, processes = sys.argv[1:]
sys.exit(asyncio.run(supervisor.supervise(int(processes), lambda n: [sys.executable, child, str(n), folder])))
"""
# Notes its start, then each signal; stops with its own exit code at SIGTERM.
CHILD = """
import os, pathlib, signal, sys, time
number, folder = sys.argv[1:]
folder = pathlib.Path(folder)
def note(what):
    with (folder / f"{number}.{what}").open("a") as file:
        file.write(f"{os.getpid()}\\n")
def stop(*_):
    note("term")
    sys.exit(int((folder / "code").read_text()))
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGHUP, lambda *_: note("hup"))
note("start")
if (folder / "die").exists():
    sys.exit(3)
while True:
    time.sleep(0.05)
"""


class Family:
    def __init__(self, folder: Path, processes: int = 2) -> None:
        self.folder = folder
        self.processes = processes
        (folder / "child.py").write_text(CHILD)
        (folder / "code").write_text("0")
        self.parent: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-c", PARENT, str(self.folder / "child.py"), str(self.folder), str(self.processes)]
        self.parent = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def noted(self, number: int, what: str) -> list[int]:
        """Process ids, in order."""
        file = self.folder / f"{number}.{what}"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def signal(self, number: int) -> None:
        assert self.parent is not None
        self.parent.send_signal(number)

    def exit_code(self) -> int:
        assert self.parent is not None
        return self.parent.wait(PATIENCE_S)

    def running(self) -> Callable[[], bool]:
        return lambda: all(self.noted(n, "start") for n in range(self.processes))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    found = Family(tmp_path)
    yield found
    if found.parent is not None and found.parent.poll() is None:
        found.parent.kill()
        found.parent.wait()
    for number in range(found.processes):
        for pid in found.noted(number, "start"):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_are_told_to_stop_once_and_their_ends_awaited(family: Family, number: int) -> None:
    family.start()
    until(family.running())
    family.signal(number)
    assert family.exit_code() == 0
    if number == signal.SIGTERM:
        assert all(family.noted(n, "term") == family.noted(n, "start") for n in (0, 1))


def test_a_child_that_ends_badly_is_told(family: Family) -> None:
    (family.folder / "code").write_text("5")
    family.start()
    until(family.running())
    family.signal(signal.SIGTERM)
    assert family.exit_code() == 1


def test_sighup_reaches_all_and_ends_none(family: Family) -> None:
    family.start()
    until(family.running())
    family.signal(signal.SIGHUP)
    until(lambda: all(family.noted(n, "hup") for n in (0, 1)))
    assert all(len(family.noted(n, "start")) == 1 for n in (0, 1))
    family.signal(signal.SIGTERM)
    assert family.exit_code() == 0


def test_a_child_that_is_killed_is_started_anew_and_its_sibling_left_alone(family: Family) -> None:
    family.start()
    until(family.running())
    os.kill(family.noted(0, "start")[0], signal.SIGKILL)
    until(lambda: len(family.noted(0, "start")) == 2)
    assert len(family.noted(1, "start")) == 1
    family.signal(signal.SIGTERM)
    assert family.exit_code() == 0
    assert family.noted(0, "term") == family.noted(0, "start")[1:]


def test_a_child_that_keeps_dying_is_tried_on_and_the_parent_can_be_stopped(family: Family) -> None:
    (family.folder / "die").touch()
    family.start()
    until(lambda: all(len(family.noted(n, "start")) >= 4 for n in (0, 1)))
    family.signal(signal.SIGTERM)
    assert family.exit_code() in (0, 1)
    started = [family.noted(n, "start") for n in (0, 1)]
    time.sleep(0.2)
    assert [family.noted(n, "start") for n in (0, 1)] == started
