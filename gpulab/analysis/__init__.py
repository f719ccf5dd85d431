"""Questions with a number for an answer: a run in, a number, an array or a small frozen value out.

The basic figures of any run, exact to the nanosecond:

    from gpulab.analysis import busy, busy_table, copy_table, gap_table, kernel_table, launch_delays, step_table

    busy(run).within(start_ns, end_ns)      busy and idle time, by kind of work, of any windows
    busy_table(run, "steps")                the same of each step
    gap_table(run, longer_than_ns=100_000)  when the device was idle, in which step
    kernel_table(run)                       each kernel: how often, how long
    copy_table(run)                         each kind of copy and fill: how often, how much, how fast
    launch_delays(run).median_ns            from call to work; .rows holds each, and how full the queue was
    step_table(run)                         the steps, and which of them are evidence

A table has numpy columns, `kernel_table(run)["total_ns"]`; `.frame()` makes a pandas DataFrame of it, and
`describe()` explains every column. What a run does not tell is None, -1 or NaN, never zero: without device work there
is no busy time to speak of. Figures are of all devices together unless one is named: busy_table(run, device=0);
`devices(run)` lists those that worked.
"""

from gpulab.analysis.copies.table import COPIES, copy_table
from gpulab.analysis.events.busy import BUSY, busy, busy_table
from gpulab.analysis.events.device_work import devices
from gpulab.analysis.host.launch_delays import LAUNCHES, launch_delays
from gpulab.analysis.kernels.table import KERNELS, kernel_table
from gpulab.analysis.steps.detection import step_table
from gpulab.analysis.steps.gaps import GAPS, gap_table
from gpulab.tables import STEPS

__all__ = [
    "busy",
    "busy_table",
    "copy_table",
    "describe",
    "devices",
    "gap_table",
    "kernel_table",
    "launch_delays",
    "step_table",
]


def describe() -> str:
    """Every column of the tables made here, as text."""
    return "\n\n".join(table.describe() for table in (BUSY, GAPS, KERNELS, COPIES, LAUNCHES, STEPS))
