"""The corpus of ordinary training loops: every change of every loop applies, and a loop and its changes agree."""

import pytest

from benchmarks.wild.loop import cell_source
from benchmarks.wild.registry import SET_ASIDE, load_loop, loop_names

torch = pytest.importorskip("torch")
EXTRAS = ("transformers", "lightning", "accelerate", "datasets", "torchdata", "sklearn", "tokenizers")


def loaded(name):
    try:
        return load_loop(name)
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] in EXTRAS:
            pytest.skip(f"needs {error.name}, an extra of the benchmark: pip install 'gpulab[wild]'")
        raise


@pytest.mark.parametrize("name", [*loop_names(), *loop_names(SET_ASIDE)])
def test_every_change_of_a_loop_applies_and_compiles(name):
    loop = loaded(name)
    cells = [cell_source(loop, change) for change in (None, *loop.changes)]
    assert len(set(cells)) == len(cells)
    assert len(loop.changes) >= 3
    for cell in cells:
        compile(cell, name, "exec")


@pytest.mark.night
def test_a_loop_and_its_changes_see_the_same_samples(monkeypatch):
    from benchmarks.wild.measure import check_loop

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    _, problems = check_loop(loaded("tabular/mlp_regressor"), 0.1)
    assert problems == []
