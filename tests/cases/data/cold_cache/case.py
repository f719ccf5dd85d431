"""A first epoch that reads from storage, and later ones that find the data in the page cache."""

from tests.support.runs.made_loading_runs import reading_epochs

GIB = 2**30


def provoked_by_a_first_epoch_that_reads_everything():
    return reading_epochs([GIB, 0, 0], [70, 2, 2])


def provoked_by_two_epochs_of_which_the_second_reads_a_little():
    return reading_epochs([GIB, 0.1 * GIB], [60, 5])


def spared_because_every_epoch_reads():
    return reading_epochs([GIB, GIB, GIB], [60, 60, 60])


def spared_because_the_first_epoch_does_not_wait():
    return reading_epochs([GIB, 0, 0], [3, 2, 2])


def spared_because_hardly_anything_is_read():
    return reading_epochs([10**7, 0, 0], [70, 2, 2])


def spared_because_there_is_one_epoch():
    return reading_epochs([GIB], [70])
