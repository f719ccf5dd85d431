"""The fix that a rule prints runs when pasted: with the user's names, real arguments, and no placeholders.

It runs on the CPU, with stand-ins for operations that need a GPU or several processes (tests/support/pasted_code.py).
Whether a fix removes its cause is tested on the workloads with planted faults.
"""

import ast
import builtins
import re
from dataclasses import replace

import pytest

from gpulab.rules.engine.pasted_names import user_names
from gpulab.run import Loader, Model, Optimizer, Run
from tests.support.pasted_code import Notebook
from tests.support.runs.cases import ALL, diagnose_case, diagnosis_of
from tests.support.tiers import every_nth

PROVOKED = [pytest.param(rule, make, id=f"{rule}-{name}") for rule, verb, name, make in ALL if verb == "provoked"]
USER = {  # what a user may call their things
    "plain": {"model": "net", "optimizer": "adam", "loader": "train_batches", "dataset": "photos"},
    "of an object": {
        "model": "self.model",
        "optimizer": "self.optimizer",
        "loader": "self.loader",
        "dataset": "self.dataset",
    },
}
# In the first tier either user meets every other case.
RENAMED = [
    pytest.param(*case.values, user, id=f"{case.id}-{who}", marks=() if (at + turn) % 12 == 0 else pytest.mark.night)
    for at, case in enumerate(PROVOKED)
    for turn, (who, user) in enumerate(USER.items())
]
FRAME = re.compile(r"^(?:.*\(\d+\): )?(\w+)")


@pytest.fixture(scope="module")
def notebook():
    with Notebook() as process:
        yield process


def fixes_of(rule, diagnosis):
    """The fix of the rule's finding, and its run."""
    return [(finding.fix, diagnosis.run) for finding in diagnosis.findings if finding.rule == rule]


def names_in(run):
    """The user's names as recorded with the run; common names if none was recorded."""
    recorded = user_names(run)
    names = {attribute: getattr(recorded, attribute) for attribute in ("model", "optimizer", "loader", "dataset")}
    others = {f"loader {number}": loader.name for number, loader in enumerate(run.loaders) if loader.name}
    return names | others


def functions(run):
    """The user's functions in the recording, which a fix may call."""
    frames = run.host_rows.text("frame").vocabulary + run.host_rows.text("others_frame").vocabulary
    recorded = [word for word in run.event_rows.text("name").vocabulary if "): " in word]
    matches = [FRAME.match(word) for word in (*frames, *recorded)]
    return {match[1] for match in matches if match and match[1].isidentifier() and not hasattr(builtins, match[1])}


def lists(run):
    """The user's lists that grew in the recording, which a fix may mention."""
    holders = run.holder_rows
    return {
        owner
        for owner, kind in zip(holders.text("who").to_list(), holders.text("kind").to_list(), strict=True)
        if kind == "graph" and owner is not None and owner.isidentifier()
    }


def renamed(runs, user):
    """The same runs, recorded with these names."""
    if not isinstance(runs, Run):
        return [renamed(run, user) for run in runs]
    loaders = runs.loaders or (Loader(workers=0, batch_size=32),) * bool(runs.loaders)
    return replace(
        runs,
        loaders=tuple(replace(each, name=user["loader"], dataset_name=user["dataset"]) for each in loaders),
        models=tuple(replace(each, name=user["model"]) for each in runs.models or (Model(kind="Net"),)),
        optimizers=tuple(
            replace(each, name=user["optimizer"]) for each in runs.optimizers or (Optimizer(kind="AdamW"),)
        ),
    )


@pytest.mark.full
@pytest.mark.parametrize(("rule", "make"), PROVOKED)
def test_a_fix_runs_when_pasted(rule, make, notebook):
    for fix, run in fixes_of(rule, diagnosis_of(make)):
        raised = notebook.paste(fix, names=names_in(run), functions=functions(run), lists=lists(run))
        assert raised is None, f"\n{fix}\n\n{raised}"


@pytest.mark.full
@pytest.mark.parametrize(("rule", "make", "user"), RENAMED)
def test_a_fix_runs_under_the_names_the_user_gave(rule, make, user, notebook):
    for fix, run in fixes_of(rule, diagnose_case(renamed(make(), user))):
        raised = notebook.paste(fix, names=names_in(run), functions=functions(run), lists=lists(run))
        assert raised is None, f"\n{fix}\n\n{raised}"


@pytest.mark.parametrize(("rule", "make"), every_nth(PROVOKED, 4))
def test_a_fix_has_no_placeholders(rule, make):
    for fix, _ in fixes_of(rule, diagnosis_of(make)):
        tree = ast.parse(fix)
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value is Ellipsis]
        assert not re.search(r"<[a-z_ ]+>|\bTODO\b|\byour_\w+", fix)


# The notebook stand-in must be able to reject code.


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("model = DataLoader(model, wrokers=2)", "wrokers"),
        ("loader = DataLoader(dataset, num_workers=2", "SyntaxError"),
        ("x = not_defined + 1", "not_defined"),
        ("model = torch.compile(model, speed='high')", "speed"),
        ("from torch.nn.parallel import DistributedDataParallel as DDP\nDDP(model, bucket_cap=25)", "bucket_cap"),
        ("torch.cuda.no_such_function()", "no_such_function"),
        ("torch.optim.AdamW(model.parameters(), fused_kernels=True)", "fused_kernels"),
        ("raise SystemExit(3)", "SystemExit"),
        ("import os; os._exit(9)", "died"),
    ],
)
def test_code_that_does_not_run_is_refused(code, expected, notebook):
    assert expected in notebook.paste(code, names={"model": "model", "dataset": "dataset"})


@pytest.mark.parametrize(
    "code",
    [
        "x = x.to('cuda', non_blocking=True).cuda()",
        "model = model.to('cuda')\nmodel(x.cuda()).sum().backward()",
        "a = torch.randn(4, 4, device='cuda:0')",
        "with torch.autocast('cuda', dtype=torch.bfloat16):\n    loss = model(x).sum()",
        "s = torch.cuda.Stream()\nwith torch.cuda.stream(s):\n    y = x.cuda(non_blocking=True)\ny.record_stream(s)",
        "x = x.pin_memory()\nz = torch.empty(3, pin_memory=True)",
        "torch.set_num_threads(7)",
    ],
)
def test_code_for_a_gpu_runs_without_one(code, notebook):
    assert notebook.paste(code, names={"model": "model"}) is None


def test_pasted_code_does_not_affect_later_code(notebook):
    assert notebook.paste("import gc; gc.disable(); left = 1; torch.set_num_threads(3)", names={}) is None
    assert notebook.paste("assert gc.isenabled() and torch.get_num_threads() == 1", names={}) is None
    assert "left" in notebook.paste("left", names={})
