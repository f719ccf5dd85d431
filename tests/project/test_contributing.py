"""CONTRIBUTING.md: its example of a rule works as it stands, and the places that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.project.test_registries import Edit, copy_with, run_in

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", TEXT, re.DOTALL))  # path -> code
RULE, CATALOGUE, CASE = BLOCKS

EXAMPLES = {"gpulab/rules/memory/zero_fills.py", "tests/cases/memory/zero_fills/case.py"}


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    """The rules that fire on each case of the example, in a copy of the package with the example in it."""
    catalogue = CATALOGUE.removeprefix("gpulab/")
    module = RULE.removesuffix(".py").replace("/", ".")
    copy = copy_with(
        tmp_path_factory.mktemp("contributing"),
        Edit(catalogue, "from __future__ import annotations\n", f"from {module} import {Path(RULE).stem}\n"),
        Edit(catalogue, "RULES: tuple[Rule, ...] = (\n", f"    {BLOCKS[CATALOGUE]}"),
    )
    (copy / RULE).write_text(BLOCKS[RULE], encoding="utf-8")
    (copy / "case.py").write_text(BLOCKS[CASE], encoding="utf-8")
    return run_in(copy, "diagnose_cases.py", copy / "case.py")


def test_the_example_has_40_lines_and_three_places():
    assert len(BLOCKS[RULE].splitlines()) <= 40
    assert [Path(path).name for path in BLOCKS] == ["zero_fills.py", "catalogue.py", "case.py"]


def test_the_rule_of_the_example_fires_on_its_provoking_case_and_not_on_the_near_miss(rules):
    fired = {case.partition("_")[0]: "zero_fills" in findings for case, findings in rules["findings"].items()}
    assert fired == {"provoked": True, "spared": False}


def test_the_docstring_of_the_example_is_its_page(rules):
    page = rules["page"]
    assert "The GPU spends much of each step on filling memory with zeros." in page
    assert "memset" in page
    assert "torch.empty" in page


def test_every_place_that_is_named_exists():
    places = set(re.findall(r"`((?:gpulab|tests|tools|notebooks|datasets|recipe|docs)/[\w./]+)`", TEXT)) - EXAMPLES
    assert len(places) > 15
    assert [place for place in sorted(places) if not (ROOT / place).exists()] == []


def test_every_make_target_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"\bmake ([a-z-]+)", TEXT))
    assert len(targets) > 5
    assert [target for target in sorted(targets) if f"\n{target}:" not in makefile] == []
