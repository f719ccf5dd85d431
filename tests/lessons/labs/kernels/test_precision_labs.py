"""What notebook 08 counts, against sums done by hand, exhaustive search and runs of its own."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import gpulab
from gpulab.errors import RunError
from gpulab.lessons.course import lesson
from gpulab.lessons.labs.kernels import half_precision, mixed_precision, precision_tables
from gpulab.lessons.labs.steps import throughput

LESSON = lesson("08")


def chain(width: int = 32, layers: int = 5) -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)])


# Bytes kept for backward


def test_linear_and_gelu_keep_an_input_each_and_half_of_it_in_bfloat16() -> None:
    model, inputs = chain(), torch.randn(24, 32)
    elements = 24 * 32
    wide = mixed_precision.count_saved_bytes(model, inputs)
    assert (wide.activation_bytes, wide.weight_bytes) == (2 * 5 * elements * 4, 0)
    narrow = mixed_precision.count_saved_bytes(model, inputs, torch.bfloat16)
    assert narrow.activation_bytes * 2 == wide.activation_bytes
    assert narrow.weight_bytes == 4 * 32 * 32 * 2  # the first layer's weight is not needed: its input wants no gradient


def test_each_memory_is_counted_once() -> None:
    class Twice(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            wide = inputs * torch.ones(3, requires_grad=True)  # keeps what it multiplied by
            return wide * wide  # keeps the same memory twice

    assert mixed_precision.count_saved_bytes(Twice(), torch.randn(10, 3)).activation_bytes == 2 * 10 * 3 * 4


def test_places_that_pooling_remembers_do_not_halve() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.MaxPool1d(4))
    inputs = torch.randn(16, 8)
    places = 16 * 2 * 8
    wide, narrow = (
        mixed_precision.count_saved_bytes(model, inputs),
        mixed_precision.count_saved_bytes(model, inputs, torch.bfloat16),
    )
    assert wide.activation_bytes - places == 2 * (narrow.activation_bytes - places)


# Operators


def test_operators_are_counted_by_name() -> None:
    inputs = torch.ones(3)
    assert mixed_precision.operator_counts(lambda: (inputs + inputs).mul_(2)) == {"aten.add": 1, "aten.mul_": 1}


def test_autocast_adds_only_casts() -> None:
    model, inputs = chain(16, 3), torch.randn(4, 16)

    def step(dtype: torch.dtype | None) -> None:
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = model(inputs).float().sum()
        loss.backward()

    before, after = (
        mixed_precision.operator_counts(lambda: step(None)),
        mixed_precision.operator_counts(lambda: step(torch.bfloat16)),
    )
    added = sum(after.values()) - sum(before.values())
    assert added == after["aten._to_copy"] - before.get("aten._to_copy", 0) > 0


def test_wide_numbers_are_those_of_four_bytes_and_more() -> None:
    small, integers = torch.ones(6, dtype=torch.float16), torch.ones(6, dtype=torch.int64)
    assert mixed_precision.wide_elements(lambda: small + small) == 0
    assert mixed_precision.wide_elements(lambda: integers + integers) == 0
    assert mixed_precision.wide_elements(lambda: small.float()) == 6
    assert mixed_precision.wide_elements(lambda: small.double() * 2) == 12


# Runs


@pytest.fixture(scope="module")
def recorded() -> dict[str, gpulab.Run]:
    runs = {}
    for name, dtype in {"wide": None, "narrow": torch.bfloat16}.items():
        with gpulab.virtual_gpu("h100", f"labs precision {name}") as gpu:
            with torch.device("cuda"):
                model = nn.Sequential(nn.Linear(1024, 4096), nn.BatchNorm1d(4096), nn.ReLU(), nn.MaxPool1d(4))
            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
            inputs = torch.randn(32768, 1024, device="cuda")
            for _ in range(8):
                with torch.autocast("cuda", dtype=torch.bfloat16, enabled=dtype is not None):
                    loss = model(inputs).float().sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        assert gpu.run is not None
        runs[name] = gpu.run
    return runs


def test_layers_are_identified_by_their_sizes(recorded: dict[str, gpulab.Run]) -> None:
    wide, narrow = mixed_precision.layer_calls(recorded["wide"]), mixed_precision.layer_calls(recorded["narrow"])
    assert set(wide) == set(narrow) == set(mixed_precision.LAYER_PATTERNS)
    assert wide["ReLU"].bytes == 2 * 32768 * 4096 * 4
    for name in (*mixed_precision.MATMUL_LAYERS, *mixed_precision.ELEMENTWISE_LAYERS):
        assert wide[name].bytes / narrow[name].bytes == pytest.approx(2, rel=0.01)
    assert wide["optimizer"].bytes == narrow["optimizer"].bytes
    assert wide["linear, forward"].ms / narrow["linear, forward"].ms > 5
    assert wide["ReLU"].ms / narrow["ReLU"].ms == pytest.approx(2, rel=0.1)


def test_a_step_takes_its_kernels_and_its_share_of_the_peak(recorded: dict[str, gpulab.Run]) -> None:
    wide, narrow = recorded["wide"], recorded["narrow"]
    assert throughput.kernels_per_step(narrow) > throughput.kernels_per_step(wide)
    assert throughput.step_ms(wide) > throughput.step_ms(narrow)
    by_hand = 1e12 / (throughput.step_ms(wide) / 1e3) / 989e12
    assert mixed_precision.half_peak_frac(wide, 1e12) == pytest.approx(by_hand)


def test_a_run_without_a_gpu_has_neither() -> None:
    with gpulab.profile("labs precision on the cpu"):
        torch.ones(4) + 1
    run = gpulab.runs["labs precision on the cpu"]
    for measure in (throughput.kernels_per_step, lambda run: mixed_precision.half_peak_frac(run, 1.0)):
        with pytest.raises(RunError):
            measure(run)


# Sixteen bits


def test_the_smallest_float16_decides_which_gradients_vanish() -> None:
    """The notebook's numbers: half of the least float16 is rounded up to it, and all below it to zero."""
    least = float(np.nextafter(np.float16(0), np.float16(1)))
    assert torch.tensor([0.51 * least, 0.49 * least]).half().tolist() == [pytest.approx(least), 0.0]
    features, defect = half_precision.defect_pixels(2**18, 0.005)
    assert 0.004 < defect.mean() < 0.006
    expected = torch.sigmoid(half_precision.defect_detector(0.005)(features).squeeze(1))
    assert (expected / 2**18).median() < 0.9 * least / 2
    assert least < 0.995 / 2**18  # of a defect: it stays


def test_the_detector_begins_by_expecting_the_share_there_is() -> None:
    features, _ = half_precision.defect_pixels(4096, 0.02, seed=3)
    for seed in (0, 1):
        assert torch.sigmoid(half_precision.defect_detector(0.02, seed)(features)).mean().item() == pytest.approx(
            0.02, rel=0.15
        )
    assert torch.equal(half_precision.defect_detector(0.02)(features), half_precision.defect_detector(0.02)(features))


def test_matmuls_are_16_bit_on_both_devices_and_range_sensitive_operators_float32_on_a_gpu() -> None:
    with gpulab.virtual_gpu("h100", "labs precision lists"):
        dtypes_by_type = {
            dtype: half_precision.autocast_dtypes("cuda", dtype) for dtype in (torch.float16, torch.bfloat16)
        }
    here = half_precision.autocast_dtypes("cpu", torch.bfloat16)
    for dtype, dtypes in dtypes_by_type.items():
        assert list(dtypes) == list(half_precision.AUTOCAST_OPS)
        assert {dtypes[name] for name in ("matmul", "linear", "relu", "add")} == {str(dtype).removeprefix("torch.")}
        assert {dtypes[name] for name in half_precision.AUTOCAST_OPS[4:]} == {"float32"}
    assert here["matmul"] == "bfloat16"


def normalised_narrow(x: torch.Tensor) -> torch.Tensor:
    return x / x.pow(2).mean(dim=-1, keepdim=True).sqrt()


def normalised_wide(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide / wide.pow(2).mean(dim=-1, keepdim=True).sqrt()).half()


def normalised(x: torch.Tensor) -> torch.Tensor:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return x * (x.shape[-1] ** 0.5 / norm).half()


def test_the_check_counts_float32_elements_of_a_correct_answer() -> None:
    assert half_precision.check_normalise(normalised) == (3 * half_precision.ROWS, "")
    assert 3 * half_precision.ROWS <= half_precision.WIDE_TARGET == LESSON.target("normalise").value
    count, problem = half_precision.check_normalise(normalised_wide)
    assert problem.endswith(half_precision.PROMOTION_HINT)
    assert count is not None
    assert count > half_precision.ROWS * half_precision.COLUMNS > 100 * half_precision.WIDE_TARGET


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (normalised_narrow, "inf or nan"),
        (lambda x: x, "error of a row"),
        (lambda x: x / x.abs().amax(dim=-1, keepdim=True), "error of a row"),
        (lambda x: normalised(x).float(), "the result is float32"),
        (lambda x: normalised(x)[:10], r"\(256, 1024\)"),
        (lambda x: None, r"\(256, 1024\)"),
        (lambda x: x.mul_(1), "error of a row"),
        (lambda x: x.copy_(normalised(x)), "in place"),
    ],
)
def test_the_check_names_the_error(wrong: object, why: str) -> None:
    count, problem = half_precision.check_normalise(wrong)  # type: ignore[arg-type]
    assert count is None
    assert re.search(why, problem)


def test_the_table_of_keras_is_right_where_there_is_keras() -> None:
    keras = pytest.importorskip("tensorflow").keras
    layer = keras.layers.Dense(8, dtype="mixed_float16")
    assert (layer.dtype_policy.compute_dtype, layer.dtype_policy.variable_dtype) == ("float16", "float32")


# Side by side


def test_peaks_are_those_of_the_data_sheets() -> None:
    table = precision_tables.peak_table()
    assert tuple(sorted(table.index)) == tuple(sorted(precision_tables.COMPARED_GPUS))
    assert table.loc["H100 SXM"].tolist() == ["14.8", "2.0"]
    assert table.loc["V100 SXM2"].tolist() == ["8.0", "no TF32"]


def test_layers_present_in_both_runs_are_compared() -> None:
    wide = {
        "ReLU": mixed_precision.LayerCall(ms=2.0, bytes=4e6),
        "linear": mixed_precision.LayerCall(ms=3.0, bytes=8e6),
    }
    table = precision_tables.layer_table(wide, {"ReLU": mixed_precision.LayerCall(ms=1.0, bytes=2e6)})
    assert list(table.index) == ["ReLU"]
    assert table.to_numpy().tolist() == [["2.00 -> 1.00", "2.0", "4 -> 2", "2.0"]]


def test_a_state_comes_back_from_a_checkpoint_and_shares_nothing() -> None:
    model = nn.Linear(2, 2)
    restored = precision_tables.checkpoint_round_trip({"model": model.state_dict(), "scale": 2.0})
    assert restored["scale"] == 2.0
    assert torch.equal(restored["model"]["weight"], model.weight)
    with torch.no_grad():
        model.weight.add_(1)
    assert not torch.equal(restored["model"]["weight"], model.weight)


def test_warnings_are_listed_by_category() -> None:
    assert precision_tables.warning_categories(lambda: None) == []
    assert precision_tables.warning_categories(lambda: warnings.warn("old", FutureWarning, stacklevel=1)) == [
        "FutureWarning"
    ]


def test_numbers_are_formatted_with_five_digits() -> None:
    assert half_precision.format_tensor(torch.tensor([0.000123394, float("nan"), 70000.0])) == "0.00012339, nan, 70000"


# The lesson


def test_every_question_has_a_reason_and_something_to_say_to_each_answer() -> None:
    for each in LESSON.questions:
        assert each.explanation
        assert each.hints
        assert all(one.feedback for one in each.choices)
        assert each.right or all(one.below is not None for one in each.choices[:-1])
    assert [one.number for one in LESSON.experiments] == [f"08.{number}" for number in range(1, 12)]


@pytest.mark.parametrize(("key", "measured", "right"), [("ladder", 5.4, "b"), ("half", 0.5, "b"), ("batch", 2.0, "c")])
def test_the_measurement_decides_the_right_choice(key: str, measured: float, right: str) -> None:
    choice = LESSON.find_question(key).right_choice(measured)
    assert choice is not None
    assert choice.key == right
