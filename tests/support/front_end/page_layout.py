"""What is wrong with the layout of a page, as measured in a browser: no pixels are compared, only what a reader needs.

`faults(page)` gives a sentence for each fault: text over text, something wider than the page, letters too small, a
bar whose parts are not as wide as the numbers they show, a picture that did not load.
"""

from __future__ import annotations

import re
from typing import Any

SMALLEST_PX = 11
BAR_POINTS = 1.0  # per cent of the bar that a part may be off

_MEASURE = """() => {
  const texts = [], wide = [], small = [], pictures = [];
  const scrolls = element => {
    for (let up = element; up; up = up.parentElement)
      if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(up).overflowX)) return true;
    return false;
  };
  const clipped = (rect, element) => {
    let {left, top, right, bottom} = rect;
    for (let up = element; up; up = up.parentElement) {
      if (getComputedStyle(up).overflowX === 'visible') continue;
      const box = up.getBoundingClientRect();
      left = Math.max(left, box.left); right = Math.min(right, box.right);
      top = Math.max(top, box.top); bottom = Math.min(bottom, box.bottom);
    }
    return {left, top, right, bottom};
  };
  let number = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (!node.data.trim() || ['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(parent.tagName)) continue;
    if (!parent.checkVisibility()) continue;
    number += 1;
    const range = document.createRange();
    range.selectNodeContents(node);
    const size = parseFloat(getComputedStyle(parent).fontSize);
    for (const rect of range.getClientRects()) {
      const box = clipped(rect, parent);
      if (box.right - box.left < 1 || box.bottom - box.top < 1) continue;
      texts.push([box.left, box.top, box.right, box.bottom, node.data.trim().slice(0, 60), size, number]);
    }
  }
  for (const element of document.body.querySelectorAll('*')) {
    if (!element.checkVisibility() || scrolls(element.parentElement)) continue;
    const box = element.getBoundingClientRect();
    if (box.width && (box.right > innerWidth + 1 || box.left < -1)) wide.push(element.outerHTML.slice(0, 80));
  }
  if (document.documentElement.scrollWidth > innerWidth) wide.push('the page itself');
  for (const image of document.images)
    if (image.checkVisibility()) pictures.push([image.naturalWidth, image.clientWidth, image.clientHeight, image.alt]);
  const bars = [...document.querySelectorAll('[role=img][aria-label]')].map(bar => [
    bar.getAttribute('aria-label'), bar.clientWidth,
    [...bar.querySelectorAll('[title]')].filter(part => part.textContent === '')
      .map(part => [part.title, part.getBoundingClientRect().width])]);
  return {texts, wide, pictures, bars};
}"""


def faults(page: Any) -> list[str]:
    """Everything that is wrong with what the page shows now."""
    measured = page.evaluate(_MEASURE)
    faults = [f"wider than the page: {element}" for element in measured["wide"]]
    faults += [f"letters of {text[5]:.1f} px: {text[4]}" for text in measured["texts"] if text[5] < SMALLEST_PX]
    faults += [
        f"a picture that is not seen: {each}" for each in measured["pictures"] if min(each[:3]) < 10 or not each[3]
    ]
    return [*faults, *_overlaps(measured["texts"]), *_bars(measured["bars"])]


def _overlaps(texts: list[list[Any]]) -> list[str]:
    overlaps, texts = [], sorted(texts, key=lambda text: text[1])
    for at, one in enumerate(texts):
        for other in texts[at + 1 :]:
            if other[1] >= one[3]:
                break
            across = min(one[2], other[2]) - max(one[0], other[0])
            # Lines of text reach a little over their own height; a third of it is another line.
            down = min(one[3], other[3]) - max(one[1], other[1])
            # A text that is cut off with dots has two boxes in one place.
            if one[6] != other[6] and across > 2 and down > min(one[3] - one[1], other[3] - other[1]) / 3:
                overlaps.append(f"text over text: {one[4]!r} and {other[4]!r}")
    return overlaps


def _bars(bars: list[Any]) -> list[str]:
    faults = []
    for label, width, parts in bars:
        parts_shown = [(re.fullmatch(r"(.*) (<?)([\d.]+) %", title), wide) for title, wide in parts]
        total_width = sum(wide for _, wide in parts_shown)
        total_percent = sum(float(match[3]) for match, _ in parts_shown)
        if not parts or total_width < 0.9 * width * min(1.0, total_percent / 100):
            faults.append(f"an empty bar: {label}")
        for match, wide in parts_shown:
            if abs(100 * wide / total_width - 100 * float(match[3]) / total_percent) > BAR_POINTS:
                faults.append(f"a part as wide as {100 * wide / total_width:.1f} %: {match[0]}")
    return faults
