"""The public names of gpulab: signature, description, units, errors, members and a working example of each."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import gpulab
from tools.site.docstrings import docstring, fenced
from tools.site.page import Page
from tools.site.source_entries import SourceEntry, source_entry
from tools.site.targets import DOCS, ROOT

FOLDER = "api"
EXAMPLES = f"{DOCS}/api_examples.md"
# Classes that public functions return, and errors that they raise: "module:name".
GROUPS: Mapping[str, tuple[str, Sequence[str]]] = {
    "recording": (
        "Recording",
        ("gpulab:profile", "gpulab:step", "gpulab:phase", "gpulab:runs", "gpulab:monitor", "gpulab:recover",
         "gpulab.capture.run_registry:Runs", "gpulab.views.live.monitor:Monitor"),
    ),
    "runs": ("Runs and files", ("gpulab:Run", "gpulab:load", "gpulab:save", "gpulab:summary", "gpulab:to_perfetto")),
    "diagnosis": (
        "Diagnosis and reports",
        ("gpulab:report", "gpulab:diagnose", "gpulab.rules:Diagnosis", "gpulab.rules:Finding", "gpulab.rules:Gain",
         "gpulab.rules:Unjudged", "gpulab.views.report.report:Report"),
    ),
    "predictions": (
        "What-if and comparison",
        ("gpulab:whatif", "gpulab:compare", "gpulab:experiment", "gpulab.views.whatif.whatif:WhatIf",
         "gpulab.replay.prediction:Prediction", "gpulab.comparison:Comparison",
         "gpulab.lessons.ab_experiment:Experiment"),
    ),
    "views": (
        "Timeline, machine and history",
        ("gpulab:timeline", "gpulab:info", "gpulab:history", "gpulab.views.sheet.view:View",
         "gpulab.views.timeline.view:TimelineView"),
    ),
    "virtual_gpu": (
        "Virtual GPU",
        ("gpulab:virtual_gpu", "gpulab:virtual", "gpulab.virtual:fits", "gpulab.virtual:max_batch",
         "gpulab.virtual:compare_gpus", "gpulab.virtual:selftest", "gpulab.virtual.session:VirtualGpu"),
    ),
    "jobs": ("Jobs with many ranks", ("gpulab:fleet", "gpulab.fleet.fleet_result:Fleet")),
    "lessons": ("Lessons", ("gpulab:lab", "gpulab.lessons.lesson_lab:Lab")),
    "errors": (
        "Errors",
        ("gpulab:GpulabError", "gpulab.errors:RunError", "gpulab.errors:CaptureError", "gpulab.errors:TraceError",
         "gpulab.errors:StoreError"),
    ),
    "integrations": (
        "Integrations",
        ("gpulab.integrations.lightning:Profile", "gpulab.integrations.transformers:Profile",
         "gpulab.integrations.accelerate:Profile", "gpulab.integrations.mlflow:log_run",
         "gpulab.integrations.wandb:log_run", "gpulab.integrations.tensorboard:log_run",
         "gpulab.integrations.opentelemetry:log_run", "gpulab.integrations.opentelemetry:WatchMetrics",
         "gpulab.integrations.prometheus:serve"),
    ),
}  # fmt: skip
CHARTS = "charts"


def api_pages() -> Iterator[Page]:
    """Yield the index, a page for each group of names, the charts and the tables."""
    titles = {name: title for name, (title, _) in GROUPS.items()} | {CHARTS: "Charts", "tables": "Tables and units"}
    yield Page(f"{FOLDER}/index.md", _index(titles))
    for name, (title, entries) in GROUPS.items():
        yield Page(f"{FOLDER}/{name}.md", _page(title, [tuple(entry.split(":")) for entry in entries]))
    charts = [("gpulab.charts", name) for name in gpulab.charts.__all__ if name != "CHARTS"]
    yield Page(f"{FOLDER}/{CHARTS}.md", _page("Charts", [("gpulab", CHARTS), *charts]))
    yield Page(f"{FOLDER}/tables.md", _tables())


def public_entries() -> Sequence[str]:
    """Return the full name of everything that the pages describe."""
    listed = [f"{module}.{name}" for _, entries in GROUPS.values() for module, name in (e.split(":") for e in entries)]
    return [*listed, "gpulab.charts", *(f"gpulab.charts.{name}" for name in gpulab.charts.__all__ if name != "CHARTS")]


def _index(titles: Mapping[str, str]) -> str:
    lines = ["| name | what it does |", "|---|---|"]
    places = {entry: name for name, (_, entries) in GROUPS.items() for entry in entries} | {"gpulab:charts": CHARTS}
    for name in gpulab.__all__:
        first = docstring(getattr(gpulab, name)).split("\n\n")[0].split(". ")[0].replace("\n", " ").rstrip(".")
        lines.append(f"| [`gpulab.{name}`]({places[f'gpulab:{name}']}.md#{slug(f'gpulab.{name}')}) | {first} |")
    return "\n\n".join((
        "# API",
        "`import gpulab` takes less than 0.1 s and works without PyTorch. Units are part of names: `_ns` nanoseconds, "
        "`_bytes`, `_w` watts, `_mhz`, `_c` degrees Celsius, `_frac` a share from 0 to 1. A value that was not "
        "measured is `None` or NaN, never zero. Every expected failure is a `GpulabError` that says why, and how to "
        "fix it.",
        "\n".join(lines),
        "```{toctree}\n:hidden:\n\n" + "\n".join(f"{title} <{name}>" for name, title in titles.items()) + "\n```",
    )) + "\n"  # fmt: skip


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _page(title: str, entries: Sequence[Sequence[str]]) -> str:
    parts = [f"# {title}"]
    for module, name in entries:
        if module.startswith("gpulab.integrations."):
            parts += [f"## {module}.{name}", _source_directive(f"{module}.{name}", source_entry(module, name))]
            continue
        subject = getattr(importlib.import_module(module) if module != "gpulab.charts" else gpulab.charts, name)
        parts += [f"## {module}.{name}", *_entry(f"{module}.{name}", subject)]
    return "\n\n".join(parts) + "\n"


def _entry(name: str, subject: Any) -> Iterator[str]:
    text = described(docstring(subject))
    if inspect.ismodule(subject) or not (inspect.isclass(subject) or callable(subject)):
        text = without_contents(text)
    if inspect.isclass(subject):
        yield _directive("class", f"{name}{_constructor(subject)}", text)
        if members := _members(subject):
            yield "\n".join(("| member | meaning |", "|---|---|", *members))
    elif callable(subject):
        yield _directive("function", f"{name}{signature(subject)}", text)
    else:
        yield _directive("module" if inspect.ismodule(subject) else "data", name, "")
        yield text
    if name in examples():
        yield fenced(examples()[name], "python")


def _source_directive(name: str, entry: SourceEntry) -> str:
    return _directive("class" if entry.is_class else "function", f"{name}{entry.signature}", described(entry.text))


def _directive(kind: str, name: str, text: str) -> str:
    return f"`````{{py:{kind}}} {name}\n\n{text}\n`````" if text else f"`````{{py:{kind}}} {name}\n`````"


def described(text: str) -> str:
    """Return a docstring as Markdown: parameters that start a sentence ("level: ...") as code, errors in bold."""
    return re.sub(r"\bRaises ([A-Z]\w+Error)\b", r"**Raises** `\1`", text.replace("<", "&lt;"))


def without_contents(text: str) -> str:
    """Return the docstring of a package without its list of modules ("steps    ledger, step times")."""
    paragraphs = re.split(r"\n{2,}", text)
    entry = re.compile(r"\s*[\w, ]+?\s{2,}\S.*")
    return "\n\n".join(part for part in paragraphs if not all(entry.fullmatch(line) for line in part.splitlines()))


def _constructor(subject: type) -> str:
    return signature(subject) if issubclass(subject, Exception) else ""


def signature(subject: Any) -> str:
    """Return the signature of a function as it is written, annotations without quotes."""
    parameters: list[str] = []
    separated = False
    for parameter in inspect.signature(subject).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not separated:
            separated = True
            if not any(entry.startswith("*") for entry in parameters):
                parameters.append("*")
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        star = "**" if parameter.kind is parameter.VAR_KEYWORD else star
        kind = "" if parameter.annotation is parameter.empty else f": {_annotation(parameter.annotation)}"
        default = "" if parameter.default is parameter.empty else f"{' = ' if kind else '='}{parameter.default!r}"
        parameters.append(f"{star}{parameter.name}{kind}{default}")
    result = inspect.signature(subject).return_annotation
    arrow = "" if result is inspect.Signature.empty or inspect.isclass(subject) else f" -> {_annotation(result)}"
    return f"({', '.join(parameters)}){arrow}"


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _members(subject: type) -> list[str]:
    """Return rows for the fields, properties and methods of a class, its bases in gpulab included."""
    rows: dict[str, tuple[str, str]] = {}
    for owner in reversed([base for base in subject.__mro__ if base.__module__.startswith("gpulab")]):
        rows |= _fields(owner)
        for name, member in vars(owner).items():
            if name.startswith(("_", "on_")):
                continue
            getter = getattr(member, "fget", None) or getattr(member, "func", None)
            if getter is not None and inspect.getdoc(getter):
                kind = inspect.signature(getter).return_annotation
                rows[name] = f"{name}: {_annotation(kind)}", first_sentences(getter)
            elif inspect.isfunction(member) and inspect.getdoc(member) and member.__module__.startswith("gpulab"):
                rows[name] = f"{name}{signature(member)}", first_sentences(member)
    lines = [f"| `{_cell(code)}` | {_cell(text)} |" for code, text in rows.values() if text]
    others = ", ".join(f"`{_cell(code)}`" for code, text in rows.values() if not text)
    return [*lines, f"| other fields | {others} |"] if others else lines


def _fields(owner: type) -> dict[str, tuple[str, str]]:
    """Return the public fields of a dataclass by name: each with its type, and the comment behind it."""
    if not dataclasses.is_dataclass(owner):
        return {}
    comments = _field_comments(owner)
    public = [field for field in dataclasses.fields(owner) if not field.name.startswith("_")]
    return {field.name: (f"{field.name}: {_annotation(field.type)}", comments.get(field.name, "")) for field in public}


def first_sentences(subject: Any) -> str:
    """Return the first paragraph of a docstring on one line."""
    return " ".join(docstring(subject).split("\n\n")[0].split())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _field_comments(owner: type) -> Mapping[str, str]:
    """Return what the comments behind the fields of a class say."""
    try:
        lines = inspect.getsource(owner).splitlines()
    except (OSError, TypeError):
        return {}
    fields = (re.match(r"    (\w+): [^#]*?(?:#\s*(.*))?$", line) for line in lines)
    return {match[1]: match[2] or "" for match in fields if match}


@cache
def examples() -> Mapping[str, str]:
    """Return the examples of docs/api_examples.md by the name in their heading."""
    text = (ROOT / EXAMPLES).read_text(encoding="utf-8")
    matches = re.findall(r"^## `([\w.]+)`\n+```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return {name: code.rstrip() for name, code in matches}


def _tables() -> str:
    from gpulab.tables import describe

    return (
        "# Tables and units\n\nThe tables of a run are DataFrames: `run.events`, `run.marks`, `run.gpu_samples` and so "
        "on. `print(gpulab.tables.describe())` prints this list; times are int64 ns from the start of the run.\n\n"
        f"{fenced(describe())}\n"
    )
