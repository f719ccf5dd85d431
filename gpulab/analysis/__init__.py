"""From a run to numbers: every function takes a run and returns a number, an array or a small frozen value.

Packages by topic:

    events     primitives: device work, busy time, nested calls, groups, trends
    steps      step detection, the ledger of step time, gaps, pauses
    data       DataLoader: cost of a batch, workers, prefetch bias
    host       Python code, dispatch, launches, synchronisation, garbage collection, compilation, CPU contention
    copies     copies between host and device, tensors created on the CPU
    kernels    kernel families, precision, fusion, occupancy, roofline, optimizers
    memory     caching allocator, memory growth, lifetimes, out-of-memory errors
    ranks      several GPUs: collectives, stragglers, DataParallel
    machine    clocks, power, GPU sharing, PCIe link, energy

The basic figures of any run, exact to the nanosecond:

    from gpulab.analysis import busy, busy_table, copy_table, gap_table, kernel_table, launch_delays, step_table

    busy(run).within(start_ns, end_ns)      busy and idle time, by kind of work, in any windows
    busy_table(run, "steps")                the same for each step
    gap_table(run, longer_than_ns=100_000)  when the device was idle, and in which step
    kernel_table(run)                       each kernel: count and duration
    copy_table(run)                         each kind of copy and memset: count, bytes, rate
    launch_delays(run).median_ns            time from launch call to work; .rows has each launch and the queue depth
    step_table(run)                         the steps, and which of them are used as evidence

A table has numpy columns, `kernel_table(run)["total_ns"]`. `.frame()` converts it to a pandas DataFrame, and
`describe()` explains every column. A value that the run does not contain is None, -1 or NaN, never zero; without device
work there is no busy time. Figures cover all devices together unless one is given: busy_table(run, device=0).
`devices(run)` lists the devices that worked.
"""

from gpulab.analysis.copies.copy_table import COPIES, copy_table
from gpulab.analysis.events.busy import BUSY, busy_table, busy_time
from gpulab.analysis.events.device_work import devices
from gpulab.analysis.host.launch_delays import LAUNCHES, launch_delays
from gpulab.analysis.kernels.kernel_table import KERNELS, kernel_table
from gpulab.analysis.steps.detection import step_table
from gpulab.analysis.steps.gaps import GAPS, gap_table
from gpulab.tables import STEPS

__all__ = [
    "busy_table",
    "busy_time",
    "copy_table",
    "describe",
    "devices",
    "gap_table",
    "kernel_table",
    "launch_delays",
    "step_table",
]


def describe() -> str:
    """Describe every column of these tables as text."""
    return "\n\n".join(table.describe() for table in (BUSY, GAPS, KERNELS, COPIES, LAUNCHES, STEPS))
