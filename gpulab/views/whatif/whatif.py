"""A prediction to look at: the changes together, each alone, what bounds them, and how it was worked out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import overload

from gpulab.errors import RunError
from gpulab.questions import learned, ready
from gpulab.replay.parsing import chosen
from gpulab.replay.predicted_run import emitted
from gpulab.replay.prediction import SAMPLES, Prediction, Scene, predict, untold
from gpulab.replay.rewrite import GRADES, Chosen
from gpulab.replay.rewrites.catalogue import REWRITES
from gpulab.run import Run
from gpulab.views.report.headline import BOUNDLESS
from gpulab.views.report.provenance import origin
from gpulab.views.sheet.sheet import Answer, Block, Expectation, Facts, Line, Row, Section, Sheet, Table
from gpulab.views.sheet.view import View
from gpulab.views.whatif.critical_path import before_after, path_block
from gpulab.wording import count, percent, ratio, scale, sentence

ALONE_SAMPLES = 30  # for the rows beside the answer
FELT = 1.01  # a speed-up below this is none


@dataclass(frozen=True, eq=False, repr=False)
class WhatIf(View):
    """A prediction that shows itself: end a cell with it, print it, or `save` it."""

    prediction: Prediction

    @property
    def run(self) -> Run:
        """The run as predicted: to report, to compare, to save; its source says that it is a prediction."""
        return emitted(self.prediction.timed)


@overload
def whatif(run: Run, *, samples: int = SAMPLES) -> View: ...
@overload
def whatif(run: Run, rewrites: str, *, samples: int = SAMPLES) -> WhatIf: ...
def whatif(run: Run, rewrites: str = "", *, samples: int = SAMPLES) -> View:
    """What a step would take with these changes made together: "workers=6, pin_memory, amp=bf16".

    The answer has `prediction`, its figures, and `run`, the run as predicted. Without changes: every one that this run
    can tell of, each alone, the best first. Raises RunError for a change that is none, where one cannot be told from
    this run, and where the replay of the run is not to be trusted; each says why.
    """
    scene, asked = ready(run), chosen(rewrites)
    if not asked:
        return _survey(scene)
    history = learned(run)
    told = predict(scene, asked, samples=samples, history=history)
    alone = (
        [predict(scene, (each,), samples=ALONE_SAMPLES, history=history) for each in asked] if len(asked) > 1 else []
    )
    blocks: list[Block] = [_answer(told), Line(sentence(origin(run)), soft=True)]
    if alone:
        blocks.append(Section("Each alone, and together", (_table([*alone, told]),)))
    blocks += [Section("A step as it is, and as predicted", (before_after(told),)), path_block(told.scene.timed)]
    blocks.append(Section("How this was predicted", tuple(_method(told)), folded=True))
    return WhatIf(Sheet(f"gpulab: {run.name} with {_named(told)}", tuple(blocks)), told)


def _answer(told: Prediction) -> Answer:
    unit = scale(told.step_ns)
    step, likely = unit.number(told.step_ns), unit(told.likely_ns)
    work = f" for {ratio(told.work)} the samples" if told.work != 1 else ""
    claim = f"With {_named(told)} a step takes {likely}{work} instead of {unit(told.step_ns)}: {ratio(told.speedup)}."
    best, worst = _speedups(told)
    between = best if best == worst else f"{worst.removesuffix('x')}-{best}"
    bound = f"{sentence(told.floor_means).rstrip('.')} gives at most {ratio(told.bound)}."
    if told.bound > BOUNDLESS:
        bound = "Nearly all of a step would go, so no useful bound can be given."
    span = f"{step} -> {unit.range(told.best_ns, told.worst_ns)} {unit.unit}"
    what, _ = GRADES[told.grade]
    longest = max(told.step_ns, told.worst_ns)
    return Answer(
        claim=claim,
        leading=True,
        expectation=Expectation(
            text=f"Expect {span} ({between}). {bound} Grade {told.grade}: {what}.",
            best_frac=told.best_ns / longest,
            worst_frac=told.worst_ns / longest,
            floor_frac=told.floor_ns / longest,
        ),
        notes=tuple(_prices(told)),
        fix="\n".join(_code(told)),
        closing=f"Then {told.limit} would limit." if told.limit else "",
    )


def _prices(told: Prediction) -> Iterator[str]:
    for each in told.chosen:
        if each.rewrite.price:
            yield sentence(f"the price of {each}: {each.rewrite.price}")


def _code(told: Prediction) -> Iterator[str]:
    for each in told.chosen:
        if each.rewrite.code is not None and (line := each.rewrite.code(told.scene.graph, each.value)):
            yield line


def _named(told: Prediction) -> str:
    names = [str(each) for each in told.chosen]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _speedups(told: Prediction) -> tuple[str, str]:
    return ratio(told.work * told.step_ns / told.best_ns), ratio(told.work * told.step_ns / told.worst_ns)


def _table(several: list[Prediction]) -> Table:
    """One row for each prediction; the last is all together, which is not the product of the others."""
    unit = scale(max(told.step_ns for told in several))
    rows = []
    for number, told in enumerate(several):
        together = number == len(several) - 1 and len(told.chosen) > 1
        cells = (unit.number(told.likely_ns), unit.range(told.best_ns, told.worst_ns), ratio(told.speedup))
        name = "together" if together else _named(told)
        rows.append(Row((name, *cells, ratio(told.bound), told.grade), kind="total" if together else "plain"))
    header = ("change", f"step, {unit.unit}", "range", "speed-up", "at most", "grade")
    return Table(header=header, rows=tuple(rows), caption=_as_it_is(several[0]))


def _bounds(several: list[Prediction]) -> Table:
    """What no change of a kind can beat; a bound has no range."""
    unit = scale(max(told.step_ns for told in several))
    rows = tuple(Row((told.chosen[0].rewrite.about, unit.number(told.floor_ns), ratio(told.bound))) for told in several)
    return Table(header=("with", f"step, {unit.unit}", "speed-up"), rows=rows, caption=_as_it_is(several[0]))


def _as_it_is(told: Prediction) -> str:
    return f"A step takes {scale(told.step_ns)(told.step_ns)} as it is; speed-ups are for the same work."


def _method(told: Prediction) -> Iterator[Block]:
    quality = told.scene.quality
    rows = [
        ("Replay", f"{percent(abs(quality.replay_error), 2)} off its own recording without any change"),
        ("Usual delays", f"{percent(abs(quality.generic_error), 2)} off with one usual delay for all GPU work"),
        (
            "Unexplained",
            f"{percent(quality.unexplained_frac, 1)} of the time GPU work stood still for no recorded reason",
        ),
        (
            "Step",
            f"{count(quality.steps, 'step')} replayed; their median is known to {percent(quality.step_error, 1)}",
        ),
        ("Range", _range(told)),
    ]
    if told.learned:
        rows.append(("History", f"{count(told.learned, 'earlier prediction')} of this kind measured on this machine"))
    if told.scene.base.known and told.scene.base.calling < 1:
        share = percent(told.scene.base.calling)
        rows.append(("Calls", f"{share} of their recorded cost, as un-profiled steps tell; recording adds the rest"))
    yield Facts(tuple(rows))
    for each in told.chosen:
        yield Line(f"How {each} is modelled: %gpuwhy {each.rewrite.name}", soft=True)


def _range(told: Prediction) -> str:
    if told.samples < 3:
        return "from the best to the worst of what is not known, all at once"
    return f"10 % to 90 % of {told.samples} draws of what is not known, and no narrower than grade {told.grade} allows"


def _survey(scene: Scene) -> View:
    """Every rewrite this run can tell of, alone and as it is usually set."""
    told, untellable = [], []
    run = scene.graph.run
    if scene.quality.refusal is not None:
        raise RunError("Nothing can be predicted from this run.", why=scene.quality.refusal, fix=scene.quality.fix)
    history = learned(run)
    for rewrite in REWRITES:
        if rewrite.usual is None:
            continue
        each = Chosen(rewrite, rewrite.usual)
        why = untold(scene, (each,))
        if why is None:
            told.append(predict(scene, (each,), samples=ALONE_SAMPLES, history=history))
        else:
            untellable.append((rewrite.name, sentence(why)))
    told.sort(key=lambda each: -each.speedup)
    bounds = [each for each in told if each.chosen[0].rewrite.bound]
    worth = [each for each in told if each not in bounds and each.speedup >= FELT]
    none = tuple(
        (str(each.chosen[0]), sentence(each.chosen[0].rewrite.about))
        for each in told
        if each not in bounds and each.speedup < FELT
    )
    blocks: list[Block] = [
        Line(f"Each change alone, the best first. Several together: %gpuwhatif {run.name} NAME NAME=VALUE ..."),
        Line(sentence(origin(run)), soft=True),
    ]
    blocks.append(_table(worth) if worth else Line("None of them would make a step shorter."))
    if bounds:
        blocks.append(Section("What nobody can beat", (_bounds(bounds),)))
    if none:
        blocks.append(Section("Would gain nothing here", (Facts(none),), folded=True))
    if untellable:
        blocks.append(Section("Cannot be told from this run", (Facts(tuple(untellable)),), folded=True))
    blocks.append(path_block(scene.timed))
    return View(Sheet(f"gpulab: what would help {run.name}", tuple(blocks)))
