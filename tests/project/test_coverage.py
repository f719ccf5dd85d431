"""Every paragraph of the articles is taught in an experiment that exists, or is left out."""

from __future__ import annotations

import pytest

from gpulab.lessons.course import lessons
from tools import answers, coverage


@pytest.mark.parametrize("article", range(len(coverage.ARTICLES)))
def test_no_paragraph_is_unassigned(article, shared):
    (path,) = (shared / "articles").glob(f"{article:03d}_*.txt")
    assert coverage.unassigned(article, path.read_text(encoding="utf-8")) == []


def test_a_paragraph_that_nothing_covers_is_noticed():
    assert coverage.unassigned(4, "\n".join("x" * 14)) == [13, 14]


def test_every_experiment_is_in_its_lesson():
    here = {each.number for one in lessons() for each in one.experiments}
    for topic in coverage.topics():
        assert set(topic.experiments) <= here, topic.topic


def test_what_is_left_out_says_so():
    for topic in coverage.topics():
        assert topic.experiments or "left out on purpose" in topic.topic


def test_the_pages_are_what_the_tables_say():
    assert (coverage.DOCS / "coverage.md").read_text(encoding="utf-8") == coverage.page()
    assert (coverage.DOCS / "statements.md").read_text(encoding="utf-8") == coverage.statements_page()


def test_every_statement_is_tested_by_an_experiment_that_exists():
    here = {each.number for one in lessons() for each in one.experiments}
    assert len(coverage.statements()) == 24
    for one in coverage.statements():
        assert one.experiments, one.statement
        assert set(one.experiments) <= here, one.statement


def test_the_lines_of_statements_exist(shared):
    texts = {article: next((shared / "articles").glob(f"{article:03d}_*.txt")) for article in range(5)}
    for one in coverage.statements():
        for place in one.places:
            lines = texts[place.article].read_text(encoding="utf-8").splitlines()
            assert all(line.strip() for line in lines[place.first - 1 : place.last]), one.statement


def test_a_place_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "odd.tsv").write_text("lines\ttopic\texperiments\n3:x\ta\t05.1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no place"):
        coverage.topics(tmp_path / "odd.tsv")


def test_the_answers_for_instructors_are_those_of_the_lessons():
    assert answers.PAGE.read_text(encoding="utf-8") == answers.page()
