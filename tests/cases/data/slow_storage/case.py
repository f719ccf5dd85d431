"""Storage that feeding waits for: not where workers compute, not where they wait for something else."""

from dataclasses import replace

from tests.support.runs.made_loading_runs import MAIN_PROCESS_LOADER, WORKERS, from_main, from_workers


def provoked_by_workers_that_are_blocked():
    return from_workers(cpu_ms=10, blocked=0.8)


def provoked_by_workers_that_read_and_hardly_compute():
    """On cores that others keep busy a worker is soon given one, and state D is seen less often."""
    return from_workers(cpu_ms=30, blocked=0.1, read=200e6)


def provoked_by_workers_whose_files_lie_on_a_network():
    return from_workers(cpu_ms=10, loader=replace(WORKERS, location="nfs4"))


def provoked_by_a_main_process_that_reads():
    return from_main(cpu_frac=0.2, read_bytes=lambda at: at * 1e5)


def provoked_by_a_main_process_while_cores_are_idle_for_reads():
    return from_main(cpu_frac=0.2, iowait_frac=0.04)


def provoked_by_a_main_process_whose_files_lie_on_a_network():
    return from_main(cpu_frac=0.1, loader=replace(MAIN_PROCESS_LOADER, location="fuse.gcsfuse"))


def spared_as_the_workers_compute():
    return from_workers(cpu_ms=190, load=0.3)


def spared_as_the_workers_read_but_mostly_compute():
    return from_workers(cpu_ms=190, read=200e6, load=0.3)


def spared_as_the_workers_wait_for_a_service():
    return from_workers(cpu_ms=5)


def spared_as_files_on_a_network_keep_up():
    return from_workers(cpu_ms=10, wait_ms=1.0, loader=replace(WORKERS, location="nfs4"))


def spared_as_the_main_process_computes_what_it_reads():
    return from_main(cpu_frac=0.95, read_bytes=lambda at: at * 1e5, iowait_frac=0.04)


def spared_as_the_main_process_waits_for_a_service():
    return from_main(cpu_frac=0.05, read_bytes=1e6, iowait_frac=0.0)


def spared_as_the_local_disk_is_not_waited_for():
    return from_main(loader=replace(MAIN_PROCESS_LOADER, location="ext4"))
