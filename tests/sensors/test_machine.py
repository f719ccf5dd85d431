from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gpulab.run import Machine
from gpulab.sensors import describe_machine
from gpulab.sensors.host.environment import cpu_name, detect_container, find_torch_build
from tests.support import nvml_standin
from tests.support.nvml_standin import NOT_SUPPORTED

ROOT = Path(__file__).resolve().parents[2]
UUID = "GPU-0abcdef0-0000-0000-0000-000000000000"


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    return nvml_standin.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def standin(built, monkeypatch):
    yield from nvml_standin.installed(built, monkeypatch)


@pytest.fixture
def system(tmp_path):
    """Lays out the files of some system and gives its root."""

    def lay_out(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return lay_out


@pytest.fixture
def installed_torch(tmp_path, monkeypatch):
    """A PyTorch whose version.py says so; None: none at all."""

    class Package:
        version = "9.9.0"

        def locate_file(self, name):
            return tmp_path / name

    def install(version_py: str | None):
        def distribution(name):
            if version_py is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return Package()

        (tmp_path / "torch").mkdir(exist_ok=True)
        if version_py:
            (tmp_path / "torch" / "version.py").write_text(version_py)
        monkeypatch.setattr(importlib.metadata, "distribution", distribution)

    return install


def version_py(version: str, cuda: str | None, hip: str | None = None) -> str:
    return f"__all__ = ['__version__']\n__version__ = '{version}'\ncuda: Optional[str] = {cuda!r}\nhip: str = {hip!r}\n"


def gap_subjects(machine_value: Machine) -> list[str]:
    return [gap.what for gap in machine_value.gaps]


# What the machine is.


def test_all_fields_of_a_machine_are_filled(standin, tmp_path, installed_torch):
    installed_torch(version_py("9.9.0+cu999", "99.9"))
    described = describe_machine({"CUDA_VISIBLE_DEVICES": "0"}, tmp_path)
    assert [gpu.uuid for gpu in described.gpus] == [UUID]
    assert described.driver == "999.10.standin"
    assert described.torch == "9.9.0+cu999"
    assert described.python == platform.python_version()
    assert described.platform == platform.platform()
    assert described.cores == os.cpu_count()
    assert described.cores_allowed is not None
    assert described.memory_bytes == psutil.virtual_memory().total
    assert described.cuda_visible_devices == "0"
    assert described.container is None
    assert described.device == "Standin H100"


def test_describing_the_machine_leaves_nvml_closed(standin):
    import pynvml

    describe_machine({})
    assert pynvml._nvmlLib_refcount == 0
    assert standin.calls("nvmlInitWithFlags") == standin.calls("nvmlShutdown") == 1


def test_describing_the_machine_does_not_import_torch():
    code = "import sys; from gpulab.sensors import describe_machine; describe_machine(); print('torch' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert process.stdout.strip() == "False", process.stderr


def test_the_torch_build_equals_that_of_torch_itself():
    torch = pytest.importorskip("torch")
    build = find_torch_build()
    assert build is not None
    assert build.version == torch.__version__
    assert build.cuda == (torch.version.cuda is not None)
    assert build.rocm == (torch.version.hip is not None)


def test_a_torch_without_version_file_has_its_packages_version(installed_torch):
    installed_torch("")
    build = find_torch_build()
    assert build is not None
    assert (build.version, build.cuda) == ("9.9.0", None)


CPUINFO = (
    "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\nflags\t\t: fpu\nprocessor\t: 1\nmodel name\t: Some CPU @ 3 GHz\n"
)


def test_the_processor_has_its_model_name(system):
    assert cpu_name(system({"proc/cpuinfo": CPUINFO})) == "Some CPU @ 3 GHz"


def test_a_processor_without_a_model_name_has_its_architecture(tmp_path):
    assert cpu_name(tmp_path) in (platform.processor(), platform.machine())


@pytest.mark.parametrize(
    ("environ", "files", "expected"),
    [
        ({}, {}, None),
        ({}, {".dockerenv": ""}, "docker"),
        ({}, {"run/.containerenv": ""}, "podman"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {".dockerenv": ""}, "kubernetes"),
        ({}, {"proc/self/cgroup": "0::/kubepods/burstable/pod1"}, "kubernetes"),
        ({}, {"proc/self/cgroup": "4:cpu:/docker/0123"}, "docker"),
        ({}, {"proc/self/cgroup": "0::/machine.slice/libpod-77.scope"}, "podman"),
        ({}, {"run/systemd/container": "lxc\n"}, "lxc"),
        ({}, {"run/systemd/container": "systemd-nspawn\n"}, "systemd-nspawn"),
        ({}, {"proc/sys/kernel/osrelease": "5.15.90.1-microsoft-standard-WSL2\n"}, "WSL"),
        ({}, {"proc/sys/kernel/osrelease": "6.1.0-18-amd64\n"}, None),
        ({"COLAB_RELEASE_TAG": "release-colab"}, {".dockerenv": ""}, "Google Colab"),
        ({"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}, {}, "Kaggle"),
    ],
)
def test_containers_are_recognised_by_their_marks(system, environ, files, expected):
    assert detect_container(environ, system(files)) == expected


def test_memory_and_core_limits_are_listed_with_the_machines_totals(system):
    files = {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "50000 100000", "sys/fs/cgroup/memory.max": "1234567"}
    described = describe_machine({}, system(files))
    assert (described.cores_allowed, described.memory_limit_bytes) == (0.5, 1234567)
    (gap,) = (gap for gap in described.gaps if "may use" in gap.what)
    assert "the 0.5 cores" in gap.what
    assert f"all {os.cpu_count()} cores" in gap.why
    assert "num_workers" in gap.fix


# What cannot be measured: each gap where it is true, and only there.


def test_every_gap_says_what_why_and_what_to_do(standin, system, installed_torch):
    installed_torch(version_py("9.9.0+cpu", None))
    standin.reset(gpus=3)
    standin.mig(2, instances=0)
    standin.fault("nvmlDeviceGetTotalEnergyConsumption", NOT_SUPPORTED)
    files = {".dockerenv": "", "proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "50000 100000"}
    described = describe_machine({"CUDA_VISIBLE_DEVICES": "0"}, system(files))
    assert len(described.gaps) == 8
    assert len(set(gap_subjects(described))) == 8
    for gap in described.gaps:
        for text in (gap.what, gap.why, gap.fix):
            assert text.strip() == text != ""
            assert len(text) < 160, text
            assert not text.endswith(".")


def test_sensors_a_gpu_does_not_have_are_known_before_anything_is_recorded(standin, tmp_path):
    standin.fault("nvmlDeviceGetTotalEnergyConsumption", NOT_SUPPORTED)
    assert "GPU energy" in gap_subjects(describe_machine({"CUDA_VISIBLE_DEVICES": "0"}, tmp_path))


CPU_BUILD, CUDA_BUILD = version_py("9.9.0+cpu", None), version_py("9.9.0+cu999", "99.9")


@pytest.mark.parametrize(
    ("gpus", "build", "expected"),
    [
        (1, CPU_BUILD, ["anything on the GPU"]),
        (1, version_py("9.9.0+rocm9", None, "9.1"), ["anything on the GPU"]),
        (1, CUDA_BUILD, []),
        (1, "", []),
        (0, CPU_BUILD, []),
        (0, CUDA_BUILD, []),
        (0, None, ["operators, kernels and steps"]),
    ],
)
def test_a_torch_build_that_cannot_use_the_gpu_is_a_gap(standin, tmp_path, installed_torch, gpus, build, expected):
    standin.reset(gpus)
    installed_torch(build)
    subjects = gap_subjects(describe_machine({}, tmp_path))
    assert [
        subject for subject in subjects if subject in ("anything on the GPU", "operators, kernels and steps")
    ] == expected


@pytest.mark.parametrize(
    ("gpus", "marks", "times"), [(1, {".dockerenv": ""}, 1), (1, {}, 0), (0, {".dockerenv": ""}, 0)]
)
def test_memory_of_other_processes_is_a_gap_in_a_container_with_a_gpu(standin, system, gpus, marks, times):
    standin.reset(gpus)
    assert sum("memory_allocated" in gap.fix for gap in describe_machine({}, system(marks)).gaps) == times


@pytest.mark.parametrize(("capability", "why"), [((8, 0), "Hopper"), ((9, 0), "gpulab"), ((10, 0), "gpulab")])
def test_why_tensor_cores_are_not_counted_depends_on_the_gpu(standin, tmp_path, capability, why):
    standin.reset(gpus=1)
    standin.capability(0, *capability)
    (gap,) = (gap for gap in describe_machine({}, tmp_path).gaps if "tensor core" in gap.what)
    assert why in gap.why


def test_a_machine_without_a_gpu_has_one_gap_for_that(standin, tmp_path, installed_torch):
    installed_torch(CPU_BUILD)
    standin.fault("nvmlInitWithFlags", 12)
    described = describe_machine({}, tmp_path)
    assert described.gpus == ()
    assert described.device == described.cpu
    assert [gap for gap in described.gaps if "GPU" in gap.what] == [described.gaps[0]]
