"""What the repository holds: what the project wrote, and nothing large."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"benchmarks", "docs", "gpulab", "notebooks", "recipe", "recorded_runs", "tests", "tools"}
DATA = {".bin", ".csv", ".npy", ".npz", ".pt", ".pth", ".pkl", ".safetensors", ".wav"}
MAX_BYTES = 2_000_000  # of a recorded run; nothing else is as large


@pytest.fixture(scope="module")
def tracked():
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout, such as an unpacked sdist")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in names.split("\0") if name and (ROOT / name).exists()]


def test_the_top_level_has_no_other_folders_and_no_data(tracked):
    folders = {path.parts[0] for path in tracked if len(path.parts) > 1 and not path.parts[0].startswith(".")}
    assert folders == FOLDERS
    assert [str(path) for path in tracked if len(path.parts) == 1 and path.suffix in DATA] == []


def test_no_folder_is_taken_for_a_library():
    """An editable install puts the top level on sys.path: Transformers once took `datasets/` for the library."""
    known = {"accelerate", "datasets", "evaluate", "lightning", "tokenizers", "transformers", "trl"}
    assert not known & FOLDERS


def test_no_file_is_larger_than_a_recorded_run_may_be(tracked):
    assert {str(path): size for path in tracked if (size := (ROOT / path).stat().st_size) > MAX_BYTES} == {}
