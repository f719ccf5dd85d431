"""What the memory controller says of a busy GPU."""

from gpulab.run import Gpu, Machine
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, gpu_series, run_of, stepped


def run(util, memory, kernel="vectorized_elementwise_kernel"):
    events = stepped(lambda at: [event(EventKind.KERNEL, kernel, at, 97)])
    samples = gpu_series(lambda _: {"util_frac": util, "memory_util_frac": memory})
    return run_of(events, gpu_rows=samples, machine=Machine(gpus=(Gpu(index=0, name="Made GPU"),), cores_allowed=8.0))


def provoked_by_a_memory_controller_that_hardly_rests():
    return run(0.98, 0.85)


def provoked_by_kernels_that_hardly_touch_memory():
    return run(0.98, 0.04, "ampere_sgemm")


def spared_because_both_are_what_they_usually_are():
    return run(0.98, 0.35)


def spared_because_the_gpu_waits_for_the_host():
    return run(0.30, 0.25)


def spared_because_the_controller_is_not_told():
    return run(0.98, float("nan"))
