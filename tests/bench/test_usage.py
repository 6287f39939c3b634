from __future__ import annotations

import os
import time

import pytest

from eluvix_extproc.bench.usage import cpu_s, memory, stat_cpu_s, status_memory

STAT = "4242 (a (b) c) S 1 4242 4242 0 -1 4194304 102 0 0 0 250 50 7 9 20 0 9 0 272560 3133440 390 18446744073709551615"
STATUS = "Name:\tpython\nVmPeak:\t  9000 kB\nVmHWM:\t    2284 kB\nVmRSS:\t    2048 kB\nThreads:\t4\n"


def test_stat_counts_user_and_system_time_whatever_the_command_is_called() -> None:
    assert stat_cpu_s(STAT) == pytest.approx(300 / os.sysconf("SC_CLK_TCK"))


def test_status_gives_bytes() -> None:
    found = status_memory(STATUS)
    assert (found.rss, found.peak) == (2048 * 1024, 2284 * 1024)


def test_cpu_time_grows_by_what_was_used() -> None:
    before, own = cpu_s(os.getpid()), time.process_time()
    while time.process_time() - own < 0.05:
        pass
    assert cpu_s(os.getpid()) - before >= 0.04


def test_memory_of_a_process_is_at_most_its_peak() -> None:
    found = memory(os.getpid())
    assert 0 < found.rss <= found.peak


def test_a_process_that_is_gone() -> None:
    nobody = 2**22 + 1   # above the kernel's highest pid
    with pytest.raises(ProcessLookupError):
        cpu_s(nobody)
    with pytest.raises(ProcessLookupError):
        memory(nobody)
