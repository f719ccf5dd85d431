"""What the machine can be asked while a cell runs: GPUs by NVML, the host by psutil, the line the code is at."""

from gpulab.sensors.machine import machine
from gpulab.sensors.readings import GpuReading, Reading, Sensors

__all__ = ["GpuReading", "Reading", "Sensors", "machine"]
