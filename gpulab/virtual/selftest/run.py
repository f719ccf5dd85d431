"""Whether the virtual GPU works with this PyTorch: tried once, in a process of its own, before the user's is touched.

The virtual GPU stands on PyTorch's insides, and those differ from version to version. The versions in TESTED were
tried with all that gpulab's tests ask, and are not tried again where those tests ran. Any other is given a small
training loop first, and that it was passed is remembered in the user's cache folder. Where it fails, or kills its
process, or hangs, the answer says so, and the virtual GPU counts instead of playing: see
gpulab.virtual.device.counting.
"""

from __future__ import annotations

import subprocess
import sys
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from gpulab.user_data import selftests
from gpulab.virtual.selftest.progress import read_progress
from gpulab.wording import duration

TESTED = frozenset({"2.13", "2.12", "2.10", "2.7"})  # of PyTorch, on Linux without a GPU
LONGEST_S = 180.0  # importing PyTorch alone takes a minute from some networks' disks
MOST_WORDS = 300  # characters of an error
_PROGRAM = "from gpulab.virtual.selftest.program import main; main()"


@dataclass(frozen=True)
class Selftest:
    """What came of it."""

    ok: bool
    why: str  # what was tried, or what failed
    torch: str  # its version
    seconds: float  # that it took; 0 where nothing was tried

    def __str__(self) -> str:
        return f"PyTorch {self.torch}: {'works' if self.ok else 'does not work'} with the virtual GPU ({self.why})"


def playable() -> Selftest:
    """Whether the virtual GPU works on this PyTorch, tried only where that is not known yet."""
    version = _torch_version()
    if _KNOWN:
        return _KNOWN[-1]
    if _tested(version):
        return Selftest(True, "tested with this version of gpulab", version, 0.0)
    if selftests.worked(_versions(version)):
        return Selftest(True, "the self-test was passed here before", version, 0.0)
    return selftest()


def _tested(version: str) -> bool:
    """Whether this is a PyTorch that was tested, in surroundings that were."""
    import torch

    # Counting devices asks NVML, and so does not begin with CUDA, as asking whether it is available may.
    known = ".".join(version.split(".")[:2]) in TESTED
    return known and sys.platform == "linux" and torch.cuda.device_count() == 0


def selftest(longest_s: float = LONGEST_S) -> Selftest:
    """Try the virtual GPU in a process of its own, in 3 to 8 seconds; this process goes by the answer from now on."""
    version = _torch_version()
    began = time.perf_counter()
    failed = failure(_PROGRAM, longest_s)
    seconds = round(time.perf_counter() - began, 1)
    told = Selftest(failed is None, failed or "the self-test was passed", version, seconds)
    if told.ok:
        selftests.keep(_versions(version))
    presume(told)
    return told


def presume(told: Selftest) -> None:
    """Take this for the answer in this process, until `selftest()` is asked again."""
    _KNOWN[:] = [told]


def forget() -> None:
    """Know nothing any more, as a new process does."""
    _KNOWN.clear()


_KNOWN: list[Selftest] = []


def failure(program: str, longest_s: float) -> str | None:
    """The error of a process that runs this program, in one line; None where it succeeds."""
    if not sys.executable:
        return "this Python cannot start another one to try it in"
    command = [sys.executable, "-W", "ignore", "-c", f"import sys; sys.path[:] = {sys.path!r}; {program}"]
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=longest_s, check=False)
    except subprocess.TimeoutExpired as late:
        part = read_progress(_text(late.stdout)).part
        return f"{part} did not end within {duration(1e9 * longest_s)}"
    except OSError as error:
        return f"no process could be started to try it in: {error}"
    seen = read_progress(_text(ended.stdout))
    if seen.failure is not None:
        return f"{seen.part} failed: {_short(seen.failure)}"
    if ended.returncode < 0:
        return f"{seen.part} killed the process that tried it, with signal {-ended.returncode}"
    if not seen.done:
        last = _text(ended.stderr).strip().rpartition("\n")[2]
        return f"{seen.part} ended the process that tried it, with status {ended.returncode}: {_short(last)}"
    return None


def _text(output: bytes | None) -> str:
    return (output or b"").decode("utf-8", "replace")


def _short(words: str) -> str:
    line = " ".join(words.split())
    return line if len(line) <= MOST_WORDS else f"{line[:MOST_WORDS]} ..."


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def _versions(torch_version: str) -> tuple[str, ...]:
    """What an answer holds for: PyTorch, Python, and the virtual GPU's own source."""
    source = 0
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        source = zlib.crc32(path.read_bytes(), source)
    return f"torch{torch_version}", f"python{sys.version.split()[0]}", sys.platform, f"{source:08x}"
