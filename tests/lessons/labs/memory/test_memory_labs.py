"""What notebook 09 stands on: counters of memory, programs that run out of it, and two allocators."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

import gpulab  # noqa: E402  (after the skip)
from gpulab.lessons.equality import check_equality  # noqa: E402
from gpulab.lessons.labs import tables  # noqa: E402
from gpulab.lessons.labs.memory import fragmentation, memory_counters, oom_fixes, oom_programs, sizes  # noqa: E402
from gpulab.virtual.memory_fit.allocator import block_bytes  # noqa: E402

MIB = 2**20


def layers(count: int, act: type = torch.nn.GELU, width: int = 64) -> torch.nn.Sequential:
    return torch.nn.Sequential(*[each for _ in range(count) for each in (torch.nn.Linear(width, width), act())])


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("act", "each"), [(torch.nn.GELU, 2), (torch.nn.ReLU, 1)])
def test_saved_bytes_count_each_storage_once_without_weights(device, act, each):
    # Linear keeps its input and GELU its own; ReLU keeps its output, which is the next layer's input.
    with torch.device(device):
        model, x = layers(3, act), torch.empty(32, 64)
        saved_size = memory_counters.saved_bytes(lambda: model(x), model)
    one = 32 * 64 * 4
    assert saved_size == 3 * each * one + (one if each == 1 else 0)
    assert memory_counters.saved_bytes(lambda: model(x)) == saved_size + sum(
        w.numel() * 4 for w in list(model.parameters())[2::2]
    )


def test_nothing_is_saved_without_gradients_and_everything_in_eval_mode():
    model, x = layers(2), torch.ones(4, 64)
    saved_size = memory_counters.saved_bytes(lambda: model(x), model)
    assert saved_size == memory_counters.saved_bytes(lambda: model.eval()(x), model) > 0
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            assert memory_counters.saved_bytes(lambda: model(x), model) == 0


def test_allocations_are_counted_and_in_place_operators_make_none():
    x = torch.ones(1000)
    with memory_counters.count_allocations() as separate:
        torch.relu(x * 2 + 1)
    with memory_counters.count_allocations() as counts:
        x.mul_(2).add_(1).relu_()
        x.view(10, 100)
    assert (separate.count, separate.bytes) == (3, 12000)
    assert (counts.count, counts.bytes) == (0, 0)


def test_memory_of_images_goes_with_the_square_of_their_side():
    assert sizes.conv_saved_bytes(64) / sizes.conv_saved_bytes(32) == pytest.approx(4, rel=0.01)


def test_memory_of_a_step_is_listed_by_role():
    def training():
        model = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
        optimizer = torch.optim.Adam(model.parameters())

        def step(batch):
            model(torch.randn(batch, 1024, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    searched = gpulab.virtual.max_batch(training, "l4", 256).max_batch
    measured = searched.estimates[0]
    assert f"{searched.batch:,}" in words(sizes.batch_search_table({"once": searched}))
    most = sizes.peak_mib_by_role(measured)
    assert (most["parameters"], most["gradients"]) == (4, 4)
    assert 8 <= most["optimizer"] < 8.01
    text = words(sizes.peak_comparison({"parameters": 4 * MIB}, 5 * MIB, measured))
    assert "parameters 4 4" in text
    assert "in use at the peak 5" in text
    assert f"needed {measured.needed_bytes / MIB:,.0f}" in text
    assert "parameters 4 4 4 gradients 0" in words(sizes.phase_table(measured))


def test_a_table_is_text_as_well():
    text = tables.table_view(("part", "MiB"), [("weights", 4)], below="Counted here.")
    assert all(each in repr(text) for each in ("part", "MiB", "weights", "4", "Counted here."))


@pytest.mark.parametrize("power", [0, 1, 2, 1.5])
def test_the_exponent_of_a_power_is_found(power):
    assert memory_counters.growth_exponent({n: 7 * n**power for n in (10, 30, 50)}) == pytest.approx(power, abs=1e-12)


# Programs.


@pytest.mark.full
@pytest.mark.parametrize("name", ["detach", "fused", "parts", "recompute"])
def test_remedies_that_are_free_of_rounding_train_the_same(name):
    program = oom_programs.shrink_program(oom_programs.TrainingProgram(batch=4, fused=False, validates=True))
    before, after = (
        oom_programs.train_program(program, "cpu"),
        oom_programs.train_program(oom_programs.apply_fixes(program, [name]), "cpu"),
    )
    assert check_equality(before, after).checked


def test_half_precision_trains_nearly_the_same_and_another_optimizer_does_not():
    program = oom_programs.shrink_program(oom_programs.TrainingProgram())
    before = oom_programs.train_program(program, "cpu")
    assert check_equality(
        before, oom_programs.train_program(oom_programs.apply_fixes(program, ["half"]), "cpu"), 0.05
    ).checked
    assert not check_equality(before, before).largest_frac
    with pytest.raises(gpulab.GpulabError):
        check_equality(before, oom_programs.train_program(oom_programs.apply_fixes(program, ["state"]), "cpu"))


def test_model_states_match_the_count_of_a_virtual_gpu():
    program = oom_programs.TrainingProgram(width=512, layers=2)
    for other, most in ((program, 4), (oom_programs.apply_fixes(program, ["state"]), 3)):
        weights = sum(each.numel() for each in oom_programs._blocks(program).parameters())
        assert oom_programs.model_state_bytes(other) == 4 * weights * most
    with gpulab.virtual_gpu("l4", "states"):
        results = oom_programs.train_program(program)
        parts = torch.cuda.memory_allocated() - sum(block_bytes(each.numel() * 4) for each in results["losses"])
    assert parts < 4 * weights * 4  # what training holds is gone, but for the losses and two gradients


def words(view):
    return " ".join(repr(view).split())


@pytest.mark.full
def test_each_fix_is_tried_and_so_is_every_cheaper_one():
    trials = oom_fixes.try_fixes({"long": "fused", "wide": "parts", "many": "recompute", "more": "magic"})
    assert trials.solved == ("long",)
    assert "no cheaper fix" in words(trials)
    assert "but a cheaper fix" in words(trials)
    assert "'magic'" in words(trials)
    assert "changes nothing" in words(trials)  # a batch of one has no parts


def test_missing_choices_and_unknown_programs_are_reported():
    trials = oom_fixes.try_fixes({"short": "half"})
    assert trials.solved == ()
    assert words(trials).count("chosen yet") == 4
    assert "'short'" in words(trials)


@pytest.mark.full
def test_a_plan_reports_the_failed_allocation():
    assert oom_fixes.try_plan([]).count is None
    first = oom_fixes.try_plan(["half"])
    assert first.count is None
    assert "batch size" in words(first)
    second = oom_fixes.try_plan(["state"])
    assert "in forward" in words(second)
    assert "batch size" not in words(second)
    assert oom_fixes.try_plan(["state", "parts"]).count == 2
    assert oom_fixes.try_plan("half").count is None  # one word is a list of one
    assert "'magic'" in words(oom_fixes.try_plan(["magic"]))


def test_failures_of_programs_are_compared_in_columns():
    text = words(oom_fixes.program_table("long", "wide"))
    assert "16 GiB" in text  # the scores: 16 heads, 16384 tokens squared, four bytes
    assert "22.7 GiB" in text  # more than the card has for tensors
    assert "21.6 GiB" in text


def test_detaching_changes_nothing_if_no_loss_is_stored():
    assert oom_programs.apply_fixes(oom_programs.OOM_PROGRAMS["many"], ["detach"]) == oom_programs.OOM_PROGRAMS["many"]
    assert (
        oom_programs.apply_fixes(oom_programs.OOM_PROGRAMS["later"], ["detach"]) != oom_programs.OOM_PROGRAMS["later"]
    )


@pytest.mark.full
def test_memory_grows_if_graphs_are_stored():
    program = oom_programs.TrainingProgram(layers=1, batch=2, length=256, steps=8, validates=True)
    rises = {}
    for name, one in {"kept": program, "let go": oom_programs.apply_fixes(program, ["detach"])}.items():
        assert oom_programs.runs_on_card(one, name)
        rises[name] = oom_programs.growth_per_step_bytes(gpulab.runs[name])
    assert rises["let go"] == 2 * 512  # two numbers in two lists
    assert rises["kept"] > MIB


# Allocators.

ALLOCATORS = (fragmentation.FixedSegments, fragmentation.ExpandableSegment)


def random_requests(seed: int, count: int = 300) -> list[fragmentation.Request]:
    drawn, live, found = random.Random(seed), [], []
    for number in range(count):
        if live and drawn.random() < 0.45:
            found.append((live.pop(drawn.randrange(len(live))), -1))
        else:
            live.append(number)
            found.append((number, drawn.choice([100, 3000, MIB, 3 * MIB, 17 * MIB + 5])))
    return found


@pytest.mark.parametrize("kind", ALLOCATORS)
@pytest.mark.parametrize("seed", range(5))
def test_no_allocator_holds_less_than_it_gives_out_or_more_than_the_card(kind, seed):
    card = 200 * MIB
    replay = fragmentation.replay_requests(random_requests(seed), kind(card))
    assert replay.peak_allocated_bytes <= replay.peak_reserved_bytes <= card
    assert replay.unusable_bytes == replay.peak_reserved_bytes - replay.peak_allocated_bytes
    assert (replay.failed_bytes is None) == (replay.served == len(random_requests(seed)))


@pytest.mark.parametrize("kind", ALLOCATORS)
@pytest.mark.parametrize("seed", range(5))
def test_the_largest_free_piece_can_be_had_and_no_larger_one(kind, seed):
    for extra, served in ((0, True), (2 * MIB, False)):
        allocator = kind(200 * MIB)
        fragmentation.replay_requests(random_requests(seed, 100), allocator)
        free = allocator.largest_free_bytes // (2 * MIB) * 2 * MIB
        if free <= 10 * MIB:
            continue
        replay = fragmentation.replay_requests([(10**6, free + extra)], allocator)
        assert (replay.failed_bytes is None) == served


@pytest.mark.parametrize("seed", range(5))
def test_allocated_blocks_never_overlap(seed):
    allocator = fragmentation.ExpandableSegment(150 * MIB)
    for number, size in random_requests(seed):
        try:
            allocator.free(number) if size < 0 else allocator.allocate(number, size)
        except (fragmentation.OutOfGpuMemory, KeyError):
            continue
        for segment in allocator._segments.values():
            assert all(a[1] <= b[0] for a, b in zip(segment.used, segment.used[1:], strict=False))
            assert segment.needed_pages <= segment.pages


def test_an_expandable_segment_uses_the_holes():
    # Three times 100 MiB for a moment and 72 MiB to keep: fixed segments are left with three holes of 28 MiB.
    requests = [each for n in range(0, 6, 2) for each in ((n, 100 * MIB), (n, -1), (n + 1, 72 * MIB))]
    fixed = fragmentation.replay_requests([*requests, (9, 60 * MIB)], fragmentation.FixedSegments(300 * MIB))
    assert (fixed.failed_bytes, fixed.peak_reserved_bytes, fixed.largest_free_bytes) == (60 * MIB, 300 * MIB, 28 * MIB)
    growing = fragmentation.replay_requests([*requests, (9, 60 * MIB)], fragmentation.ExpandableSegment(300 * MIB))
    assert (growing.failed_bytes, growing.peak_allocated_bytes, growing.largest_free_bytes) == (
        None,
        276 * MIB,
        24 * MIB,
    )


def test_allocators_are_compared_in_rows():
    replay = fragmentation.replay_requests(
        [(0, 3 * MIB), (1, 5 * MIB), (0, -1)], fragmentation.FixedSegments(100 * MIB)
    )
    assert "fixed 3 20 MiB 8 MiB" in words(fragmentation.allocator_table({"fixed": replay}))


def test_memory_requests_of_a_virtual_run_are_read_back():
    with gpulab.virtual_gpu("l4", "asked") as gpu:
        alive = torch.empty(3 * MIB, device="cuda")
        freed = torch.empty(MIB, device="cuda")
        del freed
        again = torch.empty(MIB // 2, device="cuda")
        assert alive.numel() > again.numel()
    requests = fragmentation.memory_requests(gpu.run)
    assert [size for _, size in requests][:4] == [12 * MIB, 4 * MIB, -1, 2 * MIB]
    assert requests[2][0] == requests[1][0]
