"""Tables of sensor readings. To add a sensor, add its column here and the query that fills it.

The queries are in gpulab.sensors.nvidia.nvml_sensors (GPUs) and gpulab.sensors.host.process (this host). All other
modules read label, unit, limit and views from the column.
"""

from __future__ import annotations

from enum import IntFlag

from gpulab.columns import Column, Display, Limit, ValueKind
from gpulab.rows import Table

LEVEL, COUNTER, FLAGS = ValueKind.LEVEL, ValueKind.COUNTER, ValueKind.FLAGS
TABLE, TIMELINE, CHART, EVERYWHERE = Display.TABLE, Display.TIMELINE, Display.CHART, Display.EVERYWHERE


class ThrottleReason(IntFlag):
    """NVML's clocks-event reasons that lower the clocks (nvml.h, nvmlClocksEventReason*); without 0x1, idle."""

    POWER_CAP = 0x4
    HARDWARE_SLOWDOWN = 0x8  # heat or power supply; other bits may say which
    HEAT = 0x20
    HARDWARE_HEAT = 0x40
    POWER_BRAKE = 0x80


_THROTTLE_NAMES = (
    (ThrottleReason.POWER_CAP, "power cap"),
    (ThrottleReason.HARDWARE_SLOWDOWN, "hardware slowdown"),
    (ThrottleReason.HEAT, "heat"),
    (ThrottleReason.HARDWARE_HEAT, "heat (hardware)"),
    (ThrottleReason.POWER_BRAKE, "power brake"),
)
_GPU_MEMORY = Limit("memory_bytes", "GPU memory")


def _reading(
    name: str,
    label: str,
    meaning: str,
    kind: ValueKind = LEVEL,
    *,
    limit: Limit | None = None,
    display: Display = Display.NOWHERE,
    flags: tuple[tuple[int, str], ...] = (),
) -> Column:
    return Column(name, "float64", meaning, None, label, kind, limit, display, flags)


GPU_SAMPLES = Table(
    "gpu_samples",
    (
        Column("at_ns", "int64", "when the GPU was sampled, from the start of the run"),
        Column("late_ns", "int64", "how far behind its schedule the sampler was"),
        Column("device", "int16", "index into run.machine.gpus"),
        _reading(
            "util_frac",
            "utilisation",
            "share of the driver's last period (1/6-1 s) with a kernel resident",
            display=EVERYWHERE,
        ),
        _reading("memory_util_frac", "memory utilisation", "share of that period with device memory read or written"),
        _reading(
            "memory_used_bytes",
            "memory in use",
            "device memory in use, all processes",
            limit=_GPU_MEMORY,
            display=EVERYWHERE,
        ),
        _reading(
            "power_w", "power", "board power draw", limit=Limit("power_limit_w", "power limit"), display=EVERYWHERE
        ),
        _reading(
            "sm_clock_mhz",
            "SM clock",
            "clock of the multiprocessors",
            limit=Limit("sm_clock_max_mhz", "highest clock"),
            display=TABLE | TIMELINE | CHART,
        ),
        _reading("memory_clock_mhz", "memory clock", "clock of the device memory"),
        _reading("temperature_c", "temperature", "temperature of the GPU", display=TABLE | TIMELINE | CHART),
        _reading(
            "throttle_bits",
            "throttle reasons",
            "NVML clocks-event reasons, a bit mask",
            FLAGS,
            flags=_THROTTLE_NAMES,
        ),
        _reading("energy_j", "energy", "energy since the driver was loaded", COUNTER),
        _reading(
            "link_generation",
            "PCIe generation",
            "PCIe generation the link runs at now; it falls when the GPU is idle",
            limit=Limit("link_generation_max", "highest generation"),
        ),
        _reading("link_width", "PCIe width", "PCIe lanes in use", limit=Limit("link_width_max", "widest link")),
        _reading(
            "power_held_s",
            "time throttled by power",
            "time the power limit lowered the clocks, since the driver was loaded",
            COUNTER,
        ),
        _reading(
            "thermal_held_s",
            "time throttled by heat",
            "time heat lowered the clocks, since the driver was loaded",
            COUNTER,
        ),
        _reading(
            "ecc_corrected", "ECC errors corrected", "corrected memory errors since the driver was loaded", COUNTER
        ),
        _reading(
            "ecc_uncorrected",
            "ECC errors uncorrected",
            "uncorrected memory errors since the driver was loaded",
            COUNTER,
        ),
        _reading(
            "others_memory_bytes",
            "memory of other processes",
            "device memory used by other processes",
            limit=_GPU_MEMORY,
        ),
        _reading(
            "others_util_frac",
            "utilisation by other processes",
            "share of the time with a kernel of another process resident",
        ),
    ),
)

HOST_SAMPLES = Table(
    "host_samples",
    (
        Column("at_ns", "int64", "when the host was sampled, from the start of the run"),
        Column("late_ns", "int64", "how far behind its schedule the sampler was"),
        _reading(
            "cpu_frac",
            "CPU, all cores",
            "mean load of all cores since the previous sample, 0-1",
            display=TABLE | TIMELINE | CHART,
        ),
        _reading(
            "process_cpu_s",
            "CPU time of this process",
            "CPU time of this process so far, all threads, without children",
            COUNTER,
        ),
        _reading(
            "rss_bytes",
            "memory of this process",
            "resident memory of this process",
            display=TABLE | TIMELINE | CHART,
        ),
        _reading(
            "memory_available_bytes",
            "memory available",
            "host memory that can still be allocated, read once a second",
            display=TABLE,
        ),
        _reading("read_bytes", "bytes read from storage", "bytes this process read from storage so far", COUNTER),
        _reading("workers", "DataLoader workers", "DataLoader worker processes alive", display=TABLE | CHART),
        _reading("worker_cpu_s", "CPU time of the workers", "CPU time of all DataLoader workers so far", COUNTER),
        _reading("workers_blocked", "workers blocked on storage", "workers waiting for storage (state D)"),
        Column("frame", "words", "the user's innermost line in the main thread: function (file:line)"),
        Column(
            "called",
            "words",
            "the library function which that line called, such as torch.serialization.save; absent if none",
        ),
        Column(
            "library_path",
            "words",
            "functions of libraries within that line, from the outermost, without most of PyTorch's; absent if none",
        ),
        Column(
            "evaluation",
            "words",
            "the function in the main thread whose name says that it evaluates, or eval mode; absent if neither",
        ),
        _reading("main_cpu_s", "CPU time of the recorded thread", "CPU time of the recorded thread so far", COUNTER),
        _reading(
            "main_delayed_s",
            "time the recorded thread waited for a core",
            "time so far in which the recorded thread was runnable but had no core",
            COUNTER,
        ),
        _reading(
            "others_cpu_s",
            "CPU time of the other threads",
            "CPU time so far of the other Python threads of this process, without gpulab's",
            COUNTER,
        ),
        Column(
            "others_frame",
            "words",
            "the line, or else the name, of the other Python thread that used most CPU since the previous sample",
        ),
        _reading(
            "iowait_frac",
            "I/O wait, all cores",
            "share of all cores' time spent idle with I/O outstanding, 0-1",
        ),
        _reading(
            "throttled_s",
            "time throttled by the CPU quota",
            "time so far in which the cgroup's CPU quota throttled this container",
            COUNTER,
        ),
        _reading(
            "swapped_in_bytes",
            "bytes swapped in",
            "memory that the system read back from swap so far, all processes",
            COUNTER,
        ),
        _reading(
            "cpu_energy_j",
            "CPU energy",
            "energy of all CPU packages so far (RAPL), all processes",
            COUNTER,
        ),
        _reading(
            "preempted",
            "preemptions of threads",
            "involuntary context switches of this process's threads so far",
            COUNTER,
        ),
    ),
)

WORKER_SAMPLES = Table(
    "worker_samples",
    (
        Column("at_ns", "int64", "when the worker was sampled, from the start of the run"),
        Column("worker", "int32", "DataLoader worker, numbered in the order in which they were first sampled"),
        _reading("cpu_s", "CPU time", "CPU time of the worker so far", COUNTER),
        _reading("blocked", "blocked on storage", "1 if it was waiting for storage (state D), 0 if not"),
        _reading(
            "read_bytes",
            "bytes read from storage",
            "bytes the worker read from storage so far; reads from the page cache do not count",
            COUNTER,
        ),
        _reading("threads", "threads", "threads of the worker"),
    ),
)


# What `gpulab watch` reads besides: sensors that the panel and the report of a run do not show.
_WATCH_READINGS = (
    _reading("pcie_received_bytes", "PCIe received", "bytes the GPU received over PCIe (host to device)", COUNTER),
    _reading("pcie_sent_bytes", "PCIe sent", "bytes the GPU sent over PCIe (device to host)", COUNTER),
    _reading("nvlink_received_bytes", "NVLink received", "bytes received over all NVLink links", COUNTER),
    _reading("nvlink_sent_bytes", "NVLink sent", "bytes sent over all NVLink links", COUNTER),
    _reading("sm_active_frac", "SM active", "share of the time an SM had a warp resident, mean of all SMs (GPM)"),
    _reading("tensor_active_frac", "tensor cores active", "share of the time the tensor cores were active (GPM)"),
    _reading("dram_active_frac", "memory bandwidth used", "share of the peak memory bandwidth in use (GPM)"),
)
# Those of other processes are relative to a run: the watch records each process.
_OF_A_RUN = ("others_memory_bytes", "others_util_frac")
_HOST_READINGS = ("cpu_frac", "iowait_frac", "memory_available_bytes", "cpu_energy_j")

DEVICE_SAMPLES = Table(
    "device_samples",
    (
        Column("at_s", "int64", "UNIX time, in whole seconds"),
        *(column for column in GPU_SAMPLES.columns if column.label and column.name not in _OF_A_RUN),
        *_WATCH_READINGS,
        *(HOST_SAMPLES.column(name) for name in _HOST_READINGS),
    ),
)
