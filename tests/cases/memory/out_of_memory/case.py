"""Runs that ended in an out-of-memory error, and runs that ended otherwise."""

from dataclasses import replace

from gpulab.run import Failure, Loader
from gpulab.tables import HOLDERS, EventKind
from tests.support.runs.made_runs import MS, event, rows, run_of, stepped

GIB = 2**30


def failure(**changes):
    facts = {
        "message": "CUDA out of memory. Tried to allocate 4.00 GiB.",
        "device": 0,
        "needed_bytes": 4 * GIB,
        "free_bytes": 1 * GIB,
        "capacity_bytes": 80 * GIB,
        "allocated_bytes": 70 * GIB,
        "reserved_bytes": 78 * GIB,
        "others_bytes": 0,
        "phase": "forward",
        "where": "train (cell line 12)",
    }
    return Failure(**{**facts, **changes})


def holder(owner, kind, gib, *, device=0, tensors=1, largest="[64, 3, 224, 224] float32"):
    size = round(gib * GIB)
    return {"who": owner, "kind": kind, "device": device, "bytes": size, "tensors": tensors, "largest": largest}


def ended(failure_of_run, *holders, **more):
    loaders = (Loader(workers=2, batch_size=64, name="batches"),)
    run = run_of([event(EventKind.OP, "aten::relu", 0, 5)], loaders=loaders, **more)
    return replace(run, outcome="OutOfMemoryError", failure=failure_of_run, holder_rows=rows(HOLDERS, holders))


def provoked_by_a_batch_that_is_too_large():
    return ended(
        failure(),
        holder("the step under way", "graph", 60),
        holder("model", "parameter", 3),
        holder("batch", "variable", 4),
    )


def provoked_by_other_processes():
    return ended(
        failure(others_bytes=70 * GIB, allocated_bytes=5 * GIB, reserved_bytes=5 * GIB), holder("model", "parameter", 5)
    )


def provoked_by_values_of_earlier_cells():
    return ended(failure(), holder("Out[3]", "output", 40), holder("_", "output", 10), holder("model", "parameter", 5))


def provoked_by_the_error_of_an_earlier_cell():
    return ended(failure(), holder("sys.last_traceback", "traceback", 60), holder("model", "parameter", 5))


def provoked_by_a_list_of_graphs():
    return ended(failure(), holder("losses", "graph", 60), holder("losses", "variable", 0.001, tensors=400))


def provoked_by_an_evaluation_that_keeps_graphs():
    return ended(failure(phase="evaluation"), holder("the step under way", "graph", 60))


def provoked_by_fragmentation():
    return ended(failure(allocated_bytes=50 * GIB), holder("model", "parameter", 50))


def provoked_by_the_optimizers_state():
    return ended(failure(phase="optimizer"), holder("AdamW", "optimizer", 46), holder("model", "parameter", 23))


def provoked_by_host_memory():
    message = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4294967296 bytes."
    return ended(Failure(message=message, needed_bytes=4 * GIB), holder("data", "variable", 20, device=-1))


def provoked_without_a_word_about_who_and_how_much():
    return ended(Failure(message="MemoryError"))


def provoked_by_a_loop_that_went_well_for_a_while():
    events = stepped(lambda at: [event(EventKind.KERNEL, "k", at, 90)])
    run = ended(failure(), holder("the step under way", "graph", 60))
    return replace(run, event_rows=run_of(events).event_rows, span_ns=600 * MS)


def spared_as_the_user_interrupted_it():
    return replace(run_of([event(EventKind.OP, "aten::relu", 0, 5)]), outcome="KeyboardInterrupt")


def spared_as_it_ended_by_another_error():
    return replace(run_of([event(EventKind.OP, "aten::relu", 0, 5)]), outcome="RuntimeError")


def spared_as_a_list_grew_but_nothing_ran_out():
    grew = {"who": "losses", "kind": "graph", "device": -1, "bytes": -1, "tensors": 64, "largest": None}
    return replace(run_of([event(EventKind.OP, "aten::relu", 0, 5)]), holder_rows=rows(HOLDERS, [grew]))
