"""What is installed: the wheel holds the whole package, and pyproject, environment.yml and constraints agree."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools.install_matrix import Installation, check

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]

CONDA_NAMES = {"isal": "python-isal", "torch": "pytorch"}  # PyPI's -> conda-forge's
RECIPE_NAMES = {**CONDA_NAMES, "matplotlib": "matplotlib-base"}  # without Qt
IMPORTED_AS = {  # distribution -> module
    "nvidia-ml-py": "pynvml",
    "ipython": "IPython",
    "pillow": "PIL",
    "opentelemetry-api": "opentelemetry",
    "prometheus-client": "prometheus_client",
}
# Imported where they are there; who has them got them with something that is required.
COME_WITH = {
    "traitlets": "anywidget",
    "distributed": "dask",
    "ipywidgets": "anywidget",
    "comm": "anywidget",
    "ipykernel": "lab",
    "jupyter_client": "lab",
    "lightning": "a training that uses it",
    "pytorch_lightning": "a training that uses it",
    "transformers": "a training that uses it",
    "amdsmi": "ROCm",
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


def test_the_conda_recipe_asks_for_the_same_as_pyproject():
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text(encoding="utf-8"))
    context, requirements = recipe["context"], recipe["requirements"]
    assert (context["name"], context["version"]) == (PROJECT["name"], PROJECT["version"])
    run = required([line.replace("${{ python_min }}", context["python_min"]) for line in requirements["run"]])
    assert run.pop("python") == PROJECT["requires-python"]
    assert run == {RECIPE_NAMES.get(name, name): bounds for name, bounds in required(PROJECT["dependencies"]).items()}
    extras = EXTRAS["torch"] + EXTRAS["charts"] + EXTRAS["frames"]
    optional = {RECIPE_NAMES.get(name, name): bounds for name, bounds in required(extras).items()}
    assert required(requirements["run_constraints"]) == optional
    assert required(requirements["host"])["hatchling"] == ">=1.21"
    scripts = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
    assert recipe["about"]["license"] == PROJECT["license"]
    assert recipe["build"]["noarch"] == "python"
    assert recipe["build"]["script"]["env"] == {"GPULAB_COMPILED": "no"}, "one package for all platforms"


def test_the_citation_names_this_version():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])


@pytest.mark.parametrize(
    ("package", "extras"),
    [
        ("matplotlib", {"charts", "lab", "dev"}),
        ("pandas", {"frames", "lab", "dev"}),
        ("pyarrow", {"parquet", "lab"}),
    ],
)
def test_a_large_package_is_not_required_and_these_extras_bring_it(package, extras):
    assert package not in required(PROJECT["dependencies"])
    assert {name for name in EXTRAS if package in required(EXTRAS[name])} == extras


def test_a_package_has_the_same_bounds_wherever_pyproject_asks_for_it():
    for name, bounds in required(EXTRAS["charts"] + EXTRAS["frames"] + EXTRAS["parquet"]).items():
        lines = [line for lines in EXTRAS.values() for line in lines]
        assert {of[name] for line in lines if name in (of := required([line]))} == {bounds}


def test_an_error_about_a_missing_package_names_an_extra_that_installs_it():
    calls = [
        node
        for path in sorted((ROOT / "gpulab").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "require_extra"
    ]
    constants = [[arg.value for arg in call.args if isinstance(arg, ast.Constant)] for call in calls]
    assert {"charts", "frames", "fleet", "lab"} == {extra for extra, *_ in constants}
    for extra, *modules in constants:
        installed = {IMPORTED_AS.get(name, name) for name in required(EXTRAS[extra])}
        assert modules
        assert {COME_WITH.get(module, module) for module in modules} <= installed


def test_every_requirement_has_a_lower_bound_and_none_forbids_a_newer_torch():
    for name, bounds in required(PROJECT["dependencies"] + EXTRAS["torch"] + EXTRAS["lab"]).items():
        assert re.fullmatch(r">=[\d.]+", bounds), f"{name}{bounds}: a lower bound and nothing else"


def test_every_pinned_version_is_exact_is_one_we_ask_for_and_lies_within_its_bounds():
    packaging = pytest.importorskip("packaging.requirements")
    everything = required([*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)])
    for name, pin in pinned().items():
        assert re.fullmatch(r"==[\d.]+", pin), f"{name}{pin}"
        assert packaging.Requirement(name + everything[name]).specifier.contains(pin.removeprefix("=="))


@pytest.mark.full
def test_every_library_the_package_imports_is_one_it_asks_for():
    extras = [line for name in ("torch", "lab", "fleet", "exporters") for line in EXTRAS[name]]
    asked = required(PROJECT["dependencies"] + extras)
    modules = {IMPORTED_AS.get(name, name) for name in asked}
    for path in (ROOT / "gpulab").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            for top in {name.split(".")[0] for name in names} - {"gpulab", *sys.stdlib_module_names}:
                assert top in modules or top in COME_WITH, f"{path.relative_to(ROOT)} imports {top}"


def test_a_function_that_imports_pandas_first_names_the_extra_that_installs_it():
    importing = 0
    for path in sorted((ROOT / "gpulab").rglob("*.py")):
        functions = [
            node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)
        ]
        for statements in (list(map(ast.unparse, function.body)) for function in functions):
            if "import pandas as pd" in statements:
                importing += 1
                before = statements[: statements.index("import pandas as pd")]
                assert any("require_extra(" in line and "'pandas'" in line for line in before), path.relative_to(ROOT)
    assert importing > 10


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    pytest.importorskip("hatchling", reason="hatchling builds the wheel (pip install -e '.[dev]')")
    return built("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


def built(kind: str, source: Path, target: Path, **variables: str) -> Path:
    """The wheel or the sdist of a source tree, and beside it the output of the build."""
    build = f"import sys; from hatchling.build import build_{kind}; build_{kind}(sys.argv[1])"
    command = [sys.executable, "-c", build, str(target)]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=source, env=environment, check=True, capture_output=True, text=True, timeout=120)
    (archive,) = target.iterdir()
    (target / "output.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    return archive


def is_compiled_module(name: str) -> bool:
    return re.fullmatch(r"gpulab/trace/reading/_chunk_parser\..*(so|pyd)", name) is not None


def test_the_wheel_holds_the_whole_package_with_the_course_the_datasets_and_nothing_else(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    inside = {name for name in names if not is_compiled_module(name)}
    files = (path for path in (ROOT / "gpulab").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    package = (path for path in files if path.suffix not in (".c", ".h", ".so", ".pyd"))
    assert len(names) - len(inside) == (not wheel.name.endswith("py3-none-any.whl"))
    course = {f"gpulab/lessons/notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    datasets = {f"gpulab/{name}" for name in dataset_files(ROOT)}
    assert inside == {path.relative_to(ROOT).as_posix() for path in package} | course | datasets
    assert {"gpulab/__init__.py", "gpulab/py.typed", "gpulab/views/live/widget.js"} <= inside
    assert {"gpulab/recorded_runs/README.md", "gpulab/recorded_runs/case01/run.gpulab"} <= inside


@pytest.mark.skipif(os.name == "nt" or shutil.which("cc") is None, reason="needs a C compiler called cc")
def test_with_a_compiler_the_wheel_has_the_compiled_parser_and_its_tags_say_so(tmp_path):
    wheel = built("wheel", ROOT, tmp_path, GPULAB_COMPILED="")
    with zipfile.ZipFile(wheel) as archive:
        assert sum(map(is_compiled_module, archive.namelist())) == 1
        (description,) = [name for name in archive.namelist() if name.endswith(".dist-info/WHEEL")]
        lines = archive.read(description).decode().splitlines()
    assert "Root-Is-Purelib: false" in lines
    assert any(line.startswith("Tag: cp310-abi3-") for line in lines)


@pytest.mark.parametrize(
    "variables",
    [
        {"GPULAB_COMPILED": "no"},
        pytest.param({"CC": "false"}, marks=pytest.mark.skipif(os.name == "nt", reason="Windows has no CC")),
    ],
    ids=["it is left out", "the compiler fails"],
)
def test_without_a_compiler_the_wheel_is_pure_and_the_build_says_so(tmp_path, variables):
    wheel = built("wheel", ROOT, tmp_path, **({"GPULAB_COMPILED": ""} | variables))
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not any(map(is_compiled_module, zipfile.ZipFile(wheel).namelist()))
    assert "without the compiled parser" in (tmp_path / "output.txt").read_text(encoding="utf-8")


def test_a_dataset_is_loaded_from_an_installed_wheel(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    script = (
        "import gpulab; from gpulab.files.datasets import datasets, datasets_folder\n"
        "print(gpulab.__file__, datasets_folder(), len(datasets()), sep='\\n')\n"
        "from gpulab.lessons.labs.drills import drills; print(drills.case(3).name)"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    told = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    package = tmp_path / "gpulab"
    cards = len(list((ROOT / "recorded_runs").glob("*/card.json")))
    assert told == [str(package / "__init__.py"), str(package / "recorded_runs"), str(cards), "case 3"]


@pytest.mark.full  # nine processes, some of which import IPython
def test_the_wheel_works_with_nothing_but_its_requirements(wheel, tmp_path):
    """In an environment that holds the distributions that gpulab requires, and no other: no torch, no pandas."""
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    (site,) = [path for path in folder.rglob("site-packages") if path.parent.parent.name != "lib64"]
    zipfile.ZipFile(wheel).extractall(site)
    link_distributions(site, {*required(PROJECT["dependencies"])})
    assert not {"torch", "pyarrow", "pandas", "matplotlib"} & {path.name for path in site.iterdir()}
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    (tmp_path / "work").mkdir()
    lines = check(Installation(python, tmp_path / "work"))
    assert [line.partition(":")[0] for line in lines] == ["import", "info", "dataset", "report", "lessons", "extension"]
    assert lines[0].endswith("without torch")


def link_distributions(site: Path, names: set[str]) -> None:
    """Link these installed distributions, and what they require in turn, into a folder."""
    requirements, canonical_name = pytest.importorskip("packaging.requirements"), re.compile(r"[-_.]+")
    waiting, linked = list(names), set()
    while waiting:
        name = canonical_name.sub("-", waiting.pop()).lower()
        if name in linked:
            continue
        linked.add(name)
        distribution = importlib.metadata.distribution(name)
        for top in {path.parts[0] for path in distribution.files or () if path.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(distribution.locate_file(top))
        parsed = map(requirements.Requirement, distribution.requires or ())
        waiting += [one.name for one in parsed if one.marker is None or one.marker.evaluate({"extra": ""})]


def test_the_sdist_holds_the_datasets_and_the_source_of_the_parser(tmp_path):
    pytest.importorskip("hatchling", reason="hatchling builds the sdist (pip install -e '.[dev]')")
    with tarfile.open(built("sdist", ROOT, tmp_path)) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert dataset_files(ROOT) <= inside
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "gpulab" / "trace" / "parser").iterdir()}
    assert sources | {"hatch_build.py"} <= inside
    assert not any(map(is_compiled_module, inside))


def dataset_files(source: Path) -> set[str]:
    return {path.relative_to(source).as_posix() for path in (source / "recorded_runs").rglob("*") if path.is_file()}
