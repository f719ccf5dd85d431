"""Memory holders: every tensor is counted once, without keeping it alive or calling user code."""

import gc
import sys
import weakref
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from gpulab.analysis.memory.holders import memory_holders  # noqa: E402  (after the skip)
from gpulab.capture.memory.growing_collections import GrowingCollections  # noqa: E402
from gpulab.capture.memory.holders import EARLIER_ERROR, FAILED_STEP, UNNAMED_OBJECTS, EarlierError, find_holders  # noqa: E402
from gpulab.capture.memory.out_of_memory import parse_failure  # noqa: E402
from gpulab.run import Failure  # noqa: E402

PATIENT_S = 60.0  # how long looking may take on a busy machine is tested once, and not meant elsewhere
MIB = 2**20
HOST = Failure(message="out of memory")


@pytest.fixture(autouse=True)
def no_error_before():
    """Isolate these tests from the last error and the variables of other tests."""
    names = ("last_exc", "last_value", "last_traceback")
    before = {name: vars(sys).pop(name) for name in names if name in vars(sys)}
    yield
    for name in names:
        vars(sys).pop(name, None)
    vars(sys).update(before)


@pytest.fixture
def notebook(monkeypatch):
    """The variables of a notebook: a __main__ of our own."""
    gc.collect()  # an optimizer of the test before is a cycle, and holds its model until then
    variables = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "__main__", variables)
    return variables.__dict__


def mebibytes(count):
    return torch.zeros(count, MIB // 4)


def error_of(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return error
    raise AssertionError("it was to fail")


def fail():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 MiB.")


def held_mebibytes(failure=HOST, error=None, **more):
    """Bytes in MiB by who and how, of what holds a MiB at least."""
    rows, gaps = find_holders(failure, error or error_of(fail), limit_s=PATIENT_S, **more)
    assert not gaps
    frame = rows.frame()
    return {(row.who, row.kind): round(row.bytes / MIB) for row in frame.itertuples() if row.bytes >= MIB}


def test_a_variable_of_the_notebook_holds_its_tensors_and_those_in_its_containers(notebook):
    notebook["data"] = {"a": [mebibytes(3), (mebibytes(2),)], "b": SimpleNamespace(deep=mebibytes(1))}
    assert held_mebibytes()["data", "variable"] == 6


def test_shared_memory_is_counted_once_for_the_first_holder(notebook):
    tensor = mebibytes(8)
    notebook.update(whole=tensor, part=tensor[:4], same=tensor.view(-1))
    holder_sizes = held_mebibytes()
    assert holder_sizes["whole", "variable"] == 8
    assert {name for name, _ in holder_sizes} & {"part", "same"} == set()


def test_model_gradients_and_optimizer_state_are_counted_separately(notebook):
    model = torch.nn.Linear(1024, 1024, bias=False)  # 4 MiB
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 1024)).sum().backward()
    optimizer.step()
    notebook.update(net=model, adam=optimizer)
    holder_sizes = held_mebibytes()
    assert holder_sizes["net", "parameter"] == 4
    assert holder_sizes["net", "gradient"] == 4
    assert holder_sizes["adam", "optimizer"] == 8


def test_an_unnamed_model_is_listed_under_its_class(notebook):
    models = [torch.nn.Linear(1024, 1024)]
    holder_sizes = held_mebibytes()
    assert holder_sizes["Linear", "parameter"] == 4
    del models


def test_saved_tensors_are_counted_for_the_variable_that_holds_the_graph(notebook):
    weight = torch.ones(MIB // 4, requires_grad=True)
    notebook["losses"] = [weight.exp().sum() for _ in range(5)]  # exp keeps its result: 1 MiB each
    holder_sizes = held_mebibytes()
    assert holder_sizes["losses", "graph"] >= 5


def test_tensors_freed_by_backward_are_not_counted(notebook):
    weight = torch.ones(4 * MIB, requires_grad=True)
    notebook["loss"] = weight.exp().sum()
    assert held_mebibytes()["loss", "graph"] >= 16
    notebook["loss"].backward()
    assert ("loss", "graph") not in held_mebibytes()


def test_outputs_of_earlier_cells_and_the_underscore_come_after_variables(notebook):
    first, second, third = mebibytes(2), mebibytes(3), mebibytes(5)
    notebook.update(mine=first, Out={1: first, 2: second}, _=third, _2=second)
    holder_sizes = held_mebibytes()
    assert holder_sizes["mine", "variable"] == 2
    assert holder_sizes["Out[2]", "output"] == 3
    assert holder_sizes["_", "output"] == 5
    assert ("Out[1]", "output") not in holder_sizes


def test_variables_of_the_failed_function_are_listed_with_its_name(notebook):
    def train():
        batch = mebibytes(7)
        fail()
        return batch

    assert held_mebibytes(error=error_of(train))["batch in train()", "variable"] == 7


def test_an_earlier_error_that_python_still_holds_is_a_holder(notebook):
    def work():
        batch = mebibytes(6)
        fail()
        return batch

    sys.last_value = error_of(work)
    assert held_mebibytes()[EARLIER_ERROR, "traceback"] == 6


def test_an_earlier_error_replaced_by_the_next_one_is_still_a_holder(notebook):
    def work():
        batch = mebibytes(6)
        fail()
        return batch

    sys.last_traceback = error_of(work).__traceback__
    before = EarlierError()
    sys.last_traceback = None
    gc.collect()
    assert held_mebibytes(earlier=before)[EARLIER_ERROR, "traceback"] == 6


def test_tensors_without_a_name_are_listed_as_unnamed(notebook):
    hidden = [mebibytes(9)]
    assert held_mebibytes()[UNNAMED_OBJECTS, "other"] >= 9
    del hidden


def test_allocated_memory_that_python_cannot_see_is_listed(notebook):
    notebook["seen"] = mebibytes(2)
    failure = Failure(message="", device=0, allocated_bytes=100 * 2**30)
    rows, _ = find_holders(failure, error_of(fail), limit_s=PATIENT_S)
    assert sum(rows["bytes"]) == 100 * 2**30


def test_the_search_keeps_no_object_alive(notebook):
    gc.collect()
    gc.disable()
    try:
        references = []

        def work():
            model = torch.nn.Linear(64, 64)
            loss = model(torch.ones(4, 64)).sum()
            references.extend(weakref.ref(each) for each in (model, loss, model.weight))
            fail()

        error = error_of(work)
        rows, _ = find_holders(parse_failure(error), error, EarlierError(), limit_s=PATIENT_S)
        assert len(rows)
        del error
        assert [each() for each in references] == [None] * 3
    finally:
        gc.enable()


def test_the_search_calls_no_user_code(notebook):
    class Angry:
        def __getattribute__(self, name):
            raise AssertionError(f"asked for {name}")

        def __repr__(self):
            raise AssertionError("shown")

        def __len__(self):
            raise AssertionError("measured")

        def __iter__(self):
            raise AssertionError("gone through")

        def __eq__(self, other):
            raise AssertionError("compared")

        def __hash__(self):
            raise AssertionError("hashed")

        def __bool__(self):
            raise AssertionError("judged")

    class AngryTensor(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_, **__):
            raise AssertionError("computed with")

    angry = Angry()
    object.__setattr__(angry, "held", mebibytes(3))
    notebook["angry"] = [angry]
    notebook["tensor"] = torch.zeros(MIB // 2).as_subclass(AngryTensor)
    holder_sizes = held_mebibytes()
    assert holder_sizes["angry", "variable"] == 3
    assert holder_sizes["tensor", "variable"] == 2


def test_saved_tensors_are_not_unpacked_as_that_may_compute_or_copy(notebook):
    def refuse(_):
        raise AssertionError("unpacked")

    weight = torch.ones(MIB, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, refuse):
        notebook["loss"] = weight.exp().sum()
    assert held_mebibytes()["loss", "graph"] >= 4


def test_a_search_beyond_its_time_limit_ends_with_a_gap(notebook):
    notebook["many"] = [object() for _ in range(10)] * 20_000 + [[] for _ in range(50_000)]
    rows, gaps = find_holders(HOST, error_of(fail), limit_s=0.0)
    assert len(gaps) == 1
    assert rows.table.name == "holders"


def test_other_devices_do_not_count(notebook):
    notebook.update(meta=torch.zeros(MIB, device="meta"), here=mebibytes(2))
    holder_sizes = held_mebibytes()
    assert holder_sizes["here", "variable"] == 2
    assert "meta" not in {name for name, _ in holder_sizes}


def test_the_largest_tensor_is_described(notebook):
    notebook["data"] = [torch.zeros(4, 4), torch.zeros(2, MIB, dtype=torch.float16)]
    rows, _ = find_holders(HOST, error_of(fail), limit_s=PATIENT_S)
    place = rows.text("who").to_list().index("data")
    assert rows.text("largest")[place] == "[2, 1048576] float16"
    assert rows["tensors"][place] == 2


def test_tensors_in_pytorch_frames_belong_to_the_failed_step(notebook):
    class Fails(torch.nn.Module):
        def forward(self, x):
            return fail()

    def train():
        torch.nn.Sequential(torch.nn.Identity(), torch.nn.Flatten(), Fails())(torch.ones(1, MIB))

    holder_sizes = held_mebibytes(error=error_of(train))
    assert holder_sizes.get((FAILED_STEP, "variable"), 0) + holder_sizes.get(("x in forward()", "variable"), 0) == 4


def test_a_list_growing_by_graphs_is_recorded_and_a_list_of_numbers_is_not():
    growing, weight = GrowingCollections(), torch.ones(3, requires_grad=True)
    losses, numbers, first = [], [], [weight.sum()]
    for step in range(1, 40):
        losses.append((weight * 2).sum())
        numbers.append(step)
        growing.inspect(step, sys._getframe())
    rows = growing.rows()
    assert rows.text("who").to_list() == ["losses"]
    assert rows["tensors"].tolist() == [24]  # from step 8 to step 32
    assert len(first) == 1


def test_what_the_graphs_of_a_growing_list_keep_is_counted():
    growing, weight = GrowingCollections(), torch.ones(MIB // 4, requires_grad=True)
    history = []
    for step in range(1, 20):
        history.append(weight.exp().sum())  # exp keeps its result: 1 MiB
        growing.inspect(step, sys._getframe())
    rows = growing.rows()
    assert rows.text("who").to_list() == ["history"]
    assert rows["tensors"].tolist() == [8]
    assert rows["bytes"][0] == pytest.approx(8 * MIB, rel=0.01)


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (torch.nn.functional.mse_loss, "buffer"),  # one number in a buffer of all elements
        (torch.nn.functional.l1_loss, None),
        (lambda outputs, _: outputs[0], "buffer"),  # a row of a large tensor
        (lambda outputs, _: outputs * 2, None),
    ],
)
def test_a_list_of_small_tensors_in_large_buffers_is_recorded(loss, kind):
    growing, outputs = GrowingCollections(), torch.ones(64, MIB // 256)
    history = []
    for step in range(1, 20):
        history.append(loss(outputs, outputs + 1).detach())
        growing.inspect(step, sys._getframe())
    rows = growing.rows()
    assert rows.text("kind").to_list() == ([] if kind is None else [kind])
    if loss is torch.nn.functional.mse_loss:
        assert rows["bytes"].tolist() == [8 * MIB]


MODULE = """
history = []
def train():
    for step in range(1, 20):
        history.append(weight.exp().sum())
        growing.inspect(step, sys._getframe())
train()
"""


def test_a_list_of_the_module_that_a_function_fills_counts_once():
    growing = GrowingCollections()
    space = {"growing": growing, "sys": sys, "weight": torch.ones(3, requires_grad=True)}
    exec(compile(MODULE, "/home/user/train.py", "exec"), space)
    assert growing.rows()["tensors"].tolist() == [8]


def test_a_list_that_is_emptied_regularly_does_not_count_as_growing():
    growing, weight = GrowingCollections(), torch.ones(3, requires_grad=True)
    window = []
    for step in range(1, 100):
        window.append(weight.sum())
        growing.inspect(step, sys._getframe())
        if step % 8 == 0:
            window.clear()
    assert len(growing.rows()) == 0


def test_holders_are_sorted_by_size(notebook):
    from gpulab.run import Machine, Run, Source

    notebook.update(small=mebibytes(1), large=mebibytes(9))
    rows, _ = find_holders(HOST, error_of(fail), limit_s=PATIENT_S)
    run = Run(
        name="r",
        source=Source(how="measured", device="here"),
        machine=Machine(),
        span_ns=1,
        failure=HOST,
        holder_rows=rows,
    )
    sizes = [each.bytes for each in memory_holders(run).holders]
    assert sizes == sorted(sizes, reverse=True)
