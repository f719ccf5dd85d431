"""Readings of AMD GPUs through amdsmi, for `gpulab watch`; the same columns as of NVIDIA GPUs, where AMD has them.

Written from AMD's documentation and the package amdsmi 7.0; no AMD GPU was at hand.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpulab.run import Gap, Gpu
from gpulab.sensors.nvidia.gpu_processes import GpuProcess

_DRIVER_DEVICE = "dev/kfd"  # present if the driver of AMD's compute GPUs is loaded
_MB = 2**20
_UNKNOWN = "N/A"  # what amdsmi returns for a reading that the GPU does not have
Read = Callable[[Any, Any], tuple[Any, ...]]


class AmdSmi:
    """AMD's library, opened and read. Nothing here raises because a driver, a GPU or a sensor is missing."""

    def __init__(self, root: Path = Path("/"), load: Callable[[], Any] | None = None) -> None:
        self.gpus: tuple[Gpu, ...] = ()
        self.driver: str | None = None
        self.gaps: tuple[Gap, ...] = ()
        self._root, self._load = root, load or (lambda: importlib.import_module("amdsmi"))
        self._smi: Any = None
        self._handles: list[Any] = []
        self._unsupported: dict[str, str] = {}  # columns that the driver does not give, and why

    def open(self) -> None:
        """Find the GPUs. Without AMD's driver, nothing is imported and nothing is reported."""
        if not (self._root / _DRIVER_DEVICE).exists():
            return
        try:
            self._smi = self._load()
            self._smi.amdsmi_init()
            self._handles = list(self._smi.amdsmi_get_processor_handles())
        except ImportError:
            self._gap("AMD GPUs", "the package amdsmi is not installed", "pip install amdsmi, of the version of ROCm")
            return
        except (OSError, KeyError, AttributeError) as problem:  # amdsmi looks for ROCm's library when it is imported
            self._gap("AMD GPUs", f"ROCm's library cannot be loaded: {problem}", "install ROCm (amd-smi must work)")
            return
        except self._smi.AmdSmiException as problem:
            self._gap("AMD GPUs", f"amdsmi answered: {problem}", "check: amd-smi list")
            return
        self.gpus = tuple(self._gpu(index, handle) for index, handle in enumerate(self._handles))

    @property
    def available_gpus(self) -> tuple[Gpu, ...]:
        """All GPUs."""
        return self.gpus

    def is_mig(self, gpu: Gpu) -> bool:
        """AMD's partitions are GPUs of their own."""
        return False

    def read(self, gpu: Gpu) -> Mapping[str, float]:
        """The columns of DEVICE_SAMPLES that amdsmi gives; NaN if unknown."""
        values: dict[str, float] = {}
        for columns, read in SENSORS.items():
            try:
                numbers = read(self._smi, self._handles[gpu.index])
            except (self._smi.AmdSmiException, AttributeError, KeyError) as problem:
                self._unsupported.setdefault(columns[0], str(problem))
                numbers = (math.nan,) * len(columns)
            values.update(zip(columns, map(_number, numbers), strict=True))
        self._note_unsupported()
        return values

    def processes(self, gpu: Gpu) -> tuple[GpuProcess, ...] | None:
        """The processes on a GPU; None if the driver does not list them."""
        try:
            listed = self._smi.amdsmi_get_gpu_process_list(self._handles[gpu.index])
            return tuple(GpuProcess(pid=int(process["pid"]), memory_bytes=float(process["mem"])) for process in listed)
        except (self._smi.AmdSmiException, KeyError, TypeError):
            return None

    def close(self) -> None:
        """Close the library."""
        if self._smi is not None and self._handles:
            try:
                self._smi.amdsmi_shut_down()
            except self._smi.AmdSmiException:
                return

    def _gpu(self, index: int, handle: Any) -> Gpu:
        smi = self._smi
        asic = self._or(dict, lambda: smi.amdsmi_get_gpu_asic_info(handle))
        vram = self._or(dict, lambda: smi.amdsmi_get_gpu_vram_usage(handle))
        cap = self._or(dict, lambda: smi.amdsmi_get_power_cap_info(handle))
        clock = self._or(dict, lambda: smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX))
        cap_w, clock_mhz = _number(cap.get("power_cap", _UNKNOWN)) / 1e6, _number(clock.get("max_clk", _UNKNOWN))
        return Gpu(
            index=index,
            name=str(asic.get("market_name", "AMD GPU")),
            uuid=self._or(lambda: None, lambda: str(smi.amdsmi_get_gpu_device_uuid(handle))),
            memory_bytes=int(vram["vram_total"]) * _MB if vram.get("vram_total") else None,
            power_limit_w=None if math.isnan(cap_w) else cap_w,
            sm_clock_max_mhz=None if math.isnan(clock_mhz) else clock_mhz,
        )

    def _or(self, default: Callable[[], Any], read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (self._smi.AmdSmiException, AttributeError):
            return default()

    def _gap(self, subject: str, why: str, fix: str) -> None:
        self.gaps = (*self.gaps, Gap(what=subject, why=why, fix=fix))

    def _note_unsupported(self) -> None:
        if self._unsupported and not self.gaps:
            self._gap(
                f"AMD GPU {', '.join(self._unsupported)}",
                next(iter(self._unsupported.values())),
                "nothing to do, or update ROCm",
            )


def _activity(smi: Any, gpu: Any) -> tuple[Any, ...]:
    activity = smi.amdsmi_get_gpu_activity(gpu)
    return _share(activity["gfx_activity"]), _share(activity["umc_activity"])


def _memory(smi: Any, gpu: Any) -> tuple[Any, ...]:
    return (int(smi.amdsmi_get_gpu_vram_usage(gpu)["vram_used"]) * _MB,)


def _power(smi: Any, gpu: Any) -> tuple[Any, ...]:
    power = smi.amdsmi_get_power_info(gpu)
    readings = [power.get(name) for name in ("current_socket_power", "average_socket_power", "socket_power")]
    return (next((value for value in readings if value not in (None, _UNKNOWN, 0)), _UNKNOWN),)


def _clocks(smi: Any, gpu: Any) -> tuple[Any, ...]:
    kinds = (smi.AmdSmiClkType.GFX, smi.AmdSmiClkType.MEM)
    return tuple(smi.amdsmi_get_clock_info(gpu, kind)["clk"] for kind in kinds)


def _temperature(smi: Any, gpu: Any) -> tuple[Any, ...]:
    kind, metric = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
    return (smi.amdsmi_get_temp_metric(gpu, kind, metric),)


def _energy(smi: Any, gpu: Any) -> tuple[Any, ...]:
    energy = smi.amdsmi_get_energy_count(gpu)
    return (energy["energy_accumulator"] * energy["counter_resolution"] / 1e6,)  # the resolution is in uJ


def _memory_errors(smi: Any, gpu: Any) -> tuple[Any, ...]:
    errors = smi.amdsmi_get_gpu_total_ecc_count(gpu)
    return errors["correctable_count"], errors["uncorrectable_count"]


SENSORS: Mapping[tuple[str, ...], Read] = {
    ("util_frac", "memory_util_frac"): _activity,
    ("memory_used_bytes",): _memory,
    ("power_w",): _power,
    ("sm_clock_mhz", "memory_clock_mhz"): _clocks,
    ("temperature_c",): _temperature,
    ("energy_j",): _energy,
    ("ecc_corrected", "ecc_uncorrected"): _memory_errors,
}


def _share(value: Any) -> Any:
    return value if value == _UNKNOWN else value / 100  # percents


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan
