"""Tab completion for gpulab's magics: options, their values, and names of runs."""

from __future__ import annotations

import re

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    completion_matcher,
)

from gpulab.capture.run_registry import runs
from gpulab.hardware.gpus import SPECS
from gpulab.magics.arguments import (
    COMPARE,
    FIX,
    HISTORY,
    INFO,
    MONITOR,
    PROFILE,
    REPORT,
    TIMELINE,
    WHATIF,
    WHY,
    option_choices,
)
from gpulab.virtual.default_gpu import AUTO

_LINE = re.compile(
    r"\s*%{0,2}(gpu(?:profile|monitor|history|report|timeline|compare|whatif|fix|info|why))\s+(.*)", re.DOTALL
)
_ARGUMENTS = {
    "gpuprofile": PROFILE,
    "gpumonitor": MONITOR,
    "gpuhistory": HISTORY,
    "gpureport": REPORT,
    "gputimeline": TIMELINE,
    "gpucompare": COMPARE,
    "gpuwhatif": WHATIF,
    "gpufix": FIX,
    "gpuinfo": INFO,
    "gpuwhy": WHY,
}
_MAX_RUN_NAMES = {"gpuprofile": 1, "gpureport": 1, "gputimeline": 2, "gpucompare": 99, "gpuwhatif": 1, "gpufix": 1}


@completion_matcher(identifier="gpulab.matcher", api_version=2, priority=200)
def complete_line(context: CompletionContext) -> SimpleMatcherResult:
    """Complete a line of a gpulab magic."""
    line = _LINE.fullmatch(context.text_until_cursor)
    if line is None:
        return {"completions": [], "suppress": False}
    *before, typed = re.split(r"\s+", line[2])
    candidates = [word for word in next_words(line[1], before) if word.startswith(typed)]
    # IPython replaces its own token only, and a hyphen or a dot may end that token: return the text from there on.
    offset = len(typed) - len(context.token) if typed.endswith(context.token) else 0
    completions = [SimpleCompletion(word[offset:], type="param") for word in candidates]
    return {"completions": completions, "suppress": bool(candidates)}


def next_words(magic: str, before: list[str]) -> list[str]:
    """Words that may follow these words on the line of a magic."""
    choices = option_choices(_ARGUMENTS[magic])
    short = {each.args[0]: each.args[1] for each in _ARGUMENTS[magic] if len(each.args) == 2}
    last = short.get(before[-1], before[-1]) if before else ""
    if choices.get(last):
        return list(choices[last])
    if last == "--virtual":
        return [AUTO, *(spec.aliases[0] for spec in SPECS)]
    if last in {"--out", "--steps", "--save", "--every", "--threshold", "--seconds"}:
        return []
    used = {short.get(word, word) for word in before}
    run_names = [word for word in before if word in runs]
    names = [name for name in runs if name not in run_names] if len(run_names) < _MAX_RUN_NAMES.get(magic, 0) else []
    if last == "--rule":
        from gpulab.rules import RULES

        return [rule.name for rule in RULES]
    if magic == "gpuwhy" and not before:
        from gpulab.replay.rewrites.catalogue import REWRITES
        from gpulab.rules import RULES

        names = [*(rule.name for rule in RULES), *(rewrite.name for rewrite in REWRITES)]
    if magic == "gpuwhatif" or (magic == "gpucompare" and len(run_names) == 2):
        from gpulab.replay.rewrites.catalogue import REWRITES

        used_rewrites = {word.partition("=")[0] for word in before}
        names += [each.name + ("=" if each.value_help else "") for each in REWRITES if each.name not in used_rewrites]
    return [*names, *(word for word in choices if word not in used)]
