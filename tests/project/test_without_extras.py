"""Without pandas, matplotlib and what these bring, everything works but DataFrames and charts, whose errors say why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# PyTorch is blocked, too: importing it takes seconds, and what records it is the same module as what records the loop.
SCRIPT = """
import sys
sys.modules.update(dict.fromkeys(["pandas", "matplotlib", "PIL", "pyarrow", "torch"]))

import contextlib, io, json
from pathlib import Path
import gpulab
from gpulab import *  # "charts" is among the names
from gpulab.analysis import kernel_table
from gpulab.cli.main import main
from gpulab.files.datasets import datasets
from gpulab.fleet import Fleet
from gpulab.fleet.job_summary import join_ranks
from gpulab.fleet.summarise import summarise_run
from gpulab.lessons.labs.machine.scheduling.idle_week import write_idle_week
from tests.support.front_end.every_view import panel_content, panel_html

folder = Path(sys.argv[1])
with gpulab.profile("loop"):
    for _ in range(5):
        sum(range(20_000))
        gpulab.step()
path = gpulab.save(gpulab.runs["loop"], folder / "loop.gpulab")
run = gpulab.load(path)
before, after = (dataset.load() for dataset in datasets()[:2])
report = gpulab.report(before)
write_idle_week(folder / "watch.sqlite")
views = {
    "report": report,
    "job": gpulab.report([before, after]),
    "comparison": gpulab.compare(before, after),
    "what-if": before.whatif(),
    "timeline": before.timeline(),
    "history": gpulab.history("7d", path=folder / "watch.sqlite"),
    "fleet": Fleet(join_ranks(*(summarise_run(rank, f"rank_{i}") for i, rank in enumerate((before, after))))).report(),
    "info": gpulab.info(),
}
terminal = io.StringIO()
with contextlib.redirect_stdout(terminal):
    status = main(["report", str(path)])


def error(use):
    try:
        use()
    except gpulab.GpulabError as error:
        return [error.why, error.fix]
    return None


results = {
    "loaded": run.name,
    "saved": [report.save(folder / f"report.{form}").stat().st_size for form in ("html", "txt", "md")],
    "command": [status, len(terminal.getvalue())],
    "text": {name: len(str(view)) for name, view in views.items()},
    "html": {name: len(view._repr_mimebundle_()["text/html"]) for name, view in views.items()},
    "panel": len(panel_html(panel_content())),
    "rows": run.event_rows._repr_html_(),
    "dir": dir(charts),
    "errors": {
        "events": error(lambda: run.events),
        "table": error(lambda: kernel_table(run).frame()),
        "chart": error(lambda: charts.ledger(run)),
        "catalogue": error(lambda: charts.CHARTS),
        "png": error(lambda: report.save(folder / "report.png")),
    },
    "png": (folder / "report.png").exists(),
    "probes": [hasattr(charts, name) for name in ("__wrapped__", "_repr_html_")],
}
for name in ("matplotlib", "PIL"):
    del sys.modules[name]
print(json.dumps({**results, "later": [charts.kernels.__name__, "kernels" in dir(charts)]}))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What one process without the packages measures."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path_factory.mktemp("results"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_without_pandas_and_matplotlib_a_loop_is_recorded_saved_loaded_and_reported(results):
    assert results["loaded"] == "loop"
    assert all(size > 100 for size in results["saved"])
    assert results["command"][0] == 0
    assert results["command"][1] > 100


def test_without_pandas_and_matplotlib_every_view_is_drawn(results):
    assert all(size > 100 for size in results["text"].values()), results["text"]
    assert all(size > 1000 for size in [*results["html"].values(), results["panel"]]), results["html"]


@pytest.mark.parametrize("use", ["events", "table"])
def test_without_pandas_a_dataframe_is_an_error_that_names_the_extra(results, use):
    assert results["errors"][use] == ["not installed: pandas", 'pip install "gpulab[frames]"']


@pytest.mark.parametrize("use", ["chart", "catalogue", "png"])
def test_without_matplotlib_a_chart_is_an_error_that_names_the_extra(results, use):
    assert results["errors"][use] == ["not installed: matplotlib", 'pip install "gpulab[charts]"']


def test_without_pandas_rows_at_the_end_of_a_cell_name_the_extra(results):
    assert results["rows"].startswith("<pre>Rows(events, ")
    assert "gpulab[frames]" in results["rows"]


def test_without_matplotlib_the_charts_can_be_imported_and_probed(results):
    assert results["dir"] == []
    assert results["probes"] == [False, False]


def test_charts_are_drawn_once_matplotlib_is_installed(results):
    assert results["later"] == ["kernels", True]
