"""Epochs that read the dataset from storage again, because it does not fit into memory."""

from tests.support.runs.made_loading_runs import reading_epochs

GIB = 2**30


def provoked_by_data_larger_than_the_free_memory():
    return reading_epochs([40 * GIB] * 3, [50] * 3, available=30 * GIB)


def provoked_by_a_container_with_a_memory_limit():
    return reading_epochs([10 * GIB] * 2, [40] * 2, available=200 * GIB, limit=8 * GIB)


def spared_because_only_the_first_epoch_reads():
    return reading_epochs([40 * GIB, 0, 0], [50, 2, 2], available=30 * GIB)


def spared_because_it_would_fit():
    return reading_epochs([4 * GIB] * 3, [50] * 3, available=30 * GIB)


def spared_because_the_loop_does_not_wait():
    return reading_epochs([40 * GIB] * 3, [2] * 3, available=30 * GIB)
