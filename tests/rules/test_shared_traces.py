"""Real traces of real GPUs: the cause that is known of each is named, and nothing that is not there."""

import gzip

import pytest

import gpulab
from gpulab import trace

RESNET = "v100_resnet50_workers{}.json.gz"


@pytest.fixture
def diagnosed(recorded):
    return lambda name: gpulab.diagnose(gpulab.load(recorded(name)))


def rules(diagnosis):
    return [finding.rule for finding in diagnosis.findings]


def test_resnet_without_workers_waits_for_data_a_third_of_each_step(diagnosed):
    diagnosis = diagnosed(RESNET.format(0))
    assert rules(diagnosis)[0] == "no_workers"
    assert diagnosis.first.confidence == "certain"
    assert diagnosis.ledger.total_frac("loader") == pytest.approx(0.336, abs=0.015)
    assert diagnosis.ledger.typical_frac("loader") == pytest.approx(0.336, abs=0.015)
    assert diagnosis.first.gain.bound == pytest.approx(1.496, abs=0.003)


def test_what_the_fix_of_resnet_really_gave_lies_in_the_predicted_range(diagnosed):
    before, after = diagnosed(RESNET.format(0)), diagnosed(RESNET.format(4))
    measured = before.steps.step_ns / after.steps.step_ns
    gain = before.first.gain
    assert measured == pytest.approx(1.40, abs=0.01)
    assert gain.worst_speedup <= measured <= gain.best_speedup <= gain.bound + 1e-9


def test_resnet_with_workers_does_not_wait_for_data(diagnosed):
    diagnosis = diagnosed(RESNET.format(4))
    assert not {"no_workers", "too_few_workers"} & set(rules(diagnosis))
    assert diagnosis.ledger.total_frac("loader") < 0.015


def test_timesformer_prepares_video_in_python_while_the_gpu_waits(diagnosed):
    diagnosis = diagnosed("h100_timesformer_inference.json.gz")
    assert rules(diagnosis)[0] == "host_python"
    assert diagnosis.ledger.busy_frac == pytest.approx(0.414, abs=0.01)
    assert "video" in diagnosis.verdict


def test_bert_small_is_bound_by_calling_its_kernels(diagnosed):
    diagnosis = diagnosed("h100_bert_small_inference.json.gz")
    assert rules(diagnosis)[0] == "dispatch_bound"
    assert 0.06 <= diagnosis.ledger.busy_frac <= 0.08


def test_the_b200_block_is_bound_by_dispatch(diagnosed):
    assert rules(diagnosed("b200_eager.json.gz"))[0] == "dispatch_bound"


@pytest.mark.parametrize("name", ["mi300_compiled_triton"])
def test_busy_gpus_are_called_busy_and_nothing_else(diagnosed, name):
    assert rules(diagnosed(f"{name}.json.gz")) == ["device_bound"]


@pytest.fixture
def cut_off(recorded):
    """The diagnosis of so much of ResNet without workers: of a killed job, or of a file copied too early."""

    def diagnosis(part):
        text = gzip.decompress(recorded(RESNET.format(0)).read_bytes())
        return gpulab.diagnose(trace.read(text[: int(len(text) * part)]))

    return diagnosis


@pytest.mark.parametrize("part", [0.8, 0.85, 0.9, 0.95])
def test_a_trace_cut_off_among_the_gpu_s_events_is_judged_up_to_there(cut_off, part):
    diagnosis = cut_off(part)
    assert diagnosis.first.rule == "no_workers"
    assert diagnosis.ledger.device == "gpu"
    assert diagnosis.ledger.total_frac("loader") == pytest.approx(0.336, abs=0.015)


def test_a_trace_cut_off_before_any_gpu_event_is_not_taken_for_one_of_a_cpu(cut_off):
    diagnosis = cut_off(0.6)
    assert diagnosis.first.confidence == "suspect"
    assert "damaged trace" in diagnosis.first.confidence_reason
    assert diagnosis.first.confidence_reason in {unjudged.reason for unjudged in diagnosis.unjudged}


def test_every_trace_is_diagnosed_and_its_ledger_sums(shared):
    for path in sorted((shared / "traces").glob("*.json.gz")):
        diagnosis = gpulab.diagnose(gpulab.load(path))
        book = diagnosis.ledger
        total = sum(book.part_ns[part.key] for part in book.parts)
        assert total.tolist() == book.step_ns.tolist(), path.name
        assert diagnosis.verdict
