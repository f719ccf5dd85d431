"""Public model families, trainers and features run on a virtual GPU, imported before it exists or inside its block."""

from __future__ import annotations

import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from benchmarks.virtual.public.features import FEATURES  # noqa: E402 - it needs torch
from benchmarks.virtual.public.measure import WHEN, run_child, table, worked  # noqa: E402
from benchmarks.virtual.public.registry import FAMILIES  # noqa: E402
from benchmarks.virtual.public.trainers import MODULES, TRAINERS  # noqa: E402
from tests.support.tiers import at_night, is_night  # noqa: E402

REFUSED = {"cuda_graph": "A CUDA graph is not supported", "fsdp": "fully_shard is not supported"}
BATCH_S = 540


# A sample, more of it first imported inside the block, where more can go wrong; a night runs all.
BY_WHEN = {when: list(FAMILIES)[:: at_night(1, otherwise=step)] for when, step in (("before", 24), ("inside", 8))}
SAMPLED = list(FEATURES)[:: at_night(1, otherwise=3)]
TIMES = tuple(WHEN) if is_night() else ("inside",)


def is_installed(module):
    return importlib.util.find_spec(module.partition(".")[0]) is not None


def skip_without(package):
    if not is_installed(package):
        pytest.skip(f"needs {package}: pip install 'gpulab[wild]' (diffusers, timm and torch_geometric separately)")


def run_children(kind, names_by_when, at_once):
    """Return the stages of every name by the time of its import, from two processes: one for each time."""
    with ThreadPoolExecutor(at_once) as pool:
        stages = pool.map(lambda when: run_child(kind, when, names_by_when[when], BATCH_S), names_by_when)
        return dict(zip(names_by_when, stages, strict=True))


@pytest.fixture(scope="module")
def public_families():
    skip_without("transformers")
    return run_children("family", BY_WHEN, at_once=min(2, os.cpu_count() or 1))


@pytest.fixture(scope="module")
def public_features():
    """As for families, but one after the other: programs of one rank use the same port.

    Accelerate refuses a second Accelerator with other settings, so its program has a process of its own.
    """
    together = [name for name in SAMPLED if name != "accelerate"]
    installed = [name for name in together if all(is_installed(module) for module in MODULES.get(name, ()))]
    return run_children("feature", dict.fromkeys(TIMES, installed), at_once=1)


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "when"), [(name, when) for when in WHEN for name in BY_WHEN[when]])
def test_a_model_family_trains_and_generates(public_families, name, when):
    stages = public_families[when][name]
    assert worked(stages), stages
    expected = ["imports", "builds", "trains", *(["generates"] if FAMILIES[name].generates else [])]
    assert list(stages) == expected


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("when", TIMES)
@pytest.mark.parametrize("name", SAMPLED)
def test_a_feature_or_trainer_runs_or_is_refused_with_a_fix(public_features, name, when):
    for module in MODULES.get(name, ()):
        skip_without(module)
    alone = name == "accelerate"
    stages = (run_child("feature", when, [name]) if alone else public_features[when])[name]
    if name in REFUSED:
        assert stages["trains"]["outcome"] == "refused"
        assert REFUSED[name] in stages["trains"]["error"]
        assert "fix:" in stages["trains"]["error"]
    else:
        assert worked(stages), stages


def test_the_sweep_has_at_least_40_families_and_10_trainers_and_features():
    assert len(FAMILIES) >= 40
    assert len(TRAINERS) >= 10
    assert len(FEATURES) - len(TRAINERS) >= 10


@pytest.mark.night
def test_a_feature_without_other_packages_runs_in_the_sweep():
    stages = run_child("feature", "inside", ["autocast_bfloat16"])["autocast_bfloat16"]
    assert worked(stages), stages
    lines = table({"autocast_bfloat16": {"inside": stages}})
    assert lines[-1] == "1 in all: 0 work imported before, 1 imported inside"
