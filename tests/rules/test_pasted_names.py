"""The names in printed code are variables, whatever a file claims."""

import pytest

from gpulab.rules.engine.pasted_names import UserNames, user_names
from gpulab.run import Loader, Model
from tests.support.runs.made_runs import run_of


@pytest.mark.parametrize("name", ["1st loader", "a b", "x; import os", "for", "", "loader()", "x\n", "self."])
def test_a_recorded_name_that_is_no_variable_is_replaced_by_the_common_one(name):
    run = run_of((), loaders=[Loader(name=name, dataset_name=name)], models=[Model(kind="ResNet", name=name)])
    names = user_names(run)
    assert (names.loader, names.dataset, names.model) == (UserNames.loader, UserNames.dataset, UserNames.model)


def test_variables_and_attributes_are_kept():
    run = run_of((), loaders=[Loader(name="self.batches")], models=[Model(kind="ResNet", name="net")])
    names = user_names(run)
    assert (names.loader, names.dataset, names.model) == ("self.batches", "self.batches.dataset", "net")
