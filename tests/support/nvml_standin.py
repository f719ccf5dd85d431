"""Builds the stand-in NVML (standins/fakenvml.c) and lays it under the real nvidia-ml-py."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("fakenvml.c")
TIMEOUT, LOST, UNKNOWN, NOT_SUPPORTED, NO_PERMISSION = 10, 15, 999, 3, 4
FOR_EVER = -1

# What each column must read on GPU 0, and how much more on each GPU after it, in the column's own unit.
EXPECTED = {
    "util_frac": (0.61, 0.03),
    "memory_util_frac": (0.22, 0.03),
    "memory_used_bytes": (39_400_000_000, 990_000_000),
    "power_w": (512.345, 1.111),
    "sm_clock_mhz": (1755, 10),
    "memory_clock_mhz": (2619, 10),
    "temperature_c": (43, 1),
    "throttle_bits": (0x4, 0x100),
    "energy_j": (987654.321, 1000),
    "link_generation": (11, 1),
    "link_width": (21, 1),
    "power_held_s": (12.345678901, 2),
    "thermal_held_s": (24.691357802, 3),
    "ecc_corrected": (7, 100),
    "ecc_uncorrected": (1007, 100),
    "others_memory_bytes": (7_300_000_000, 110_000_000),
    "others_util_frac": (0.33, 0.01),
}
# The same where the driver lacks the newer question, or does not support it.
OLDER = {
    "memory_used_bytes": (40_000_000_000, 1_000_000_000),
    "power_w": (487.654, 1.333),
    "temperature_c": (52, 1),
    "throttle_bits": (0x8, 0x100),
    "power_held_s": (22.345678901, 3),
    "thermal_held_s": (8.789012345, 5),
}


def expected(column: str, gpu: int, table: dict[str, tuple[float, float]] = EXPECTED) -> Any:
    """What a column must read on this GPU."""
    base, step = table[column]
    return pytest.approx(base + gpu * step, rel=1e-12)


class Standin:
    """The library, and what tests say to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        self.library.standin_calls.restype = ctypes.c_long
        self.reset()

    def reset(self, gpus: int = 2) -> None:
        """As if newly loaded, with so many GPUs."""
        self.library.standin_reset(gpus)

    def name(self, gpu: int, name: bytes) -> None:
        self.library.standin_name(gpu, name)

    def mig(self, gpu: int, instances: int) -> None:
        """Switch MIG on, with so many instances."""
        self.library.standin_mig(gpu, instances)

    def capability(self, gpu: int, major: int, minor: int) -> None:
        self.library.standin_capability(gpu, major, minor)

    def processes(self, own: int = 0, other: int = 0, *, memory_told: bool = True) -> None:
        """The numbers that the driver tells of this process (0: its own) and of another one (0: there is none)."""
        self.library.standin_processes(own, other, int(memory_told))

    def set(self, gpu: int, **readings: int) -> None:
        """Change readings, in the driver's units: set(0, util=5, power=70_000); see kind_names in fakenvml.c."""
        for name, value in readings.items():
            self.library.standin_set(gpu, name.encode(), ctypes.c_ulonglong(value))

    def list_processes(self, gpu: int, *processes: tuple[int, int, int]) -> None:
        """Name the processes of a GPU: pid, bytes of memory, percent of the time."""
        self.library.standin_process(gpu, 0, ctypes.c_ulonglong(0), 0)
        for pid, memory_bytes, sm_percent in processes:
            self.library.standin_process(gpu, pid, ctypes.c_ulonglong(memory_bytes), sm_percent)

    def fault(self, function: str, code: int, *, gpu: int = -1, delay_us: int = 0, skip: int = 0, count: int = -1):
        """Make calls of a function fail; see fakenvml.c."""
        times = [ctypes.c_long(number) for number in (delay_us, skip, count)]
        self.library.standin_fault(function.encode(), gpu, code, *times)

    def xid(self, gpu: int, number: int) -> None:
        """Report an Xid error."""
        self.library.standin_xid(gpu, ctypes.c_ulonglong(number))

    def clear_faults(self) -> None:
        """Let every call succeed again."""
        self.library.standin_clear_faults()

    def calls(self, function: str) -> int:
        """How often a function was called since the last reset."""
        return int(self.library.standin_calls(function.encode()))


def build(folder: Path, absent: tuple[str, ...] = ()) -> Path:
    """Compile the stand-in without some functions; the test is skipped where there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the stand-in NVML with (apt-get install gcc)")
    tag = hashlib.sha256("".join(absent).encode()).hexdigest()[:8]
    path = folder / tag / "libnvidia-ml.so.1"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        renamed = [f"-D{name}=absent_{name}" for name in absent]
        options = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
        # Not the real one's soname: the dynamic linker would give the stand-in to whoever asks later in this process.
        soname = "-Wl,-soname,libstandin.so"
        subprocess.run([compiler, *options, *renamed, soname, "-o", path, SOURCE], check=True, timeout=60)
    return path


def installed(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standin]:
    """The stand-in as the library that nvidia-ml-py has loaded in this process, until the test ends."""
    pynvml: Any = pytest.importorskip("pynvml")
    standin = Standin(path)
    monkeypatch.setattr(pynvml, "nvmlLib", standin.library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    yield standin
    standin.reset()
