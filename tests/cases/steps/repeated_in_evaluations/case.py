"""Evaluations that compute an encoder again for each token, and others."""

from dataclasses import replace

from gpulab.run import RepeatedInputs
from tests.cases.data.slow_evaluation.case import evaluated


def repeating(step_frac, compute_ms=20.0, **more):
    """Half of the time goes to evaluations, with `compute_ms` a part of it."""
    work = RepeatedInputs(
        kind="Encoder", name="net.encoder", location="translate (net.py:31)", calls=40, step_frac=step_frac, **more
    )
    return replace(evaluated(fetch_ms=1.0, compute_ms=compute_ms), repeated_in_evaluations=(work,))


def provoked_by_an_encoder_for_each_token():
    return repeating(0.4)


def provoked_by_rows_that_are_copies():
    return repeating(0.4, distinct_frac=0.1)


def spared_as_little_is_repeated():
    return repeating(0.05)


def spared_as_the_evaluations_are_short():
    return repeating(0.4, compute_ms=1.0)


def spared_as_nothing_is_repeated():
    return evaluated(fetch_ms=1.0, compute_ms=20.0)


def spared_where_a_damaged_file_has_an_impossible_share():
    return repeating(7.0)
