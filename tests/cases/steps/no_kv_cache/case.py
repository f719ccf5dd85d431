"""Sequences that are generated with all positions in each call, and calls that only look like that."""

from dataclasses import replace

from gpulab.run import GrowingInput
from gpulab.tables import HOST_SAMPLES
from tests.cases.data.slow_evaluation.case import evaluated
from tests.support.runs.made_runs import host_samples, rows

US = 1000.0


def generated(
    *,
    calls=60,
    sliding=0,
    position_us=(90.0, 110.0),
    has_equal_outputs=True,
    samples=40,
    in_evaluations=False,
    parts_frac=0.9,
):
    """Calls for 20 to 100 positions of 10 ms each, in 40 of 100 samples of the run, or in evaluations."""
    growing = GrowingInput(
        kind="GPT",
        name="model",
        location="generate (cell line 3)",
        calls=calls,
        least_positions=20 if calls else 0,
        most_positions=100 if calls else 0,
        call_ns=10_000 * US,
        position_ns=(position_us[0] * US, position_us[1] * US),
        sliding_calls=sliding,
        sliding_ns=sliding * 16_000 * US,
        has_equal_outputs=has_equal_outputs,
        parts_frac=parts_frac,
        in_evaluations=in_evaluations,
        samples=None if in_evaluations else samples,
        run_samples=None if in_evaluations else 100,
    )
    host_rows = rows(HOST_SAMPLES, host_samples(1000))
    return replace(evaluated(fetch_ms=1.0, compute_ms=20.0), growing_inputs=(growing,), host_rows=host_rows)


def provoked_between_training_steps():
    return generated()


def provoked_in_evaluations():
    return generated(in_evaluations=True)


def provoked_where_outputs_were_not_compared():
    return generated(has_equal_outputs=None)


def provoked_by_a_window_that_slides_for_most_of_the_calls():
    return generated(calls=20, sliding=60)


def spared_as_outputs_for_earlier_positions_change():
    return generated(has_equal_outputs=False)


def spared_as_a_call_takes_as_long_for_any_length():
    return generated(position_us=(0.0, 1.0))


def spared_as_it_takes_little_of_the_run():
    return generated(samples=3)


def spared_as_most_of_the_watched_time_goes_elsewhere():
    return generated(parts_frac=0.05)


def spared_as_few_calls_were_watched():
    return generated(calls=5)


def spared_without_samples():
    return generated(samples=0)
