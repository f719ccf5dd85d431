"""%gpuwhatif: predicted step time with changes made together and one by one, its bound, and the method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from gpulab.hardware.prices import user_prices
from gpulab.questions import prediction_history, prepare_scene
from gpulab.questions.run_names import RunLike, RunName, replace_names
from gpulab.replay.graph.calibration import Calibration
from gpulab.replay.parsing import parse_changes
from gpulab.replay.predicted_run import predicted_run
from gpulab.replay.prediction import Prediction, ReplayModel, predict, refusal_reason
from gpulab.replay.rewrite import GRADES, Change, grade_text
from gpulab.replay.rewrites.catalogue import REWRITES
from gpulab.run import Run
from gpulab.views.report.energy_table import MONTH_H, price_per_hour
from gpulab.views.report.headline import PREDICTED, UPPER_BOUND, bound_text
from gpulab.views.report.provenance import origin
from gpulab.views.sheet.sheet import Answer, Block, Facts, Line, Row, Section, Sheet, TableBlock
from gpulab.views.sheet.view import View
from gpulab.views.whatif.command import whatif_command
from gpulab.views.whatif.critical_path import before_and_after, critical_path_section
from gpulab.views.whatif.job import whatif_job
from gpulab.views.whatif.range_of_step import expectation_of, per_sample, predicted_text
from gpulab.wording import count, money, percent, percent_range, ratio, scale, sentence

MIN_SPEEDUP = 1.01  # smaller speed-ups are listed as no gain


@dataclass(frozen=True, eq=False, repr=False)
class WhatIf(View):
    """A prediction as a view: end a cell with it, print it, or `save` it."""

    prediction: Prediction

    @property
    def run(self) -> Run:
        """Return the predicted run, to report, compare or save; its source says that it is a prediction."""
        return predicted_run(self.prediction.schedule)


@overload
def whatif(run: Run, *, samples: int | None = None) -> View: ...
@overload
def whatif(run: Run, rewrites: str, *, samples: int | None = None) -> WhatIf: ...
@overload
def whatif(run: RunName | Sequence[RunLike], rewrites: str = "", *, samples: int | None = None) -> View: ...
def whatif(run: RunLike | Sequence[RunLike], rewrites: str = "", *, samples: int | None = None) -> View:
    """Predict the step time with these changes made together: "workers=6, pin_memory, amp=bf16".

    The result has `prediction`, the numbers, and `run`, the predicted run. Without changes, return a list of all
    changes that can be predicted from this run, each alone, largest speed-up first. The ranks of a job, as
    `gpulab.load("folder/")` returns them, are replayed together, and can do without the straggler, for example:
    `gpulab.whatif(ranks, "no_straggler")`. Raises RunError if a change is unknown, if it cannot be predicted from this
    run, or if the replay does not reproduce the recording.
    """
    run = replace_names(run)
    if not isinstance(run, Run):
        if len(run) != 1:
            return whatif_job(run, rewrites)
        run = run[0]
    changes = parse_changes(rewrites)
    scene = prepare_scene(run)
    if not changes:
        return _list_all(scene)
    history = prediction_history(run)
    prediction = predict(scene, changes, samples=samples, history=history)
    single = []
    if len(changes) > 1:
        single = [predict(scene, (change,), history=history) for change in changes]
    blocks: list[Block] = [_answer(prediction), Line(sentence(origin(run)), soft=True)]
    if single:
        blocks.append(Section("Each change alone, and all together", (_table([*single, prediction]),)))
    blocks.append(Section("One step, recorded and predicted", (before_and_after(prediction),)))
    blocks.append(critical_path_section(prediction.model.schedule))
    blocks.append(Section("How this was predicted", tuple(_method(prediction)), folded=True))
    return WhatIf(Sheet(f"gpulab: {run.name} with {_change_names(prediction)}", tuple(blocks)), prediction)


def _answer(prediction: Prediction) -> Answer:
    unit = scale(prediction.step_ns)
    likely = unit(prediction.likely_ns)
    work = f" for {ratio(prediction.work_factor)} the samples" if prediction.work_factor != 1 else ""
    claim = (
        f"With {_change_names(prediction)}, a step takes {likely}{work} instead of {unit(prediction.step_ns)}: "
        f"{ratio(prediction.speedup)} as fast{per_sample(prediction)}."
    )
    bound = bound_text(prediction.best_speedup, prediction.bound, prediction.cold_bound, prediction.bound_label)
    code = tuple(_code(prediction))
    return Answer(
        claim=claim,
        leading=True,
        facts=(
            (PREDICTED, predicted_text(prediction)),
            (UPPER_BOUND, bound),
            ("Grade of the prediction", grade_text(prediction.grade)),
            *((("Next bottleneck", prediction.limit),) if prediction.limit else ()),
            *_monthly_saving(prediction),
        ),
        expectation=expectation_of(prediction),
        notes=tuple(_costs(prediction)),
        fix="\n".join(each for each in code if not _is_comment(each)),
        advice=" ".join(sentence(each.removeprefix("#").strip()) for each in code if _is_comment(each)),
    )


def _monthly_saving(prediction: Prediction) -> Iterator[tuple[str, str]]:
    """Yield what a month of such training would cost less, if the GPUs have a price."""
    prices = user_prices()
    price = price_per_hour(prediction.model.graph.run, prices)
    if price is None or prediction.worst_ns >= prediction.step_ns:
        return
    saved = [price * MONTH_H * (1 - ns / prediction.step_ns) for ns in (prediction.worst_ns, prediction.best_ns)]
    amounts = " to ".join(money(amount, prices.currency) for amount in saved)
    yield "Saves", f"{amounts} per month of training at {money(price, prices.currency)} per hour ({prices.source})"


def _is_comment(code: str) -> bool:
    """Whether the code of a change only describes it, because the code to paste depends on the user's own."""
    return code.startswith("#") and "\n" not in code


def _costs(prediction: Prediction) -> Iterator[tuple[str, str]]:
    for change in prediction.changes:
        if change.rewrite.cost:
            yield f"Cost of {change}", change.rewrite.cost


def _code(prediction: Prediction) -> Iterator[str]:
    for change in prediction.changes:
        if change.rewrite.code is not None and (line := change.rewrite.code(prediction.model.graph, change.value)):
            yield line


def _change_names(prediction: Prediction) -> str:
    names = [str(each) for each in prediction.changes]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _table(predictions: list[Prediction]) -> TableBlock:
    """Return a row for each prediction; the last has all changes together, and is not the product of the others."""
    unit = scale(max(prediction.step_ns for prediction in predictions))
    rows = []
    for row_index, prediction in enumerate(predictions):
        together = row_index == len(predictions) - 1 and len(prediction.changes) > 1
        cells = (
            unit.number(prediction.likely_ns),
            unit.range(prediction.best_ns, prediction.worst_ns),
            ratio(prediction.speedup),
        )
        name = "together" if together else _change_names(prediction)
        rows.append(
            Row((name, *cells, ratio(prediction.bound), prediction.grade), kind="total" if together else "plain")
        )
    header = ("change", f"step, {unit.unit}", "range", "speed-up", "at most", "grade")
    caption = f"{_baseline(predictions[0])} {_grades(predictions)}"
    return TableBlock(header=header, rows=tuple(rows), caption=caption)


def _grades(predictions: list[Prediction]) -> str:
    used = {prediction.grade for prediction in predictions}
    grades = ", ".join(f"{grade} ({grounds})" for grade, (grounds, _) in GRADES.items() if grade in used)
    return f"Grades, from A (best) to D (worst): {grades}."


def _bounds(predictions: list[Prediction]) -> TableBlock:
    """Return the bounds of kinds of changes; a bound has no range."""
    unit = scale(max(prediction.step_ns for prediction in predictions))
    rows = tuple(
        Row((prediction.changes[0].rewrite.about, unit.number(prediction.floor_ns), ratio(prediction.bound)))
        for prediction in predictions
    )
    return TableBlock(header=("with", f"step, {unit.unit}", "speed-up"), rows=rows, caption=_baseline(predictions[0]))


def _baseline(prediction: Prediction) -> str:
    step = scale(prediction.step_ns)(prediction.step_ns)
    return f"A step takes {step} now; speed-ups are for the same work, per sample."


def _method(prediction: Prediction) -> Iterator[Block]:
    quality = prediction.model.quality
    rows = [
        (
            "Replay error",
            f"{percent(abs(quality.replay_error), 2)} (a replay without changes, compared with the recording)",
        )
    ]
    if prediction.model.graph.on_gpu:
        delays = f"{percent(abs(quality.generic_error), 2)} error with one launch delay for all GPU work"
        rows += [
            ("Typical delays", delays),
            ("Unexplained GPU waits", f"{percent(quality.unexplained_frac, 1)} of the time"),
        ]
    replayed, error = count(quality.step_count, "step"), percent(quality.step_error, 1)
    rows += [
        ("Steps", f"{replayed} replayed; the uncertainty of the recorded step time is {error}"),
        ("Range", _range(prediction)),
    ]
    if prediction.past_count:
        rows.append(
            (
                "History",
                f"{count(prediction.past_count, 'earlier prediction')} of this kind, measured on this machine",
            )
        )
    rows += _host_calls(prediction.model.calibration)
    yield Facts(tuple(rows))
    for change in prediction.changes:
        yield Line(f"How {change} is modelled: %gpuwhy {change.rewrite.name}", soft=True)


def _host_calls(calibration: Calibration) -> Iterator[tuple[str, str]]:
    """Yield which part of the traced time of CPU calls is replayed; the rest is, or may be, profiler overhead."""
    if calibration.share_range is not None:
        shorter = percent_range(1 - calibration.share_range[1], 1 - calibration.share_range[0])
        yield "CPU calls", f"replayed {shorter} shorter than recorded, because the profiler lengthens them"
    elif calibration.call_cost_frac < 1:
        share = percent(calibration.call_cost_frac)
        yield (
            "CPU calls",
            f"replayed with {share} of their recorded time; the rest is profiler overhead, as a comparison with "
            "untraced steps shows",
        )


def _range(prediction: Prediction) -> str:
    if prediction.samples < 3:
        return "all unknown values at their best, to all at their worst"
    simulations = f"at least {prediction.samples} simulations"
    return f"the middle 80 % of {simulations}, which try plausible values for what was not measured"


def _list_all(scene: ReplayModel) -> View:
    """Predict every rewrite that can be predicted from this run, each alone and at its default value."""
    run = scene.graph.run
    if scene.quality.refusal is not None:
        raise scene.quality.refusal
    predictions, unpredictable = _single_changes(scene)
    bounds = [each for each in predictions if each.changes[0].rewrite.bound_only]
    useful = [each for each in predictions if each not in bounds and each.speedup >= MIN_SPEEDUP]
    useless = tuple(
        (str(each.changes[0]), sentence(each.changes[0].rewrite.about))
        for each in predictions
        if each not in bounds and each.speedup < MIN_SPEEDUP
    )
    blocks: list[Block] = [
        Line(
            "Each change alone, largest speed-up first. "
            f"For several together: {whatif_command(run, 'NAME', 'NAME=VALUE', '...')}"
        ),
        Line(sentence(origin(run)), soft=True),
    ]
    blocks.append(_table(useful) if useful else Line("None of the changes would make a step shorter."))
    if bounds:
        blocks.append(Section("Upper bounds", (_bounds(bounds),)))
    if useless:
        blocks.append(Section("No gain in this run", (Facts(useless),), folded=True))
    if unpredictable:
        blocks.append(Section("Cannot be predicted from this run", (Facts(_by_reason(unpredictable)),), folded=True))
    explained = {name.partition("=")[0] for name, _ in (*useless, *unpredictable)}
    others = tuple((rewrite.name, rewrite.about) for rewrite in REWRITES if rewrite.name not in explained)
    blocks.append(Section("What these changes are", (Facts(others),), folded=True))
    blocks.append(critical_path_section(scene.schedule))
    return View(Sheet(f"gpulab: what would speed up {run.name}", tuple(blocks)))


def _by_reason(changes: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return one row per reason with the names of its changes: on a CPU, many changes need GPU work."""
    names: dict[str, list[str]] = {}
    for name, reason in changes:
        names.setdefault(reason, []).append(name)
    return tuple((", ".join(together), reason) for reason, together in names.items())


def _single_changes(scene: ReplayModel) -> tuple[list[Prediction], list[tuple[str, str]]]:
    """Return predictions, largest speed-up first, and name and reason of each change that cannot be predicted."""
    predictions, unpredictable = [], []
    history = prediction_history(scene.graph.run)
    for rewrite in REWRITES:
        if rewrite.default is None:
            continue
        change = Change(rewrite, rewrite.default)
        reason = refusal_reason(scene, (change,))
        if reason is None:
            predictions.append(predict(scene, (change,), history=history))
        else:
            unpredictable.append((rewrite.name, sentence(reason)))
    return sorted(predictions, key=lambda prediction: -prediction.speedup), unpredictable
