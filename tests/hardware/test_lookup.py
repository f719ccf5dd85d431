"""Names that people type and names that drivers print: each finds one GPU, the same one everywhere."""

import gzip
import re

import pytest

from gpulab.errors import RunError
from gpulab.hardware.gpus import SPECS
from gpulab.hardware.lookup import normalize, resolve, spec_of
from gpulab.run import Gpu

EVERY_SPEC = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("h100", "H100 SXM"),
        ("H100 SXM", "H100 SXM"),
        ("h100-pcie", "H100 PCIe"),
        ("nvidia h100", "H100 SXM"),
        ("h100 80gb", "H100 SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("a100", "A100-80 SXM"),
        ("a100-80", "A100-80 SXM"),
        ("a100 80gb", "A100-80 SXM"),
        ("a10080gbsxm", "A100-80 SXM"),
        ("a100-sxm", "A100-80 SXM"),
        ("A100-SXM4-80GB", "A100-80 SXM"),
        ("A100 80 GB SXM", "A100-80 SXM"),
        ("A100 80 GB PCIe", "A100-80 PCIe"),
        ("a100pcie", "A100-80 PCIe"),
        ("a100-40gb", "A100-40 SXM"),
        ("a10040gb", "A100-40 SXM"),
        ("NVIDIA A100-SXM4-40GB", "A100-40 SXM"),
        ("NVIDIA A100-PG509-200", "A100-40 SXM"),
        ("a100 40gb pcie", "A100-40 PCIe"),
        ("v100", "V100 16 GB"),
        ("V100 SXM2", "V100 16 GB"),
        ("V100 32GB", "V100 32 GB"),
        ("v100-32", "V100 32 GB"),
        ("Tesla V100-DGXS-32GB", "V100 32 GB"),
        ("v100 pcie", "V100 PCIe 16 GB"),
        ("Tesla V100-PCIE-32GB", "V100 PCIe 32 GB"),
        ("rtx4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("geforce rtx 3090", "RTX 3090"),
        ("t4", "T4"),
        ("Tesla T4", "T4"),
        ("A10G", "A10G"),
        ("a10", "A10"),
        ("l4", "L4"),
        ("h200", "H200"),
        ("H200 SXM", "H200"),
        ("B200", "B200"),
    ],
)
def test_a_gpu_is_found_by_the_names_people_type(typed, name):
    assert resolve(typed).name == name


@EVERY_SPEC
def test_every_name_of_a_gpu_resolves_to_it(spec):
    for name in (spec.name, spec.driver_name, *spec.aliases):
        assert resolve(name) is spec
        assert resolve(name.upper()) is spec
        assert [other.name for other in SPECS if normalize(name) in map(normalize, names(other))] == [spec.name]


def names(spec):
    return (spec.name, spec.driver_name, *spec.aliases)


def test_no_alias_is_used_twice():
    aliases = [alias for spec in SPECS for alias in spec.aliases]
    assert len(set(map(normalize, aliases))) == len(aliases)


@pytest.mark.parametrize(
    "typed", ["", "voodoo2", "h1000", "p100", "a30", "l40s", "mi300x", "3090 ti", "v100s", "NVIDIA L40S", "gfx942",
              "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "NVIDIA GeForce RTX 4090 Laptop GPU"],
)  # fmt: skip
def test_an_unlisted_gpu_raises_an_error_with_the_list(typed):
    with pytest.raises(RunError) as refused:
        resolve(typed)
    assert all(spec.name in refused.value.fix for spec in SPECS)


def test_the_error_suggests_a_similar_name():
    with pytest.raises(RunError, match=r"'H100 SXM'"):
        resolve("h10")
    with pytest.raises(RunError) as refused:
        resolve("voodoo2")
    assert "did you mean" not in refused.value.problem


# As recorded runs name them: in the shared traces, by nvidia-smi, and as neighbours of listed names.
DRIVER_NAMES = {
    "NVIDIA A100-PG509-200": "A100-40 SXM",
    "NVIDIA B200": "B200",
    "NVIDIA H100 80GB HBM3": "H100 SXM",
    "Tesla V100-SXM2-32GB": "V100 32 GB",
    "Tesla V100-DGXS-32GB": "V100 32 GB",
    "AMD Instinct MI210": None,
    "AMD Instinct MI300X": None,
    "AMD Radeon Graphics": None,
    "Tesla T4": "T4",
    "NVIDIA T4G": None,
    "Tesla V100-SXM2-16GB": "V100 16 GB",
    "Tesla V100-SXM3-32GB": "V100 32 GB",
    "Tesla V100-PCIE-16GB": "V100 PCIe 16 GB",
    "Tesla V100-PCIE-32GB": "V100 PCIe 32 GB",
    "Tesla V100S-PCIE-32GB": "V100 PCIe 32 GB",
    "Quadro GV100": "V100 32 GB",
    "NVIDIA A10": "A10",
    "NVIDIA A10G": "A10G",
    "NVIDIA A10M": None,
    "A100-SXM4-40GB": "A100-40 SXM",
    "NVIDIA A100-SXM4-40GB": "A100-40 SXM",
    "NVIDIA A100-SXM4-80GB": "A100-80 SXM",
    "NVIDIA A100 80GB PCIe": "A100-80 PCIe",
    "NVIDIA A100-PCIE-40GB": "A100-40 PCIe",
    "NVIDIA A800-SXM4-80GB": None,
    "NVIDIA L4": "L4",
    "NVIDIA L40S": None,
    "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA H100 NVL": None,
    "NVIDIA GH200 480GB": None,
    "NVIDIA H200": "H200",
    "NVIDIA H200 NVL": None,
    "NVIDIA GB200": None,
    "NVIDIA GeForce RTX 3090": "RTX 3090",
    "NVIDIA GeForce RTX 3090 Ti": None,
    "NVIDIA GeForce RTX 4090": "RTX 4090",
    "NVIDIA GeForce RTX 4090 D": None,
    "NVIDIA GeForce RTX 4090 Laptop GPU": None,
    "Tesla P100-PCIE-16GB": None,
    "Standin H200": "H200",
    "": None,
}


@pytest.mark.parametrize(("driver_name", "name"), DRIVER_NAMES.items())
def test_a_recorded_gpu_is_found_by_the_name_its_driver_gives(driver_name, name):
    spec = spec_of(Gpu(index=0, name=driver_name))
    assert (spec and spec.name) == name


@pytest.mark.parametrize("driver_name", [*DRIVER_NAMES, *(spec.driver_name for spec in SPECS)])
def test_at_most_one_pattern_matches_a_driver_name(driver_name):
    assert sum(re.search(spec.driver_pattern, driver_name, re.IGNORECASE) is not None for spec in SPECS) <= 1


@EVERY_SPEC
def test_the_gpu_of_a_recording_is_found_if_listed(spec):
    gpu = Gpu(index=0, name=spec.driver_name, multiprocessors=spec.multiprocessors)
    assert spec_of(gpu) is spec
    assert resolve(gpu.name) is spec


def test_a_part_of_a_gpu_does_not_resolve_to_that_gpu():
    assert spec_of(None) is None
    assert spec_of(Gpu(index=0, name="NVIDIA A100-SXM4-40GB", mig=True)) is None
    assert spec_of(Gpu(index=0, name="NVIDIA A100-SXM4-40GB MIG 3g.20gb")) is None
    assert spec_of(Gpu(index=0, name="NVIDIA A100-SXM4-40GB", multiprocessors=42)) is None
    for vgpu in ("GRID A100-10C", "GRID A100D-2-20C", "NVIDIA A10-4Q", "GRID V100D-8Q", "GRID T4-16Q", "GRID T4-1B"):
        assert spec_of(Gpu(index=0, name=vgpu)) is None, vgpu
    assert spec_of(Gpu(index=0, name="NVIDIA A100-SXM4-40GB", multiprocessors=104)) is not None


def test_the_gpus_of_the_shared_traces_are_among_the_names_above(shared):
    traces = shared / "traces"
    if not traces.is_dir():
        pytest.skip("the shared traces are not here")
    recorded = set()
    for path in traces.glob("*.json.gz"):
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            head = file.read(100_000)
        properties = re.search(r'"deviceProperties":\s*\[(.*?)\]', head, re.DOTALL)
        recorded |= set(re.findall(r'"name":\s*"([^"]*)"', properties[1])) if properties else set()
    assert len(recorded) >= 6
    assert recorded <= set(DRIVER_NAMES)
