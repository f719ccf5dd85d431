"""The cases of each rule: `tests/cases/<topic>/<rule>/case.py`, and recorded runs beside it."""

import functools
import importlib
import inspect
from pathlib import Path

from gpulab import store
from gpulab.rules import diagnose
from gpulab.run import Run

CASES = Path(__file__).parents[2] / "cases"


def case_module(rule):
    """The `case.py` of a rule."""
    (path,) = CASES.glob(f"*/{rule}/case.py")
    return importlib.import_module(f"tests.cases.{path.parent.parent.name}.{rule}.case")


def functions(module):
    """Name and function of each case in a module."""
    return [
        (name, make)
        for name, make in inspect.getmembers(module, inspect.isfunction)
        if name.startswith(("provoked_", "spared_"))
    ]


def cases():
    """Yield (rule, expectation, name, function that makes the run) for every case."""
    for folder in sorted(path for path in CASES.glob("*/*") if path.is_dir() and not path.name.startswith("_")):
        coded = functions(case_module(folder.name)) if (folder / "case.py").exists() else []
        stored = [(path.stem, lambda path=path: store.open(path)) for path in sorted(folder.glob("*.gpulab"))]
        for name, make in (*coded, *stored):
            yield folder.name, name.split("_")[0], name, make


ALL = list(cases())


def diagnose_case(runs):
    return diagnose(runs) if isinstance(runs, Run) else diagnose(runs[0], runs)


@functools.cache
def diagnosis_of(make):
    """The diagnosis of a case, made once for all tests that ask for it."""
    return diagnose_case(make())
