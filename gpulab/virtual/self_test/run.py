"""Run the self-test: whether the virtual GPU works with the installed PyTorch.

The virtual GPU depends on PyTorch internals, which differ between versions. The versions in TESTED passed all tests of
gpulab and are not tested again on the platform of those tests. For any other version, a small training loop runs once
in a subprocess, before the user's process is touched; a success is remembered in the user's cache folder. If it fails,
crashes or hangs, the result says so, and the virtual GPU only counts operators: see
gpulab.virtual.device.counting_device.
"""

from __future__ import annotations

import subprocess
import sys
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from gpulab.user_data import working_torch_versions
from gpulab.virtual.self_test.progress import read_progress
from gpulab.wording import duration

TESTED = frozenset({"2.13", "2.12", "2.10", "2.7"})  # PyTorch versions tested on Linux without a GPU
TIMEOUT_S = 180.0  # importing PyTorch alone takes a minute from some network disks
MAX_ERROR_CHARS = 300  # characters of an error message that are shown
_PROGRAM = "from gpulab.virtual.self_test.program import main; main()"


@dataclass(frozen=True)
class SelftestResult:
    """Result of the self-test."""

    ok: bool
    why: str  # what was tested, or what failed
    torch_version: str  # PyTorch version
    seconds: float  # duration of the self-test; 0 if it was not run

    def __str__(self) -> str:
        return (
            f"The virtual GPU {'works' if self.ok else 'does not work'} with PyTorch {self.torch_version} ({self.why})"
        )


def selftest_result() -> SelftestResult:
    """Return whether the virtual GPU works with this PyTorch; run the self-test only if that is not known yet."""
    version = _torch_version()
    if _RESULT:
        return _RESULT[-1]
    if _tested(version):
        return SelftestResult(True, "this version of gpulab is tested with it", version, 0.0)
    if working_torch_versions.has_succeeded(_versions(version)):
        return SelftestResult(True, "the self-test passed earlier on this machine", version, 0.0)
    return selftest()


def _tested(version: str) -> bool:
    """Whether this PyTorch version is tested, and on a platform like this one."""
    import torch

    # device_count() uses NVML; is_available() may initialize CUDA.
    is_tested = ".".join(version.split(".")[:2]) in TESTED
    return is_tested and sys.platform == "linux" and torch.cuda.device_count() == 0


def selftest(longest_s: float = TIMEOUT_S) -> SelftestResult:
    """Run the self-test in a subprocess, in 3 to 8 seconds, and use its result in this process from now on."""
    version = _torch_version()
    start = time.perf_counter()
    error = failure_of_program(_PROGRAM, longest_s)
    seconds = round(time.perf_counter() - start, 1)
    result = SelftestResult(error is None, error or "the self-test passed", version, seconds)
    if result.ok:
        working_torch_versions.store_success(_versions(version))
    set_result(result)
    return result


def set_result(result: SelftestResult) -> None:
    """Use this result in this process, until `selftest()` runs again."""
    _RESULT[:] = [result]


def forget_result() -> None:
    """Forget the result of this process."""
    _RESULT.clear()


_RESULT: list[SelftestResult] = []


def failure_of_program(program: str, longest_s: float) -> str | None:
    """Run a program in a subprocess and return its error in one line; None if it succeeds."""
    if not sys.executable:
        return "the self-test cannot run, because sys.executable is not set"
    command = [sys.executable, "-W", "ignore", "-c", f"import sys; sys.path[:] = {sys.path!r}; {program}"]
    try:
        process = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=longest_s, check=False)
    except subprocess.TimeoutExpired as timeout:
        part = read_progress(_text(timeout.stdout)).part
        return f"{part} did not finish within {duration(1e9 * longest_s)}"
    except OSError as error:
        return f"the self-test process could not be started: {error}"
    progress = read_progress(_text(process.stdout))
    if progress.failure is not None:
        return f"{progress.part} failed: {_short(progress.failure)}"
    if process.returncode < 0:
        return f"{progress.part} crashed the self-test process with signal {-process.returncode}"
    if not progress.done:
        last_line = _text(process.stderr).strip().rpartition("\n")[2]
        return f"{progress.part} ended the self-test process with exit status {process.returncode}: {_short(last_line)}"
    return None


def _text(output: bytes | None) -> str:
    return (output or b"").decode("utf-8", "replace")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_ERROR_CHARS else f"{line[:MAX_ERROR_CHARS]} ..."


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def _versions(torch_version: str) -> tuple[str, ...]:
    """Return what a result is valid for: PyTorch, Python, platform, and a checksum of the virtual GPU's source."""
    source = 0
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        source = zlib.crc32(path.read_bytes(), source)
    return f"torch{torch_version}", f"python{sys.version.split()[0]}", sys.platform, f"{source:08x}"
