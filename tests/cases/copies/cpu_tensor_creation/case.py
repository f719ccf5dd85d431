"""Noise is drawn by the CPU and copied to the GPU in every step."""

from gpulab.tables import SHAPES, EventKind
from tests.support.runs.made_runs import event, loader_call, rows, run_of, stepped

ELEMENTS, SHAPE = 4_194_304, "[[4096, 1024], [], [], []]"


def step(fill_ms=30.0, copy_ms=5.0, size=4 * ELEMENTS, launches=False, loading=False, fill="aten::normal_"):
    def events(at):
        number, there = round(at), at + 1
        made = [
            event(EventKind.OP, "aten::randn", there, fill_ms + 0.2),
            event(EventKind.OP, fill, there + 0.1, fill_ms),
        ]
        if launches:
            made.append(event(EventKind.LAUNCH, "cudaLaunchKernel", there + 0.2, 0.01, correlation=number + 1))
        if loading:
            made.append(loader_call(at + 0.5, fill_ms + 1))
        moved_at = there + fill_ms + 1
        return [
            *made,
            event(EventKind.OP, "aten::copy_", moved_at, copy_ms + 1),
            event(EventKind.COPY_CALL, "cudaMemcpyAsync", moved_at + 0.1, copy_ms + 0.5, correlation=number),
            event(
                EventKind.MEMCPY,
                "Memcpy HtoD (Pageable -> Device)",
                moved_at + 0.2,
                copy_ms,
                correlation=number,
                size=size,
            ),
            event(EventKind.KERNEL, "ampere_sgemm", moved_at + copy_ms + 2, 100 - (moved_at - at) - copy_ms - 2.1),
        ]

    return events


def shaped(events):
    """The run, with the shapes of what is filled."""
    told = [
        {"event": place, "shapes": SHAPE, "dtypes": '["float", "Scalar", "Scalar", ""]'}
        for place, each in enumerate(events)
        if each["name"] in ("aten::normal_", "aten::zero_")
    ]
    return run_of(events, shape_rows=rows(SHAPES, told))


def provoked_by_noise_that_the_cpu_draws():
    return shaped(stepped(step()))


def provoked_by_zeros_whose_shape_was_not_recorded():
    def events(at):
        return [
            event(EventKind.OP, "aten::zero_", at + 1, 20),
            event(EventKind.COPY_CALL, "cudaMemcpyAsync", at + 21.1, 5, correlation=round(at)),
            event(
                EventKind.MEMCPY,
                "Memcpy HtoD (Pageable -> Device)",
                at + 21.2,
                4.8,
                correlation=round(at),
                size=16_000_000,
            ),
            event(EventKind.KERNEL, "ampere_sgemm", at + 27, 72),
        ]

    return run_of(stepped(events))


def spared_because_the_gpu_draws_it():
    return shaped(stepped(step(launches=True)))


def spared_because_the_loader_makes_it():
    return shaped(stepped(step(loading=True)))


def spared_because_something_else_is_copied():
    return shaped(stepped(step(size=12_345_678)))


def spared_because_it_is_small():
    return shaped(stepped(step(fill_ms=0.5, copy_ms=0.5)))
