"""What is installed: the wheel holds the whole package, and pyproject, environment.yml and constraints agree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]

CONDA_NAMES = {"isal": "python-isal", "torch": "pytorch"}  # PyPI's -> conda-forge's
IMPORTED_AS = {"nvidia-ml-py": "pynvml", "ipython": "IPython", "pillow": "PIL"}  # distribution -> module
# Imported where they are there; who has them got them with something that is required.
COME_WITH = {
    "traitlets": "anywidget",
    "ipywidgets": "anywidget",
    "comm": "anywidget",
    "ipykernel": "lab",
    "jupyter_client": "lab",
}


def required(lines: list[str]) -> dict[str, str]:
    """Name -> bounds of requirement lines, markers left out."""
    split = [re.fullmatch(r"([A-Za-z0-9_.-]+)\s*(.*)", line.split(";")[0].strip()) for line in lines]
    return {match[1].lower(): match[2].replace(" ", "") for match in split if match}


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints-dev.txt").read_text(encoding="utf-8").splitlines()
    return required([line for line in lines if line and not line.startswith("#")])


def test_the_conda_environment_asks_for_the_same_as_pyproject():
    yaml = pytest.importorskip("yaml")
    listed = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    conda = required([line for line in listed if isinstance(line, str)])
    assert conda.pop("python") == PROJECT["requires-python"]
    assert conda.pop("pip") == ""
    wanted = required(PROJECT["dependencies"] + EXTRAS["torch"] + EXTRAS["lab"])
    assert conda == {CONDA_NAMES.get(name, name): bounds for name, bounds in wanted.items()}
    assert listed[-1] == {"pip": ["--no-deps --editable ."]}


def test_every_requirement_has_a_lower_bound_and_none_forbids_a_newer_torch():
    for name, bounds in required(PROJECT["dependencies"] + EXTRAS["torch"] + EXTRAS["lab"]).items():
        assert re.fullmatch(r">=[\d.]+", bounds), f"{name}{bounds}: a lower bound and nothing else"


def test_every_pinned_version_is_exact_is_one_we_ask_for_and_lies_within_its_bounds():
    packaging = pytest.importorskip("packaging.requirements")
    everything = required([*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)])
    for name, pin in pinned().items():
        assert re.fullmatch(r"==[\d.]+", pin), f"{name}{pin}"
        assert packaging.Requirement(name + everything[name]).specifier.contains(pin.removeprefix("=="))


def test_every_library_the_package_imports_is_one_it_asks_for():
    asked = required(PROJECT["dependencies"] + EXTRAS["torch"] + EXTRAS["lab"])
    modules = {IMPORTED_AS.get(name, name) for name in asked}
    for path in (ROOT / "gpulab").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            for top in {name.split(".")[0] for name in names} - {"gpulab", *sys.stdlib_module_names}:
                assert top in modules or top in COME_WITH, f"{path.relative_to(ROOT)} imports {top}"


def test_the_wheel_holds_the_whole_package_with_the_course_and_nothing_else(tmp_path):
    pytest.importorskip("hatchling", reason="hatchling builds the wheel (pip install -e '.[dev]')")
    build = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("gpulab-*.whl")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    package = (path for path in (ROOT / "gpulab").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    course = {f"gpulab/lessons/notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert inside == {path.relative_to(ROOT).as_posix() for path in package} | course
    assert {"gpulab/__init__.py", "gpulab/py.typed", "gpulab/views/live/widget.js"} <= inside
