"""Which files of a project a script imports, and a fix that belongs into one of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gpulab.cli.fix.local_files import local_files
from gpulab.errors import CaptureError
from gpulab.rules.engine.finding import Finding
from gpulab.trial.program_code import ProgramCode

FILES = {
    "train.py": "import os\nimport torch\nfrom data import loaders\nimport models.net as net\nfrom missing import x\n",
    "data/__init__.py": "",
    "data/loaders.py": "from . import samples\nfrom ..train import main\n",
    "data/samples.py": "import train\n",
    "data/unused.py": "",
    "models/__init__.py": "from .net import *\n",
    "models/net.py": "import broken\n",
    "broken.py": "for\n",
    "other.py": "",
}


@pytest.fixture
def project(tmp_path):
    """A folder with these files."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def names_of(project, path):
    tree = ast.parse((project / path).read_text())
    return {str(Path(each).relative_to(project)) for each in local_files(project / path, tree, project)}


def test_the_files_are_those_that_python_would_import(project):
    expected = {"data/__init__.py", "data/loaders.py", "data/samples.py", "models/__init__.py", "models/net.py"}
    assert names_of(project, "train.py") == expected
    assert names_of(project, "data/unused.py") == set()


TRAIN = "def train():\n    loader = make()\n    for x in loader: pass\n"
FIX = Finding(
    rule="a", claim="a", evidence=(), fix="from fast import faster\nloader = faster(loader)\n", function="train"
)


@pytest.mark.parametrize(
    ("main", "files", "place"),
    [
        (TRAIN, {}, "inserted after line 2 of the script"),
        ("from loop import train\ntrain()", {"p/loop.py": TRAIN}, "inserted after line 2 of the file loop.py"),
        ("run()", {"p/loop.py": TRAIN, "q/x.py": TRAIN.replace("train", "evaluate")}, "line 2 of the file loop.py"),
    ],
)
def test_a_fix_is_inserted_where_its_function_is(main, files, place):
    code = ProgramCode(ast.parse(main), "script", {path: ast.parse(text) for path, text in files.items()})
    changed, where = code.with_fix(FIX, {})
    assert place in where
    tree = changed.files[next(iter(changed.changed))] if changed.changed else changed.main
    assert "loader = make()\n    loader = faster(loader)" in ast.unparse(tree)
    assert ast.dump(code.main) == ast.dump(ast.parse(main))


def test_of_two_files_with_a_place_none_is_taken():
    files = {"a.py": ast.parse(TRAIN), "b.py": ast.parse(TRAIN)}
    with pytest.raises(CaptureError, match="`loader`"):
        ProgramCode(ast.parse("run()"), "script", files).with_fix(FIX, {})
