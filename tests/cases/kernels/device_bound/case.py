from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, launched_kernel, loader_call, on_gpu, run_of, stepped


def provoked_by_a_gpu_that_always_multiplies():
    sizes = {"op": "aten::mm", "shapes": [[8192, 8192], [8192, 8192]], "dtypes": ["c10::BFloat16"] * 2}
    return on_gpu(stepped(lambda at: launched_kernel("nvjet_tst_128x64", at, 97, number=round(at) + 1, **sizes)))


def provoked_by_a_cpu_that_always_computes():
    return run_of(stepped(lambda at: [event(EventKind.OP, "aten::addmm", at, 97)]))


def spared_by_a_gpu_that_waits_for_data():
    return run_of(stepped(lambda at: [loader_call(at, 40), event(EventKind.KERNEL, "nvjet_tst", at + 40, 59)]))


def spared_by_copies_that_nothing_hides():
    copy = "Memcpy HtoD (Pinned -> Device)"
    return run_of(
        stepped(lambda at: [event(EventKind.MEMCPY, copy, at, 50), event(EventKind.KERNEL, "nvjet_tst", at + 50, 49)])
    )
