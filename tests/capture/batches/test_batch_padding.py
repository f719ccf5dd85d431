"""The padding in batches, read from memory: no operator runs, and tensors that only look like it are left out."""

import pickle
from collections import UserDict

import pytest

from gpulab.capture.hooks.batch_inspection import BatchInspection
from gpulab.capture.hooks.batch_padding import MAX_ELEMENTS, measure_padding
from gpulab.run import Loader

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

ROWS, LENGTH = 16, 64
GENERATOR = torch.Generator().manual_seed(0)
LENGTHS = torch.randint(4, 33, (ROWS,), generator=GENERATOR)
SHOWN = torch.arange(LENGTH)[None] < LENGTHS[:, None]
PADDING, BEYOND = int((~SHOWN).sum()), ROWS * (LENGTH - int(LENGTHS.max()))


def integers(low=1, high=30_000, shape=(ROWS, LENGTH)):
    return torch.randint(low, high, shape, generator=GENERATOR)


def tokens(pad=0, dtype=torch.int64):
    return torch.where(SHOWN, integers(), pad).to(dtype)


class Encoding(UserDict):
    """As BatchEncoding of transformers."""


class Tagged(torch.Tensor):
    """A class of tensors without an implementation of its own."""


class Wrapper(torch.Tensor):
    """Its size and values are what the program's code says."""

    @classmethod
    def __torch_dispatch__(cls, *_):
        raise AssertionError("code of the program's ran")


def not_contiguous():
    return tokens().T.contiguous().T


def part_of_a_larger_tensor():
    large = integers(shape=(2 * ROWS, LENGTH + 9))
    large[::2, 3 : LENGTH + 3] = tokens()
    return large[::2, 3 : LENGTH + 3]


def with_masked_inside():
    """Labels of a masked language model, beside their inputs."""
    labels = torch.where(torch.rand(ROWS, LENGTH, generator=GENERATOR) < 0.15, integers(), -100)
    return {"input_ids": tokens(), "labels": torch.where(SHOWN, labels, -100)}


def with_masked_prompts():
    """Labels of which a prompt at the beginning is left out."""
    ids = tokens()
    labels = torch.where(SHOWN & (torch.arange(LENGTH)[None] >= LENGTHS[:, None] // 2), ids, -100)
    return {"input_ids": ids, "labels": labels}


def frequent_inside():
    """Tokens whose padding value is frequent, and a mask."""
    ids = torch.where(torch.rand(ROWS, LENGTH, generator=GENERATOR) < 0.3, 7, integers())
    return {"input_ids": torch.where(SHOWN, ids, 7), "attention_mask": SHOWN.long()}


PADDED = {
    "on the right": tokens,
    "on the left": lambda: tokens().flip(1),
    "another value": lambda: tokens(50_256),
    "32 bits": lambda: tokens(dtype=torch.int32),
    "a list": lambda: [tokens(), torch.arange(ROWS)],
    "nested": lambda: {"source": [{"ids": tokens()}], "names": ["a"] * ROWS},
    "an encoding": lambda: Encoding(input_ids=tokens(), attention_mask=SHOWN.long()),
    "with a mask": lambda: (tokens(), SHOWN),
    "with an inverse mask": lambda: (tokens(), ~SHOWN),
    "with token types": lambda: {"input_ids": tokens(), "token_type_ids": torch.zeros(ROWS, LENGTH).long()},
    "with positions": lambda: {"input_ids": tokens(), "position_ids": torch.arange(LENGTH).repeat(ROWS, 1)},
    "labels of words": lambda: (tokens(), torch.where(SHOWN, integers(0, 9), -100), SHOWN),
    "labels with masks inside": with_masked_inside,
    "labels without the prompt": with_masked_prompts,
    "a frequent value and a mask": frequent_inside,
    "a subclass": lambda: tokens().as_subclass(Tagged),
    "not contiguous": not_contiguous,
    "part of a tensor": part_of_a_larger_tensor,
    "beside a wrapper": lambda: [tokens(), torch.zeros(3).as_subclass(Wrapper)],
    "beside an object": lambda: [tokens(), object()],
    "beside features": lambda: [tokens(), torch.rand(ROWS, LENGTH, requires_grad=True)],
}


@pytest.mark.parametrize("kind", PADDED)
def test_padding_is_measured(kind):
    padding = measure_padding(PADDED[kind]())
    assert padding.positions % (ROWS * LENGTH) == 0
    assert padding.padding == pytest.approx(PADDING, abs=2)  # a random token can equal the padding
    assert padding.beyond_longest == pytest.approx(BEYOND, abs=1)


def test_padding_to_the_longest_row_leaves_nothing_beyond_it():
    padding = measure_padding(tokens()[:, : int(LENGTHS.max())])
    assert padding.padding == PADDING - BEYOND
    assert padding.beyond_longest == 0


def test_two_sequences_of_different_length_count_together():
    short = torch.where(SHOWN, integers(), 0)[:, :16]
    padding = measure_padding({"source": tokens(), "target": short})
    assert padding.positions == ROWS * (LENGTH + 16)
    assert padding.padding == PADDING + int((~SHOWN[:, :16]).sum())


def digits():
    """Flattened images: dark at the edges, and between the strokes."""
    image = torch.rand(ROWS, 28, 28, generator=GENERATOR) < 0.35
    image[:, :4] = image[:, -6:] = image[:, :, :4] = image[:, :, -4:] = False
    return (image * 255).to(torch.uint8).flatten(1)


NONE = {
    "random tokens": integers,
    "a frequent value at the end, too": lambda: torch.where(torch.rand(ROWS, LENGTH) < 0.4, 7, integers()),
    "several labels": lambda: (torch.rand(ROWS, LENGTH, generator=GENERATOR) < 0.1).long(),
    "one-hot labels": lambda: torch.nn.functional.one_hot(torch.arange(ROWS), LENGTH),
    "ordinal labels": lambda: SHOWN.long(),
    "bag of words": lambda: torch.poisson(torch.full((ROWS, LENGTH), 0.2), generator=GENERATOR).long(),
    "digits": digits,
    "a photo": lambda: integers(0, 256, (ROWS, 3 * 32 * 32)).to(torch.uint8),
    "all zero": lambda: torch.zeros(ROWS, LENGTH).long(),
    "equal rows": lambda: tokens()[:1].repeat(ROWS, 1),
    "rows of equal length": lambda: torch.where(torch.arange(LENGTH)[None] < 20, integers(), 0),
    "masked labels alone": lambda: with_masked_inside()["labels"],
    "masked labels and full rows": lambda: {"input_ids": integers(), "labels": with_masked_prompts()["labels"]},
    "token types of full rows": lambda: (integers(), SHOWN.long()),
    "floating point": lambda: tokens().float(),
    "images": lambda: integers(0, 256, (ROWS, 28, 28)),
    "one row": lambda: tokens()[:1],
    "short rows": lambda: tokens()[:, :7],
    "no rows": lambda: tokens()[:0],
    "no columns": lambda: tokens()[:, :0],
    "too large": lambda: torch.zeros(8, MAX_ELEMENTS // 8 + 1, dtype=torch.int8),
    "sparse": lambda: tokens().to_sparse(),
    "meta": lambda: tokens().to("meta"),
    "a wrapper": lambda: tokens().as_subclass(Wrapper),
    "an object": object,
    "nothing": lambda: None,
    "text": lambda: ["a", "b"],
}


@pytest.mark.parametrize("kind", NONE)
def test_what_is_no_padding_is_not_taken_for_it(kind):
    padding = measure_padding(NONE[kind]())
    assert padding is None or (padding.padding or 0) < 0.05 * padding.positions


def test_a_storage_that_was_shrunk_is_not_read():
    ids = tokens()
    ids.untyped_storage().resize_(8)
    assert measure_padding(ids) is None


def test_a_tensor_inside_of_a_transform_is_not_read():
    sizes, outside = [], tokens()

    def loss(x):
        sizes.append(measure_padding([outside, x.long()]))
        return x.sum()

    torch.func.grad(loss)(torch.rand(ROWS, LENGTH))
    assert sizes[0].padding is not None


def test_a_batch_that_contains_itself_ends():
    batch = [tokens()]
    batch.append(batch)
    assert measure_padding(batch).padding == pytest.approx(PADDING, abs=2)


class Log(TorchDispatchMode):
    """The operators that run."""

    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operators.append(func)
        return func(*args, **(kwargs or {}))


class Functions(torch.overrides.TorchFunctionMode):
    """The functions of PyTorch that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func)
        return func(*args, **(kwargs or {}))


def test_no_operator_runs_and_nothing_changes():
    batch = Encoding(input_ids=tokens(), attention_mask=SHOWN.long(), labels=tokens(-100))
    before, state = pickle.dumps(dict(batch)), torch.get_rng_state()
    with Log() as log, Functions() as functions, torch.profiler.profile() as profile:
        padding = measure_padding(batch)
    assert padding.can_be_cut
    assert (log.operators, functions.names) == ([], [])
    assert not [event for event in profile.events() if event.name.startswith("aten::")]
    assert torch.equal(torch.get_rng_state(), state)
    assert pickle.dumps(dict(batch)) == before
    batch["input_ids"].resize_(2 * ROWS, LENGTH)  # Tensor.numpy() would forbid this


def test_the_first_eight_powers_of_two_are_inspected():
    inspection = BatchInspection()
    assert [number for number in range(1, 1000) if inspection.is_due()] == [1, 2, 4, 8, 16, 32, 64, 128]


def test_the_padding_of_several_batches_is_summed(monkeypatch):
    monkeypatch.setattr("gpulab.capture.hooks.batch_inspection.time.thread_time_ns", lambda: 0)
    inspection, loader = BatchInspection(), Loader()
    for batch in (tokens(), integers(), integers(shape=(ROWS, LENGTH)), torch.zeros(ROWS, LENGTH).long()):
        if inspection.is_due():
            loader = inspection.inspect(batch, loader)
    assert loader.padding_frac == pytest.approx(PADDING / (3 * ROWS * LENGTH), abs=0.01)
    assert (loader.row_length, loader.can_be_cut, loader.batch_tensors) == (LENGTH, False, 1)


@pytest.mark.parametrize(
    ("widths", "expected"),
    [([LENGTH] * 3, True), ([LENGTH] * 2, None), ([LENGTH, LENGTH, LENGTH - 8], False)],
)
def test_rows_of_a_fixed_length_are_told_from_rows_as_long_as_the_longest(widths, expected):
    inspection, loader = BatchInspection(), Loader()
    for width in widths:
        loader = inspection.inspect(tokens()[:, :width], loader)
    assert loader.same_row_length is expected


def test_batches_that_all_have_a_sample_of_full_length_have_no_fixed_length():
    inspection, loader = BatchInspection(), Loader()
    for _ in range(3):
        batch = tokens()
        batch[0] = integers()[0]
        loader = inspection.inspect(batch, loader)
    assert loader.same_row_length is False


def inspected(batches):
    """What inspecting all of these batches says, whatever it costs."""
    inspection, loader = BatchInspection(), Loader()
    for batch in batches:
        loader = inspection.inspect(batch, loader)
    return loader


def padded(lengths, width=LENGTH):
    return torch.where(torch.arange(width)[None] < lengths[:, None], integers(shape=(len(lengths), width)), 0)


def test_samples_with_one_sequence_are_not_grouped():
    assert inspected([tokens() for _ in range(8)]).padding_in_groups_frac is None


@pytest.mark.parametrize("is_in_turn", [False, True])
def test_what_groups_of_samples_with_several_sequences_leave(is_in_turn):
    """A question of 8 to 19 tokens, and two passages of 4 to 63: the padding when sorted by hand."""
    count, size = 6, 8
    questions = torch.randint(8, 20, (count, size), generator=GENERATOR)
    passages = torch.randint(4, 64, (count, size, 2), generator=GENERATOR)
    order = "sp" if is_in_turn else "ps"
    batches = [
        {
            "question": padded(questions[at], 24),
            "passages": padded(passages[at].T.flatten() if order == "sp" else passages[at].flatten()),
        }
        for at in range(count)
    ]
    rows = [(int(q), int(a), int(b)) for q, (a, b) in zip(questions.flatten(), passages.reshape(-1, 2), strict=True)]
    rows.sort(key=sum)
    left = 0
    for start in range(0, len(rows), size):
        group = rows[start : start + size]
        longest = max(row[0] for row in group), max(max(row[1:]) for row in group)
        left += sum(longest[0] - row[0] + 2 * longest[1] - row[1] - row[2] for row in group)
    positions = count * size * (24 + 2 * LENGTH)
    assert inspected(batches).padding_in_groups_frac == pytest.approx(left / positions, rel=0.15)


def test_sequences_of_equal_length_leave_as_little_as_one():
    lengths = [torch.randint(4, 64, (ROWS,), generator=GENERATOR) for _ in range(8)]
    alike = inspected([{"source": padded(each), "target": padded(each, LENGTH + 8)} for each in lengths])
    strangers = inspected([{"source": padded(each), "target": padded(each.flip(0), LENGTH + 8)} for each in lengths])
    assert alike.padding_in_groups_frac < 0.3 * alike.padding_frac
    assert strangers.padding_in_groups_frac > 2 * alike.padding_in_groups_frac


@pytest.mark.parametrize("rows", [[16, 16, 16], [16, 16, 16, 12], [16, 16, 16, 15]])
def test_groups_need_several_batches_of_one_size(rows):
    batches = [{"source": padded(LENGTHS[:count]), "target": padded(LENGTHS[:count], 40)} for count in rows]
    assert inspected(batches).padding_in_groups_frac is None


def test_slow_batches_are_inspected_once(monkeypatch):
    clock = iter(range(0, 10**12, 10**9))
    monkeypatch.setattr("gpulab.capture.hooks.batch_inspection.time.thread_time_ns", lambda: next(clock))
    inspection = BatchInspection()
    due = 0
    for _ in range(100):
        if inspection.is_due():
            due += 1
            inspection.inspect(tokens(), Loader())
    assert due == 2
