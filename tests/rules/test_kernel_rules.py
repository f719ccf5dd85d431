"""Rules about kernels: what they find in recorded traces, and the code they print."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import gpulab
from gpulab.analysis.kernels.fusion_patterns import FusedFunction, operations_of_name, recognise_function
from gpulab.rules import diagnose
from gpulab.rules.kernels.fusion import _FUSED_FUNCTIONS
from gpulab.run import Model, Optimizer
from gpulab.tables import EventKind, MarkKind
from tests.support.runs.cases import case_module, functions
from tests.support.runs.made_runs import event, launched_kernel, mark, on_gpu, run_of, stepped

KERNEL_RULES = {
    *("unfused_elementwise", "small_batch", "no_mixed_precision", "no_tf32", "misaligned_shapes", "layout_conversions"),
    *("memory_bound", "gather_scatter", "unfused_optimizer"),
}


@pytest.fixture
def diagnosed(recorded):
    return lambda name: gpulab.diagnose(gpulab.load(recorded(f"{name}.json.gz")))


def findings(diagnosis):
    return {finding.rule: finding for finding in diagnosis.findings if finding.rule in KERNEL_RULES}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v100_ns_resolution", {"no_mixed_precision"}),
        ("v100_resnet50_workers0", {"unfused_optimizer"}),  # float32, but no step is shorter with faster kernels
        ("v100_resnet50_workers4", set()),  # nor with a fused optimizer: the next copy would wait for the GPU instead
        ("a100_ddp_8ranks_rank", {"no_mixed_precision", "misaligned_shapes", "gather_scatter"}),
        ("h100_timesformer_inference", {"unfused_elementwise", "misaligned_shapes"}),
        ("mi210_gpu_only", {"layout_conversions"}),
        ("h100_bert_small_inference", set()),  # bound by calling: its align2 kernel is 1 % of it
        ("b200_eager", set()),
        ("mi300_resnet_checkpoint", set()),
        ("mi300_compiled_triton", set()),
        ("mi250_minitoy", set()),
        ("triton_example", set()),
        ("cuda_event_sync", set()),
        ("cuda_event_sync_multi_stream", set()),
        ("cpu_only_gloo", set()),
    ],
)  # fmt: skip
def test_each_recorded_trace_has_exactly_the_expected_findings(diagnosed, name, expected):
    assert set(findings(diagnosed(name))) == expected


def test_the_misaligned_sequence_length_of_timesformer_is_reported(diagnosed):
    by_rule = findings(diagnosed("h100_timesformer_inference"))
    assert by_rule["misaligned_shapes"].numbers["odd_size"] == 3137
    assert by_rule["misaligned_shapes"].numbers["share_frac"] == pytest.approx(0.114, abs=0.005)
    assert "scaled_dot_product_attention" in by_rule["unfused_elementwise"].fix


def test_a_waiting_gpu_gains_little_from_faster_kernels(diagnosed):
    busy, starved = (diagnosed(f"v100_{name}") for name in ("ns_resolution", "resnet50_workers0"))
    assert findings(busy)["no_mixed_precision"].gain.worst_speedup > 1.3
    assert "no_mixed_precision" not in findings(starved)
    assert gpulab.whatif(busy.run, "amp").prediction.speedup > 1.8
    assert gpulab.whatif(starved.run, "amp").prediction.best_ns > 0.97 * starved.steps.step_ns


def test_on_amd_the_precision_rules_are_not_judged(diagnosed):
    unjudged = {each.rule: each.reason for each in diagnosed("mi300_resnet_checkpoint").unjudged}
    assert {"no_mixed_precision", "no_tf32", "misaligned_shapes"} <= set(unjudged)
    assert "AMD" in unjudged["no_mixed_precision"]


def test_a_busy_gpu_is_broken_down_by_kind_of_kernel(diagnosed):
    evidence = " ".join(diagnosed("v100_ns_resolution").findings[-1].evidence)
    assert "62 %" in evidence


def waiting(at, dur_ms):
    """The host, which waits for work that began with the step."""
    return event(EventKind.SYNC, "cudaStreamSynchronize", at + 1, dur_ms - 0.99)


def test_tf32_masks_mixed_precision_for_the_same_kernels():
    name = "ampere_sgemm_128x64_nn"
    run = on_gpu(stepped(lambda at: [*launched_kernel(name, at, 97, number=round(at) + 1), waiting(at, 97)]), "A100")
    diagnosis = diagnose(run)
    assert diagnosis.first.rule == "no_tf32"
    assert [(each.finding.rule, each.explained_by) for each in diagnosis.masked] == [("no_mixed_precision", "no_tf32")]


def test_a_gpu_without_bfloat16_gets_float16_with_a_scaler():
    def step(at):
        return [*launched_kernel("volta_sgemm_128x64_nn", at, 97, number=round(at) + 1), waiting(at, 97)]

    names = {"optimizers": (Optimizer(kind="SGD", name="opt"),), "models": (Model(kind="Net", name="net"),)}
    fix = diagnose(on_gpu(stepped(step), "V100", **names)).first.fix
    assert "GradScaler" in fix
    assert "scaler.step(opt)" in fix
    assert "net.forward" in fix


def findings_of_case(rule, name):
    make = dict(functions(case_module(rule)))[name]
    return {each.rule: each for each in diagnose(make()).findings}


def test_a_loop_over_rows_is_a_small_batch_and_no_chain():
    first, *_ = findings_of_case("unfused_elementwise", "spared_by_one_operator_for_row_after_row").values()
    assert first.rule == "small_batch"
    assert any(text.startswith("180 of them") for text in first.evidence)


def test_iterations_of_a_loop_are_separate_chains():
    finding = findings_of_case("unfused_elementwise", "provoked_by_the_rounds_of_a_loop_that_are_a_formula_each")[
        "unfused_elementwise"
    ]
    assert finding.numbers["chains"] == 40
    assert finding.numbers["pieces"] == 4


def test_a_chain_ends_with_the_step():
    def kernel(at, index, name):
        number = round(at) + index
        return launched_kernel(name, at + 19.6 * index, 19.6, number=number, grid=9, called_ms=at + 0.01 * index)

    def step(at):
        names = ("elementwise_mul", "elementwise_tanh") * 2 + ("elementwise_mul",)
        work = [each for index, name in enumerate(names) for each in kernel(at, index, name)]
        return [*work, waiting(at, 98)]

    finding = next(
        each for each in diagnose(on_gpu(stepped(step), "A100")).findings if each.rule == "unfused_elementwise"
    )
    assert (finding.numbers["chains"], finding.numbers["pieces"]) == (1, 5)


FIXES = {
    "no_mixed_precision": "model = torch.nn.Linear(4, 4)",
    "unfused_optimizer": "model = torch.nn.Linear(4, 4)\noptimizer = torch.optim.AdamW(model.parameters(), lr=0.5)",
    "misaligned_shapes": "",
    "unfused_elementwise": "model = torch.nn.Linear(4, 4)",
    "no_tf32": "",
    "layout_conversions": "model = torch.nn.Conv2d(3, 4, 3)",
    "memory_bound": "model = torch.nn.Linear(4, 4)",
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # PyTorch's own, without a GPU
@pytest.mark.parametrize("rule", FIXES)
def test_a_fix_runs_when_it_is_pasted(rule, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("PYTORCH_MIOPEN_SUGGEST_NHWC", "0")
    before = torch.get_float32_matmul_precision()
    try:
        for make in provoked(rule):
            finding = next(each for each in diagnose(make()).findings if each.rule == rule)
            scope = {"torch": torch}
            exec(FIXES[rule], scope)
            exec(finding.fix, scope)
            _check(rule, scope, torch)
    finally:
        torch.set_float32_matmul_precision(before)


def provoked(rule):
    return [make for name, make in functions(case_module(rule)) if name.startswith("provoked")]


def _check(rule, scope, torch):
    if rule == "unfused_optimizer" and "fused" in str(scope.get("optimizer")):
        assert scope["optimizer"].param_groups[0]["lr"] == 0.5
    if rule == "misaligned_shapes":
        assert scope["pad"](torch.ones(2, 3137)).shape[1] % 4 == 0
        assert scope["round_up"](30522) % 4 == 0
    if rule == "no_mixed_precision":
        assert scope["model"](torch.ones(2, 4)).shape == (2, 4)


def test_the_fused_function_computes_the_formula():
    torch = pytest.importorskip("torch")
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))

    def fused_function(formula):
        scope = {"F": torch.nn.functional}
        exec(_FUSED_FUNCTIONS[formula], scope)
        return next(value for name, value in scope.items() if name not in ("F", "__builtins__"))

    centred = x - x.mean(-1, keepdim=True)
    by_hand = {
        FusedFunction.GELU_TANH: 0.5 * x * (1 + torch.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        FusedFunction.GELU: 0.5 * x * (1 + torch.erf(x / np.sqrt(2))),
        FusedFunction.SILU: x * torch.sigmoid(x),
        FusedFunction.LAYER_NORM: centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt(),
        FusedFunction.RMS_NORM: x * torch.rsqrt((x**2).mean(-1, keepdim=True) + torch.finfo(torch.float32).eps),
        FusedFunction.SOFTMAX: x.exp() / x.exp().sum(-1, keepdim=True),
    }
    for formula, expected in by_hand.items():
        torch.testing.assert_close(fused_function(formula)(x), expected, rtol=1e-4, atol=1e-5)
    scores = (x @ x.T / np.sqrt(8)).softmax(-1) @ x
    torch.testing.assert_close(
        fused_function(FusedFunction.ATTENTION)(x[None], x[None], x[None])[0], scores, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("names", "function"),
    [
        (("exp", "sum", "div"), FusedFunction.SOFTMAX),
        (("mul", "amax", "sub", "exp", "sum", "div"), FusedFunction.SOFTMAX),
        (("amax", "sub", "exp", "div"), FusedFunction.SOFTMAX),
        (("sub", "pow", "mul", "exp", "mul", "sum"), None),  # Gaussian basis functions
        (("sub", "pow", "div", "exp", "sum", "div"), None),  # kernel density
        (("neg", "exp", "add", "reciprocal", "sum"), None),  # logistic function
        (("exp", "mul", "sum"), None),
        (("exp", "sum", "log"), None),
    ],
)
def test_a_softmax_divides_exponentials_by_their_sum(names, function):
    parts = [operations_of_name(f"aten::{name}") for name in names]
    assert recognise_function(parts, attention=False) is function


def test_a_run_without_kernels_or_operators_has_no_findings():
    assert findings(diagnose(run_of(stepped(lambda at: [])))) == {}


def test_no_bound_exceeds_the_optimizers_share_when_other_programs_slowed_the_traced_steps_down():
    """The traced steps take 83 times as long, and the others are too uneven for a replay."""
    traced = [mark(100 * step + 96, 0, kind=MarkKind.OPTIMIZER) for step in range(6)]
    at_ms = itertools.accumulate([1.2, 1.2, 45, 50, 1.2] * 12)
    later = [mark(700 + at, 0, kind=MarkKind.OPTIMIZER) for at in at_ms]
    optimizer = case_module("unfused_optimizer").adamw(tensors=100)
    steps = case_module("unfused_optimizer").updating_on_cpu(1200, 0.003)
    first = diagnose(run_of(steps, optimizers=optimizer, marks=[*traced, *later], windows=[(0, 600)])).findings[0]
    assert first.rule == "unfused_optimizer"
    assert first.gain.bound < 3


def busy_cpu(operator="aten::addmm", **facts):
    run = run_of(stepped(lambda at: [event(EventKind.OP, operator, at, 95)]))
    return replace(run, facts={**run.facts, **facts})


def test_a_busy_cpu_is_advised_to_use_bfloat16_only_if_it_may_help():
    offers = {
        name: "bfloat16" in next(each.advice for each in diagnose(run).findings if each.rule == "device_bound")
        for name, run in {
            "unknown": busy_cpu(),
            "supported": busy_cpu(cpu_bfloat16="avx512_bf16"),
            "not supported": busy_cpu(cpu_bfloat16="none"),
            "a decomposition": busy_cpu("aten::linalg_cholesky_ex"),
        }.items()
    }
    assert offers == {"unknown": True, "supported": True, "not supported": False, "a decomposition": False}
