"""How pages look, without comparing pixels: nothing lies over anything, bars and lanes are as long as their numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpulab.intervals import Coverage, union_of
from gpulab.views.report.report import report
from gpulab.views.sheet.lanes import middle_window
from tests.support.front_end.page_layout import faults
from tests.support.front_end.pages import on_pages
from tests.support.runs.example_report import example_report

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

every_report = on_pages(("made", "v100_resnet50_workers0", "a100_ddp_8ranks_rank"))
TOLERANCE = 0.08  # of a lane's height: heights have 44 levels, and are drawn in 22 pixels
UNFOLD = "() => document.querySelectorAll('details').forEach(each => each.open = true)"
# For each lane of a picture, the share of each column's height that is inked in more than the lane's own pale ground.
INK = """async ([alt, lanes, lane_px]) => {
  const image = [...document.images].find(each => each.alt.startsWith(alt));
  await image.decode();
  const paper = document.createElement('canvas');
  paper.width = 800; paper.height = lanes * lane_px;
  const brush = paper.getContext('2d');
  brush.drawImage(image, 0, 0, paper.width, paper.height);
  const inked = [];
  for (let lane = 0; lane < lanes; lane++) {
    const data = brush.getImageData(0, lane * lane_px + 4, paper.width, lane_px - 8).data, share = [];
    for (let x = 0; x < paper.width; x++) {
      let count = 0;
      for (let y = 0; y < lane_px - 8; y++) count += data[4 * (y * paper.width + x) + 3] > 200;
      share.push(count / (lane_px - 8));
    }
    inked.push(share);
  }
  return inked;
}"""


@pytest.fixture
def page(any_page: Any) -> Any:
    return any_page


@pytest.fixture(scope="module")
def narrow(chromium: Any) -> Iterator[Any]:
    opened = chromium.new_page(viewport={"width": 480, "height": 800})
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest) -> Any:
    if request.param == "made":
        return example_report()
    import gpulab

    find: Callable[[str], Path] = request.getfixturevalue("recorded")
    return report(gpulab.load(find(f"{request.param}.json.gz")))


@every_report
def test_a_report_is_well_laid_out_folded_and_unfolded(page, told):
    page.set_content(told.html_page())
    assert faults(page) == []
    page.evaluate(UNFOLD)
    assert faults(page) == []


@every_report
def test_in_lanes_there_is_ink_where_the_gpu_worked_and_none_where_it_was_idle(page, told):
    page.set_content(told.html_page())
    diagnosis = told.diagnosis
    shown, ledger = middle_window(diagnosis.steps), diagnosis.ledger
    edges = np.linspace(shown.start_ns, shown.end_ns, 801).astype(np.int64)
    busy = union_of(*(ledger.spans[part.key] for part in ledger.parts if part.busy))
    share = Coverage.of(busy).covered_ns(edges[:-1], edges[1:]) / np.diff(edges)
    alt = f"Timeline of steps {shown.steps[0] + 1} to"
    lanes = len([name for name in _lane_names(told) if name])
    inked = np.array(page.evaluate(INK, [alt, lanes, 30])[1:])  # the first lane is the host's
    for step in shown.steps:  # a line is drawn where a step begins
        at = int(np.searchsorted(edges, diagnosis.steps.start_ns[step]))
        inked[:, max(0, at - 1) : at + 2] = share[max(0, at - 1) : at + 2]
    # A picture too rich for its bytes is drawn in columns of two or four pixels: eight together are always whole.
    inked, share = inked.reshape(lanes - 1, 100, 8).mean(axis=2), share.reshape(100, 8).mean(axis=1)
    assert 0.1 < share.mean() < 0.95
    assert (inked.max(axis=0) - share).max() < TOLERANCE, "more drawn than worked"
    assert (share - inked.sum(axis=0)).max() < TOLERANCE, "more worked than drawn"


def _lane_names(told: Any) -> tuple[str, ...]:
    blocks = [block for section in told.sheet.blocks if hasattr(section, "blocks") for block in section.blocks]
    return next(block.lane_names for block in blocks if hasattr(block, "svg"))


def test_what_is_evidence_is_drawn_as_evidence(page):
    page.set_content(example_report().html_page())
    page.evaluate(UNFOLD)
    inked = np.array(page.evaluate(INK, ["Lanes: evidence", 3, 20]))
    assert inked[0].mean() == pytest.approx(0.4, abs=0.02), "40 of 100 ms are waited"
    assert inked[2].mean() == pytest.approx(0.53, abs=0.02), "and the GPU works for 53"
    assert (np.minimum(inked[0], inked[2]) > 0.5).mean() < 0.01, "never at the same time"


def test_a_page_with_the_timeline_is_well_laid_out(page, tmp_path):
    page.goto(example_report().save(tmp_path / "report.html").as_uri())
    page.wait_for_selector(".gpulab-tl[data-painted]")
    assert faults(page) == []


# Each check bites: a copy of the page is broken in one way, and that is what is found.

BROKEN = {
    "text over text": lambda html: html.replace("margin:20px 0 8px", "margin:-26px 0 8px"),
    "wider than the page": lambda html: html.replace("max-width:920px;line-height:1.5", "width:1300px;line-height:1.5"),
    "letters of": lambda html: html.replace("font-size:.95em", "font-size:.6em", 1),
    "a part as wide as": lambda html: re.sub(r"flex:(3\d\.\d\d) 1 0", "flex:60 1 0", html),
    "a picture that is not seen": lambda html: html.replace(
        "data:image/svg+xml;base64,", "data:image/svg+xml;base64,PHN2", 1
    ),
    "an empty bar": lambda html: re.sub(r'(<div title="[^"]*" style="height:24px)', r'<div style="height:24px', html),
}


@pytest.mark.parametrize("fault", BROKEN, ids=lambda fault: fault.replace(" ", "_"))
def test_a_broken_copy_is_found_to_be_broken(narrow, fault):
    page = narrow
    html = example_report().html_page()
    broken = BROKEN[fault](html)
    assert broken != html
    page.set_content(broken)
    page.evaluate(UNFOLD)
    assert any(each.startswith(fault) for each in faults(page)), faults(page)


def test_a_lane_without_its_ink_is_noticed(narrow):
    page = narrow
    html = example_report().html_page()
    page.set_content(
        re.sub(
            r'src="data:image/svg[^"]*"', 'src="data:image/svg+xml,<svg xmlns=%22http://www.w3.org/2000/svg%22/>"', html
        )
    )
    inked = np.array(page.evaluate(INK, ["Lanes: evidence", 3, 20]))
    assert inked[0].mean() == 0, "where made() has 0.4"
