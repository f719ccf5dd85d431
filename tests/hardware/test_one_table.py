"""Facts about GPUs are written in gpulab/hardware and nowhere else in the package, nor in the benchmarks.

The programs of the wild corpus are data: an image of 112 pixels is no peak rate.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulab.hardware.architectures import ARCHITECTURES
from gpulab.hardware.gpus import SPECS
from gpulab.hardware.lookup import normalize

ROOT = Path(__file__).resolve().parents[2]
OTHERS = [
    path
    for top in ("gpulab", "benchmarks")
    for path in sorted((ROOT / top).rglob("*.py"))
    if not {ROOT / "gpulab" / "hardware", ROOT / "benchmarks" / "wild" / "loops"} & set(path.parents)
]
NAMES = {normalize(name) for spec in SPECS for name in (spec.name, spec.driver_name, *spec.aliases)}
FAMILIES = {re.match(r"[a-z]*\d+[a-z]?", name)[0] for name in NAMES}  # "a100" of "a10080pcie"
GENERATIONS = {spec.generation for spec in SPECS}
# Peaks that nothing else equals by chance: at least three digits that are not zeros.
FIGURES = {
    figure
    for spec in SPECS
    for figure in (
        *(rate / 1e12 for rate in (spec.float32_flops_per_s, spec.half_flops_per_s, spec.fastest_float32_flops_per_s)),
        spec.memory_bytes_per_s / 1e9,
    )
    if len(f"{figure:g}".replace(".", "").rstrip("0")) >= 3
}


def is_about_gpus(key: ast.expr) -> bool:
    """Whether a key of a dict or a member of a tuple is a GPU, or a compute capability."""
    try:
        value = ast.literal_eval(key)
    except ValueError:
        return False
    if isinstance(value, str):
        return value in ARCHITECTURES or normalize(value) in NAMES | FAMILIES
    return isinstance(value, tuple) and len(value) == 2 and ".".join(map(str, value)) in ARCHITECTURES


def second_tables(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Dicts keyed by GPUs or compute capabilities, lists of capabilities, and figures that the table holds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict) and sum(key is not None and is_about_gpus(key) for key in node.keys) >= 2:
            yield node.lineno, "a dict keyed by GPUs or compute capabilities"
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            members = {member.value for member in node.elts if isinstance(member, ast.Constant)}
            if len(members & GENERATIONS) >= 3 and len(members) == len(node.elts):
                yield node.lineno, "a list of compute capabilities"
        if isinstance(node, ast.Constant) and isinstance(node.value, float | int):
            scaled = {node.value, node.value / 1e9, node.value / 1e12}
            if not isinstance(node.value, bool) and scaled & FIGURES:
                yield node.lineno, f"the figure {node.value}"


@pytest.mark.parametrize("top", ["gpulab", "benchmarks"])
def test_no_other_module_contains_a_table_of_gpus(top):
    tables = [
        f"{path.relative_to(ROOT)}:{line}: {description}"
        for path in OTHERS
        if path.relative_to(ROOT).parts[0] == top
        for line, description in second_tables(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not tables, "\n".join(["", *tables])


@pytest.mark.parametrize(
    "planted",
    [
        '_FLOAT32 = {"T4": 0.48, "V100": 0.94}',
        'SHORT = {"a100": 1, "rtx4090": 2, "other": 3}',
        'CACHE_MIB = {"7.0": 6, "7.5": 4}',
        "THREADS = {(7, 5): 1024, (8, 6): 1536}",
        "if generation in (70, 80, 90): pass",
        "PEAK = 494.5",
        "RATE = 3350e9",
    ],
)
def test_a_second_table_is_found(planted):
    assert list(second_tables(ast.parse(planted)))


def test_other_dicts_and_numbers_are_no_tables_of_gpus():
    harmless = 'A = {"a": 1, "b": 2}\nB = (1, 2, 3)\nC = {"h100": 2.5}\nD = (64, 128, 256)\nE = 1000.0'
    assert not list(second_tables(ast.parse(harmless)))
