"""The table of symptoms in docs/symptoms.md: what people search for, and the rules that it leads to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache

from tools.site.targets import DOCS, ROOT, links

SYMPTOMS = f"{DOCS}/symptoms.md"


@cache
def symptoms() -> Mapping[str, Sequence[str]]:
    """Return the symptoms of each rule, in the words of the table, by the name of the rule."""
    by_rule: dict[str, list[str]] = {}
    for symptom, causes in rows((ROOT / SYMPTOMS).read_text(encoding="utf-8")):
        for target in links(causes):
            path, _, fragment = target.partition("#")
            if "/rules/" in path:
                by_rule.setdefault(fragment, []).append(symptom)
    return by_rule


def rows(text: str) -> Sequence[tuple[str, str]]:
    """Return the first cell of each row of the tables of a text, and the rest of the row."""
    cells = (re.fullmatch(r"\|([^|]+)\|(.+)\|", line.strip()) for line in text.splitlines())
    table = [(match[1].strip(), match[2]) for match in cells if match]
    return [(first, rest) for first, rest in table if not re.fullmatch(r"-+", first) and links_exist(rest)]


def links_exist(cell: str) -> bool:
    """Whether a cell has a link: the header of a table has none."""
    return any(True for _ in links(cell))
