"""Each rule has a page a person can read: what it means, its proof, its rivals, what to do."""

import pytest

from gpulab.errors import GpulabError
from gpulab.rules import RULES
from gpulab.views.rule_page import page


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_the_page_of_a_rule_says_all_four_things_and_what_it_needs(rule):
    page_text = str(page(rule.name))
    first, *rest = page_text.splitlines()
    assert not first.startswith(("Evidence", "Requirements"))
    for heading in ("Evidence: ", "Similar symptoms: ", "What to do: ", "Requirements: "):
        assert any(line.startswith(heading) for line in rest), heading


def test_without_a_name_every_rule_is_listed_once():
    lines = [line.strip() for line in str(page()).splitlines()]
    for rule in RULES:
        assert sum(line.startswith(f"{rule.name}: ") for line in lines) == 1


def test_a_name_that_is_nearly_one_is_answered_with_it():
    with pytest.raises(GpulabError) as refused:
        page("no_worker")
    assert refused.value.fix == "did you mean no_workers?"


def test_a_name_that_is_none_is_answered_with_all():
    with pytest.raises(GpulabError) as refused:
        page("zzz")
    assert "no_workers" in refused.value.why
    assert "%gpuwhy" in refused.value.fix
