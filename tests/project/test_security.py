"""The promises of SECURITY.md: the tests that it names exist, readers execute nothing, and nothing uses the network."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gpulab"
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")

NETWORK = {
    "socket",
    "ssl",
    "http",
    "urllib",
    "ftplib",
    "smtplib",
    "requests",
    "aiohttp",
    "httpx",
    "fsspec",
    "dask",
    "distributed",
    "websockets",
}
# The analysis of many ranks, which users start with the URLs and the Dask cluster that they give it.
ON_THE_NETWORK = {
    "fleet/rank_files.py: fsspec",
    "fleet/summary_cache.py: fsspec",
    "fleet/cluster.py: dask",
    "fleet/cluster.py: distributed",
    "watch/alerts/webhook.py: urllib",  # alerts, to the URL that the user gives
}
EXECUTING_MODULES = {"pickle", "cPickle", "dill", "marshal", "shelve", "code", "runpy", "subprocess", "ctypes", "imp"}
EXECUTING_CALLS = {"eval", "exec", "compile", "__import__"}
READERS = ("trace", "store", "files")  # what opens files of strangers


def imported_roots(tree: ast.AST) -> Iterator[str]:
    """Yield the top-level name of each imported module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]


def called_names(tree: ast.AST) -> Iterator[str]:
    """Yield the name of each function that is called by its bare name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def forbidden(folder: Path, modules: set[str], calls: set[str] = frozenset()) -> list[str]:  # type: ignore[assignment]
    """Return "file: name" for each forbidden import and call below a folder."""
    problems = []
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {*imported_roots(tree)} & modules | {*called_names(tree)} & calls
        problems += [f"{path.relative_to(folder)}: {name}" for name in sorted(names)]
    return problems


def test_no_module_uses_the_network_except_to_places_that_the_user_gives():
    assert set(forbidden(PACKAGE, NETWORK)) == ON_THE_NETWORK


@pytest.mark.parametrize("folder", READERS)
def test_readers_of_files_execute_nothing(folder):
    assert forbidden(PACKAGE / folder, EXECUTING_MODULES, EXECUTING_CALLS) == []


def test_a_planted_call_and_import_are_found(tmp_path):
    (tmp_path / "planted.py").write_text("import urllib.request\nfrom pickle import load\neval('1')", encoding="utf-8")
    assert forbidden(tmp_path, NETWORK | EXECUTING_MODULES, EXECUTING_CALLS) == [
        "planted.py: eval",
        "planted.py: pickle",
        "planted.py: urllib",
    ]


def test_every_test_that_is_named_exists():
    names = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)
    assert len(names) > 10
    for file, function in names:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert not function or f"def {function}(" in source, (file, function)


def test_every_command_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    areas = (ROOT / "tests" / "chaos" / "areas" / "__init__.py").read_text(encoding="utf-8")
    for target, area in re.findall(r"`make (\w+)(?: AREA=(\w+))?", TEXT):
        assert f"\n{target}: " in makefile
        assert not area or f'"{area}": Area(' in areas
