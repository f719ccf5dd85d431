"""The main process builds the batches: not where others do, not where the GPU has work meanwhile."""

from dataclasses import replace

from tests.support.runs.made_loading_runs import MAIN_PROCESS_LOADER, from_main, from_workers, kernel
from tests.support.runs.made_runs import NO_WORKERS, loader_call, run_of, stepped


def provoked_by_batches_built_in_the_main_process():
    return run_of(stepped(lambda at: [loader_call(at, 40), kernel(at + 40, 60)]), loaders=[NO_WORKERS])


def provoked_by_a_loader_with_a_name_of_the_users():
    return from_main()


def provoked_by_items_that_wait_for_a_web_service():
    """Nothing is read from storage: workers wait side by side, even on two cores."""
    return from_main(fetch_ms=80, cpu_frac=0.02, cores=2.0, iowait_frac=0.0, read_bytes=1e6)


def provoked_by_an_iterable_dataset():
    return from_main(loader=replace(MAIN_PROCESS_LOADER, batches=None))


def provoked_by_a_loader_that_makes_no_batches():
    return from_main(loader=replace(MAIN_PROCESS_LOADER, batch_size=None))


def spared_as_queued_work_covers_the_fetch():
    return run_of(stepped(lambda at: [loader_call(at, 40), kernel(at, 97)]), loaders=[NO_WORKERS])


def spared_as_workers_build_the_batches():
    return from_workers()


def spared_as_only_the_first_batch_of_an_epoch_is_late():
    def step(at):
        fetch = 40 if at == 0 else 1
        return [loader_call(at, fetch), kernel(at + fetch, 98 - fetch)]

    return run_of(stepped(step), loaders=[NO_WORKERS])


def spared_as_preprocessing_is_in_the_loop_itself():
    return run_of(stepped(lambda at: [loader_call(at, 1), kernel(at + 50, 50)]), loaders=[NO_WORKERS])


def spared_as_one_core_is_all_there_is():
    """A worker would compute on the core that the model computes on."""
    return from_main(cores=1.0, on_gpu=False)


def spared_as_the_disk_is_waited_for():
    return from_main(cpu_frac=0.2, read_bytes=lambda at: at * 1e5)
