"""Programs that end in an unusual way end so under `gpulab run`, too, and their recording is kept."""

from __future__ import annotations

import pytest

from tests.support.python_program import run_python

TRAINS = "import sys, torch\ntorch.ones(8).sum()\n"
ENDS = {
    "an excepthook that exits": "sys.excepthook = lambda *_: (print('bye'), sys.exit(3))\n1 / 0\n",
    "an excepthook that fails": "def hook(*_):\n    raise KeyError('hook')\nsys.excepthook = hook\n1 / 0\n",
    "an excepthook that reads the last error": (
        "sys.excepthook = lambda *_: print(repr(sys.last_value), sys.last_traceback is not None)\n1 / 0\n"
    ),
    "an exception without assignment": (
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass ConfigError(Exception):\n    name: str\n"
        "raise ConfigError('lr')\n"
    ),
    "no stdout": "sys.stdout = None\n",
    "an error of gpulab": "import gpulab\nprint('start')\ngpulab.load('missing.gpulab')\n",
    "an environment of bytes": (
        "import os, subprocess\nprint(subprocess.run(['echo', 'x'], env=os.environb, capture_output=True).stdout)\n"
    ),
}


def shown_errors(stderr):
    """The types of the errors that were shown, in their order."""
    lines = stderr.splitlines()
    names = [line.partition(":")[0] for line in lines if line[:1].isalpha() and "Error" in line.partition(":")[0]]
    return [name for name in names if " " not in name]


@pytest.mark.parametrize("name", ENDS)
def test_a_program_ends_as_under_python(tmp_path, name):
    plain = run_python(tmp_path, TRAINS + ENDS[name])
    recorded = run_python(tmp_path, TRAINS + ENDS[name], "-m", "gpulab", "run", "--quiet", "--out", "results")
    assert recorded.stdout == plain.stdout
    assert recorded.returncode == plain.returncode
    assert shown_errors(recorded.stderr) == shown_errors(plain.stderr)
    assert (tmp_path / "results" / "run.gpulab").exists()
