"""Sensors while a cell runs: GPUs through NVML, the host through psutil, and the line of code being executed."""

from gpulab.sensors.machine import describe_machine
from gpulab.sensors.readings import GpuReading, Reading, Sensors

__all__ = ["GpuReading", "Reading", "Sensors", "describe_machine"]
