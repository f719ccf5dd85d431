"""Names of the package and its tools: nouns and verbs that a newcomer would search for, each with one meaning.

Two checks read the source alone. `banned_names` lists stored names (variables, parameters, functions, classes, fields)
that say nothing about their value. `duplicate_names` lists public functions and classes that two modules define.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gpulab"

# Participles, pronouns and adverbs: a value is named by the noun of what it holds. A comprehension may say `each`.
BANNED = frozenset(
    [
        "alike",
        "anew",
        "apart",
        "ask",
        "asked",
        "asks",
        "bare",
        "begun",
        "beheld",
        "beside",
        "bringing",
        "brought",
        "bystanders",
        "called",
        "came",
        "chance",
        "crew",
        "doubt",
        "drawn",
        "each",
        "found",
        "given",
        "gives",
        "gone",
        "held",
        "how",
        "it",
        "its",
        "keeps",
        "kept",
        "known",
        "knows",
        "lacking",
        "left_out",
        "lie",
        "lies",
        "made",
        "makes",
        "mended",
        "met",
        "mine",
        "moved",
        "named",
        "one_of",
        "ours",
        "own",
        "picked",
        "plain",
        "room",
        "said",
        "say",
        "says",
        "seen",
        "shown",
        "shows",
        "spared",
        "stand",
        "stands",
        "stuff",
        "such",
        "taken",
        "takes",
        "tape",
        "tell",
        "telling",
        "tells",
        "that",
        "theirs",
        "them",
        "there",
        "these",
        "they",
        "thing",
        "things",
        "this",
        "those",
        "told",
        "wanted",
        "wants",
        "went",
        "what",
        "where",
        "who",
        "whole",
        "whom",
        "whose",
        "within",
        "wording_of",
        "words",
    ]
)

# Fields that are keys of saved files, and labels of public values: they cannot change without a new schema.
STORED = {
    "gpulab/run.py": {"what", "how", "where", "left_out"},
    "gpulab/user_data/course_progress.py": {"held"},
    "gpulab/lessons/sources.py": {"given"},
}

# Public names that several modules define on purpose.
SHARED = {
    "load_ipython_extension": "IPython looks for it in the package and in gpulab.magics",
    "unload_ipython_extension": "IPython looks for it in the package and in gpulab.magics",
    "main": "the entry point of a program",
    "install": "each module of virtual.device.torch_api patches its part of PyTorch with it",
    "kernels": "each family of operators of a virtual GPU lists its kernels with it",
    # One idea at several layers: the numbers, the question of the facade, the view.
    "compare": "the comparison and the question that returns its view",
    "diagnose": "one run, all ranks, and the question of the facade",
    "whatif": "the question and its view",
    "predict": "the prediction and the question of the facade",
    "fits": "the estimate and its view",
    "max_batch": "the estimate and its view",
    "compare_gpus": "the estimate and its view",
    "ledger": "the analysis and its chart",
    "describe": "tables of a run and tables of analysis",
    "save": "a run on disk, and the facade that finds its place",
    "log_run": "each tracker logs a run with it",
    "summary": "the flat summary of a run, and the method that returns it",
    "overrides": "each family of operators of a virtual GPU lists its replacements with it",
    "path": "the file in which a module keeps its data",
    "Profile": "each framework has its callback",
}


def bound_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield every name that the source binds, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets):
                for target in targets:
                    yield from _target_names(target)
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target) | ast.NamedExpr(target=target):
                yield from _target_names(target)
            case ast.For(target=target) | ast.AsyncFor(target=target):
                yield from _target_names(target)
            case ast.withitem(optional_vars=ast.expr() as target):
                yield from _target_names(target)
            case ast.comprehension(target=target):
                yield from ((name, line) for name, line in _target_names(target) if name != "each")
            case ast.ClassDef():
                yield node.name, node.lineno
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node.lineno
                yield from _parameters(node.args)
            case ast.Lambda():
                yield from ((name, line) for name, line in _parameters(node.args) if name != "each")


def _target_names(target: ast.expr) -> Iterator[tuple[str, int]]:
    match target:
        case ast.Name():
            yield target.id, target.lineno
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            for element in elements:
                yield from _target_names(element)
        case ast.Starred(value=value):
            yield from _target_names(value)
        case ast.Attribute(value=ast.Name(id="self")):
            yield target.attr, target.lineno


def _parameters(arguments: ast.arguments) -> Iterator[tuple[str, int]]:
    parameters = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    yield from ((parameter.arg, parameter.lineno) for parameter in parameters if parameter is not None)


def banned_names(paths: Iterable[Path], root: Path) -> list[str]:
    """Return "file:line: name" for each banned name that these files bind."""
    problems = []
    for path in paths:
        names = sorted(set(bound_names(ast.parse(path.read_text(encoding="utf-8")))), key=lambda pair: pair[1])
        file = path.relative_to(root).as_posix()
        banned = BANNED - STORED.get(file, set())
        problems += [f"{file}:{line}: {name}" for name, line in names if name.strip("_").lower() in banned]
    return problems


def duplicate_names(folder: Path) -> dict[str, list[str]]:
    """Return the public functions and classes that several modules of a folder define, with these modules."""
    modules = defaultdict(set)
    for path in folder.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
                modules[node.name].add(path.relative_to(folder).as_posix())
    return {name: sorted(files) for name, files in sorted(modules.items()) if len(files) > 1 and name not in SHARED}


@pytest.mark.parametrize("folder", ["gpulab", "tools"])
def test_no_name_is_a_participle_or_a_pronoun(folder: str) -> None:
    assert banned_names(sorted((ROOT / folder).rglob("*.py")), ROOT) == []


def test_a_public_name_has_one_definition() -> None:
    assert duplicate_names(PACKAGE) == {}


@pytest.mark.parametrize(
    "line",
    ["told = 1", "def seen(): ...", "for each in x: ...", "a, (held, b) = x", "self.kept = 1", "x = lambda mine: 1"],
)
def test_a_planted_name_is_found(line: str, tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text(line, encoding="utf-8")
    assert len(banned_names([path], tmp_path)) == 1


@pytest.mark.parametrize("line", ["x = [each for each in y]", "told.x = 1", "steps = told()", "import seen"])
def test_other_uses_of_such_words_are_allowed(line: str, tmp_path: Path) -> None:
    path = tmp_path / "allowed.py"
    path.write_text(line, encoding="utf-8")
    assert banned_names([path], tmp_path) == []


def test_a_planted_second_definition_is_found(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text("class Side: ...", encoding="utf-8")
    assert duplicate_names(tmp_path) == {"Side": ["one.py", "two.py"]}


def test_arrays_are_compared_with_plain_numbers_not_with_members_of_an_enumeration() -> None:
    """Rows.is_kind says why."""
    compared = re.compile(r"(?:[=!<>]=|[<>]) (?:EventKind|MarkKind|StallKind)\.[A-Z_]+\b(?!\.value)")
    lines = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if compared.search(line)
    ]
    assert lines == []
