"""Why a question to the NVIDIA driver got no answer, in words; and one gap for each cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpulab.run import Gap, Gpu

# NVML's return codes, written out because the library may not be there to ask.
UNINITIALIZED, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED = 1, 3, 4, 6, 9
LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH = 12, 13, 15, 16, 18
# Answers that will be the same the next time: invalid argument and version of an argument, deprecated, and these.
_LASTING = (2, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND, 22, 24, 25, 26)
LOST = (GPU_IS_LOST, RESET_REQUIRED)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why there was no answer; `lasting` where asking again is of no use."""

    why: str
    fix: str
    lasting: bool


_KNOWN = {
    NOT_SUPPORTED: (
        "the GPU or its driver does not support it",
        "nothing needs doing: what depends on it is not judged",
    ),
    NO_PERMISSION: ("the driver shows it to administrators only", "ask an administrator of this machine"),
    FUNCTION_NOT_FOUND: ("the driver is older than the question", "update the NVIDIA driver"),
    UNINITIALIZED: ("something in this process shut the driver's library down", "gpulab opens it again by itself"),
    10: ("the driver did not answer in time", "if it stays so, look for Xid messages in dmesg"),
    GPU_IS_LOST: (
        "the GPU has fallen off the bus",
        "save your work; reset the GPU or reboot; dmesg shows the Xid error",
    ),
    RESET_REQUIRED: ("the GPU needs a reset", "save your work, then nvidia-smi --gpu-reset or reboot"),
}
_MIG = Cause(
    why="a MIG instance has no such sensor of its own",
    fix="read it off the trace, or profile on a GPU with MIG switched off",
    lasting=True,
)


def cause_of(code: int, words: str, *, mig: bool = False) -> Cause:
    """The cause behind an NVML return code; `words` are NVML's own, for codes that have none here."""
    if mig and code == NOT_SUPPORTED:
        return _MIG
    generic = (f'the driver answered "{words}" (NVML code {code})', "if it stays so, look for Xid messages in dmesg")
    why, fix = _KNOWN.get(code, generic)
    return Cause(why=why, fix=fix, lasting=code in _LASTING)


HIDDEN = Cause(
    why="from inside a container the driver's numbers of processes do not tell which are others",
    fix="share the host's process numbers: docker run --pid=host; or look from outside, with nvidia-smi",
    lasting=True,
)


class Hidden(Exception):  # noqa: N818  (an answer, not an error)
    """The driver answered, and the answer cannot be read from here: HIDDEN says why. Later it may be."""


class Troubles:
    """What was not answered: counted, and told once for each cause."""

    def __init__(self) -> None:
        self._touched: dict[Cause, dict[str, set[int]]] = {}
        self._times: Counter[Cause] = Counter()

    def note(self, cause: Cause, what: str, gpu: int) -> None:
        """One question about `what` to one GPU had no answer."""
        self._touched.setdefault(cause, {}).setdefault(what, set()).add(gpu)
        self._times[cause] += 1

    def gaps(self, gpus: Sequence[Gpu]) -> tuple[Gap, ...]:
        """One gap for each cause, naming what and, where not all have it, which GPUs."""
        return tuple(self._gap(cause, touched, gpus) for cause, touched in self._touched.items())

    def _gap(self, cause: Cause, touched: dict[str, set[int]], gpus: Sequence[Gpu]) -> Gap:
        where = set().union(*touched.values())
        what = listed(list(touched))
        if len(where) < len(gpus):
            named = [f"GPU {gpu.index} ({gpu.name})" for gpu in gpus if gpu.index in where]
            what = f"{what} of {listed(named)}"
        else:
            what = f"GPU {what}"
        times = self._times[cause]
        often = "" if cause.lasting or times == 1 else f" ({times} times)"
        return Gap(what=what, why=cause.why + often, fix=cause.fix)


def listed(words: Sequence[str]) -> str:
    """Words as a person lists them: a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def no_driver(code: int, words: str, root: Path) -> Gap:
    """Why NVML cannot be opened, from its return code and what the system shows of the driver."""
    what = "GPU sensors"
    if code == LIBRARY_NOT_FOUND:
        return _no_library(what, root)
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
        why, fix = f'the NVIDIA driver answered "{words}" (NVML code {code})', "check: nvidia-smi"
    return Gap(what=what, why=why, fix=fix)


def _no_library(what: str, root: Path) -> Gap:
    if (root / "proc/driver/nvidia/version").exists():
        return Gap(
            what=what,
            why="the NVIDIA driver is loaded, but its library libnvidia-ml is not to be found",
            fix="in a container: docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility; "
            "elsewhere: install the driver's libraries",
        )
    if (root / "dev/dxg").exists():
        return Gap(
            what=what,
            why="no libnvidia-ml was found, though WSL can pass a GPU through",
            fix="update the NVIDIA driver of Windows; then start Jupyter with LD_LIBRARY_PATH=/usr/lib/wsl/lib",
        )
    if _has_nvidia_card(root):
        return Gap(
            what=what,
            why="this machine has an NVIDIA GPU, but no driver can be seen from here",
            fix="install the NVIDIA driver; in a container: docker run --gpus all",
        )
    if (root / "dev/kfd").exists():
        return Gap(
            what=what,
            why="this machine has an AMD GPU driver, and the sensors of NVIDIA GPUs are all that gpulab reads",
            fix="read them with amd-smi; traces of AMD GPUs can be loaded",
        )
    return Gap(
        what=what,
        why="this machine has no NVIDIA driver",
        fix="nothing to do without an NVIDIA GPU: the CPU is measured instead",
    )


def _has_nvidia_card(root: Path) -> bool:
    """A display or compute controller (PCI class 03) of vendor 10de."""
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = ((device / name).read_text(encoding="utf-8") for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor.strip() == "0x10de" and kind.startswith("0x03"):
            return True
    return False
