"""The case study: photographs one by one and in batches, a model of eight machines, a checklist with evidence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import gpulab
from gpulab import synthetic
from gpulab.lessons.labs.data.page_photos import (
    CROP,
    MEAN,
    SIDE,
    STD,
    Snapshots,
    augment_batch,
    decode_image,
    decode_images,
    image_search_network,
    sample_batches,
)
from gpulab.lessons.labs.machine.monitoring import recorded_gpus
from gpulab.lessons.labs.steps import compiled_training, recorded_fixes, tuning_guide
from gpulab.lessons.labs.steps.checklist import CHECKS, DONE, OPEN, UNKNOWN, _judge, checklist, checklist_items
from gpulab.lessons.labs.steps.optimisation_steps import LARGE_BATCH, SMALL_BATCH, OptimisationPath, photo_us
from gpulab.questions import diagnose
from gpulab.rules import RULES
from tests.support.runs.made_loading_runs import from_main
from tests.support.runs.made_runs import run_of


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPULAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield synthetic.images(12, 96)


def test_a_photograph_comes_out_the_same_whoever_loads_it(files):
    one, label = Snapshots(files, 40)[17]
    again, _ = Snapshots(files, 40)[17]
    assert torch.equal(one, again)
    assert (one.shape, one.dtype, label) == ((3, CROP, CROP), torch.float32, 17 % 12 % 10)
    assert not torch.equal(one, Snapshots(files, 40)[17 + 12][0]), "another time it is changed otherwise"


def test_decoding_once_gives_the_same_bytes(files):
    pixels, classes = decode_images(files)
    assert (pixels.shape, pixels.dtype) == ((12, 3, SIDE, SIDE), torch.uint8)
    assert np.array_equal(pixels[5].permute(1, 2, 0).numpy(), decode_image(files[5]))
    assert classes.tolist() == [index % 10 for index in range(12)]


def test_batches_are_sampled_from_the_decoded_rows(files):
    decoded_images = decode_images(files)
    batches = list(sample_batches(decoded_images, 8, 3))
    assert [images.shape for images, _ in batches] == [(8, 3, SIDE, SIDE)] * 3
    rows = decoded_images[0].flatten(1).tolist()
    assert all(rows.index(image.flatten().tolist()) % 10 == label for image, label in zip(*batches[0], strict=True))
    assert torch.equal(batches[1][0], list(sample_batches(decoded_images, 8, 3))[1][0])


def test_a_batch_is_changed_within_the_bounds_that_one_photograph_is():
    torch.manual_seed(0)
    grey = torch.full((64, 3, SIDE, SIDE), 128, dtype=torch.uint8)
    out = augment_batch(grey)
    assert out.shape == (64, 3, CROP, CROP)
    level = out[:, 0, 0, 0] * STD + MEAN
    assert 0.8 * 128 / 255 <= level.min() < level.max() <= 1.2 * 128 / 255
    assert torch.allclose(out, out[:, :1, :1, :1].expand_as(out), atol=1e-6), "one brightness for a photograph"


def test_half_of_a_batch_is_flipped():
    torch.manual_seed(0)
    ramp = torch.arange(SIDE, dtype=torch.uint8).expand(200, 3, SIDE, SIDE)
    out = augment_batch(ramp)
    flipped = (out[:, 0, 0, 0] > out[:, 0, 0, -1]).float().mean()
    assert 0.4 < flipped < 0.6


def test_the_network_learns_from_either():
    images = torch.zeros(2, 3, CROP, CROP)
    assert image_search_network(8)(images).shape == (2, 10)


# One change after the other.


def train(batches, change=None, precision=None, fetch_every=1, layout=torch.contiguous_format):
    """A loop with the arguments of the notebook's, and a model that is small enough for a test."""
    model = image_search_network(4).to("cuda", memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, labels in batches:
        pixels = change(images.to("cuda")).contiguous(memory_format=layout)
        with torch.autocast("cuda", precision or torch.bfloat16, enabled=precision is not None):
            loss = torch.nn.functional.cross_entropy(model(pixels), labels.to("cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.fixture(scope="module")
def mending(files):
    return OptimisationPath(gpulab.lab("18", size="tiny"), train, decode_images(files), 5, {})


def test_a_set_of_changes_is_trained_with_once_in_whatever_order_it_is_named(mending):
    one = mending.run("pin", "precision")
    assert mending.run("precision", "pin") is one
    assert one.name == "pin+precision"
    recorded_run = gpulab.runs["pin+precision"]
    assert (
        OptimisationPath(mending.lab, train, mending.decoded_images, 5, {("batch",): recorded_run}).run("batch")
        is recorded_run
    )


def test_an_unknown_change_raises_an_error(mending):
    with pytest.raises(gpulab.GpulabError, match="no change 'horoscope'"):
        mending.run("horoscope")
    with pytest.raises(gpulab.GpulabError, match="no change 'horoscope'"):
        mending.path_view("horoscope")


def test_a_photograph_costs_a_share_of_its_step(mending):
    run = mending.run("batch")
    assert mending.photo_us("batch") == pytest.approx(photo_us(run, LARGE_BATCH))
    assert photo_us(run) == pytest.approx(LARGE_BATCH / SMALL_BATCH * photo_us(run, LARGE_BATCH))
    assert mending.gain() == 1
    assert mending.gain("batch") == pytest.approx(mending.photo_us() / mending.photo_us("batch"))


def test_changes_are_counted_where_they_reach_the_aim(mending):
    reached = mending.gain("batch")
    assert mending.changes_needed((), reached) is None
    assert mending.changes_needed(("batch",), reached) == mending.changes_needed("batch", reached) == 1
    assert mending.changes_needed(("batch",), 2 * reached) is None
    assert mending.changes_needed(("batch", "batch"), reached) == 1


def test_a_path_shows_each_change_after_those_before_it(mending):
    text = repr(mending.path_view(("batch", "precision")))
    assert [line for line in text.split("\n") if not line.startswith(" ")][1:] == ["none yet", "batch", "precision"]
    assert text.count("  gain: ") == text.count("predicted gain: ") == 2
    early = repr(mending.order_view(("precision", "batch")))
    assert "precision" in early
    assert "batch" in early
    assert "virtual H100" in early


# Recordings of a real GPU, and what a guide or the report say about them.


@pytest.mark.parametrize("fix", recorded_fixes.RECORDED_FIXES, ids=lambda fix: fix.name)
def test_the_change_of_each_recording_gains_and_is_what_the_report_names(fix):
    assert recorded_fixes.measured_gain(fix) > 1.2
    assert recorded_fixes.first_finding(fix) == fix.rule
    assert fix.item is None or fix.item in {item.name for item in tuning_guide.TUNING_GUIDE}


def test_no_recorded_change_is_slower_than_its_prediction():
    results = recorded_fixes.fix_results()
    assert len(results) == 7
    assert all(result.measured_ms <= result.worst_ms for result in results)
    assert sum(result.in_range for result in results) == 4
    assert repr(recorded_fixes.predicted_and_measured(results)).count("measured gain") == 7


def test_the_first_open_item_of_the_guide_is_seldom_the_right_one():
    attempts = [recorded_fixes.guide_attempts(fix) for fix in recorded_fixes.RECORDED_FIXES]
    assert attempts.count(1) == 2
    assert attempts.count(None) == 2
    assert "not on the list" in repr(recorded_fixes.advice_table())


def test_items_are_open_by_settings_not_by_time():
    assert tuning_guide.open_items(recorded_gpus.recording("h100_11"))[0] == "DataLoader workers"
    assert "DataLoader workers" not in tuning_guide.open_items(recorded_fixes.fixed_recording("h100_11"))
    assert "channels_last" not in tuning_guide.open_items(recorded_fixes.fixed_recording("h100_04"))


def test_compilation_pays_off_after_its_time_divided_by_its_gain():
    assert compiled_training.steps_to_break_even(10.0, 12.0, 2.0) == 1000
    assert compiled_training.steps_to_break_even(10.0, 2.0, 2.0) == float("inf")


# The checklist.


def test_every_rule_of_the_checklist_exists_and_is_in_one_item():
    rules_used = [rule for _, rules in CHECKS for rule in rules]
    assert len(rules_used) == len(set(rules_used))
    assert set(rules_used) <= {rule.name for rule in RULES}


def test_an_item_is_open_with_evidence_or_done_or_unknown():
    judged = {one.check: one for one in checklist_items(from_main(fetch_ms=60.0, on_gpu=False))}
    feeding = judged[CHECKS[0][0]]
    assert feeding.state == OPEN
    assert "60 %" in feeding.evidence
    assert {one.state for one in judged.values()} == {OPEN, DONE, UNKNOWN}
    assert all(one.evidence for one in judged.values())


def test_all_items_are_unknown_for_an_empty_run():
    assert {one.state for one in checklist_items(run_of([]))} == {UNKNOWN}


def test_the_checklist_shows_each_item_and_where_it_comes_from():
    run = from_main(fetch_ms=60.0)
    text = repr(checklist(run))
    assert "1 to do" in text
    assert str(run.source) in text
    assert all(asks in text for asks, _ in CHECKS)


def test_an_aside_does_not_open_an_item():
    run = from_main(fetch_ms=60.0)
    diagnosis = diagnose(run)
    aside = replace(
        diagnosis.findings[0], rule="unused_gpu_memory", claim="Half of it is never used.", informs_only=True
    )
    (rules,) = (rules for _, rules in CHECKS if "unused_gpu_memory" in rules)
    assert _judge("free", rules, replace(diagnosis, findings=(aside,))).state == DONE
    assert _judge("free", rules, replace(diagnosis, findings=(aside, replace(aside, informs_only=False)))).state == OPEN


def test_several_runs_are_compared_in_columns():
    text = repr(checklist(from_main(fetch_ms=60.0), from_main(fetch_ms=0.1), names=("slow", "fast")))
    assert "slow: 1 to do" in text
    assert "fast: 0 to do" in text
    assert "evidence" not in text
