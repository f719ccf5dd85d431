"""The page of a rule: what it means, how it is proved, what it is confused with, what to do; and the list of all."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterator

from gpulab.errors import GpulabError
from gpulab.rules import RULES, Rule
from gpulab.views.sheet import Answer, Block, Facts, Line, Section, Sheet
from gpulab.views.view import View
from gpulab.views.wording import sentence

HEADINGS = ("Proof", "Confused with", "What to do")
_STAGES = {
    "ENDING": "How the run ended",
    "ENVIRONMENT": "The machine",
    "IDLE": "Why the device has nothing to do",
    "BUSY": "How it works when it does",
    "MEMORY": "Memory",
    "STATE": "What is simply so",
}


def page(name: str | None = None) -> View:
    """The page of a rule, by its name; without one, every question that is asked of a run."""
    return _contents() if name is None else _page(_rule(name))


def _rule(name: str) -> Rule:
    for rule in RULES:
        if rule.name == name:
            return rule
    names = [rule.name for rule in RULES]
    near = difflib.get_close_matches(name, names, n=1)
    raise GpulabError(
        f"There is no rule {name!r}.",
        why=f"did you mean {near[0]}?" if near else f"the rules are {', '.join(names)}",
        fix="%gpuwhy without a name lists them all",
    )


def _page(rule: Rule) -> View:
    summary, told = _read(rule)
    facts = [(heading, told[heading]) for heading in HEADINGS if heading in told]
    facts.append(("Needed", sentence("; ".join(need.fix for need in rule.needs)) or "Nothing beyond the run itself."))
    if rule.masked_by:
        facts.append(("Explained by", f"{', '.join(rule.masked_by)}, where these are found about the same time."))
    return View(Sheet(f"gpulab: {rule.name}", (Answer(claim=summary, leading=True), Facts(tuple(facts)))))


def _read(rule: Rule) -> tuple[str, dict[str, str]]:
    """What stands before the headings, and what stands under each."""
    text = " ".join((inspect.getdoc(rule.ask) or rule.about).split())
    first, *rest = re.split(rf"\b({'|'.join(HEADINGS)}): ", text)
    return first.strip(), {heading: sentence(said) for heading, said in zip(rest[::2], rest[1::2], strict=True)}


def _contents() -> View:
    return View(Sheet("gpulab: what is asked of a run", (_opening(), *_sections())))


def _opening() -> Block:
    return Line(f"{len(RULES)} questions. %gpuwhy NAME shows how one is proved, and what it is confused with.")


def _sections() -> Iterator[Section]:
    for stage, title in _STAGES.items():
        rows = tuple((rule.name, rule.about) for rule in RULES if rule.stage.name == stage)
        if rows:
            yield Section(title, (Facts(rows),))
