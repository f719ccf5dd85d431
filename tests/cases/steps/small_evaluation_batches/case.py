"""Evaluations that call a model for one row at a time, and others."""

from dataclasses import replace

from gpulab.run import EvaluatedModule
from tests.cases.data.slow_evaluation.case import evaluated


def called(rows=1.0, call_ms=2.0, training_rows=32.0, training_call_ms=8.0, evaluation_frac=0.9, compute_ms=20.0):
    """Half of the time goes to evaluations, with `compute_ms` a part of it; they call the model for so many rows."""
    module = EvaluatedModule(
        kind="Translator",
        name="net",
        rows=rows,
        call_ns=call_ms * 1e6,
        training_rows=training_rows,
        training_call_ns=training_call_ms * 1e6,
        evaluation_frac=evaluation_frac,
    )
    return replace(evaluated(fetch_ms=1.0, compute_ms=compute_ms), evaluated_modules=(module,))


def provoked_by_a_sentence_at_a_time():
    return called()


def provoked_by_batches_of_four():
    return called(rows=4.0)


def spared_as_batches_are_half_as_large():
    return called(rows=16.0)


def spared_as_a_row_takes_as_long_in_the_training():
    return called(call_ms=0.25)


def spared_as_the_calls_take_little_of_the_evaluation():
    return called(evaluation_frac=0.05)


def spared_as_no_calls_were_watched():
    return evaluated(fetch_ms=1.0, compute_ms=20.0)


def spared_where_a_damaged_file_has_no_rows():
    return called(rows=0.0)
