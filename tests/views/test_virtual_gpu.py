"""What virtual GPUs answer reads well in every form, says that it is estimated, and tells absent from zero."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpulab.errors import RunError
from gpulab.views.virtual_gpu import compare_gpus
from gpulab.virtual.memory_fit import fitting
from gpulab.virtual.op_log.ops import Assumption
from tests.support.front_end.read_views import DECORATION, SURVIVING_CSS, SURVIVING_TAGS, Page, numbers
from tests.support.virtual.memory_programs import MS, SPEEDS, StandIn, anew, fragmented, on, training

VIEWS = {}  # answers take a second each, and no test changes one


@pytest.fixture(params=["fits", "tight", "does not fit", "anew", "largest batch", "not one", "gpus", "no prices"])
def any_view(request, gpu):
    builders = {
        "fits": lambda: compare_gpus.fits(training(gpu), "h100", 64, runner=gpu),
        "tight": lambda: compare_gpus.fits(fragmented(gpu), "a10", runner=gpu),
        "does not fit": lambda: compare_gpus.fits(training(gpu, model=1200, sample=200), "t4", 128, runner=gpu),
        "anew": lambda: compare_gpus.fits(anew(gpu), "h100", 64, runner=gpu),
        "largest batch": lambda: compare_gpus.max_batch(training(gpu, sample=500), "h100", runner=gpu),
        "not one": lambda: compare_gpus.max_batch(training(gpu, model=6000), "t4", runner=gpu),
        "gpus": lambda: compare_gpus.compare_gpus(on(gpu, SPEEDS), ["t4", "h100"], 100, {"h100": 2.5}, runner=gpu),
        "no prices": lambda: compare_gpus.compare_gpus(on(gpu, SPEEDS), ["t4", "h100"], 200, runner=gpu),
    }
    if request.param not in VIEWS:
        VIEWS[request.param] = builders[request.param]()
    return VIEWS[request.param]


# Every answer, in every form.


@pytest.mark.full
def test_every_table_is_marked_as_a_virtual_estimate(any_view):
    text = str(any_view)
    assert re.search(r"^Virtual .+, estimated\. ", text, re.MULTILINE)
    page = any_view._repr_html_()
    assert page.count("estimated.") == page.count("<table")  # the folded one says how it was estimated


def test_text_html_and_markdown_hold_the_same_numbers(any_view, tmp_path):
    page, text = Page(any_view._repr_html_()), numbers(repr(any_view))
    assert text <= numbers(page.text)
    assert numbers(page.text) <= text
    assert text <= numbers(any_view.save(tmp_path / "view.md").read_text(encoding="utf-8"))


def test_text_lines_have_100_columns_at_most(any_view):
    assert [line for line in repr(any_view).splitlines() if len(line) > 100] == []


def test_the_html_survives_a_sanitizer_and_loads_nothing(any_view):
    page = Page(any_view._repr_html_())
    assert set(page.tags) <= SURVIVING_TAGS
    assert page.css <= SURVIVING_CSS | DECORATION
    assert not page.all("src")
    assert not page.all("href")


def test_assumptions_and_allowances_are_listed(any_view):
    text = " ".join(str(any_view).split())
    assert "assumed: values read with .item(): 1.0" in text
    assert re.search(r"CUDA context: \d+ MiB.*an allowance, not measured", text)
    assert "not counted: cuDNN" in text


def test_foreign_text_is_escaped(gpu, monkeypatch):
    monkeypatch.setattr(StandIn, "assumptions", (Assumption("<script>alert(1)</script>", "<b>"),))
    page = compare_gpus.fits(training(gpu), "h100", 8, runner=gpu)._repr_html_()
    assert "<script" not in page
    assert "<b>" not in page


# Does it fit?


@pytest.mark.parametrize(
    ("batch", "first"),
    [
        (64, r"Fits on an H100 SXM: a step of 64 samples needs [\d.]+ GiB of 79\.1 GiB \(\d+ %\)\."),
        (800, r"Tight on an H100 SXM: a step of 800 samples needs [\d.]+ GiB of 79\.1 GiB \(9\d %\)\."),
        (900, r"Does not fit on an H100 SXM: a step of 900 samples needs 85\.\d GiB, and the GPU has 79\.1 GiB\."),
    ],
)
def test_the_verdict_comes_first_and_with_the_figures(gpu, batch, first):
    view = compare_gpus.fits(training(gpu), "h100", batch, runner=gpu)
    assert re.fullmatch(first, str(view).splitlines()[0])
    assert view.verdict == view.fit.verdict == re.match(r"Fits|Tight|Does not fit", first)[0].lower()


def test_the_parts_sum_to_the_memory_needed(gpu):
    text = str(compare_gpus.fits(training(gpu), "h100", 64, runner=gpu))
    shares = [float(share) for share in re.findall(r"^    .*?([\d.]+) %$", text, re.MULTILINE)]
    needed = float(re.search(r"^  needed .*?([\d.]+) %$", text, re.MULTILINE)[1])
    assert len(shares) >= 6
    assert sum(shares) == pytest.approx(needed, abs=0.05 * len(shares))


def test_what_fits_has_no_advice_and_what_does_not_has_code(gpu):
    assert "Ways to reduce memory" not in str(compare_gpus.fits(training(gpu), "h100", 8, runner=gpu))
    text = str(compare_gpus.fits(training(gpu), "t4", 800, runner=gpu))
    assert "checkpoint(block, x, use_reentrant=False)" in text
    assert re.search(r"Frees at most [\d.]+ GiB\.", text)
    assert "H200 (140 GiB)" in text


def test_every_fix_has_a_description_and_valid_python(gpu):
    from gpulab.views.virtual_gpu.memory_fit import _REMEDIES

    names = {"checkpoint", "batch", "autocast", "optimizer", "parameters", "segments"}
    assert set(_REMEDIES) == names
    for description, code in _REMEDIES.values():
        assert description
        compile(code, "fix", "exec")


def test_a_step_that_needs_cache_release_is_tight(gpu):
    text = str(compare_gpus.fits(fragmented(gpu), "a10", runner=gpu))
    assert text.startswith("Tight on an A10: a step uses 14.6 GiB")
    assert "`cudaFree`" in text
    assert "expandable_segments:True" in text


def test_a_step_that_rebuilds_its_model_gets_a_fix(gpu):
    text = str(compare_gpus.fits(anew(gpu), "h100", 64, runner=gpu))
    assert "def build():" in text
    assert "was added: 200 MiB." in text
    assert "def build():" not in str(compare_gpus.fits(training(gpu), "h100", 64, runner=gpu))


# How large a batch?


def test_the_largest_batch_and_the_next_one_come_first(gpu):
    view = compare_gpus.max_batch(training(gpu, sample=1000, fixed_ms=2), "h100", runner=gpu)
    text = str(view)
    assert text.startswith(f"The largest batch on an H100 SXM is {view.batch}; {view.batch + 1} does not fit.")
    assert "1,000 MiB per sample" in text
    assert re.search(r"Up to a batch of \d+, 10 %", text)
    assert re.search(r"Multiples of 8: \d+, \d+", text)
    assert re.search(r"A batch of \d+ reaches 9\d %", text)


def test_a_batch_that_does_not_fit_has_no_rate(gpu):
    text = str(compare_gpus.max_batch(training(gpu, sample=1000), "h100", runner=gpu))
    assert re.search(r"^ +\d+ +does not fit +[\d.]+ GiB +\d+ % +[\d.]+$", text, re.MULTILINE)


def test_no_batch_fits_if_one_sample_does_not_fit(gpu):
    view = compare_gpus.max_batch(training(gpu, model=6000), "t4", runner=gpu)
    assert view.batch is None
    assert str(view).startswith("Not even a batch of 1 fits on a T4: it needs 23.")
    assert "gpulab.virtual.fits(step, 'T4', 1)" in str(view)


# Which GPU?


def test_the_fastest_and_the_cheapest_are_named(gpu):
    prices = {"h100": 3.6, "a100": 1.0, "t4": 0.36}
    text = str(compare_gpus.compare_gpus(on(gpu, SPEEDS), list(prices), 100, prices, runner=gpu))
    assert text.startswith("The H100 SXM is the fastest: 10,000 samples/s.")
    assert re.search(r"2\.00x .*A100-80 SXM", text)
    assert re.search(r"A100-80 SXM is the cheapest: 0\.0556 per million samples\s+\(1 per hour\)", text)


def test_overlapping_ranges_of_gpus_are_mentioned(gpu):
    text = str(compare_gpus.compare_gpus(on(gpu, {**SPEEDS, "A100-80 SXM": 11.0}), ["h100", "a100"], 100, runner=gpu))
    assert re.search(r"1\.10x .*A100-80 SXM; .*overlap", text)


def test_a_missing_price_is_not_a_cost_of_zero(gpu):
    text = str(compare_gpus.compare_gpus(on(gpu, SPEEDS), ["h100", "t4"], 100, {"h100": 3.6}, runner=gpu))
    assert re.search(r"^ +T4 +unknown +[\d.]+-[\d.]+$", text, re.MULTILINE)
    assert "of the GPUs with a price" in text
    without = str(compare_gpus.compare_gpus(on(gpu, SPEEDS), ["h100"], 100, runner=gpu))
    assert "Prices are unknown." in without
    assert "cheapest" not in without


def test_a_gpu_on_which_the_step_does_not_fit_has_no_times(gpu):
    text = str(compare_gpus.compare_gpus(on(gpu, SPEEDS), ["h100", "t4"], 200, runner=gpu))
    assert re.search(r"^ +T4 +does not fit, \d+ %$", text, re.MULTILINE)
    assert re.search(r"does not fit on a T4: .*[\d.]+ GiB of 14\.8 GiB", text)


def test_the_headline_says_if_the_step_fits_on_no_gpu(gpu):
    text = str(compare_gpus.compare_gpus(on(gpu, SPEEDS), ["t4"], 500, runner=gpu))
    assert re.match(r"It fits on none .*500 samples needs [\d.]+ GiB or more", text)
    assert "fits on no GPU" in text


def test_unknown_times_read_not_measured(gpu):
    compared = fitting.compare_gpus(on(gpu, SPEEDS), ["h100"], 100, gpu_factory=gpu)
    estimate = replace(compared.candidates[0].estimate, shares={}, step_range_ns=None)
    candidate = replace(compared.candidates[0], estimate=estimate, joules_range=None)
    text = str(compare_gpus.gpus_view(replace(compared, candidates=(candidate,))))
    assert re.search(r"^ +H100 SXM +fits, \d+ % +not measured +not measured +[\d.]+ +10,000$", text, re.MULTILINE)
    assert re.search(r"^ +H100 SXM +not measured$", text, re.MULTILINE)
    assert "10,000 samples/s" in text


def test_without_a_batch_rates_are_in_steps(gpu):
    def step():
        gpu.last.now_ns += 4 * MS

    text = str(compare_gpus.compare_gpus(step, ["h100", "t4"], runner=gpu))
    assert "250 steps/s" in text
    assert "samples" not in text


def test_an_unknown_gpu_raises_run_error(gpu):
    with pytest.raises(RunError, match="is not a GPU that gpulab knows"):
        compare_gpus.fits(training(gpu), "abacus", 8, runner=gpu)
