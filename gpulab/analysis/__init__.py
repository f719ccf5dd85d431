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

The files, each a topic:

    work        device work in order of time
    activity    when a device worked, and on what
    idle        when it did not
    kernels     kernels by name
    interior    the kernels of the interior steps, and what a part of them costs
    tensor_cores, families   what the names of kernels tell
    chains, formulas         elementwise work in a row, and what it computes
    grids       how kernels fill a GPU
    roofline, sizes          arithmetic and traffic, against what the GPU can do (gpulab.hardware)
    optimizers  what the optimizer's step costs
    pace        how fast the host alone could go
    launchers   which operator a call was made in
    copies      copies and fills by kind
    transfers   copies to the device: what they hold up, what hides them
    built       tensors that the CPU fills, to be copied
    delays      from a call to the work it started
    steps       where the steps are, and which are evidence
    ledger      where each step's time went, exactly
    loader      what feeding the model costs
    launches    how much work each call starts
    syncs       waits for the device, and what follows them
    collectives communication between GPUs, and what of it nothing hides
    ranks       several ranks side by side: who comes last
    gpus        several GPUs in one process
    cpu_math    layers that the CPU computes
    sensed      the GPU's clocks under load, and what held them down
    sharing     who else used the GPU
    link        how fast the way to the device could be, and is
    frames      which of the user's lines ran meanwhile
    threads     who used the CPU meanwhile, and who waited
    stalls      what garbage collections and compilations cost
    outside     what the time outside PyTorch was
    pauses      steps that take far longer than their neighbours
    bystanders  what other programs had of the cores
    matched     kernels of two sides, matched
    usage       memory and energy
    pieces      each piece of device work: its family, precision, operator and sizes
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
