"""Every paragraph of the articles is taught in an experiment that there is, waits for one by name, or is left out."""

from __future__ import annotations

import pytest

from gpulab.lessons.course import lessons
from tools import coverage


@pytest.mark.parametrize("article", range(len(coverage.ARTICLES)))
def test_no_paragraph_is_unassigned(article, shared):
    (path,) = (shared / "articles").glob(f"{article:03d}_*.txt")
    assert coverage.unassigned(article, path.read_text(encoding="utf-8")) == []


def test_a_paragraph_that_nothing_covers_is_noticed():
    assert coverage.unassigned(4, "\n".join("x" * 14)) == [13, 14]


def test_every_experiment_is_in_its_lesson_or_waits_for_the_second_half():
    here = {one.number: {each.number for each in one.experiments} for one in lessons()}
    for topic in coverage.topics():
        for experiment in topic.experiments:
            number = experiment.partition(".")[0]
            assert experiment in here.get(number, ()) or number in coverage.WAITING, experiment
    assert not set(here) & set(coverage.WAITING)


def test_what_is_left_out_says_so():
    for topic in coverage.topics():
        assert topic.experiments or "left out on purpose" in topic.topic


def test_the_page_is_what_the_table_says():
    assert (coverage.DOCS / "coverage.md").read_text(encoding="utf-8") == coverage.page()


def test_a_place_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "odd.tsv").write_text("lines\ttopic\texperiments\n3:x\ta\t05.1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no place"):
        coverage.topics(tmp_path / "odd.tsv")
