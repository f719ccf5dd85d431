"""One page per change that what-if knows: what it models, what it cannot know, how to try it; and their index."""

from __future__ import annotations

from collections.abc import Iterator

from gpulab.replay.job.job_catalogue import COMMUNICATION_OF_JOBS
from gpulab.replay.job.job_rewrite import JobRewrite
from gpulab.replay.rewrite import GRADES, Rewrite, grade_text, least_margin_text
from gpulab.replay.rewrites.catalogue import REWRITES
from gpulab.rules import RULES
from gpulab.wording import sentence
from tools.site.cause_pages import RELATED, title
from tools.site.docstrings import docstring, fenced, linked, split_headings
from tools.site.page import Page
from tools.site.targets import change_pages, rule_pages

FOLDER = "what_ifs"
HEADINGS = {"Models": "Model", "Priced from": "Where the prices come from", "Cannot know": "Not modelled"}
Change = Rewrite | JobRewrite


def what_if_pages() -> Iterator[Page]:
    """Yield the index and the page of every change."""
    yield Page(f"{FOLDER}/index.md", _index())
    for name, path in change_pages().items():
        of_run = [change for change in REWRITES if change.name == name]
        of_job = [change for change in COMMUNICATION_OF_JOBS if change.name == name]
        yield Page(path, _page(name, of_run, of_job))


def _page(name: str, of_run: list[Rewrite], of_job: list[JobRewrite]) -> str:
    changes: list[Change] = [*of_run, *of_job]
    parts = [f"# {name}: {changes[0].about}"]
    for rewrite in of_run:
        parts += _sections(rewrite, example_of(rewrite), "##")
    for of_ranks in of_job:
        if of_run:
            parts += ["## In a job of several ranks"]
        parts += _sections(of_ranks, f'gpulab.whatif(ranks, "{_typed(of_ranks)}")', "###" if of_run else "##")
    if causes := _causes(name):
        parts += ["## Causes that it is about", causes]
    return "\n\n".join(part for part in parts if part) + "\n"


def example_of(change: Rewrite) -> str:
    """Return the line that predicts this change."""
    return f"%gpuwhatif before {_typed(change)}"


def _typed(change: Change) -> str:
    """Return a change as users type it, with a value if it has one."""
    if not change.value_help:
        return change.name
    examples = {
        "gpu": "h200",
        "optimizer": "fused",
        "amp": "bf16",
        "no_straggler": "3",
        "ranks": "64",
        "bucket_mb": "50",
    }
    default = change.default if change.default not in (None, True) else None
    return f"{change.name}={default or examples.get(change.name, '4')}"


def _sections(change: Change, example: str, level: str) -> Iterator[str]:
    summary, sections = split_headings(docstring(change.edit), tuple(HEADINGS))
    yield linked(summary, rule_pages(), "", leave_out=(change.name,)).replace("](causes/", "](../causes/")
    if isinstance(change, JobRewrite):
        yield fenced(f'ranks = gpulab.load("job/")  # the folder of all ranks\n{example}', "python")
    else:
        yield fenced(example, "ipython")
    rows = [("Upper bound", sentence(f"the replayed speed-up with {change.bound_label}"))]
    if change.value_help:
        rows.insert(0, ("Value", sentence(f"{change.value_help}{_default(change)}")))
    if change.cost:
        rows.append(("Costs", sentence(change.cost)))
    margin = f"Each end of the range is at least this far from its middle: {least_margin_text(change.grade)}."
    rows.append(("Grade", f"{sentence(grade_text(change.grade))} {margin}"))
    yield "\n".join(("| | |", "|---|---|", *(f"| {name} | {text.replace('|', '&#124;')} |" for name, text in rows)))
    for heading, text in sections.items():
        yield f"{level} {HEADINGS[heading]}"
        yield text


def _default(change: Change) -> str:
    if change.default is True:
        return ""
    return "; a value is required" if change.default is None else f"; the default is {change.default}"


def _causes(name: str) -> str:
    rules = [rule for rule in RULES if name in RELATED.get(rule.name, ())]
    return "\n".join(f"- [{title(rule)}](../{rule_pages()[rule.name]})" for rule in rules)


def _index() -> str:
    parts = [
        "# What-ifs",
        "`%gpuwhatif RUN CHANGE` predicts the step time with a change, from a recording without it. Name several "
        "changes to predict them together, or none to rank all that apply. [What-if](../what_if.md) explains ranges, "
        "bounds and grades.",
        "## Changes of a training loop",
        _table(REWRITES),
        "## Changes of a job of several ranks",
        _table(COMMUNICATION_OF_JOBS),
        "## Grades",
        "\n".join(
            ("| grade | the prediction |", "|---|---|", *(f"| {key} | {text} |" for key, (text, _) in GRADES.items()))
        ),
        "```{toctree}\n:hidden:\n\n" + "\n".join(change_pages()) + "\n```",
    ]
    return "\n\n".join(parts).replace(".md\n```", "\n```") + "\n"


def _table(changes: tuple[Rewrite, ...] | tuple[JobRewrite, ...]) -> str:
    lines = ["| change | meaning | grade |", "|---|---|---|"]
    for change in changes:
        lines.append(f"| [`{change.name}`]({change.name}.md) | {change.about} | {change.grade} |")  # noqa: PERF401
    return "\n".join(lines)
