"""Tab completion for gpulab's magics: options, their values, and names of runs."""

from __future__ import annotations

import re

from gpulab.capture.run_registry import runs
from gpulab.hardware.gpus import SPECS
from gpulab.magics.arguments import ARGUMENTS, option_choices
from gpulab.virtual.default_gpu import AUTO

_LINE = re.compile(
    r"\s*%{0,2}(gpu(?:profile|monitor|history|report|timeline|compare|whatif|fix|info|why))\s+(.*)", re.DOTALL
)
_MAX_RUN_NAMES = {"gpuprofile": 1, "gpureport": 1, "gputimeline": 2, "gpucompare": 99, "gpuwhatif": 1, "gpufix": 1}


def complete_line(text: str) -> tuple[str, list[str]]:
    """The word being typed at the end of a line of a gpulab magic, and the words that may stand in its place."""
    line = _LINE.fullmatch(text)
    if line is None:
        return "", []
    *before, typed = re.split(r"\s+", line[2])
    return typed, [word for word in next_words(line[1], before) if word.startswith(typed)]


def next_words(magic: str, before: list[str]) -> list[str]:
    """Words that may follow these words on the line of a magic."""
    choices = option_choices(ARGUMENTS[magic])
    short = {each.args[0]: each.args[1] for each in ARGUMENTS[magic] if len(each.args) == 2}
    last = short.get(before[-1], before[-1]) if before else ""
    if choices.get(last):
        return list(choices[last])
    if last == "--virtual":
        return [AUTO, *(spec.aliases[0] for spec in SPECS)]
    if last in {"--out", "--steps", "--save", "--every", "--threshold", "--seconds"}:
        return []
    if last == "--compare":
        return list(runs)
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
