"""Install the wheel into clean environments and use it there: import, command line, datasets, lessons, a recording.

    python tools/install_matrix.py                                  this Python, without PyTorch
    python tools/install_matrix.py python3.13 python3.10+torch==2.13.0
    python tools/install_matrix.py --no-deps python3.11+torch==2.4.1

A row is an interpreter, and what is installed before gpulab. `--no-deps` installs that without its dependencies, as for
a CUDA build of PyTorch of which only the CPU part is used; its Python dependencies follow by themselves. The wheel is
built from the sdist, so both are checked. Each environment is made in a temporary folder and deleted afterwards.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 900
# What PyTorch's wheels for CUDA need of Python when their CUDA libraries are left out.
TORCH_REQUIREMENTS = ("filelock", "fsspec", "jinja2", "networkx", "sympy", "typing-extensions", "setuptools<81")

IMPORT = "import gpulab, sys; print(gpulab.__version__, gpulab.__file__)"
OPEN = """
from gpulab.files.datasets import datasets
import gpulab
run = gpulab.load(datasets()[0].folder / "run.gpulab")
print(len(run.event_rows), "events of", len(run.event_rows.columns), "columns")
print(datasets()[0].folder / "run.gpulab")
"""
EXTENSION = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "gpulab")
result = shell.run_cell("%%gpuprofile\\nnumbers = sum(range(10**5))")
assert result.success and shell.user_ns["numbers"] == 4999950000, result
print("recorded a cell")
"""
PROGRAM = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    optimizer.zero_grad()
    model(torch.ones(256, 64)).sum().backward()
    optimizer.step()
print("trained with", torch.__version__)
"""


@dataclass(frozen=True)
class Row:
    """One environment: an interpreter, and the requirement that is installed before gpulab, if any."""

    python: str
    requirement: str = ""
    no_deps: bool = False

    @classmethod
    def parse(cls, text: str, *, no_deps: bool) -> Row:
        """A row as it is written on the command line: python3.13+torch==2.13.0."""
        python, _, requirement = text.partition("+")
        return cls(python, requirement, no_deps)


@dataclass(frozen=True)
class Installation:
    """An environment with gpulab in it, and a folder to work in."""

    python: Path
    folder: Path

    def run(self, *command: str | Path) -> str:
        """Output of a command, in an environment that knows nothing of this checkout. Raises RuntimeError."""
        return run_command([*map(str, command)], self.folder, clean_environment(self.folder))


def run_command(command: list[str], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Output of a command. Raises RuntimeError with both of its outputs if it fails."""
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if process.returncode:
        output = f"{process.stdout[-3000:]}\n{process.stderr[-3000:]}"
        raise RuntimeError(f"{' '.join(command)[:300]} ended with status {process.returncode}\n{output}")
    return process.stdout


def clean_environment(folder: Path) -> dict[str, str]:
    """The environment variables without Python's and gpulab's own, and with a home folder that is empty."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GPULAB", "XDG"))}
    return variables | {"HOME": str(folder), "USERPROFILE": str(folder), "IPYTHONDIR": str(folder / "ipython")}


def build_archives(source: Path, target: Path) -> tuple[Path, Path]:
    """The sdist of a source tree, and the wheel of that sdist."""
    sdist = _build("sdist", source, target)
    with tarfile.open(sdist) as archive:
        archive.extractall(target / "source", filter="data")
    (unpacked,) = (target / "source").iterdir()
    return sdist, _build("wheel", unpacked, target)


def _build(kind: str, source: Path, target: Path) -> Path:
    build = f"import sys; from hatchling.build import build_{kind}; print(build_{kind}(sys.argv[1]))"
    return target / run_command([sys.executable, "-c", build, str(target)], source).split()[-1]


def install(row: Row, wheel: Path, folder: Path) -> Installation:
    """Make a virtual environment in the folder and install the wheel into it with pip."""
    run_command([row.python, "-m", "venv", str(folder / "venv")], folder)
    python = folder / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    if row.requirement:
        run_command([*pip, *(["--no-deps"] if row.no_deps else []), row.requirement], folder)
    if row.requirement and row.no_deps:
        run_command([*pip, *TORCH_REQUIREMENTS], folder)
    before = installed_bytes(folder / "venv")
    run_command([*pip, str(wheel)], folder)
    print(f"  gpulab and its dependencies: {(installed_bytes(folder / 'venv') - before) / 1e6:.0f} MB")
    (folder / "work").mkdir()
    return Installation(python, folder / "work")


def installed_bytes(folder: Path) -> int:
    """Size of all files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def check(installation: Installation) -> list[str]:
    """Use gpulab in the environment; a line on each use. Raises RuntimeError or AssertionError if one fails."""
    python, work = installation.python, installation.folder
    version, location = installation.run(python, "-c", IMPORT).split(maxsplit=1)
    assert "site-packages" in location, f"imported from {location}"
    with_torch = _has_module(installation, "torch")
    lines = [f"import: {version}, {'with' if with_torch else 'without'} torch"]
    information = installation.run(python, "-m", "gpulab", "info")
    assert "gpulab" in information, information
    *_, size, dataset = installation.run(python, "-c", OPEN).splitlines()
    report = installation.run(python, "-m", "gpulab", "report", dataset)
    lines += [f"info: {len(information.splitlines())} lines", f"dataset: {size}", f"report: {report.splitlines()[0]}"]
    installation.run(python, "-m", "gpulab", "lessons", "course")
    notebooks = len([*(work / "course").rglob("*.ipynb")])
    assert notebooks > 20, notebooks
    lines.append(f"lessons: {notebooks} notebooks")
    lines.append(f"extension: {installation.run(python, '-c', EXTENSION).splitlines()[-1]}")
    return lines + (check_recording(installation) if with_torch else [])


def check_recording(installation: Installation) -> list[str]:
    """Record a training with `gpulab run` and open the result."""
    (installation.folder / "train.py").write_text(PROGRAM, encoding="utf-8")
    output = installation.run(installation.python, "-m", "gpulab", "run", "--out", "result", "train.py")
    assert "trained with" in output, output
    files = sorted(path.name for path in (installation.folder / "result").iterdir())
    assert {"run.gpulab", "report.html"} <= set(files), files
    count = "import gpulab; print(len(gpulab.load('result/run.gpulab').event_rows))"
    events = int(installation.run(installation.python, "-c", count))
    assert events > 100, events
    return [f"run: {output.splitlines()[0]}; {events} events"]


def _has_module(installation: Installation, name: str) -> bool:
    script = f"import importlib.util; print(importlib.util.find_spec({name!r}) is not None)"
    return installation.run(installation.python, "-c", script).strip() == "True"


def main() -> int:
    """Try every row; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", default=[sys.executable], metavar="PYTHON[+REQUIREMENT]")
    parser.add_argument("--no-deps", action="store_true", help="install the requirements without their dependencies")
    parser.add_argument("--wheel", type=Path, help="install this wheel instead of building one")
    options = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as temporary:
        wheel = options.wheel.resolve() if options.wheel else build_archives(ROOT, Path(temporary))[1]
        for number, text in enumerate(options.rows):
            print(text, flush=True)
            folder, start = Path(temporary) / str(number), time.perf_counter()
            folder.mkdir()
            try:
                lines = check(install(Row.parse(text, no_deps=options.no_deps), wheel, folder))
            except (RuntimeError, AssertionError, subprocess.TimeoutExpired) as problem:
                failures += 1
                lines = [f"FAILED: {problem}"]
            shutil.rmtree(folder, ignore_errors=True)
            print(*(f"  {line}" for line in lines), f"  {time.perf_counter() - start:.0f} s", sep="\n", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
