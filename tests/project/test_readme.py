"""The README: short, without a broken link, and with links that work on PyPI, too."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gpulab.magics.arguments import parse_line
from gpulab.magics.commands import GpuProfileMagics
from tools.pypi_readme import absolute, main, relative_targets

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_has_at_most_700_words():
    assert len(TEXT.split()) <= 700


def test_every_relative_link_and_picture_exists():
    missing = [path for path in relative_targets(TEXT) if not (ROOT / path).exists()]
    assert missing == []


def test_on_pypi_no_link_is_relative_and_pictures_are_raw_files(tmp_path):
    main(["someone/gpulab", "v1.2.3", "--out", str(tmp_path / "README.md")])
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert relative_targets(text) == []
    assert "](https://github.com/someone/gpulab/raw/v1.2.3/docs/loop.webp)" in text
    assert "](https://github.com/someone/gpulab/blob/v1.2.3/docs/symptoms.md)" in text


@pytest.mark.parametrize("link", ["[a](https://example.org/b)", "[a](#below)", "a (b)"])
def test_other_links_stay_as_they_are(link):
    assert absolute(link, "someone/gpulab", "v1") == link


def test_its_python_is_python_and_its_magics_exist():
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert blocks
    for block in blocks:
        lines = block.splitlines()
        magics = [line.lstrip("%").split()[0] for line in lines if line.startswith("%")]
        assert set(magics) <= {*GpuProfileMagics.magics["line"], *GpuProfileMagics.magics["cell"], "load_ext"}
        ast.parse("\n".join(line for line in lines if not line.startswith("%")))


def magic_lines() -> list[str]:
    """The lines of gpulab's magics in the code of the README and of the documentation, comments included."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    return sorted({line for block in blocks for line in block.splitlines() if re.match(r"%%?gpu", line)})


@pytest.mark.parametrize("line", magic_lines())
def test_every_magic_in_the_documentation_can_be_typed_as_it_is_there(line):
    name, _, arguments = line.lstrip("%").partition(" ")
    options = parse_line(getattr(GpuProfileMagics, name), arguments)
    words = [word for value in vars(options).values() if isinstance(value, list) for word in value]
    assert not any("#" in word for word in words)


def test_its_figures_of_accuracy_are_the_sums_of_the_fair_tests():
    """The first row of the table is of loops that gpulab was developed with, so the README leaves it out."""
    accuracy = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    table = accuracy[accuracy.index("| loops | first finding right") :].split("\n\n")[0]
    head, _, _, *tests = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
    columns = dict(zip(head, zip(*tests, strict=True), strict=True))
    right, loops = _sum(columns["first finding right"]), _sum(columns["loops"])
    gains, all_gains = _sum(columns["gain inside the range"]), _sum(columns["gain inside the range"], place=1)
    certain = _sum(columns["high confidence and right"])
    all_certain = _sum(columns["high confidence and right"], place=1)
    assert f"| {loops} more ordinary loops" in TEXT
    assert f"the first finding was right for {right}; {gains} of {all_gains} measured gains" in TEXT
    assert f"right in {certain} of {all_certain} cases" in TEXT
    assert f"({right} of {loops})" in accuracy
    assert f"({gains} of {all_gains})" in accuracy


def _sum(cells: tuple[str, ...], *, place: int = 0) -> int:
    """Add up the first (or second) number of every cell."""
    return sum(int(re.findall(r"\d+", cell)[place]) for cell in cells)
