"""The page of a rule: what it detects, its evidence, similar symptoms, what to do; and the list of all pages.

The changes that %gpuwhatif knows have pages, too: what each models, what is not modelled, and its cost.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from gpulab.errors import GpulabError
from gpulab.replay.job.job_catalogue import COMMUNICATION_OF_JOBS
from gpulab.replay.job.job_rewrite import JobRewrite
from gpulab.replay.rewrite import Rewrite, grade_text, least_margin_text
from gpulab.replay.rewrites.catalogue import REWRITES
from gpulab.rules import RULES, Rule
from gpulab.views.sheet.sheet import Answer, Block, Facts, Line, Section, Sheet
from gpulab.views.sheet.view import View
from gpulab.wording import did_you_mean, sentence

_RULE_HEADINGS = ("Proof", "Confused with", "What to do")
_ITEM = " * "  # starts an item of a list in a docstring
_REWRITE_HEADINGS = ("Models", "Priced from", "Cannot know")
_DISPLAYED = {  # headings of docstrings that pages show in other words
    "Proof": "Evidence",
    "Confused with": "Similar symptoms",
    "Models": "Model",
    "Cannot know": "Not modelled",
}
_CHANGES: dict[str, Rewrite | JobRewrite] = {
    **{rewrite.name: rewrite for rewrite in COMMUNICATION_OF_JOBS},
    **{rewrite.name: rewrite for rewrite in REWRITES},  # of a run: the page of a change of both is about one rank
}
_STAGES = {
    "ENDING": "Failed runs",
    "ENVIRONMENT": "The machine",
    "IDLE": "Why the device is idle",
    "BUSY": "Why the work is slow",
    "MEMORY": "Memory",
    "STATE": "For information",
}


def page(name: str | None = None) -> View:
    """Return the page of a rule or of a change; without a name, the list of all pages."""
    if name is None:
        return _contents()
    return _change(_CHANGES[name]) if name in _CHANGES else _page(_rule(name))


def _rule(name: str) -> Rule:
    for rule in RULES:
        if rule.name == name:
            return rule
    names = [rule.name for rule in RULES]
    near = did_you_mean(name, [*names, *_CHANGES])
    raise GpulabError(
        f"There is no rule or change {name!r}.",
        why="%gpuwhy without a name lists all of them" if near else f"the rules are {', '.join(names)}",
        fix=near or "%gpuwhy without a name explains each in a line",
    )


def _page(rule: Rule) -> View:
    summary, sections = _split_docstring(inspect.getdoc(rule.check) or rule.about, _RULE_HEADINGS)
    facts = [(_heading(name), sections[name]) for name in _RULE_HEADINGS if name in sections]
    needs = "; ".join(need.name for need in rule.needs)
    facts.append(("Requirements", sentence(f"this check needs {needs or 'only the run itself'}")))
    if rule.masked_by:
        others = ", ".join(rule.masked_by)
        facts.append(("Counted in", f"another finding that covers the same time, if it is one of: {others}."))
    if rule.lesson:
        facts.append(("Lesson", f"{rule.lesson}.ipynb (python -m gpulab lessons FOLDER copies the course)"))
    return View(Sheet(f"gpulab: {rule.name}", (Answer(claim=summary, leading=True), *_blocks(facts))))


def _heading(name: str) -> str:
    """Return a heading of a docstring as pages show it."""
    return _DISPLAYED.get(name, name)


def _blocks(facts: Sequence[tuple[str, str]]) -> Iterator[Block]:
    """Yield the facts in order; one with items, each after " * ", becomes a list under its heading."""
    for has_items, group in groupby(facts, key=lambda fact: _ITEM in fact[1]):
        if not has_items:
            yield Facts(tuple(group))
            continue
        for heading, text in group:
            introduction, *items = text.split(_ITEM)
            lines = (introduction, *(f"- {sentence(item)}" for item in items))
            yield Section(heading, tuple(Line(line) for line in lines if line.strip()))


def _change(rewrite: Rewrite | JobRewrite) -> View:
    """Return the page of a change: what it models, by its docstring, and what it costs."""
    summary, sections = _split_docstring(inspect.getdoc(rewrite.edit) or rewrite.about, _REWRITE_HEADINGS)
    facts = [
        *((_heading(name), sections[name]) for name in _REWRITE_HEADINGS if name in sections),
        ("Set to", sentence(f"{rewrite.value_help}{_default_text(rewrite)}")),
        ("Upper bound", sentence(f"the replayed speed-up with {rewrite.bound_label}")),
        ("Costs", sentence(rewrite.cost)),
        (
            "Grade",
            f"{grade_text(rewrite.grade)}. The range extends at least this far on each side: "
            f"{least_margin_text(rewrite.grade)}. Predictions that were wrong on this machine widen it.",
        ),
        ("Try it", _try_it(rewrite)),
    ]
    known_facts = tuple(fact for fact in facts if fact[1])
    answer = Answer(claim=sentence(summary), leading=True)
    return View(Sheet(f"gpulab: {rewrite.name}", (answer, *_blocks(known_facts))))


def _try_it(rewrite: Rewrite | JobRewrite) -> str:
    changes = f"{rewrite.name}{'=...' if rewrite.value_help else ''}"
    return f'gpulab.whatif(RANKS, "{changes}")' if isinstance(rewrite, JobRewrite) else f"%gpuwhatif RUN {changes}"


def _default_text(rewrite: Rewrite | JobRewrite) -> str:
    if rewrite.default is True or not rewrite.value_help:
        return ""
    return "; a value is required" if rewrite.default is None else f"; the default is {rewrite.default}"


def _split_docstring(docstring: str, headings: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """Split a docstring into the text before the first heading and the text under each heading."""
    summary, *sections = re.split(rf"\b({'|'.join(headings)}): ", " ".join(docstring.split()))
    return summary.strip(), {
        heading: sentence(text) for heading, text in zip(sections[::2], sections[1::2], strict=True)
    }


def _contents() -> View:
    return View(Sheet("gpulab: rules and changes", (_introduction(), *_sections())))


def change_lines() -> Iterator[str]:
    """Yield a line for each change that a what-if can make: its name, its value, what it is."""
    for rewrite in REWRITES:
        word = f"{rewrite.name}=..." if rewrite.value_help else rewrite.name
        yield f"  {word:<22} {rewrite.about}"


def change_list() -> View:
    """Return the changes that a what-if can make, for a session without a run to predict them for."""
    lines = (
        Line("There is no run yet, so nothing can be predicted: put %%gpuprofile at the top of the training cell."),
        Section("What %gpuwhatif can change", (Facts(tuple((rewrite.name, rewrite.about) for rewrite in REWRITES)),)),
    )
    return View(Sheet("gpulab: changes", lines))


def _introduction() -> Block:
    return Line(
        f"{len(RULES)} rules and {len(_CHANGES)} changes. %gpuwhy NAME shows the evidence of a rule and similar "
        "symptoms, or how a change is modelled."
    )


def _sections() -> Iterator[Section]:
    for stage, title in _STAGES.items():
        rows = tuple((rule.name, rule.about) for rule in RULES if rule.stage.name == stage)
        if rows:
            yield Section(title, (Facts(rows),))
    changes = tuple((rewrite.name, rewrite.about) for rewrite in REWRITES)
    yield Section("What %gpuwhatif can change", (Facts(changes),))
    of_jobs = tuple((rewrite.name, rewrite.about) for rewrite in COMMUNICATION_OF_JOBS)
    yield Section("What it can change in a job of several ranks", (Facts(of_jobs),))
