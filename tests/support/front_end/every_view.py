"""Every view as HTML, from constructed runs, for tests of what holds for all of them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import gpulab
from gpulab.comparison import compare
from gpulab.fleet import Fleet
from gpulab.fleet.job_summary import join_ranks
from gpulab.fleet.summarise import summarise_run
from gpulab.lessons.labs.machine.scheduling import idle_week
from gpulab.lessons.question_view import hint_sections
from gpulab.run import Gpu, Machine
from gpulab.views import rule_page
from gpulab.views.compare.comparison import comparison_view
from gpulab.views.fleet.fleet_report import fleet_report
from gpulab.views.info import info
from gpulab.views.live.html_panel import panel_html
from gpulab.views.live.panel_content import PanelContent, PanelContentBuilder
from gpulab.views.report.report import report
from gpulab.views.sheet.html import fragment
from gpulab.views.sheet.sheet import Facts, Line, Sheet, Verdict
from tests.support.front_end.live_panel import gpu, live_state
from tests.support.runs.cases import case_module
from tests.support.runs.example_report import example_report, launch_bound_run, loading_run

VIEWS = Path(gpulab.__file__).parent / "views"


def lesson_html() -> str:
    """The blocks that lessons show: claims, a question with hints, and an answer."""
    hints = hint_sections(("Look at the loader.", "Count its workers.", "Set num_workers=2."))
    blocks = (
        Verdict("HOLDS  workers hide the loading: 67 % -> 24 %", result="HOLDS", good=True),
        Verdict("FAILS  it is twice as fast: 1.3x", result="FAILS", good=False),
        Verdict("share: not answered yet", result="not answered yet"),
        Line("share: What share of a step does the GPU wait for data?"),
        Facts((("a)", "less than 10 %"), ("b)", "more than half"))),
        *hints,
    )
    return fragment(Sheet("gpulab: question share", blocks))


def panel_content() -> PanelContent:
    """The live panel of a session with a GPU and with workers."""
    return PanelContentBuilder("training").build(live_state(gpus=(gpu(),)))


@cache
def every_view(folder: Path) -> dict[str, str]:
    """Return the HTML of each view by name; `folder` is for the database of the history."""
    job = case_module("straggler").provoked_by_one_rank_that_builds_its_batches_itself()
    runs = loading_run(name="before"), loading_run(10.0, "workers"), loading_run(3.0, "pinned")
    launch_bound = launch_bound_run()
    idle_week.write_idle_week(folder / "watch.sqlite")
    machine = Machine(cpu="AMD EPYC", cores=64, gpus=(Gpu(index=0, name="NVIDIA H200", memory_bytes=150 * 2**30),))
    summaries = [summarise_run(run, f"rank_{run.rank}.gpulab") for run in job]
    views: dict[str, Any] = {
        "report": example_report(),
        "job report": report(job),
        "comparison": comparison_view(compare(runs[0], runs[2])),
        "story": comparison_view(gpulab.compare(*runs)),
        "what-if": gpulab.whatif(runs[0], "workers=4"),
        "what-if list": gpulab.whatif(launch_bound),
        "timeline": gpulab.timeline(launch_bound, live=False),
        "rule": rule_page.page("no_workers"),
        "rules": rule_page.page(),
        "machine": info(machine),
        "history": gpulab.history("7d", path=folder / "watch.sqlite"),
        "fleet": fleet_report(Fleet(join_ranks(*summaries))),
        "ledger chart": gpulab.charts.ledger(launch_bound),
        "missing chart": gpulab.charts.sensors(launch_bound),
    }
    html = {name: view._repr_html_() for name, view in views.items()}
    return {**html, "lesson": lesson_html(), "live panel": panel_html(panel_content())}


def page_of(fragments: dict[str, str]) -> str:
    """Return one page with all of these."""
    sections = "".join(f'<section id="{name.replace(" ", "-")}">{html}</section>' for name, html in fragments.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Views</title>'
        '<meta name="color-scheme" content="light dark"></head>'
        '<body style="margin:16px;font:14px/1.5 system-ui,sans-serif;background:Canvas;color:CanvasText">'
        f"<main><h1>Views</h1><h2>All of them</h2>{sections}</main></body></html>"
    )


def show_panel(page: Any) -> None:
    """Draw the live panel's widget in the page, as a notebook does."""
    model = {"now": panel_content().data(), "key": "key", "hello": False, "stops": "the cell", "stop": "button"}
    page.evaluate(
        """async ([code, model]) => {
          const module = await import(URL.createObjectURL(new Blob([code], {type: 'text/javascript'})));
          const el = document.querySelector('main').appendChild(document.createElement('section'));
          el.id = 'live-widget';
          module.default.render({model: {get: name => model[name], on() {}, off() {}, send() {}}, el});
        }""",
        [(VIEWS / "live" / "widget.js").read_text(), json.loads(json.dumps(model))],
    )
    page.add_style_tag(content=(VIEWS / "live" / "widget.css").read_text())
