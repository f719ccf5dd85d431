"""`gpulab run` against `python`: exit status, stdout, stderr, and what a program can see of itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.transparency.probes import PROBES
from tests.support.tiers import every_nth

LINE_OF_GPULAB = "gpulab: nothing was recorded, because the program did not import PyTorch\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probes")
    (folder / "beside.py").write_text("VALUE = 'beside'\n")
    for index, source in enumerate(PROBES.values()):
        encoding = "latin-1" if "latin-1" in source else "utf-8"
        (folder / f"probe{index}.py").write_text(f"{source}\n", encoding=encoding)
    return folder


def run(folder: Path, *command: str, **extra: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), **extra}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environ,
        input="typed text",
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("name", every_nth(PROBES, 3))
def test_a_program_behaves_as_under_python(folder, name):
    script = f"probe{list(PROBES).index(name)}.py"
    plain = run(folder, script, "--lr", "0.1", "-m", "x")
    recorded = run(folder, "-m", "gpulab", "run", script, "--lr", "0.1", "-m", "x")
    assert recorded.stdout == plain.stdout
    assert recorded.stderr.replace(LINE_OF_GPULAB, "") == plain.stderr
    assert recorded.returncode == plain.returncode


def test_a_module_behaves_as_under_python(folder):
    package = folder / "package"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(
        "import sys, os\nfrom . import __name__ as parent\n"
        "print(parent, __name__, __spec__.name, __package__)\n"
        "print(sys.argv[0] == __file__, sys.argv[1:], sys.path[0] == os.getcwd())\n"
    )
    (package / "__main__.py").write_text("print('main of the package', __spec__.name)\n1 / 0\n")
    for module in ("package.train", "package"):
        plain = run(folder, "-m", module, "--lr", "1")
        recorded = run(folder, "-m", "gpulab", "run", "-m", module, "--lr", "1")
        assert recorded.stdout == plain.stdout
        assert plain.stdout
        assert recorded.returncode == plain.returncode
    assert recorded.stderr.replace(LINE_OF_GPULAB, "").splitlines()[-1] == plain.stderr.splitlines()[-1]
    assert "gpulab" not in recorded.stderr.replace(LINE_OF_GPULAB, "")


def test_a_terminated_program_ends_by_the_signal(folder):
    (folder / "sleeping.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    for chosen in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        statuses = []
        for command in (("sleeping.py",), ("-m", "gpulab", "run", "sleeping.py")):
            process = subprocess.Popen(
                [sys.executable, *command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(chosen)
            statuses.append(process.wait(60))
            process.stdout.close()
        assert statuses[0] == statuses[1] == -chosen


def test_a_missing_script_is_an_error_of_the_command_line(folder):
    result = run(folder, "-m", "gpulab", "run", "missing.py")
    assert result.returncode == 2
    assert "missing.py" in result.stderr
    assert "Traceback" not in result.stderr
