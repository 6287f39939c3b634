"""Deadlines of many sessions on one timer."""

from __future__ import annotations

import asyncio

from eluvix_extproc.wire.deadlines import Deadlines


async def test_those_that_are_due_are_told_once() -> None:
    now = 0.0
    deadlines = Deadlines(lambda: now)
    told: list[str] = []
    events = {"early": asyncio.Event(), "late": asyncio.Event()}

    def passed(name: str) -> None:
        told.append(name)
        events[name].set()

    early, late, gone, moved = (lambda n=n: passed(n) for n in ("early", "late", "gone", "moved"))
    deadlines.set(early, 1.0)
    deadlines.set(late, 2.0)
    deadlines.set(gone, 1.0)
    deadlines.set(moved, 1.0)
    deadlines.set(moved, 9.0)
    deadlines.clear(gone)
    now = 1.5
    await asyncio.wait_for(events["early"].wait(), 10)
    assert told == ["early"]
    now = 2.5
    await asyncio.wait_for(events["late"].wait(), 10)
    assert told == ["early", "late"]


async def test_one_that_is_told_may_take_back_another_and_set_its_own_again() -> None:
    now = 1.0
    deadlines = Deadlines(lambda: now)
    told: list[str] = []
    again = asyncio.Event()

    def first() -> None:
        told.append("first")
        deadlines.clear(second)
        if len(told) == 1:
            deadlines.set(first, 1.0)
        else:
            again.set()

    def second() -> None:
        told.append("second")

    deadlines.set(first, 1.0)
    deadlines.set(second, 1.0)
    await asyncio.wait_for(again.wait(), 10)
    assert told == ["first", "first"]
