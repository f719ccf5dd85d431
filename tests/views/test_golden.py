"""Every view as text, compared with its golden page in tests/golden: the only place that holds the wording.

After a change of wording, refresh the pages with `GPULAB_GOLDEN=write pytest tests/views/test_golden.py`, and read
`git diff tests/golden` before committing. All runs are constructed, so the pages are the same on every machine.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

import pytest

import gpulab
from gpulab.comparison import compare
from gpulab.run import Gap, Gpu, Machine
from gpulab.views import charts, rule_page
from gpulab.views.compare.comparison import comparison_view
from gpulab.views.info import info
from gpulab.views.live.html_panel import panel_html
from gpulab.views.live.panel_content import PanelContentBuilder
from gpulab.views.report.report import report
from gpulab.views.virtual_gpu import compare_gpus
from tests.support.front_end.live_panel import gpu as gpu_reading
from tests.support.front_end.live_panel import live_state
from tests.support.front_end.read_views import Page
from tests.support.runs import example_report
from tests.support.runs.example_report import launch_bound_run, loading_run
from tests.support.runs.made_runs import NO_WORKERS, run_of, stepped
from tests.support.runs.predicted import reading
from tests.support.virtual.memory_programs import SPEEDS, on, training

FOLDER = Path(__file__).resolve().parent.parent / "golden"
WRITE = os.environ.get("GPULAB_GOLDEN") == "write"
HOW = "If the new text is right: GPULAB_GOLDEN=write pytest tests/views/test_golden.py, then read the diff."


def machine():
    gpu = Gpu(index=0, name="NVIDIA H200", uuid="GPU-1", memory_bytes=150 * 2**30, power_limit_w=700.0)
    gap = Gap(
        what="kernels and copies",
        why="CUPTI is not permitted for this user",
        fix="ask for the SYS_ADMIN capability",
    )
    return Machine(
        cpu="AMD EPYC", cores=64, cores_allowed=12.0, memory_bytes=2**37, platform="Linux", python="3.12.3",
        torch="2.9.1+cu130", driver="580.65", gpus=(gpu,), gaps=(gap,),
    )  # fmt: skip


def interrupted_run():
    return run_of(
        stepped(example_report.starved), outcome="KeyboardInterrupt", loaders=[NO_WORKERS], name="interrupted"
    )


def panel():
    glance = PanelContentBuilder("training").build(live_state(gpus=(gpu_reading(),)))
    return re.sub(r"\s{2,}", "\n", Page(panel_html(glance)).text.strip())


def chart_descriptions():
    """Title and description of every chart that this run has data for, and of some that say what is missing."""
    run = reading()
    names = ("ledger", "step_times", "kernels", "queue_depth", "idle_flame", "copy_rates", "roofline", "sensors")
    return "\n\n".join(f"{name}\n{getattr(charts, name)(run).alt}" for name in names)


PAGES = {
    "report": lambda _: str(example_report.example_report()),
    "report_gpu": lambda _: str(report(launch_bound_run())),
    "report_cpu": lambda _: str(report(loading_run())),
    "report_interrupted": lambda _: str(report(interrupted_run())),
    "report_empty": lambda _: str(report(run_of())),
    "gpuwhy_no_workers": lambda _: str(rule_page.page("no_workers")),
    "gpuwhy_workers_change": lambda _: str(rule_page.page("workers")),
    "gpuwhy": lambda _: str(rule_page.page()),
    "compare": lambda _: str(comparison_view(compare(loading_run(name="before"), loading_run(3.0, "after", 4)))),
    "compare_story": lambda _: str(
        comparison_view(
            gpulab.compare(loading_run(name="baseline"), loading_run(10.0, "workers"), loading_run(3.0, "pinned"))
        )
    ),
    "whatif": lambda _: str(gpulab.whatif(loading_run(), "workers=4")),
    "whatif_list": lambda _: str(gpulab.whatif(launch_bound_run())),
    "info": lambda _: str(info(machine())),
    "virtual_fit": lambda gpu: str(compare_gpus.fits(training(gpu, model=1200, sample=200), "t4", 128, runner=gpu)),
    "virtual_max_batch": lambda gpu: str(compare_gpus.max_batch(training(gpu, sample=500), "h100", runner=gpu)),
    "virtual_gpus": lambda gpu: str(
        compare_gpus.compare_gpus(on(gpu, SPEEDS), ["t4", "h100"], 100, {"h100": 2.5}, runner=gpu)
    ),
    "live_panel": lambda _: panel(),
    "charts": lambda _: chart_descriptions(),
}


@pytest.mark.parametrize("name", sorted(PAGES))
def test_the_view_reads_as_its_golden_page(name, gpu):
    text = PAGES[name](gpu).rstrip() + "\n"
    path = FOLDER / f"{name}.txt"
    if WRITE:
        path.write_text(text, encoding="utf-8")
    golden = path.read_text(encoding="utf-8") if path.exists() else ""
    diff = "\n".join(difflib.unified_diff(golden.splitlines(), text.splitlines(), "golden", "now", lineterm="", n=1))
    assert text == golden, f"{path.relative_to(FOLDER.parent.parent)} differs. {HOW}\n{diff}"


def test_every_golden_page_belongs_to_a_view():
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(PAGES)
