"""The rule about padding: what it says, and the range that it predicts."""

from dataclasses import replace

import pytest

import gpulab
from gpulab.rules import diagnose
from gpulab.rules.data.padding_gain import LEAST_REMOVED_BY_GROUPS, LEAST_REMOVED_ON_CPU
from gpulab.run import Machine
from tests.cases.data.padding.case import FIXED_LENGTH, LOADER, on_a_gpu, packed, trained


def finding(run):
    return next(each for each in diagnose(run).findings if each.rule == "padding")


def test_the_claim_names_the_share_and_the_loader():
    assert finding(trained()).claim == "60 % of the tokens in a batch of train_loader are padding."


def test_without_padding_to_the_longest_row_most_of_the_padding_goes_at_worst():
    gain = finding(trained()).gain  # 50 of 100 ms, of which the operators take 46
    assert gain.worst_speedup == pytest.approx(1 / (1 - 0.46 * LEAST_REMOVED_BY_GROUPS * 0.6), rel=0.03)
    assert gain.best_speedup == pytest.approx(1 / (1 - 0.5 * (1 - 0.75 * 0.4 - 0.25 * 0.16)), rel=0.03)
    assert gain.bound == pytest.approx(1 / (1 - 0.5 * (1 - 0.4**2)), rel=0.03)


def test_with_a_fixed_length_most_of_what_the_longest_rows_leave_out_goes_at_worst():
    gain = finding(trained(FIXED_LENGTH)).gain
    assert gain.worst_speedup == pytest.approx(1 / (1 - 0.46 * LEAST_REMOVED_ON_CPU * 0.7), rel=0.03)
    assert gain.floor_ns <= gain.best_ns <= gain.worst_ns <= gain.step_ns


MIXED = replace(FIXED_LENGTH, padding_to_longest_frac=0.3)


def test_where_the_lengths_in_a_batch_differ_similar_lengths_come_first_and_code_as_another_remedy():
    grouped = finding(trained(MIXED))
    cut = grouped.alternatives[0]
    assert "sorts them by length" in grouped.advice
    assert "CutPadding" in cut.fix
    assert not grouped.fix
    assert grouped.gain.worst_speedup > cut.gain.worst_speedup > 1
    assert cut.gain.floor_ns <= cut.gain.best_ns <= cut.gain.worst_ns


def test_cutting_batches_saves_at_best_what_lies_behind_their_longest_rows():
    cut = finding(trained(MIXED)).alternatives[0].gain
    assert cut.best_speedup == pytest.approx(1 / (1 - 0.5 * (1 - 0.7**2)), rel=0.03)


def test_without_code_there_is_no_other_remedy():
    assert not finding(trained(replace(MIXED, can_be_cut=False))).alternatives


@pytest.mark.parametrize(("remains", "removed"), [(0.0, 0.7), (0.05, 0.7), (0.3, 0.4), (0.6, 0.0)])
def test_samples_with_several_sequences_keep_some_padding(remains, removed):
    """At worst, 80 % of what groups leave out is saved, and at most 70 % of all padding."""
    run = trained(replace(LOADER, padding_in_groups_frac=remains))
    if not removed:
        assert finding(run).informs_only
        return
    assert finding(run).gain.worst_speedup == pytest.approx(1 / (1 - 0.46 * removed * 0.6), rel=0.03)
    assert finding(run).gain.bound == finding(trained()).gain.bound


def test_cutting_comes_first_where_groups_leave_more():
    first = finding(trained(replace(MIXED, padding_in_groups_frac=0.6)))
    assert "CutPadding" in first.fix
    assert any("several sequences" in sentence for sentence in first.evidence)


def test_packed_sequences_save_time_steps_only():
    gain = finding(trained(make_passes=packed)).gain  # 50 of 100 ms, with what lies between the operators
    assert gain.worst_speedup == pytest.approx(1 / (1 - 0.5 * 0.5 * 0.6), rel=0.03)
    assert gain.best_speedup == gain.bound == pytest.approx(1 / (1 - 0.5 * 0.6), rel=0.03)
    assert "60 % of its positions" in finding(trained(make_passes=packed)).claim


def test_on_a_gpu_the_work_of_the_optimizer_stays():
    gain = finding(on_a_gpu()).gain  # 60 of 100 ms in the passes
    assert gain.bound == pytest.approx(1 / (1 - 0.6 * (1 - 0.4**2)), rel=0.05)
    assert gain.worst_speedup == pytest.approx(1 / (1 - 0.6 * 0.5 * 0.6), rel=0.1)
    assert gain.floor_ns <= gain.best_ns <= gain.worst_ns <= gain.step_ns


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (LOADER, ("sorts them by length",)),
        (FIXED_LENGTH, ("DataCollatorWithPadding(tokenizer)", "pad_sequence", "sorts them by length")),
        (replace(LOADER, framework="transformers"), ('train_sampling_strategy="group_by_length"',)),
        (replace(LOADER, framework="transformers", batch_sampler="DefaultBatchSampler"), ("a batch sampler that",)),
        (replace(FIXED_LENGTH, framework="transformers"), ("data_collator=DataCollatorWithPadding(tokenizer)",)),
        (replace(LOADER, same_row_length=True), ("pad_sequence", "sorts them by length")),
        (replace(LOADER, framework="transformers", dataset_library="__main__"), ("raise IndexError",)),
    ],
)
def test_the_advice_fits_the_padding_and_the_framework(loader, words):
    advice = finding(trained(loader)).advice
    assert all(word in advice for word in words)


@pytest.mark.parametrize("framework", [None, "transformers"])
def test_an_iterable_dataset_groups_its_samples_itself(framework):
    """PyTorch refuses a batch sampler for it, and Transformers' Trainer to group by length."""
    advice = finding(trained(replace(LOADER, iterable=True, framework=framework, dataset_library="__main__"))).advice
    assert "in __iter__ of the dataset" in advice
    assert not any(word in advice for word in ("batch sampler", "group_by_length", "IndexError"))


def test_a_dataset_that_knows_its_length_needs_no_word_about_its_end():
    loader = replace(LOADER, framework="transformers", dataset_library="datasets")
    assert "IndexError" not in finding(trained(loader)).advice


@pytest.mark.parametrize(
    ("loader", "machine", "has_code"),
    [
        (FIXED_LENGTH, Machine(), True),
        (LOADER, Machine(), False),
        (replace(FIXED_LENGTH, can_be_cut=False), Machine(), False),
        (replace(FIXED_LENGTH, framework="accelerate"), Machine(), False),
        (replace(FIXED_LENGTH, kind="OwnLoader"), Machine(), False),
        (replace(FIXED_LENGTH, name=None), Machine(), False),
        (replace(FIXED_LENGTH, workers=2), Machine(platform="Linux-6.1", python="3.12.1"), True),
        (replace(FIXED_LENGTH, workers=2), Machine(platform="Linux-6.1", python="3.14.0"), False),
        (replace(FIXED_LENGTH, workers=2), Machine(platform="macOS-15", python="3.12.1"), False),
        (replace(FIXED_LENGTH, workers=2), Machine(), False),
    ],
)
def test_code_is_printed_only_where_it_runs(loader, machine, has_code):
    assert bool(finding(trained(loader, machine=machine)).fix) == has_code


def test_a_stored_run_has_the_padding(tmp_path):
    loaded = gpulab.load(gpulab.save(trained(FIXED_LENGTH), tmp_path / "run.gpulab"))
    assert loaded.loaders[0] == FIXED_LENGTH
