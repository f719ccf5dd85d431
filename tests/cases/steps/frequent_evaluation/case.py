"""Evaluations that take half of the run, or a tenth."""

from tests.cases.data.slow_evaluation.case import evaluated


def provoked_by_long_evaluations():
    return evaluated(fetch_ms=1.0, compute_ms=20.0)


def spared_as_evaluations_are_short():
    return evaluated(fetch_ms=0.5, compute_ms=2.0)


def spared_as_the_other_loader_is_trained_on():
    return evaluated(fetch_ms=1.0, compute_ms=20.0, updates=False)
