"""Causes of failed NVML readings in plain words; one gap for each cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpulab.run import Gap, Gpu

# NVML's return codes, written out because the library may not be installed.
UNINITIALIZED, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED = 1, 3, 4, 6, 9
LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH = 12, 13, 15, 16, 18
# Errors that repeat on every call: invalid argument, argument version mismatch, deprecated, and these.
_LASTING = (2, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND, 22, 24, 25, 26)
GPU_LOST_CODES = (GPU_IS_LOST, RESET_REQUIRED)


@dataclass(frozen=True, kw_only=True)
class NvmlFailure:
    """Why a reading failed; `lasting`: a retry would fail, too."""

    why: str
    fix: str
    lasting: bool


NO_DRIVER = "this machine has no NVIDIA driver"
_CAUSES = {
    NOT_SUPPORTED: (
        "the GPU or its driver does not support it",
        "nothing to do: rules that depend on it are not judged",
    ),
    NO_PERMISSION: ("the driver shows it to administrators only", "ask an administrator of this machine"),
    FUNCTION_NOT_FOUND: ("the driver is too old for this query", "update the NVIDIA driver"),
    UNINITIALIZED: ("other code in this process shut down NVML", "nothing to do: gpulab reopens it"),
    10: ("the driver did not answer in time", "if this persists, look for Xid messages in dmesg"),
    DRIVER_NOT_LOADED: ("the NVIDIA driver is not loaded", "sudo modprobe nvidia, or reboot; check: nvidia-smi"),
    GPU_IS_LOST: (
        "the GPU has fallen off the bus",
        "save your work; reset the GPU or reboot; dmesg shows the Xid error",
    ),
    RESET_REQUIRED: ("the GPU needs a reset", "save your work, then nvidia-smi --gpu-reset or reboot"),
}
_MIG = NvmlFailure(
    why="a MIG instance has no such sensor",
    fix="use the trace instead, or profile on a GPU with MIG disabled",
    lasting=True,
)


def cause_of(code: int, message: str, *, mig: bool = False) -> NvmlFailure:
    """The cause of an NVML return code; `message` is NVML's own text, used for codes that are not listed here."""
    if mig and code == NOT_SUPPORTED:
        return _MIG
    generic = (
        f'the driver answered "{message}" (NVML code {code})',
        "if this persists, look for Xid messages in dmesg",
    )
    why, fix = _CAUSES.get(code, generic)
    return NvmlFailure(why=why, fix=fix, lasting=code in _LASTING)


HIDDEN = NvmlFailure(
    why="inside a container, the driver's process ids cannot be matched with this process",
    fix="share the host's process ids: docker run --pid=host; or run nvidia-smi on the host",
    lasting=True,
)


class HiddenReading(Exception):  # noqa: N818  (an answer, not an error)
    """The driver answered, but the answer cannot be interpreted here; HIDDEN has the reason. This may change later."""


class FailedReadings:
    """Counts failed readings and reports one gap for each cause."""

    def __init__(self) -> None:
        self._touched: dict[NvmlFailure, dict[str, set[int]]] = {}
        self._times: Counter[NvmlFailure] = Counter()

    def note(self, cause: NvmlFailure, label: str, gpu: int) -> None:
        """Count a failed reading of the sensor `label` on a GPU."""
        self._touched.setdefault(cause, {}).setdefault(label, set()).add(gpu)
        self._times[cause] += 1

    def gaps(self, gpus: Sequence[Gpu]) -> tuple[Gap, ...]:
        """One gap for each cause, naming the sensors and, unless all GPUs are affected, the GPUs."""
        return tuple(self._gap(cause, touched, gpus) for cause, touched in self._touched.items())

    def _gap(self, cause: NvmlFailure, touched: dict[str, set[int]], gpus: Sequence[Gpu]) -> Gap:
        affected = set().union(*touched.values())
        labels = join_names(list(touched))
        if len(affected) < len(gpus):
            names = [f"GPU {gpu.index} ({gpu.name})" for gpu in gpus if gpu.index in affected]
            labels = f"{labels} of {join_names(names)}"
        else:
            labels = f"GPU {labels}"
        times = self._times[cause]
        suffix = "" if cause.lasting or times == 1 else f" ({times} times)"
        return Gap(what=labels, why=cause.why + suffix, fix=cause.fix)


def join_names(items: Sequence[str]) -> str:
    """Join items with commas and "and": a, b and c."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def explain_missing_driver(code: int, message: str, root: Path) -> Gap:
    """Why NVML cannot be opened, from its return code and the driver's traces in the file system."""
    subject = "GPU sensors"
    if code == LIBRARY_NOT_FOUND:
        return _no_library(subject, root)
    if code == DRIVER_NOT_LOADED:
        why, fix = (
            "the NVIDIA driver is installed, but not loaded",
            "sudo modprobe nvidia, or reboot; check: nvidia-smi",
        )
    elif code == VERSION_MISMATCH:
        why, fix = "the NVIDIA driver was updated, and the old one is still loaded", "reboot; check: nvidia-smi"
    elif code == NO_PERMISSION:
        why, fix = "this user may not open the NVIDIA driver", "ask for access to /dev/nvidia*"
    else:
        why, fix = f'the NVIDIA driver answered "{message}" (NVML code {code})', "check: nvidia-smi"
    return Gap(what=subject, why=why, fix=fix)


def _no_library(subject: str, root: Path) -> Gap:
    if (root / "proc/driver/nvidia/version").exists():
        return Gap(
            what=subject,
            why="the NVIDIA driver is loaded, but its library libnvidia-ml was not found",
            fix="in a container: docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility; "
            "elsewhere: install the driver's libraries",
        )
    if (root / "dev/dxg").exists():
        return Gap(
            what=subject,
            why="libnvidia-ml was not found, although WSL can give access to the GPU",
            fix="update the NVIDIA driver of Windows; then start Jupyter with LD_LIBRARY_PATH=/usr/lib/wsl/lib",
        )
    if _has_nvidia_card(root):
        return Gap(
            what=subject,
            why="this machine has an NVIDIA GPU, but no driver is visible to this process",
            fix="install the NVIDIA driver; in a container: docker run --gpus all",
        )
    if (root / "dev/kfd").exists():
        return Gap(
            what=subject,
            why="this machine has an AMD GPU driver; gpulab reads the sensors of NVIDIA GPUs only",
            fix="read them with amd-smi; traces of AMD GPUs can be loaded",
        )
    return Gap(
        what=subject,
        why=NO_DRIVER,
        fix="nothing to do without an NVIDIA GPU: the CPU is measured instead",
    )


def _has_nvidia_card(root: Path) -> bool:
    """Whether there is a display or compute controller (PCI class 03) of vendor 10de."""
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = ((device / name).read_text(encoding="utf-8") for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor.strip() == "0x10de" and kind.startswith("0x03"):
            return True
    return False
