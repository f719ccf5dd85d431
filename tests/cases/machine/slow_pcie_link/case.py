"""Large pinned copies over a link that is slower than it could be."""

from gpulab.run import Gpu, Machine
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, gpu_series, run_of, stepped

X16 = Gpu(index=0, name="Made GPU", link_generation_max=4, link_width_max=16)
X8 = Gpu(index=0, name="Made GPU", link_generation_max=4, link_width_max=8)


def step(rate, size=200_000_000):
    """Copies of so many bytes per second, from pinned memory, before the kernels."""
    copy_ms = size / rate * 1e3

    def events(at):
        number = round(at)
        return [
            event(EventKind.COPY_CALL, "cudaMemcpyAsync", at, 0.02, correlation=number),
            event(EventKind.MEMCPY, "Memcpy HtoD (Pinned -> Device)", at, copy_ms, correlation=number, size=size),
            event(EventKind.KERNEL, "ampere_sgemm", at + copy_ms, 99 - copy_ms),
        ]

    return events


def run(rate, width=16, generation=4, util=0.9, gpu=X16, size=200_000_000):
    told = {"util_frac": util, "link_width": width, "link_generation": generation}
    samples = gpu_series(lambda _: told)
    return run_of(stepped(step(rate, size)), gpu_rows=samples, machine=Machine(gpus=(gpu,), cores_allowed=8.0))


def provoked_by_a_link_with_a_quarter_of_its_lanes():
    return run(rate=6e9, width=4)


def provoked_by_slow_copies_over_a_link_that_reports_nothing_wrong():
    return run(rate=6e9)


def provoked_by_fewer_lanes_where_no_large_copy_shows_the_pace():
    return run(rate=6e9, width=8, size=100_000)


def spared_because_the_link_is_lowered_while_the_gpu_idles():
    return run(rate=6e9, width=4, util=0.05, size=100_000)


def spared_because_the_board_has_eight_lanes_by_design():
    return run(rate=12e9, width=8, gpu=X8)


def spared_because_the_copies_are_fast_whatever_a_virtual_machine_reports():
    return run(rate=24e9, width=1, generation=1)


def spared_because_all_is_well():
    return run(rate=24e9)
