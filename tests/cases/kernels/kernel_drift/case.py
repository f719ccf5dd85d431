"""Kernels that get slower during the recording."""

from gpulab.tables import GRIDS, EventKind
from tests.support.runs.made_runs import event, rows, run_of, stepped

COUNT = 24


def run(dur_ms, *, grid=lambda step: 100, **more):
    """Steps of two kernels: a product that always takes 30 ms, and one whose duration depends on the step."""

    def step(at):
        number = round(at / 100)
        return [
            event(EventKind.KERNEL, "gemm", at, 30),
            event(EventKind.KERNEL, "scatter_add", at + 30, dur_ms(number)),
            event(EventKind.KERNEL, "scatter_add", at + 65, dur_ms(number) / 2),
        ]

    events = stepped(step, count=COUNT)
    grids = [
        {"event": index, "grid": grid(round(each["start_ns"] / 1e8)), "block": 256, "registers": -1,
         "shared_bytes": -1, "occupancy_frac": float("nan")}
        for index, each in enumerate(events)
        if each["name"] == "scatter_add"
    ]  # fmt: skip
    return run_of(events, grid_rows=rows(GRIDS, grids), **more)


def provoked_by_a_scatter_that_takes_longer_and_longer():
    return run(lambda step: 10 + step)


def provoked_by_one_that_grows_by_a_half():
    return run(lambda step: 20 + 0.45 * step)


def spared_because_it_varies_without_a_trend():
    return run(lambda step: 20 + 8 * (step % 3))


def spared_because_its_grid_grows():
    return run(lambda step: 10 + step, grid=lambda step: 100 + step)


def spared_because_it_gets_faster():
    return run(lambda step: 34 - step)


def spared_because_it_takes_little_time():
    return run(lambda step: 0.5 + 0.05 * step)
