"""CPU time and memory of other processes, all of their threads counted, ended ones too. Linux only."""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Seconds of CPU that the process has used so far.

    From its CPU-time clock, which counts nanoseconds, where the kernel lets us read it; else from /proc/<pid>/stat,
    which counts ticks of 10 ms. Raises ProcessLookupError.
    """
    clock = ctypes.c_int()
    if ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)) == 0:
        try:
            return time.clock_gettime(clock.value)
        except OSError:
            pass
    try:
        return stat_cpu_s(Path(f"/proc/{pid}/stat").read_text())
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None


def stat_cpu_s(stat: str) -> float:
    """utime + stime of the text of /proc/<pid>/stat, in seconds; the command's name may hold spaces and brackets."""
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes: resident now, and the most that ever was."""

    rss: int
    peak: int


def memory(pid: int) -> Memory:
    """Raises ProcessLookupError."""
    try:
        return status_memory(Path(f"/proc/{pid}/status").read_text())
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None


def status_memory(status: str) -> Memory:
    """VmRSS and VmHWM of the text of /proc/<pid>/status."""
    found = {}
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM"):
            found[name] = int(value.split()[0]) * 1024
    return Memory(found["VmRSS"], found["VmHWM"])
