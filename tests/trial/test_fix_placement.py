"""Where the code of a fix goes in a cell."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import replace

import pytest

from gpulab.errors import CaptureError
from gpulab.rules.engine.finding import LoaderSettings
from gpulab.trial.fix_placement import names_read, place_code
from gpulab.trial.loader_call import change_loader_call

FIX = "loader = rebuilt(loader)"
EXISTING = {"rebuilt": 0, "loader": 0, "model": 0}


def placed(cell, fix=FIX, namespace=EXISTING):
    lines = ast.unparse(place_code(ast.parse(cell), fix, namespace).cell).splitlines()
    return [line for line in lines if line]


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("for x in loader:\n    pass", 0),  # created in another cell
        ("loader = make()\nfor x in loader:\n    pass", 1),
        ("loader = make()\nn = len(loader)\nfor x in loader:\n    pass", 1),
        ("loader = make()\nloader = wrap(loader)\nfor x in loader:\n    pass", 2),
        ("if fast:\n    loader = make()\nelse:\n    loader = other()\nfor x in loader:\n    pass", 4),
        ("train, loader = split()\nfit(loader)\nloader = None", 3),
        ("loader = make()\nfor x in loader:\n    pass\nloader = make(2)\nfor x in loader:\n    pass", 1),
        ("for i in range(2):\n    warm(i)\nloader = make()\nfor x in loader:\n    pass", 3),
        ("loader: Any = make()\nfor x in loader: pass", 1),
        ("def main():\n    for x in loader: pass\nmain()", 0),
        ("if __name__ == '__main__':\n    loader = make()\n    for x in loader: pass", 2),
        ("if __name__ == '__main__':\n    loader = make()\n    train(loader)", 2),
        ("import a\nmodel = 1\nif __name__ == '__main__':\n    loader = make()\n    for x in loader: pass", 4),
        ("loader = make()\nfor x in loader:\n    pass\nwith quiet():\n    loader = None", 1),
        ("if not done:\n    loader = make()\n    for x in loader: pass", 2),
        ("if debug:\n    loader = make(4)\nfor x in loader: pass", 2),  # after the block, which may not run
        ("with quiet():\n    try:\n        loader = make()\n        train(loader)\n    finally:\n        end()", 3),
        ('"""A docstring."""\nfrom __future__ import annotations\nfor x in loader:\n    pass', 2),
    ],
)
def test_the_fix_follows_the_statement_that_creates_its_object(cell, line):
    assert place_code(ast.parse(cell), FIX, EXISTING).line == line


def test_the_fix_is_inserted_and_nothing_else_changes():
    assert placed("loader = make()\nfor x in loader:\n    use(x)") == [
        "loader = make()",
        "loader = rebuilt(loader)",
        "for x in loader:",
        "    use(x)",
    ]


def test_of_two_functions_with_the_variable_the_recorded_one_is_changed():
    loop = "\n    loader = make()\n    for x in loader: pass\n"
    cell = ast.parse(f"def train():{loop}def evaluate():{loop}train(); evaluate()")
    with pytest.raises(CaptureError, match="unclear which one"):
        place_code(cell, FIX, {"rebuilt": 0})
    assert place_code(cell, FIX, {"rebuilt": 0}, "evaluate").line == 5


def test_an_object_of_a_loop_is_refused():
    loop = "for fold in range(3):\n    loader = make(fold)\n    for x in loader: pass"
    with pytest.raises(CaptureError, match="is created inside a loop"):
        placed(loop)
    with pytest.raises(CaptureError, match=r"main\(\) creates inside a loop"):
        placed("def main():\n" + textwrap.indent(loop, "    ") + "\nmain()", namespace={"rebuilt": 0})


@pytest.mark.parametrize(
    ("cell", "after"),
    [
        ("def main():\n    loader = make()\n    for x in loader: pass\nmain()", "    loader = make()"),
        ("def main(loader):\n    for x in loader: pass\nmain(make())", "def main(loader):"),
        ("def main():\n    def train(loader):\n        for x in loader: pass\n    train(1)", "    def train(loader):"),
        ("def use(loader): pass\ndef main(*, loader):\n    for x in loader: pass", "def main(*, loader):"),
        ("class T:\n    def fit(self, loader):\n        for x in loader: pass", "    def fit(self, loader):"),
    ],
)
def test_the_fix_of_an_object_of_a_function_goes_into_the_function(cell, after):
    lines = placed(cell, namespace={"rebuilt": 0})
    at = next(at for at, line in enumerate(lines) if line.strip() == FIX)
    assert lines[at - 1] == after


def test_a_variable_of_the_notebook_that_a_function_of_the_cell_hides_is_changed_in_the_function():
    cell = "def train(loader):\n    for x in loader: pass\ntrain(make())"
    assert placed(cell, namespace={**EXISTING, "make": 0})[1].strip() == FIX


def test_imports_of_a_fix_do_not_hide_a_module_in_the_function():
    cell = "from __future__ import annotations\ndef main():\n    model = torch.nn.Linear(1, 1)\n    for x in y: pass"
    lines = placed(cell, "import torch\nmodel = torch.compile(model)", {"torch": 0})
    assert lines[:2] == ["from __future__ import annotations", "import torch"]
    assert lines[4] == "    model = torch.compile(model)"


def test_the_fix_of_an_attribute_goes_into_a_method_that_uses_it():
    cell = (
        "class Data:\n    def __init__(self):\n        for x in y: pass\n"
        "class Trainer:\n    def fit(self):\n        for x in self.loader: pass"
    )
    assert placed(cell, "self.loader = rebuilt(self.loader)", {"rebuilt": 0})[6].strip().startswith("self.loader = ")


def test_functions_that_train_and_evaluate_with_variables_of_the_same_name_are_not_mixed_up():
    cell = "def evaluate(loader):\n    for x in loader: pass\ndef train(loader):\n    for x in loader: pass\ntrain(1)"
    with pytest.raises(CaptureError, match="evaluate and train have a variable `loader`"):
        placed(cell, namespace={"rebuilt": 0})


@pytest.mark.parametrize(
    "cell",
    [
        "def main():\n    global loader\n    for x in loader: pass\nmain()",
        "train = lambda loader: list(loader)",
        "def main():\n    for x in make(): pass",
    ],
)
def test_an_object_that_no_statement_of_the_cell_holds_is_refused(cell):
    with pytest.raises(CaptureError, match="`loader`"):
        placed(cell, namespace={"rebuilt": 0})


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("x = y", {"y"}),
        ("y = 1\nx = y", set()),
        ("x = x + 1", {"x"}),
        ("x += 1", {"x"}),
        ("for x in xs:\n    print(x)", {"xs"}),
        ("total = sum(x for x in xs)", {"xs"}),
        ("import torch\ntorch.ones(n)", {"n"}),
        ("def f(a):\n    return a + b", {"b"}),
        ("with open(path) as file:\n    file.read()", {"path"}),
        ("rows.append(1)", {"rows"}),
        ("def f(model):\n    return model\nf(model)", {"model"}),  # an argument of the same name hides nothing outside
        ("class A:\n    def g(self, model):\n        return [model for model in self]\nuse(model)", {"model", "use"}),
        ("n = [x for x in xs]\nprint(x)", {"xs", "x"}),
        ("def train():\n    use(model)\ntrain()\nmodel = 1", {"use", "model"}),
        ("def f(a=default):\n    local = a\n    return local", {"default"}),
        ("f = lambda a: a + b", {"b"}),
        ("rows = {key: value for key, value in pairs.items() if key in wanted}", {"pairs", "wanted"}),
        ("class Net(Base):\n    size = width\n    def f(self): return Net", {"Base", "width", "Net"}),
        ("@decorated\ndef f(): pass", {"decorated"}),
    ],
)
def test_names_that_code_reads_before_it_assigns_them(code, names):
    assert names_read(ast.parse(code)) == names


def test_a_cell_that_does_not_use_the_object_that_a_fix_replaces_is_refused():
    def train(batches):
        return batches

    def train_from_the_notebook():
        return loader  # noqa: F821

    namespace = {**EXISTING, "train": train, "own": train_from_the_notebook, "DataLoader": 0}
    with pytest.raises(CaptureError, match="does not use the variable `loader`"):
        placed("train(DataLoader(data))", namespace=namespace)
    assert placed("own()", namespace=namespace) == ["loader = rebuilt(loader)", "own()"]
    assert placed("trainer.loader = 1", namespace=namespace)[0] == "loader = rebuilt(loader)"
    changed = "model.forward = compiled(model)"  # changes an object that others may hold
    assert placed("fit()", changed, {**namespace, "compiled": 0})[0] == changed


SETTINGS = LoaderSettings(arguments={"num_workers": 2, "persistent_workers": True}, dropped=(), dataset="train_set")
NEED_WORKERS = ("persistent_workers", "prefetch_factor")
NO_WORKERS = LoaderSettings(arguments={"num_workers": 0}, dropped=NEED_WORKERS, dataset=None)


@pytest.mark.parametrize(
    ("cell", "changed"),
    [
        (
            "for x in DataLoader(train_set): pass",
            "for x in DataLoader(train_set, num_workers=2, persistent_workers=True):",
        ),
        (
            "def fit():\n    return data.DataLoader(dataset=train_set, num_workers=0)",
            "    return data.DataLoader(num_workers=2, persistent_workers=True, dataset=train_set)",
        ),
        (
            "a = DataLoader(test_set)\nb = DataLoader(train_set, 8, True)",
            "b = DataLoader(train_set, 8, True, num_workers=2, persistent_workers=True)",
        ),
    ],
)
def test_a_loader_that_no_variable_holds_gets_other_arguments_where_it_is_created(cell, changed):
    fix = change_loader_call(ast.parse(cell), SETTINGS)
    assert changed in ast.unparse(fix.cell).splitlines()
    assert fix.place_in("cell").startswith("num_workers=2, persistent_workers=True in the DataLoader(...) in line ")


OF_FRAMEWORK = replace(SETTINGS, dataset=None, any_dataset=True, function="train_dataloader")
MODULE = """
class Data:
    def train_dataloader(self):
        return DataLoader(self.train_set)
    def val_dataloader(self):
        return DataLoader(self.val_set)
"""


@pytest.mark.parametrize(
    ("cell", "settings", "changed"),
    [
        ("loader = prepare(DataLoader(build()))", OF_FRAMEWORK, "DataLoader(build(), num_workers=2, persistent"),
        (MODULE, OF_FRAMEWORK, "DataLoader(self.train_set, num_workers=2"),
        (MODULE, replace(OF_FRAMEWORK, function="val_dataloader"), "DataLoader(self.val_set, num_workers=2"),
        (
            "fit(TrainingArguments('out', dataloader_num_workers=1))",
            replace(OF_FRAMEWORK, call="TrainingArguments", arguments={"dataloader_num_workers": 2}),
            "TrainingArguments('out', dataloader_num_workers=2)",
        ),
    ],
)
def test_a_loader_of_a_framework_gets_other_arguments_in_the_only_call(cell, settings, changed):
    code = ast.unparse(change_loader_call(ast.parse(cell), settings).cell)
    assert changed in code
    assert code.count("_workers=2") == 1


def test_several_calls_of_a_framework_are_refused():
    with pytest.raises(CaptureError, match="2 calls of DataLoader"):
        change_loader_call(ast.parse("fit(DataLoader(a), DataLoader(b))"), OF_FRAMEWORK)
    with pytest.raises(CaptureError, match="0 calls of DataLoader"):  # those are in methods for other loaders
        change_loader_call(ast.parse(MODULE), replace(OF_FRAMEWORK, function="test_dataloader"))


def test_without_workers_a_loader_loses_the_arguments_that_need_them():
    cell = ast.parse(
        "fit(DataLoader(build(), num_workers=4, persistent_workers=True, prefetch_factor=4, pin_memory=True))"
    )
    changed = ast.unparse(change_loader_call(cell, NO_WORKERS).cell)
    assert changed == "fit(DataLoader(build(), num_workers=0, pin_memory=True))"


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("fit(loader)", "0 DataLoaders of train_set"),
        ("fit(DataLoader(test_set))", "0 DataLoaders of train_set"),
        ("fit(DataLoader(build()))", "0 DataLoaders of train_set"),
        ("a, b = DataLoader(train_set), DataLoader(train_set)", "2 DataLoaders of train_set"),
        ("a = DataLoader(train_set, 8, False, None, None, 0)", "by position"),
    ],
)
def test_a_call_that_is_unclear_is_refused(cell, why):
    with pytest.raises(CaptureError, match=why):
        change_loader_call(ast.parse(cell), SETTINGS)
