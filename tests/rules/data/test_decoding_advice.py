"""Advice on decoding images, from the library functions that the samples of the main thread show."""

import pytest

from gpulab.rules import diagnose
from gpulab.rules.data.worker_gain import warning_caveat
from tests.support.runs.made_loading_runs import from_main

DECODING = ("PIL.Image.Image.convert", "PIL.ImageFile.ImageFile.load")


def advice(called):
    return diagnose(from_main(called=called)).first.advice


@pytest.mark.parametrize("called", DECODING)
def test_pillow_that_decodes_images_leads_to_advice_about_draft(called):
    assert "draft" in advice(called)


@pytest.mark.parametrize("called", [None, "PIL.Image.Image.resize", "numpy.random.default_rng", "other.PIL.Image.load"])
def test_other_calls_do_not(called):
    assert "draft" not in advice(called)


def test_a_rare_call_does_not():
    assert "draft" not in advice(lambda at: DECODING[0] if at % 1000 < 100 else None)
    assert "draft" in advice(lambda at: DECODING[0] if at % 1000 < 600 else None)


@pytest.mark.parametrize(("workers", "cores", "warns"), [(4, 2.0, True), (2, 2.0, False), (4, None, False)])
def test_more_workers_than_cores_come_with_a_word_about_the_warning_of_pytorch(workers, cores, warns):
    assert bool(warning_caveat(workers, cores)) is warns


def test_the_code_of_the_fix_mentions_that_warning():
    waiting = from_main(fetch_ms=80, cpu_frac=0.02, cores=2.0, iowait_frac=0.0, read_bytes=1e6)
    assert "may warn" in diagnose(waiting).first.fix
    assert "may warn" not in diagnose(from_main()).first.fix
