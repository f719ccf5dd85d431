"""The page of a rule: what it means, how it is proved, what it is confused with, what to do; and the list of all.

The changes that %gpuwhatif knows have pages too: what each models, what that cannot know, and what it costs.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterator

from gpulab.errors import GpulabError
from gpulab.replay.rewrite import GRADES, Rewrite
from gpulab.replay.rewrites.catalogue import BY_NAME, REWRITES
from gpulab.rules import RULES, Rule
from gpulab.views.sheet.sheet import Answer, Block, Facts, Line, Section, Sheet
from gpulab.views.sheet.view import View
from gpulab.views.wording import percent, sentence

HEADINGS = ("Proof", "Confused with", "What to do")
OF_CHANGES = ("Models", "Priced from", "Cannot know")
_STAGES = {
    "ENDING": "How the run ended",
    "ENVIRONMENT": "The machine",
    "IDLE": "Why the device has nothing to do",
    "BUSY": "How it works when it does",
    "MEMORY": "Memory",
    "STATE": "What is simply so",
}


def page(name: str | None = None) -> View:
    """The page of a rule or of a change, by its name; without one, everything that has a page."""
    if name is None:
        return _contents()
    return _change(BY_NAME[name]) if name in BY_NAME else _page(_rule(name))


def _rule(name: str) -> Rule:
    for rule in RULES:
        if rule.name == name:
            return rule
    names = [rule.name for rule in RULES]
    near = difflib.get_close_matches(name, [*names, *BY_NAME], n=1)
    raise GpulabError(
        f"There is no rule or change {name!r}.",
        why=f"did you mean {near[0]}?" if near else f"the rules are {', '.join(names)}",
        fix="%gpuwhy without a name lists them all",
    )


def _page(rule: Rule) -> View:
    summary, told = _read(inspect.getdoc(rule.ask) or rule.about, HEADINGS)
    facts = [(heading, told[heading]) for heading in HEADINGS if heading in told]
    facts.append(("Needed", sentence("; ".join(need.fix for need in rule.needs)) or "Nothing beyond the run itself."))
    if rule.masked_by:
        facts.append(("Explained by", f"{', '.join(rule.masked_by)}, where these are found about the same time."))
    if rule.lesson:
        facts.append(("Lesson", f"{rule.lesson}.ipynb of the course (python -m gpulab lessons my-course)"))
    return View(Sheet(f"gpulab: {rule.name}", (Answer(claim=summary, leading=True), Facts(tuple(facts)))))


def _change(rewrite: Rewrite) -> View:
    """What a change models, by its docstring, and what it costs."""
    summary, said = _read(inspect.getdoc(rewrite.edit) or rewrite.about, OF_CHANGES)
    grounds, share = GRADES[rewrite.grade]
    facts = [
        *((heading, said[heading]) for heading in OF_CHANGES if heading in said),
        ("Set to", sentence(f"{rewrite.takes}{_usual(rewrite)}")),
        ("Bound", sentence(f"{rewrite.ceiling_means} gives at most what the replay says of it")),
        ("Costs", sentence(rewrite.price)),
        (
            "Grade",
            f"{rewrite.grade}: {grounds}; until some were measured, at least {percent(share)} of a gain is open.",
        ),
        ("Try it", f"%gpuwhatif RUN {rewrite.name}{'=...' if rewrite.takes else ''}"),
    ]
    told = tuple(fact for fact in facts if fact[1])
    return View(Sheet(f"gpulab: {rewrite.name}", (Answer(claim=sentence(summary), leading=True), Facts(told))))


def _usual(rewrite: Rewrite) -> str:
    if rewrite.usual is True or not rewrite.takes:
        return ""
    return "; a value must be given" if rewrite.usual is None else f"; {rewrite.usual} where none is given"


def _read(docstring: str, headings: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """What stands before the headings, and what stands under each."""
    first, *rest = re.split(rf"\b({'|'.join(headings)}): ", " ".join(docstring.split()))
    return first.strip(), {heading: sentence(said) for heading, said in zip(rest[::2], rest[1::2], strict=True)}


def _contents() -> View:
    return View(Sheet("gpulab: what is asked of a run", (_opening(), *_sections())))


def _opening() -> Block:
    return Line(
        f"{len(RULES)} questions and {len(REWRITES)} changes. %gpuwhy NAME shows how an answer is proved, and what it "
        "is confused with; or how a change is modelled."
    )


def _sections() -> Iterator[Section]:
    for stage, title in _STAGES.items():
        rows = tuple((rule.name, rule.about) for rule in RULES if rule.stage.name == stage)
        if rows:
            yield Section(title, (Facts(rows),))
    changes = tuple((rewrite.name, rewrite.about) for rewrite in REWRITES)
    yield Section("What %gpuwhatif can change", (Facts(changes),))
