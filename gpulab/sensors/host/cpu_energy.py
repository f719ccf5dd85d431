"""Energy of the CPU packages, as the Linux kernel reads it from RAPL."""

from __future__ import annotations

import math
from pathlib import Path

_POWERCAP = Path("/sys/class/powercap")
_PACKAGES = (
    "intel-rapl:[0-9]*"  # AMD processors are listed under this name, too; parts of a package have a second colon
)


class CpuEnergy:
    """Counts the energy of all packages from the first reading on; the counters of the hardware overflow.

    `why` says why there is no reading, `fix` what would help. Since 2020, the kernel lets only root read the counters
    (CVE-2020-8694).
    """

    fix = "measure at the socket, or on a machine whose kernel shows the counters; the energy of GPUs is not affected"

    def __init__(self, powercap: Path = _POWERCAP) -> None:
        self._packages = [folder for folder in sorted(powercap.glob(_PACKAGES)) if folder.name.count(":") == 1]
        self._before: dict[Path, int] = {}
        self._total_uj = 0
        self.why = "" if self._packages else "this machine has no RAPL counters, or its kernel does not show them"

    def read(self) -> float:
        """The energy in J since the first reading; NaN if it cannot be read."""
        if self.why:
            return math.nan
        try:
            for package in self._packages:
                self._total_uj += self._increase(package)
        except PermissionError:
            self.why = "only root may read the RAPL counters of the CPU"
            self.fix = "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"
            return math.nan
        except (OSError, ValueError) as problem:
            self.why = f"the RAPL counters cannot be read: {problem}"
            return math.nan
        return self._total_uj / 1e6

    def _increase(self, package: Path) -> int:
        now_uj = int((package / "energy_uj").read_text())
        before_uj, self._before[package] = self._before.get(package, now_uj), now_uj
        if now_uj >= before_uj:
            return now_uj - before_uj
        return now_uj - before_uj + int((package / "max_energy_range_uj").read_text())  # it overflowed, once
