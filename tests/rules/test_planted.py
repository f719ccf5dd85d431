"""Each fault that can be planted here is found where it was planted, and its fix takes it away.

The finding must be there, not come first, and no gain is measured: other programs may share the machine with the tests.
How often it comes first, and what its fix gains, is measured by benchmarks/diagnosis/diagnosis.py.
"""

import contextlib

import pytest

import gpulab
from gpulab.workloads import WORKLOADS, workload

torch = pytest.importorskip("torch")
pytest.importorskip("PIL", reason="the image workloads make their JPEG files with Pillow")

PLANTED = [each for each in WORKLOADS if each.rule and each.twin]
HERE = [each for each in PLANTED if torch.cuda.is_available() or not each.needs_gpu]


def recorded(name):
    """A run of a workload; one that runs out of memory as planned is a run as well."""
    chosen = workload(name)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    failing = pytest.raises(torch.OutOfMemoryError) if chosen.rule == "out_of_memory" else contextlib.nullcontext()
    with failing, gpulab.profile(name):
        chosen.run(device=device)
    return gpulab.runs[name]


def rules(run):
    return [finding.rule for finding in gpulab.diagnose(run).findings]


@pytest.mark.alone("records workloads on this machine and judges their step times")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # more workers than cores, on purpose
@pytest.mark.parametrize("planted", [pytest.param(each, id=each.name) for each in HERE])
def test_a_planted_fault_is_found_and_its_fix_takes_it_away(planted):
    before, after = recorded(planted.name), recorded(planted.twin)
    assert planted.rule in rules(before)
    assert planted.rule not in rules(after)


def test_every_workload_with_a_fault_has_a_twin_that_bears_its_fix():
    assert [each.name for each in WORKLOADS if each.rule and each.rule != "device_bound" and not each.twin] == []
