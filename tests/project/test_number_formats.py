"""No module formats percentages, byte sizes, durations or plurals by hand: that is what gpulab.wording is for."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulab import wording

ROOT = Path(__file__).resolve().parents[2]
HOME = "gpulab/wording.py"

# Numbers for a program, or in somebody else's format.
ALLOWED = {
    "gpulab/trace/metadata.py": "the version number of CUDA",
    "gpulab/trace/perfetto_args.py": "JSON, in full precision",
    "gpulab/views/live/html_panel.py": "lengths in CSS",
    "gpulab/views/sheet/html.py": "lengths in CSS",
    "gpulab/virtual/device/tensors/storages.py": "the message of PyTorch's allocator",
    "gpulab/virtual/device/torch_api/cuda_api.py": "the repr of PyTorch's device properties",
    "gpulab/virtual/device/torch_api/cuda_memory.py": "the layout of torch.cuda.memory_summary()",
}

FUNCTIONS = {name for name, value in vars(wording).items() if inspect.isfunction(value) and name[0] != "_"}
FACTORS = (100, 1000, 1e6, 1e9, 1e12, 60e9, 1024)
NAMED_FACTORS = {"KIB", "MIB", "GIB"}
UNIT = re.compile(r"[ -]?(?:%|(?:ns|us|µs|ms|s|min|h|[KMGT]i?B|kB|bytes|W|MHz|J|kJ)(?:/s)?(?![\w(=]))")


def breaches(source: str) -> Iterator[tuple[int, str]]:
    """Numbers that a source formats by hand, each with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield from _in_f_string(node)
        elif _is_plural(node):
            yield node.lineno, "a plural by hand: count() or plural()"  # type: ignore[attr-defined]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
            template = node.func.value
            if isinstance(template, ast.Constant) and re.search(r":[^{}]*[efg%]\}", str(template.value)):
                yield node.lineno, "a number in str.format()"


def _in_f_string(text: ast.JoinedStr) -> Iterator[tuple[int, str]]:
    for part, following in zip(text.values, [*text.values[1:], None], strict=True):
        if not isinstance(part, ast.FormattedValue):
            continue
        spec = ast.unparse(part.format_spec)[2:-1] if part.format_spec else ""
        unit = isinstance(following, ast.Constant) and UNIT.match(str(following.value))
        if spec.endswith("%"):
            yield part.lineno, "a percentage by hand: percent()"
        elif unit and re.search(r"[efg]$", spec):
            yield part.lineno, "a number and its unit by hand"
        elif _is_scaled(part.value):
            yield part.lineno, "a unit converted by hand"


def _is_scaled(node: ast.AST) -> bool:
    """Whether a number is divided or multiplied by the ratio of two units, and not for a function of the module."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
        return False
    scaling = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv)
    if scaling and (_is_factor(node.left) or _is_factor(node.right)):  # type: ignore[attr-defined]
        return True
    return any(map(_is_scaled, ast.iter_child_nodes(node)))


def _is_factor(node: ast.expr) -> bool:
    """1e6, 2**30 or GIB."""
    if isinstance(node, ast.Name):
        return node.id.strip("_") in NAMED_FACTORS
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        powers = {"2**20", "2**30", "2**40", "10**3", "10**6", "10**9", "1024**2", "1024**3"}
        return ast.unparse(node).replace(" ", "") in powers
    return isinstance(node, ast.Constant) and node.value in FACTORS


def _is_plural(node: ast.AST) -> bool:
    """`"s" * (n != 1)`, or `"s" if n != 1 else ""`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return any(_is_ending(side) for side in (node.left, node.right))
    return isinstance(node, ast.IfExp) and (_is_ending(node.body) or _is_ending(node.orelse))


def _is_ending(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in ("s", "es", "ies")


def test_numbers_become_words_in_one_module() -> None:
    by_hand = []
    for path in sorted((ROOT / "gpulab").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name != HOME and name not in ALLOWED:
            by_hand += [f"{name}:{line}: {what}" for line, what in breaches(path.read_text(encoding="utf-8"))]
    assert not by_hand, "\n".join(["", *by_hand])


@pytest.mark.parametrize("name", ALLOWED)
def test_an_exception_is_still_needed(name: str) -> None:
    assert list(breaches((ROOT / name).read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "code",
    [
        'f"{x:.0%}"',
        'f"{100 * x:.0f} %"',
        'f"{x:.0f} %"',
        'f"{ns / 1e6:.3g} ms"',
        'f"{ns / 1e6}"',
        'f"{seconds:.1f} s"',
        'f"{n / 2**30:.1f} GiB"',
        'f"{n // GIB} GiB"',
        'f"{rate / 1e9:.3g} GB/s"',
        'f"{power:.0f} W"',
        'f"{round(100 * x)} percent"',
        "f\"{n} step{'s' * (n != 1)}\"",
        "f\"{n} step{'s' if n != 1 else ''}\"",
        '"{:.1f} ms".format(x)',
    ],
)
def test_a_number_formatted_by_hand_is_noticed(code: str) -> None:
    assert list(breaches(code))


@pytest.mark.parametrize(
    "code",
    [
        'f"{duration(1e9 * seconds)} in all"',
        "f\"{percent(x)} of {count(n, 'step')}\"",
        'f"{batch:,} samples"',
        'f"{x:.2f}"',
        'f"{a / b:.2f}"',
        'f"grid {x} s"',
        "half = 100 * x / 2",
    ],
)
def test_other_numbers_are_let_be(code: str) -> None:
    assert not list(breaches(code))
