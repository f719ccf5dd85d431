"""The facts of a run as numbers."""

from __future__ import annotations

from gpulab.columns import MAX_SIZE
from gpulab.run import Run

# Of an addition on all threads compared with one ("parallel_add_ns", "serial_add_ns"): threads wait for a core.
CLEAR_SLOWDOWN = 5.0
NSIGHT_SYSTEMS = "Nsight Systems"  # begins the fact "profiler" of its runs
BUCKETS = "ddp_bucket_bytes"  # sizes of the buckets in which DDP all-reduces gradients, in this order, with commas
NETWORK_SPEED = "network_bytes_per_s"  # of a network port of the machine, in one direction
# Threads of NumPy's BLAS that compete with those of PyTorch: their number, the cores that they used in the loop,
# and for how long one of them spins after a product of matrices, in ns.
BLAS_THREADS, BLAS_CORES, BLAS_SPIN_TIME = "blas_threads", "blas_cores", "blas_spin_ns"
NO_CUDA = "no_cuda"  # the code ended with PyTorch's error that there is no CUDA GPU; its value is "yes"
LOOP_TIME = "monitor_loop_s"  # of a monitor: time of the loop without the pauses between cells, and shares of it
WAITING, GPU_BUSY = "monitor_waiting_frac", "monitor_gpu_busy_frac"
STEP_COUNT = "monitor_steps"  # of a monitor, also if there were none: marks the runs of monitors
ALERTS = "alerts"  # of a monitor: a line for each that began or ended
OPERATORS, NOT_RECORDED = "operators", "not recorded"  # a fact of runs of other profilers, and its value
PYTORCH = "PyTorch"  # the fact "framework" of a run of another framework has another value


def is_from_gpulab(run: Run) -> bool:
    """Whether gpulab recorded or computed the run: its hooks then saw every DataLoader and model.

    A trace of another tool has no samples of the host.
    """
    return run.source.how in ("measured", "virtual") or len(run.host_rows) > 0


def is_of_pytorch(run: Run) -> bool:
    """Whether the program is of PyTorch, as far as is known; traces of JAX are not."""
    return run.facts.get("framework", PYTORCH) == PYTORCH


def has_operators(run: Run) -> bool:
    """Whether PyTorch's operators were recorded, if there were any; without them, the host's time is unexplained."""
    return run.facts.get(OPERATORS) != NOT_RECORDED


def is_from_monitor(run: Run) -> bool:
    """Whether the run is that of a monitor, which watches a notebook across its cells."""
    return STEP_COUNT in run.facts


def number_from_fact(run: Run, name: str) -> float | None:
    """Return a fact of a run as a number; None if there is none, or if it is any other text."""
    try:
        number = float(run.facts.get(name, ""))
    except ValueError:
        return None
    return number if 0 <= number <= MAX_SIZE else None


def count_from_fact(run: Run, name: str) -> int | None:
    """Return a fact of a run as an integer; None if there is none, or if it is any other text."""
    number = number_from_fact(run, name)
    return int(number) if number is not None and number.is_integer() else None


def bucket_sizes(run: Run) -> tuple[int, ...]:
    """Return the sizes in bytes of the buckets in which DDP all-reduces gradients, in this order; () if unknown."""
    texts = run.facts.get(BUCKETS, "").split(",")
    sizes = tuple(int(word) for word in texts if word.isdecimal() and len(word) < 16)
    return sizes if len(sizes) == len(texts) else ()
