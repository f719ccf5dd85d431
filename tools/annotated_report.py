"""The annotated picture of docs/how_to_read_a_report.md: a real report in Chromium, with numbers beside its parts.

    python tools/annotated_report.py docs

The report is that of the shipped recording h100_01, which was made on a real H100.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gpulab
from gpulab.files.datasets import dataset
from tests.support.front_end.browser import browser
from tools.pictures import small

RUN = "h100_01"
WIDTH, HEIGHT = 1000, 4000
# The text of each numbered part, mostly its beginning, in the order of the explanations.
PARTS = (
    "Copying batches from pageable",
    "1 copy to the GPU in each step",
    "Fix",
    "Predicted step time",
    "Upper bound",
    "Confidence in the cause",
    "Next bottleneck",
    "remaining",
    'Run "training"',
    "Where the step time goes",
    "Timeline",
    "1 other finding",
    "checks could not run",
    "How this was measured",
)
# Puts a number left of the first element whose own text begins with each part; returns the parts that are missing.
_ANNOTATE = """parts => {
  document.body.style.margin = "16px 16px 16px 56px";
  const missing = [];
  const elements = [...document.querySelectorAll("main *")];
  parts.forEach((part, index) => {
    const text = one => [...one.childNodes].filter(node => node.nodeType === 3).map(node => node.data).join("").trim();
    const element = elements.find(one => text(one).startsWith(part)
      || part.startsWith("checks") && text(one).includes(part));
    if (!element) { missing.push(part); return; }
    const place = element.getBoundingClientRect();
    const badge = document.createElement("span");
    badge.textContent = index + 1;
    badge.style.cssText = "position:absolute;left:16px;width:26px;height:26px;border-radius:13px;background:#b3261e;"
      + "color:#fff;font:600 14px/26px system-ui,sans-serif;text-align:center;top:"
      + (place.top + window.scrollY + Math.min(place.height, 28) / 2 - 13) + "px";
    document.body.append(badge);
  });
  return missing;
}"""


def main(folder: Path) -> int:
    """Write the picture for light and dark pages; return 1 if a part of the report is missing."""
    page_text = gpulab.report(dataset(RUN).load()).html_page()
    with browser() as chromium:
        for theme in ("light", "dark"):
            context = chromium.new_context(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=theme)
            page = context.new_page()
            page.set_content(page_text)
            if missing := page.evaluate(_ANNOTATE, list(PARTS)):
                print(f"not in the report: {missing}")
                return 1
            path = folder / f"report-annotated-{theme}.png"
            path.write_bytes(small(_Cut(page)))
            print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
            context.close()
    return 0


class _Cut:
    """A page as a picture that ends below its last line."""

    def __init__(self, page: Any) -> None:
        self._page = page

    def screenshot(self) -> bytes:
        """Return the PNG."""
        height = self._page.evaluate("document.querySelector('main').getBoundingClientRect().bottom")
        picture: bytes = self._page.screenshot(
            clip={"x": 0, "y": 0, "width": WIDTH, "height": min(height, HEIGHT) + 12}
        )
        return picture


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs")))
