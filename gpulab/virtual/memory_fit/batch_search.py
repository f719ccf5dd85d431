"""Search for the largest batch that fits by running few sizes, each on a virtual GPU of its own.

The allocations of the sizes run so far predict which size to run next. The answer is never only predicted: the largest
size that fits and the smallest that does not are both run, as they would be trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpulab.virtual.memory_fit.allocation_trace import AllocationTrace, predict_allocations, predict_from_steps
from gpulab.virtual.memory_fit.step_estimate import TOO_LARGE, StepEstimate

MAX_RUNS = 8  # sizes to run before the search ends
MAX_WRONG_PREDICTIONS = 2  # wrong predictions; after that, bisect
USABLE_FRAC = 0.85  # of a GPU's memory: tensors up to this size usually fit in spite of fragmentation
GAP_FRAC = 0.02  # of a batch: gap left between the two sizes without a prediction; with one they differ by 1

RunSize = Callable[[int], tuple[StepEstimate, AllocationTrace]]


def search_max_batch(estimates: dict[int, StepEstimate], script: AllocationTrace, run_size: RunSize) -> None:
    """Run sizes until the limit is known, and add them to `estimates`.

    `estimates`: of sizes run one after the other on one GPU; only the first counts as run on a GPU of its own.
    `script`: their allocations, one part up to the end of the first step, then one part per size.
    """
    ceiling = memory_limited_batch(estimates)
    if ceiling is None:
        return
    low, smallest_failing = largest_fitting_and_smallest_failing(estimates)
    high = min(smallest_failing or ceiling + 1, max(low, ceiling) + 1)
    prediction, run_alone = _Prediction(estimates, script), {next(iter(estimates))}
    bisection = round(ceiling * (1 + USABLE_FRAC) / 2)
    for _ in range(MAX_RUNS):
        edge = prediction.edge(low, high)
        if high - low > (1 if edge is not None else max(1, int(high * GAP_FRAC))):
            guess = min(max(bisection if edge is None else edge, low + 1), high - 1)
        elif unconfirmed := {low, high} - run_alone - {0}:
            guess = min(unconfirmed)
        else:
            return
        estimates[guess], guess_script = run_size(guess)
        run_alone.add(guess)
        fits = estimates[guess].verdict != TOO_LARGE
        prediction.learn(guess, guess_script, right=edge is None or fits == (guess <= edge))
        if fits:
            low, high = guess, high if guess < high else high + max(1, int(high * GAP_FRAC))
            bisection = (low + high) // 2
            continue
        # The memory it would have used gives a better ceiling than smaller sizes do.
        better = memory_limited_batch(estimates) or guess
        low = (
            low
            if low < guess
            else largest_fitting_and_smallest_failing({size: each for size, each in estimates.items() if size < guess})[
                0
            ]
        )
        high = max(low + 1, min(guess, better + 1))
        bisection = better if better < guess else max((low + high) // 2, round(high * USABLE_FRAC))
    if high not in estimates:
        estimates[high], _ = run_size(high)


class _Prediction:
    """Prediction of the largest batch that fits, from the allocations recorded so far."""

    def __init__(self, estimates: Mapping[int, StepEstimate], script: AllocationTrace) -> None:
        sizes: Sequence[int] = list(estimates)
        self._start, self._estimate = sizes[0], estimates[sizes[0]]
        self._script = script.parts_until(1)
        self._forecast = predict_from_steps(script, sizes)
        self._wrong = 0

    def edge(self, low: int, high: int) -> int | None:
        """Predict the largest batch that fits, from `low` and below `high`; None if there is no prediction."""
        if self._forecast is None:
            return None
        estimate = self._estimate
        return self._forecast.largest_fitting(
            low, high, estimate.usable_bytes, estimate.non_torch_bytes, estimate.added_state_bytes
        )

    def learn(self, batch: int, script: AllocationTrace, *, right: bool) -> None:
        """Learn from the allocations of a size run on a GPU of its own. `right`: the prediction for it was right."""
        self._wrong += not right
        if self._wrong >= MAX_WRONG_PREDICTIONS:
            self._forecast = None
        elif not right or self._forecast is None:
            self._forecast = predict_allocations(script, batch, self._script, self._start)


def memory_limited_batch(estimates: Mapping[int, StepEstimate]) -> int | None:
    """Return the largest batch whose tensors fit if no memory is lost to fragmentation; None if they do not grow.

    Extrapolates linearly from the two sizes that are closest to filling the GPU.
    """
    one, other = sorted(estimates.values(), key=lambda estimate: abs(estimate.used_frac - 1))[:2]
    slope = (other.peak.bytes - one.peak.bytes) / (other.samples - one.samples)
    if slope <= 0:
        return None
    free_bytes = one.usable_bytes - one.non_torch_bytes - one.peak.bytes
    return max(0, one.samples + int(free_bytes // slope))


def largest_fitting_and_smallest_failing(estimates: Mapping[int, StepEstimate]) -> tuple[int, int | None]:
    """Return the largest batch that fits, 0 if none does, and the smallest above it that does not, or None."""
    fitting = [batch for batch, estimate in estimates.items() if estimate.verdict != TOO_LARGE]
    failing = [batch for batch, estimate in estimates.items() if estimate.verdict == TOO_LARGE]
    low = max(fitting, default=0)
    return low, min((batch for batch in failing if batch > low), default=None)
