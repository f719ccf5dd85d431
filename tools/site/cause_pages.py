"""One page per rule: what the problem looks like, how to be sure, what to paste; and the index of causes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpulab.lessons.course import lesson
from gpulab.rules import RULES, Finding, Rule
from gpulab.wording import ratio, ratio_range, sentence
from tools.site.docstrings import capitalised, docstring, fenced, linked, split_headings
from tools.site.examples import example_finding
from tools.site.page import Page
from tools.site.symptoms import symptoms
from tools.site.targets import change_pages, rule_pages

FOLDER = "causes"
HEADINGS = ("Proof", "Confused with", "What to do")
TOPICS = {
    "data": "Data loading",
    "host": "Python and the CPU",
    "steps": "Pauses and uneven steps",
    "copies": "Copies between CPU and GPU",
    "kernels": "Kernels and operators",
    "memory": "Memory",
    "machine": "The machine",
    "ranks": "Several GPUs",
}
# The changes that predict the effect of a rule's fix, or bound it.
RELATED: Mapping[str, Sequence[str]] = {
    "no_workers": ("workers", "free_input"),
    "too_few_workers": ("workers", "free_input"),
    "slow_storage": ("workers", "item_cost", "free_input"),
    "cpu_bound_loading": ("item_cost", "free_input"),
    "too_many_workers": ("workers",),
    "host_python": ("python", "no_python"),
    "garbage_collection": ("no_gc",),
    "periodic_stalls": ("async_checkpoint",),
    "dispatch_bound": ("compile", "cuda_graphs", "instant_host"),
    "host_syncs": ("no_syncs", "sync_every"),
    "pageable_copies": ("pin_memory",),
    "unoverlapped_copies": ("pin_memory", "prefetch"),
    "no_tf32": ("tf32",),
    "no_mixed_precision": ("amp",),
    "no_bfloat16_on_cpu": ("amp",),
    "layout_conversions": ("channels_last",),
    "nchw_on_cpu": ("channels_last",),
    "unfused_optimizer": ("optimizer",),
    "unfused_elementwise": ("compile",),
    "memory_bound": ("compile", "amp"),
    "small_batch": ("batch",),
    "unused_gpu_memory": ("batch",),
    "device_bound": ("gpu", "instant_gpu"),
    "allocator_thrash": ("no_alloc",),
    "out_of_memory": ("accumulate", "amp"),
    "straggler": ("no_straggler",),
    "uneven_batches": ("balance",),
    "slow_link": ("bandwidth", "compress"),
    "exposed_communication": ("overlap", "bandwidth", "compress", "no_sync", "ranks"),
    "small_buckets": ("bucket_mb",),
}


def cause_pages() -> Iterator[Page]:
    """Yield the index and the page of every rule."""
    yield Page(f"{FOLDER}/index.md", _index())
    for rule in RULES:
        yield Page(rule_pages()[rule.name], _page(rule, example_finding(rule)))


def _page(rule: Rule, finding: Finding) -> str:
    summary, sections = split_headings(docstring(rule.check), HEADINGS)
    parts = [
        f"# {title(rule)}",
        _searched_as(rule),
        "## What it looks like",
        _with_links(summary, rule),
        "A report says, for example:",
        _example(finding),
        "## How to be sure",
        _with_links(sections["Proof"], rule),
        "To check it on your own loop, put this line on top of the training cell and run it, or start the script with "
        "`gpulab run train.py`:",
        fenced("%%gpuprofile before", "ipython"),
        "## What to do",
        *_fix(rule, finding, sections["What to do"]),
        "## Similar symptoms",
        _with_links(sections["Confused with"], rule),
        "## Details",
        _details(rule),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def title(rule: Rule) -> str:
    """Return the title of the page of a rule."""
    return rule.about[:1].upper() + rule.about[1:]


def _searched_as(rule: Rule) -> str:
    texts = symptoms().get(rule.name, ())
    return f"*Symptoms: {'; '.join(texts)}.*" if texts else ""


def _with_links(text: str, rule: Rule) -> str:
    return linked(text, rule_pages(), FOLDER, leave_out=(rule.name,))


def _example(finding: Finding) -> str:
    lines = [f"**{finding.claim}**", "", *(f"- {line}" for line in finding.evidence)]
    gain = finding.gain
    if gain is not None and not gain.is_bound_only and not gain.may_lose and gain.worst_speedup > 1:
        speedup = ratio_range(gain.worst_speedup, gain.best_speedup)
        lines.append(f"- Predicted speed-up of the fix: {speedup}. No fix for this cause can give more than "
                     f"{ratio(gain.bound)}.")  # fmt: skip
    return ":::{admonition} Example\n:class: example\n" + "\n".join(map(_escaped, lines)) + "\n:::"


def _escaped(line: str) -> str:
    """Return a line of a report with the characters that Markdown would interpret escaped, bold left as it is."""
    return line.replace("<", "&lt;").replace("_", "\\_") if "`" not in line else line


def _fix(rule: Rule, finding: Finding, text: str) -> Iterator[str]:
    if finding.fix:
        yield "The report prints the fix with the names and numbers of your program. For the example above:"
        yield fenced(finding.fix, "python")
        yield "Measure it before you keep it. `%gpufix` runs the cell with and without it, on copies of your variables:"
        yield fenced(f"%gpufix before --rule {rule.name}", "ipython")
    yield _with_links(text, rule)
    if finding.advice and not finding.fix:
        yield f"In the example above, the report adds: {sentence(finding.advice)}"


def _details(rule: Rule) -> str:
    needs = "; ".join(need.name for need in rule.needs) or "only the run itself"
    rows = [("Name", f"`{rule.name}` (`%gpuwhy {rule.name}`, `gpulab why {rule.name}`)"), ("Needs", sentence(needs))]
    if rule.masked_by:
        others = linked(", ".join(f"`{name}`" for name in rule.masked_by), rule_pages(), FOLDER)
        rows.append(("Counted in another finding", f"if it covers the same time, in one of {others}"))
    if changes := RELATED.get(rule.name):
        pages = change_pages()
        rows.append(("What-if", ", ".join(f"[`{name}`](../{pages[name]})" for name in changes)))
    if rule.lesson:
        item = lesson(rule.lesson)
        rows.append(("Lesson", f"[{item.number} {item.title}](../course/{item.id}.md): {item.question}"))
    return "\n".join(("| | |", "|---|---|", *(f"| {name} | {text.replace('|', '&#124;')} |" for name, text in rows)))


def _index() -> str:
    parts = [
        "# Causes of a slow training loop",
        f"gpulab checks every recording for {len(RULES)} causes. Each page says what the cause looks like, how gpulab "
        "proves it, and what to paste. If you have a symptom and no report yet, begin with the "
        "[table of symptoms](../symptoms.md).",
    ]
    for topic, heading in TOPICS.items():
        rules = [rule for rule in RULES if rule.topic == topic]
        lines = ["| cause | sign |", "|---|---|"]
        for rule in rules:
            summary, _ = split_headings(docstring(rule.check), HEADINGS)
            first = capitalised(" ".join(summary.split("\n\n")[0].split())).replace("|", "&#124;")
            lines.append(f"| [{title(rule)}]({rule.name}.md) | {linked(first, {}, FOLDER)} |")
        parts += [f"## {heading}", "\n".join(lines), _toctree(rule.name for rule in rules)]
    return "\n\n".join(parts) + "\n"


def _toctree(names: Iterator[str]) -> str:
    return "```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```"
