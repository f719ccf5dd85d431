"""The examples of docs/frameworks.md run as they are, and each prints and saves a report with its phases."""

import re
from pathlib import Path

import pytest

import gpulab
from tests.support.frameworks.small_data import work_by_phase

pytest.importorskip("torch")
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "frameworks.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^## (\w+)\n\n```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
BATCHES, BATCHES_OF_64 = 640 // 16, 640 // 64
pytestmark = pytest.mark.filterwarnings("default")  # of the frameworks


def lightning_phases():
    return {
        "training": (2 * BATCHES, 2 * BATCHES),
        "validation": (2 * BATCHES_OF_64, 0),
        "sanity check": (2, 0),
        "checkpoint": (0, 0),
    }


def transformers_phases():
    """By default, a batch has eight samples for each GPU."""
    import torch

    batches = 640 // (8 * max(1, torch.cuda.device_count()))
    return {"training": (2 * batches, 2 * batches), "evaluation": (2 * batches, 0), "checkpoint": (0, 0)}


def accelerate_phases():
    return {"validation": (BATCHES_OF_64, 0), "checkpoint": (0, 0)}


@pytest.mark.parametrize(
    ("title", "package", "phases"),
    [
        ("Lightning", "lightning", lightning_phases),
        ("Transformers", "transformers", transformers_phases),
        ("Accelerate", "accelerate", accelerate_phases),
    ],
)
def test_the_example_runs(title, package, phases, tmp_path, monkeypatch, capfd):
    pytest.importorskip(package, reason=f"pip install {package}")
    monkeypatch.chdir(tmp_path)
    exec(compile(EXAMPLES[title], "example.py", "exec"), {"__name__": "__main__"})
    (path,) = (tmp_path / "gpulab-results").glob("*.gpulab")
    assert path.with_suffix(".html").exists()
    assert work_by_phase(gpulab.load(path)) == phases()
    printed = capfd.readouterr()
    assert "Phases of the run" in printed.err
    assert "Phases of the run" not in printed.out
