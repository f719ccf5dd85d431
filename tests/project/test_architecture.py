"""The shape of the house, held: directions, homes of libraries, sizes, names, docstrings, the public surface.

`faults` reads a package by its source alone and says what breaks the rules. The second half of this file plants one
violation of each kind in a small package and sees it found, so that none of the checks can go blind unnoticed.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# A module imports from the rows above its own, never from its own row, except inside one folder.
LAYERS = (
    ("intervals", "wording", "locations", "deferred_signals", "phase_names"),
    ("errors", "columns"),
    ("extras",),
    ("rows",),
    ("sensor_tables",),
    ("tables", "user_objects"),
    ("run",),
    ("hardware", "run_facts"),
    ("trace", "sensors", "store"),
    ("files", "capture", "analysis"),
    ("replay",),
    ("rules", "user_data"),
    ("virtual",),
    ("comparison", "fleet", "watch"),
    ("questions",),
    ("run_summary",),
    ("views",),
    ("workloads", "synthetic"),
    ("lessons", "trial"),
    ("integrations",),
    ("magics", "cli"),
    ("__init__",),
    ("__main__",),
)
HEIGHT = {group: height for height, row in enumerate(LAYERS) for group in row}

# `gpulab.virtual.fits`, `max_batch` and `compare_gpus` return views, so gpulab.virtual
# imports them when they are named.
# For type checkers and editors only, `run.whatif(...)` is a WhatIf.
# `Fleet.report` returns a view, too.
DOORS = {
    ("run", "views"),
    ("comparison.displayed", "views"),
    ("virtual.__init__", "views"),
    ("fleet.fleet_result", "views"),
}

# Where a library may be imported: a group, or one module of it.
HOMES = {
    "torch": ("capture", "virtual", "workloads", "lessons.labs"),
    "pynvml": ("sensors.nvidia.nvml",),
    "amdsmi": ("sensors.amd",),
    "IPython": ("magics",),
    "matplotlib": ("views",),
    "pandas": ("rows", "run", "fleet.fleet_result", "lessons.labs"),
    "ipywidgets": ("views",),
    "anywidget": ("views",),
    "PIL": ("workloads", "synthetic", "lessons.labs"),
    "pyarrow": ("store.parquet", "lessons.labs"),
    "tqdm": ("files",),
    "dask": ("fleet.cluster",),
    "distributed": ("fleet.cluster",),
    "fsspec": ("fleet",),
    "lightning": ("integrations.lightning",),
    "pytorch_lightning": ("integrations.lightning",),
    "transformers": ("integrations.transformers",),
    "accelerate": ("integrations.accelerate",),
    "prometheus_client": ("integrations.prometheus",),
    "opentelemetry": ("integrations.opentelemetry",),
    "mlflow": ("integrations.mlflow",),
    "wandb": ("integrations.wandb",),
    "platformdirs": ("locations", "user_data", "synthetic"),
}
# Imported only inside functions, so that who does not need them does not wait for them.
LAZY = ("torch", "pandas", "pyarrow", "matplotlib", "PIL", "tqdm", "dask", "distributed", "fsspec")
# A room that is about one of them has it at hand; then the room itself is what nobody may wait for.
ROOMS = {"matplotlib": "views.charts"}

BANNED = {"utils", "util", "common", "core", "base", "helpers", "helper", "manager", "handler", "config"}
MOST_LINES, MOST_FUNCTION_LINES = 400, 50

PUBLIC = (
    "GpulabError",
    "Run",
    "charts",
    "compare",
    "diagnose",
    "experiment",
    "fleet",
    "history",
    "info",
    "lab",
    "load",
    "monitor",
    "phase",
    "profile",
    "recover",
    "report",
    "runs",
    "save",
    "step",
    "summary",
    "timeline",
    "to_perfetto",
    "virtual",
    "virtual_gpu",
    "whatif",
)
HOOKS = ("load_ipython_extension", "unload_ipython_extension")  # IPython's names for what %load_ext calls
HEAVY = (
    "numpy",
    "torch",
    "pandas",
    "IPython",
    "matplotlib",
    "pynvml",
    "anywidget",
    "ipywidgets",
    "pyarrow",
    "PIL",
    "tqdm",
    "dask",
    "distributed",
    "fsspec",
)


# The topics; folders of these packages are topics, or the machinery that their files share.
TOPICS = {"steps", "data", "host", "copies", "kernels", "memory", "ranks", "machine"}
BY_TOPIC = {
    "gpulab/analysis": {"events"},
    "gpulab/rules": {"engine"},
    "gpulab/replay/rewrites": {"engine"},
    "gpulab/views/charts": {"drawing"},
    "gpulab/workloads": set(),
    "gpulab/lessons/course": set(),
    "gpulab/lessons/labs": {"drills"},
    "tests/cases": set(),
}
SOURCES = {".py", ".js", ".c", ".h"}
MOST_SIBLINGS = 16  # modules in a folder, or folders in it: more means a missing concept
LAYERED = (ROOT / "gpulab", ROOT / "tests")  # these have a folder for each layer, as many as LAYERS names

# What breaks the rules, read from the source.


def faults(package: Path) -> list[str]:
    """Every breach in the package, as `path:line: what`."""
    found = []
    for path in sorted(path for path in package.rglob("*") if path.suffix in SOURCES):
        where = path.relative_to(package.parent)
        lines = path.read_text(encoding="utf-8").splitlines()
        if len(lines) > MOST_LINES:
            found.append(f"{where}:{len(lines)}: {len(lines)} lines, {MOST_LINES} at most: split it by topic")
        if BANNED & {part.removeprefix("_") for part in path.relative_to(package).with_suffix("").parts}:
            found.append(f"{where}:1: a name that says nothing of its topic")
        if path.suffix == ".py":
            tree = ast.parse("\n".join(lines))
            module = module_name(path, package)
            checks = (misdirected, homeless, impatient, long_functions, prints, unfinished_generators, undocumented)
            for check in checks:
                found += [f"{where}:{line}: {what}" for line, what in check(tree, module)]
    return found


Breach = tuple[int, str]


def module_name(path: Path, package: Path) -> str:
    """The module of a file, as seen from inside the package: `rules.feeding`, `trace.__init__`, `__init__`."""
    return ".".join(path.relative_to(package).with_suffix("").parts)


def misdirected(tree: ast.Module, module: str) -> Iterator[Breach]:
    """Imports that point up or sideways, those inside functions and for types included."""
    own = group(module)
    if own not in HEIGHT:
        yield 1, f"{own} has no place in LAYERS"
        return
    for line, name in imports(tree, module):
        top, _, rest = name.partition(".")
        if top != "gpulab":
            continue
        other = group(rest) if rest else "__init__"
        if other not in HEIGHT:
            yield line, f"{module} imports {name}, which has no place in LAYERS"
        elif (module, other) in DOORS:
            continue
        elif other != own and HEIGHT[other] >= HEIGHT[own]:
            yield line, f"{module} imports {name}: only groups to the left of {own} may be imported"
        elif other == own and "." not in module and own != "__init__":
            yield line, f"{module} imports itself"


def homeless(tree: ast.Module, module: str) -> Iterator[Breach]:
    """Imports of a library outside its home."""
    for line, name in imports(tree, module):
        homes = HOMES.get(name.split(".")[0], (group(module),))
        if not any(f"{module}.".startswith(f"{home}.") for home in homes):
            yield line, f"{module} imports {name}, whose home is {' or '.join(homes)}"


def impatient(tree: ast.Module, module: str) -> Iterator[Breach]:
    """Imports of slow libraries that happen when the module is imported."""
    for line, name in imports(tree, module, at_import=True):
        library = name.split(".")[0]
        inside = next((room for room in ROOMS.values() if f"{module}.".startswith(f"{room}.")), None)
        enters = any(f"{name}.".startswith(f"gpulab.{room}.") for room in ROOMS.values())
        if (library in LAZY and ROOMS.get(library, "") != inside) or (enters and inside is None):
            yield line, f"{module} imports {name} at module level: import it inside the function that needs it"


def long_functions(tree: ast.Module, module: str) -> Iterator[Breach]:
    """Functions longer than a screen."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MOST_FUNCTION_LINES:
                yield node.lineno, f"{node.name} has {length} lines, {MOST_FUNCTION_LINES} at most"


def prints(tree: ast.Module, module: str) -> Iterator[Breach]:
    """Calls of print: a view returns, it never shows."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield node.lineno, f"{module} prints"


def unfinished_generators(tree: ast.Module, module: str) -> Iterator[Breach]:
    """Generators in hooks that may be destroyed half-way: Python then drops what a signal handler raises."""
    for node in ast.walk(tree) if group(module) == "capture" else ():
        early = isinstance(node, ast.Call) and called(node) in ("any", "all", "next") and node.args
        if early and isinstance(node.args[0], ast.GeneratorExp):
            yield node.lineno, f"{module} may leave a generator unfinished: use a list"


def undocumented(tree: ast.Module, module: str) -> Iterator[Breach]:
    """Modules, public classes, and public functions of either, without a docstring."""
    if ast.get_docstring(tree) is None:
        yield 1, f"{module} has no docstring"
    for owner in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef) and public(node))):
        for node in owner.body:
            named = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and public(node)
            if named and ast.get_docstring(node) is None and not overload(node):
                yield node.lineno, f"{node.name} has no docstring"


def public(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Meant for other modules."""
    return not node.name.startswith("_")


def overload(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Only a signature of a function that is documented once."""
    return any(isinstance(mark, ast.Name) and mark.id == "overload" for mark in node.decorator_list)


def cycles(package: Path) -> list[list[str]]:
    """Modules that import each other, at import or inside functions; what only a type checker reads is left out."""
    files = {f"gpulab.{module_name(path, package)}".removesuffix(".__init__"): path for path in package.rglob("*.py")}
    graph = {name: imported_modules(path, package, set(files)) - {name} for name, path in files.items()}
    while ends := [name for name, others in graph.items() if not others & graph.keys()]:
        for name in ends:
            del graph[name]
    return sorted([name, *sorted(others & graph.keys())] for name, others in graph.items())


def imported_modules(path: Path, package: Path, known: set[str]) -> set[str]:
    """The modules of the package that one of them imports."""
    module = module_name(path, package)
    found = set()
    for node in [*running(ast.parse(path.read_text(encoding="utf-8")))]:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = absolute(node, module)
            found |= {full if (full := f"{source}.{alias.name}") in known else source for alias in node.names}
    return found & known


def running(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker reads."""
    yield tree
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield from running(node)


def group(module: str) -> str:
    """The group a module belongs to: the first part of its name."""
    return module.split(".")[0]


def imports(tree: ast.Module, module: str, *, at_import: bool = False) -> Iterator[Breach]:
    """Line and absolute name of all that is imported; with `at_import` only what importing the module imports."""
    for node in running_at_import(tree) if at_import else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = absolute(node, module)
            # `from gpulab import rules` imports gpulab.rules; `from gpulab.rules import x` imports gpulab.rules.
            names = [f"gpulab.{alias.name}" for alias in node.names] if source == "gpulab" else [source]
            yield from ((node.lineno, name) for name in names)
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__") and node.args:
            yield from ((node.lineno, str(name.value)) for name in node.args[:1] if isinstance(name, ast.Constant))


def absolute(node: ast.ImportFrom, module: str) -> str:
    """The module a from-import names, dots resolved."""
    if not node.level:
        return node.module or ""
    here = ["gpulab", *module.split(".")[:-1]]
    return ".".join([*here[: len(here) - node.level + 1], *([node.module] if node.module else [])])


def called(node: ast.Call) -> str:
    """The last name of what is called."""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def running_at_import(tree: ast.Module) -> Iterator[ast.AST]:
    """All nodes but those inside functions and those that only a type checker reads."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending += node.orelse
            continue
        pending += ast.iter_child_nodes(node)


# The house itself.


def test_the_house_keeps_its_own_rules():
    found = faults(ROOT / "gpulab")
    assert not found, "\n".join(["", *found])


def test_modules_do_not_import_each_other_in_a_circle():
    assert cycles(ROOT / "gpulab") == []


def test_analysis_rules_rewrites_charts_and_cases_have_the_same_topics():
    for package, shared in BY_TOPIC.items():
        folders = {path.name for path in (ROOT / package).iterdir() if path.is_dir() and path.name[0] not in "_."}
        assert folders - shared <= TOPICS, package


@pytest.mark.parametrize("top", ["gpulab", "tests", "benchmarks", "tools"])
def test_a_folder_has_few_siblings(top):
    crowded = {}
    for folder in {path.parent for path in (ROOT / top).rglob("*.[pj][ys]")}:
        files = [path for path in folder.iterdir() if path.suffix in SOURCES and path.name != "__init__.py"]
        folders = [path for path in folder.iterdir() if path.is_dir() and path.name[0] not in "_."]
        if len(files) > MOST_SIBLINGS or (len(folders) > MOST_SIBLINGS and folder not in LAYERED):
            crowded[str(folder.relative_to(ROOT))] = (len(files), len(folders))
    assert not crowded


def test_every_folder_of_the_house_is_a_package_of_its_own():
    folders = {path.parent for path in (ROOT / "gpulab").rglob("*.py")}
    assert [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_the_public_names_are_these():
    import gpulab

    assert sorted(gpulab.__all__) == sorted(PUBLIC)
    offered = {name for name in vars(gpulab) if not name.startswith("_")}
    extra = {name for name in offered - {*PUBLIC, *HOOKS} if not isinstance(vars(gpulab)[name], types.ModuleType)}
    assert extra <= {"annotations", "Any", "TYPE_CHECKING"}, f"public by accident: {sorted(extra)}"
    assert all(getattr(gpulab, name) is not None for name in PUBLIC)
    assert set(PUBLIC) <= set(dir(gpulab)), "tab completion shows every public name"


def test_importing_gpulab_imports_nothing_heavy():
    script = f"import sys, gpulab; print([name for name in {HEAVY} if name in sys.modules])"
    told = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout.strip() == "[]"
    assert told.stderr == ""


def test_loading_the_extension_imports_neither_rules_nor_views_nor_torch():
    later = (
        "torch",
        "pandas",
        "matplotlib",
        "anywidget",
        "gpulab.rules",
        "gpulab.replay",
        "gpulab.views",
        "gpulab.trace",
    )
    script = (
        "import sys; from IPython.core.interactiveshell import InteractiveShell as S\n"
        "S.instance().run_line_magic('load_ext', 'gpulab')\n"
        f"print([name for name in {later} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


# Every check bites: one violation each, planted in a small package of the same shape.

SOUND = {
    "__init__.py": '"""The house."""\nfrom gpulab.rules import feeding\n',
    "errors.py": '"""Failures."""\n',
    "tables.py": '"""Columns."""\nfrom gpulab.errors import GpulabError\n',
    "run.py": '"""Runs."""\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas as pd\n',
    "sensors/__init__.py": '"""Sensors."""\n',
    "sensors/nvidia/nvml.py": '"""NVML."""\ndef ask():\n    """Ask."""\n    import pynvml\n',
    "trace/__init__.py": '"""Traces."""\nfrom gpulab.trace.reader import read\n',
    "trace/reader.py": '"""Reader."""\nfrom gpulab import run\n',
    "capture/__init__.py": '"""Capture."""\ndef go():\n    """Go."""\n    import torch.profiler\n',
    "analysis/__init__.py": '"""Answers."""\n',
    "analysis/ledger.py": '"""Ledger."""\nfrom . import steps\nfrom ..run import Run\n',
    "analysis/steps.py": '"""Steps."""\n',
    "rules/__init__.py": '"""Rules."""\n',
    "rules/feeding.py": '"""Feeding."""\nfrom gpulab.analysis.steps.detection import steps\n',
    "views/__init__.py": '"""Views."""\n',
    "views/live.py": '"""Live."""\nimport anywidget\n',
    "views/live.js": "export default {}\n",
}

DOC = '"""A topic."""\n'
LONG = DOC + "def f():\n" + '    """Long."""\n' + "    x = 1\n" * 49
PLANTED = {
    "a module imports from a group to its right": (
        "store/reading.py",
        DOC + "from gpulab.views import live\n",
        "store.reading imports",
    ),
    "a lazy import counts too": (
        "analysis/steps.py",
        DOC + "def f():\n" + '    """F."""\n' + "    from gpulab.rules import feeding\n",
        "analysis.steps imports gpulab.rules",
    ),
    "an import for types counts too": (
        "trace/reader.py",
        DOC + "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gpulab.views import live\n",
        "trace.reader imports gpulab.views",
    ),
    "a neighbour in the same row is out of bounds": (
        "capture/session.py",
        DOC + "from gpulab.analysis import steps\n",
        "capture.session imports gpulab.analysis",
    ),
    "a relative import is followed": ("tables.py", DOC + "from .run import Run\n", "tables imports gpulab.run"),
    "a relative import out of a folder is followed": (
        "trace/reader.py",
        DOC + "from ..sensors import nvml\n",
        "trace.reader imports gpulab.sensors",
    ),
    "an import by name is followed": (
        "tables.py",
        DOC + 'import importlib\nimportlib.import_module("gpulab.views")\n',
        "tables imports gpulab.views",
    ),
    "the package root is not imported from inside": ("errors.py", DOC + "import gpulab\n", "errors imports gpulab"),
    "a new group needs a place": ("plots.py", DOC, "plots has no place"),
    "torch outside its homes": (
        "analysis/steps.py",
        DOC + "def f():\n" + '    """F."""\n' + "    import torch\n",
        "whose home is capture",
    ),
    "pynvml outside its one module": ("sensors/host.py", DOC + "import pynvml\n", "whose home is sensors.nvidia.nvml"),
    "IPython in a view": ("views/live.py", DOC + "from IPython.display import HTML\n", "whose home is magics"),
    "matplotlib in a rule": (
        "rules/feeding.py",
        DOC + "def f():\n" + '    """F."""\n' + "    import matplotlib.pyplot as plt\n",
        "whose home is views",
    ),
    "torch at module level in its own home": ("capture/__init__.py", DOC + "import torch\n", "at module level"),
    "pandas at module level": ("run.py", DOC + "import pandas as pd\n", "at module level"),
    "pandas in a class body": ("run.py", DOC + "class _R:\n    import pandas\n", "at module level"),
    "matplotlib at module level outside its room": ("views/report.py", DOC + "import matplotlib\n", "at module level"),
    "a room full of matplotlib entered at once": (
        "views/report.py",
        DOC + "from gpulab.views.charts.drawing.chart import Chart\n",
        "at module level",
    ),
    "a file of 401 lines": ("run.py", DOC + "x = 1\n" * 400, "401 lines"),
    "a script of 401 lines": ("views/live.js", "let x;\n" * 401, "401 lines"),
    "a C file of 401 lines": ("trace/parser.c", "int x;\n" * 401, "401 lines"),
    "a function of 51 lines": ("run.py", LONG, "f has 51 lines"),
    "a module called utils": ("views/utils.py", DOC, "a name that says nothing"),
    "a folder called core": ("views/core/__init__.py", DOC, "a name that says nothing"),
    "a generator in a hook that ends early": (
        "capture/session.py",
        DOC + "def _f(values):\n    return any(value for value in values)\n",
        "may leave a generator unfinished",
    ),
    "a print": ("run.py", DOC + "def _f():\n    print(1)\n", "run prints"),
    "a function without a docstring": ("run.py", DOC + "def span():\n    return 1\n", "span has no docstring"),
    "a class without a docstring": ("run.py", DOC + "class Run:\n    x = 1\n", "Run has no docstring"),
    "a method without a docstring": (
        "run.py",
        DOC + "class Run:\n" + '    """R."""\n' + "    def go(self):\n        return 1\n",
        "go has no docstring",
    ),
    "a module without a docstring": ("run.py", "x = 1\n", "run has no docstring"),
}


@pytest.fixture
def house(tmp_path: Path) -> Callable[..., Path]:
    """A small package like ours, with some files replaced."""

    def build(**replaced: str) -> Path:
        package = tmp_path / "gpulab"
        for name, text in {**SOUND, **replaced}.items():
            path = package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return package

    return build


def test_a_sound_house_has_no_faults(house):
    assert faults(house()) == []


@pytest.mark.parametrize("planted", PLANTED, ids=lambda name: name.replace(" ", "_"))
def test_a_planted_violation_is_found(house, planted):
    name, text, expected = PLANTED[planted]
    found = faults(house(**{name: text}))
    assert len(found) == 1, found
    assert found[0].startswith(f"{Path('gpulab', name)}:")
    assert expected in found[0]


def test_a_circle_of_imports_is_found(house):
    circle = {
        "run.py": DOC + "def f():\n    from gpulab.tables import x\n",
        "tables.py": DOC + "from gpulab import run\n",
    }
    found = {name for name, *_ in cycles(house(**circle))}
    assert {"gpulab.run", "gpulab.tables"} <= found, "those that lead into it stay, too"
    assert cycles(house()) == []


def test_a_file_of_400_lines_and_a_function_of_50_are_not_too_long(house):
    assert faults(house(**{"run.py": DOC + "x = 1\n" * 399})) == []
    assert faults(house(**{"run.py": LONG.removesuffix("    x = 1\n")})) == []
