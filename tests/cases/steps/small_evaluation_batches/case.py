"""Evaluations that call a model for one row at a time, and others."""

from dataclasses import replace

from gpulab.run import EvaluatedModule
from tests.cases.data.slow_evaluation.case import evaluated


def called(rows=1.0, *, call_ms=2.0, length=7.0, evaluation_frac=0.9, has_time_first=False, training_rows=32.0):
    """Half of the time goes to evaluations; they call the model for so many rows, each of this length."""
    sizes, training_sizes = (rows, length), (training_rows, 20.0)
    module = EvaluatedModule(
        kind="Translator",
        name="net",
        sizes=sizes[::-1] if has_time_first else sizes,
        call_ns=call_ms * 1e6,
        training_sizes=training_sizes[::-1] if has_time_first else training_sizes,
        training_call_ns=8e6,
        evaluation_frac=evaluation_frac,
        has_time_first=has_time_first,
    )
    return replace(evaluated(fetch_ms=1.0, compute_ms=20.0), evaluated_modules=(module,))


def provoked_by_a_sentence_at_a_time():
    return called()


def provoked_by_batches_of_four():
    return called(rows=4.0)


def provoked_by_one_sequence_at_a_time_with_time_first():
    return called(training_rows=32.0, has_time_first=True)


def spared_as_the_dimension_of_the_batch_is_unknown():
    return called(training_rows=80.0, has_time_first=True)


def spared_as_time_steps_are_decoded_one_at_a_time():
    return called(rows=32.0, length=1.0, training_rows=32.0, has_time_first=True)


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
