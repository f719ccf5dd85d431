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

MADE = {}  # answers take a second each, and no test changes one


@pytest.fixture(params=["fits", "tight", "does not fit", "anew", "largest batch", "not one", "gpus", "no prices"])
def any_view(request, gpu):
    made = {
        "fits": lambda: compare_gpus.fits(training(gpu), "h100", 64, runner=gpu),
        "tight": lambda: compare_gpus.fits(fragmented(gpu), "a10", runner=gpu),
        "does not fit": lambda: compare_gpus.fits(training(gpu, model=1200, sample=200), "t4", 128, runner=gpu),
        "anew": lambda: compare_gpus.fits(anew(gpu), "h100", 64, runner=gpu),
        "largest batch": lambda: compare_gpus.max_batch(training(gpu, sample=500), "h100", runner=gpu),
        "not one": lambda: compare_gpus.max_batch(training(gpu, model=6000), "t4", runner=gpu),
        "gpus": lambda: compare_gpus.compare_gpus(on(gpu, SPEEDS), ["t4", "h100"], 100, {"h100": 2.5}, runner=gpu),
        "no prices": lambda: compare_gpus.compare_gpus(on(gpu, SPEEDS), ["t4", "h100"], 200, runner=gpu),
    }
    if request.param not in MADE:
        MADE[request.param] = made[request.param]()
    return MADE[request.param]


# Every answer, in every form.


def test_every_answer_says_that_it_is_virtual_and_estimated_wherever_numbers_stand_together(any_view):
    told = str(any_view)
    assert re.search(r"^Virtual .+, estimated\. ", told, re.MULTILINE)
    page = any_view._repr_html_()
    assert page.count("estimated.") == page.count("<table")  # the folded one says how it was estimated


def test_text_html_and_markdown_hold_the_same_numbers(any_view, tmp_path):
    page, told = Page(any_view._repr_html_()), numbers(repr(any_view))
    assert told <= numbers(page.text)
    assert numbers(page.text) <= told
    assert told <= numbers(any_view.save(tmp_path / "view.md").read_text(encoding="utf-8"))


def test_text_lines_have_100_columns_at_most(any_view):
    assert [line for line in repr(any_view).splitlines() if len(line) > 100] == []


def test_the_html_survives_a_sanitizer_and_loads_nothing(any_view):
    page = Page(any_view._repr_html_())
    assert set(page.tags) <= SURVIVING_TAGS
    assert page.css <= SURVIVING_CSS | DECORATION
    assert not page.all("src")
    assert not page.all("href")


def test_what_was_assumed_and_allowed_is_told(any_view):
    told = " ".join(str(any_view).split())
    assert "assumed: values read with .item(): 1.0" in told
    assert re.search(r"CUDA context: \d+ MiB.*an allowance, not measured", told)
    assert "not counted: cuDNN" in told


def test_text_from_elsewhere_cannot_become_markup(gpu, monkeypatch):
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


def test_the_parts_of_what_is_needed_sum_to_it(gpu):
    told = str(compare_gpus.fits(training(gpu), "h100", 64, runner=gpu))
    shares = [float(share) for share in re.findall(r"^    .*?([\d.]+) %$", told, re.MULTILINE)]
    needed = float(re.search(r"^  needed .*?([\d.]+) %$", told, re.MULTILINE)[1])
    assert len(shares) >= 6
    assert sum(shares) == pytest.approx(needed, abs=0.05 * len(shares))


def test_what_fits_has_no_advice_and_what_does_not_has_code(gpu):
    assert "Ways to reduce memory" not in str(compare_gpus.fits(training(gpu), "h100", 8, runner=gpu))
    told = str(compare_gpus.fits(training(gpu), "t4", 800, runner=gpu))
    assert "checkpoint(block, x, use_reentrant=False)" in told
    assert re.search(r"Frees at most [\d.]+ GiB\.", told)
    assert "H200 (140 GiB)" in told


def test_every_advice_has_words_and_code_that_is_python(gpu):
    from gpulab.views.virtual_gpu.memory_fit import _REMEDIES

    held = {"checkpoint", "batch", "autocast", "optimizer", "parameters", "segments"}
    assert set(_REMEDIES) == held
    for what, code in _REMEDIES.values():
        assert what
        compile(code, "fix", "exec")


def test_what_runs_only_with_the_cache_given_back_says_so(gpu):
    told = str(compare_gpus.fits(fragmented(gpu), "a10", runner=gpu))
    assert told.startswith("Tight on an A10: a step uses 14.6 GiB")
    assert "`cudaFree`" in told
    assert "expandable_segments:True" in told


def test_a_step_that_makes_its_model_anew_is_shown_how_to_build_once(gpu):
    told = str(compare_gpus.fits(anew(gpu), "h100", 64, runner=gpu))
    assert "def build():" in told
    assert "was added: 200 MiB." in told
    assert "def build():" not in str(compare_gpus.fits(training(gpu), "h100", 64, runner=gpu))


# How large a batch?


def test_the_largest_batch_and_the_one_that_does_not_fit_are_said_first(gpu):
    view = compare_gpus.max_batch(training(gpu, sample=1000, fixed_ms=2), "h100", runner=gpu)
    told = str(view)
    assert told.startswith(f"The largest batch on an H100 SXM is {view.batch}; {view.batch + 1} does not fit.")
    assert "1,000 MiB per sample" in told
    assert re.search(r"Up to a batch of \d+, 10 %", told)
    assert re.search(r"Round batch sizes: \d+ or \d+", told)
    assert re.search(r"A batch of \d+ already reaches 90 %", told)


def test_a_batch_that_does_not_fit_has_no_rate(gpu):
    told = str(compare_gpus.max_batch(training(gpu, sample=1000), "h100", runner=gpu))
    assert re.search(r"^ +\d+ +does not fit +[\d.]+ GiB +\d+ % +[\d.]+$", told, re.MULTILINE)


def test_where_not_one_sample_fits_that_is_the_answer(gpu):
    view = compare_gpus.max_batch(training(gpu, model=6000), "t4", runner=gpu)
    assert view.batch is None
    assert str(view).startswith("Not even a batch of 1 fits on a T4: it needs 23.")
    assert "gpulab.virtual.fits(step, 'T4', 1)" in str(view)


# Which GPU?


def test_the_fastest_and_the_cheapest_are_named(gpu):
    prices = {"h100": 3.6, "a100": 1.0, "t4": 0.36}
    told = str(compare_gpus.compare_gpus(on(gpu, SPEEDS), list(prices), 100, prices, runner=gpu))
    assert told.startswith("The H100 SXM is the fastest: 10,000 samples/s.")
    assert re.search(r"2\.00x .*A100-80 SXM", told)
    assert re.search(r"A100-80 SXM is the cheapest: 0\.0000556 for 1000 samples, at 1 ", told)


def test_gpus_whose_ranges_overlap_are_said_to(gpu):
    told = str(compare_gpus.compare_gpus(on(gpu, {**SPEEDS, "A100-80 SXM": 11.0}), ["h100", "a100"], 100, runner=gpu))
    assert re.search(r"1\.10x .*A100-80 SXM; .*overlap", told)


def test_no_price_is_no_cost_and_not_zero(gpu):
    told = str(compare_gpus.compare_gpus(on(gpu, SPEEDS), ["h100", "t4"], 100, {"h100": 3.6}, runner=gpu))
    assert re.search(r"^ +T4 +unknown +[\d.]+-[\d.]+$", told, re.MULTILINE)
    assert "of the GPUs with a price" in told
    without = str(compare_gpus.compare_gpus(on(gpu, SPEEDS), ["h100"], 100, runner=gpu))
    assert "Prices are unknown." in without
    assert "cheapest" not in without


def test_a_gpu_without_room_has_no_figures_of_time(gpu):
    told = str(compare_gpus.compare_gpus(on(gpu, SPEEDS), ["h100", "t4"], 200, runner=gpu))
    assert re.search(r"^ +T4 +does not fit, \d+ %$", told, re.MULTILINE)
    assert re.search(r"does not fit on a T4: .*[\d.]+ GiB of 14\.8 GiB", told)


def test_where_it_fits_on_none_that_is_the_answer(gpu):
    told = str(compare_gpus.compare_gpus(on(gpu, SPEEDS), ["t4"], 500, runner=gpu))
    assert re.match(r"It fits on none .*500 samples needs [\d.]+ GiB or more", told)
    assert "fits on no GPU" in told


def test_what_is_not_known_of_the_time_is_said_in_words(gpu):
    compared = fitting.compare_gpus(on(gpu, SPEEDS), ["h100"], 100, runner=gpu)
    bare = replace(compared.candidates[0].measured, shares={}, range_ns=None)
    candidate = replace(compared.candidates[0], measured=bare, joules_range=None)
    told = str(compare_gpus.shown_gpus(replace(compared, candidates=(candidate,))))
    assert re.search(r"^ +H100 SXM +fits, \d+ % +not measured +not measured +[\d.]+ +10,000$", told, re.MULTILINE)
    assert re.search(r"^ +H100 SXM +not measured$", told, re.MULTILINE)
    assert "10,000 samples/s" in told


def test_without_a_batch_it_is_told_by_the_step(gpu):
    def step():
        gpu.last.now_ns += 4 * MS

    told = str(compare_gpus.compare_gpus(step, ["h100", "t4"], runner=gpu))
    assert "250 steps/s" in told
    assert "samples" not in told


def test_what_cannot_be_asked_is_refused_in_the_words_of_the_house(gpu):
    with pytest.raises(RunError, match="is not a GPU that gpulab knows"):
        compare_gpus.fits(training(gpu), "abacus", 8, runner=gpu)
