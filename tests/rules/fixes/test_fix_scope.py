"""Which part of a printed fix stands above the functions of a program, and which within one of them."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from gpulab.rules import diagnose
from gpulab.rules.engine.finding import Finding
from gpulab.rules.engine.fix_scope import with_scope
from gpulab.run import Model
from tests.cases.kernels.dropout_on_cpu import case

torch = pytest.importorskip("torch")

CLASS = "class Mask(torch.nn.Dropout):\n    def forward(self, input):\n        return input * len(input)"
USES_MODEL = "@torch.no_grad()\ndef evaluate(batch):\n    return net(batch)"


def parts_of(fix):
    """The part for the top of the file, and the part for the function `train`, which has the model `net`."""
    run = replace(case.training(), models=(Model(kind="Net", name="net", function="train"),))
    head, separator, rest = with_scope(Finding(claim="", evidence=(), fix=fix), run).fix.partition(
        "# In train(), above the loop:\n"
    )
    assert separator
    return head, rest


def test_imports_and_classes_that_use_nothing_else_stand_at_the_top():
    head, rest = parts_of(f"import torch\n\n{CLASS}\n\nnet = net.apply(Mask)")
    assert CLASS in head
    assert "import torch" in head
    assert rest == "net = net.apply(Mask)"


def test_a_function_that_uses_variables_of_the_program_stays_with_its_decorator():
    head, rest = parts_of(f"import torch\n\n{USES_MODEL}\n\nnet.eval()")
    assert "def" not in head
    assert rest == f"{USES_MODEL}\n\nnet.eval()"


def test_code_without_a_part_for_the_top_has_one_comment():
    assert parts_of("net.eval()") == ("", "net.eval()")


def test_a_model_with_a_printed_class_can_be_pickled():
    run = case.training()
    run = replace(run, models=(replace(run.models[0], function="train"),))
    fix = next(each.fix for each in diagnose(run).findings if each.rule == "dropout_on_cpu")
    head, _, rest = fix.partition("# In train(), above the loop:\n")
    names = globals()
    exec(head, names)
    net = torch.nn.Sequential(torch.nn.Dropout(0.3))
    exec(rest, {**names, "net": net})
    assert pickle.loads(pickle.dumps(net))[0].p == 0.3
