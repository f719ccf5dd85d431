"""A sheet as HTML that survives JupyterLab's sanitizer: only `style` attributes, and pictures as data URIs.

JupyterLab passes the output of an untrusted notebook through a sanitizer. It removes style sheets, scripts, inline SVG
and ARIA attributes, and keeps only the CSS properties and values on its list (`overflow-wrap:anywhere`, `var()`,
`color:inherit` and `position` in percent are not on it). Everything written here is on the list, or can be lost
without harm. Text inherits the colour of the page, so the same HTML works in light and dark themes. Colours that mean
something are kept in high-contrast themes (`forced-color-adjust`), which replace all others.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable
from html import escape

from gpulab.views.sheet.html_table import (
    KEEP_COLOUR,
    SMALL,
    SOFT,
    TABLE_STYLE,
    safe_text,
    swatch,
    table_html,
    typeset,
    with_arrows,
)
from gpulab.views.sheet.palette import (
    BAD,
    EVIDENCE,
    EVIDENCE_SHADING,
    GOOD,
    LINE_COLOUR,
    MEASURED,
    NEUTRAL,
    PREDICTED,
    QUIET_BACKGROUND,
    UNCERTAIN,
    UNDECIDED,
    colour,
)
from gpulab.views.sheet.sheet import (
    Answer,
    Bar,
    Block,
    Code,
    Expectation,
    Facts,
    Line,
    Mark,
    Section,
    Segment,
    Sheet,
    TableBlock,
    Timeline,
    Verdict,
)
from gpulab.wording import clean_code, percent

MONO = "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"
GAP = "margin:0 0 10px"
_POLICY = "default-src 'none';img-src data:;style-src 'unsafe-inline'"  # nothing in the page may run or load
MIN_PART_FRAC = 0.001  # parts narrower than a pixel are not drawn and have no legend entry
MIN_LABELLED_FRAC = 0.09  # of the width of the sheet: narrower segments have no label below them
MAX_ONE_LINE = 24  # letters of a name that stays on one line, also on a narrow page
_UNIT_SPACE = re.compile(r"(?<=\d) (?=(?:%|[mun]?s|[KMGT]iB)\b|%)")  # a heading does not break before a unit


def fragment(sheet: Sheet) -> str:
    """Return the sheet as one element for the output of a notebook cell."""
    return (
        f'<div class="mathjax_ignore" style="max-width:920px;line-height:1.5;overflow-wrap:break-word" '
        f'role="group" aria-label="{safe_text(sheet.title)}">{_blocks(sheet.blocks)}</div>'
    )


def document(sheet: Sheet) -> str:
    """Return the sheet as a complete page that is readable offline."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="color-scheme" content="light dark"><title>{safe_text(sheet.title)}</title></head>'
        '<body style="max-width:920px;margin:24px auto;padding:0 16px;font:15px/1.5 system-ui,sans-serif;'
        'background:Canvas;color:CanvasText">'
        f"<main>{fragment(sheet)}</main></body></html>\n"
    )


def _blocks(blocks: Iterable[Block]) -> str:
    return "".join(map(_block, blocks))


def _block(block: Block) -> str:
    if isinstance(block, Verdict):
        return _verdict(block)
    if isinstance(block, Line):
        return (
            f'<div style="margin:6px 0{";" + SMALL + ";" + SOFT if block.soft else ""}">{safe_text(block.text)}</div>'
        )
    if isinstance(block, Code):
        return _code(block.text)
    if isinstance(block, Answer):
        return _answer(block)
    if isinstance(block, Facts):
        return _facts(block.rows)
    if isinstance(block, TableBlock):
        return table_html(block)
    if isinstance(block, Bar):
        return _bar(block)
    if isinstance(block, Timeline):
        return _timeline(block)
    return _section(block)


def _section(section: Section) -> str:
    title = safe_text(section.title)
    if section.folded:
        return (
            f'<details style="margin:0;padding:6px 0;border-top:1px solid {LINE_COLOUR}">'
            f'<summary style="cursor:pointer;font-weight:600">{title}</summary>'
            f'<div style="padding:8px 0 4px 16px">{_blocks(section.blocks)}</div></details>'
        )
    return (
        f'<div role="heading" aria-level="4" style="margin:20px 0 8px;font-size:1.1em;font-weight:600">{title}</div>'
        f'<div style="margin:0 0 16px">{_blocks(section.blocks)}</div>'
    )


def _verdict(verdict: Verdict) -> str:
    before, after = verdict.text_around_result
    shade = {True: GOOD, False: BAD, None: UNDECIDED}[verdict.good]
    # In a high-contrast theme, the border takes the place of the background.
    style = f"padding:0 6px;border:1px solid {shade};border-radius:4px;font-weight:600;color:#FFF;background:{shade}"
    badge = f'<span style="{style}">{safe_text(verdict.result)}</span>'
    return f'<div style="margin:0 0 6px">{typeset(before)}{badge}{typeset(after)}</div>'


def _code(code: str) -> str:
    text = escape(clean_code(code))
    return (
        f'<pre style="margin:4px 0 10px;padding:8px 12px;background:{QUIET_BACKGROUND};border-radius:4px;'
        f'white-space:pre-wrap;overflow-wrap:break-word;word-break:normal;line-height:1.5;font-size:.92em;{MONO}">{text}</pre>'
    )


def _answer(answer: Answer) -> str:
    evidence = "".join(f'<div style="margin:0 0 4px">{safe_text(line)}</div>' for line in answer.evidence)
    fix = f'<div style="margin:10px 0 0;{SMALL};{SOFT}">Fix</div>{_code(answer.fix)}' if answer.fix else ""
    advice = f'<div style="{GAP}">{safe_text(answer.advice)}</div>' if answer.advice else ""
    expected = _expectation(answer.expectation) if answer.expectation else ""
    facts = _facts(answer.facts, typeset) if answer.facts else ""
    notes = f'<div style="{SMALL}">{_facts(answer.notes)}</div>' if answer.notes else ""
    picture = _timeline(answer.picture) if answer.picture else ""
    claim = _UNIT_SPACE.sub("\N{NO-BREAK SPACE}", safe_text(answer.claim))
    if not answer.leading:
        return _folded(
            f'<span style="font-weight:600">{claim}</span>{_gist(answer)}',
            f"{evidence}{picture}{fix}{advice}{facts}{expected}{notes}",
        )
    if picture:
        notes = _folded("Evidence and method", picture + notes)
    style = "font-size:1.3em;line-height:1.35;font-weight:600;margin:2px 0 8px"
    heading = f'<div role="heading" aria-level="3" style="{style}">{claim}</div>'
    return f'<div style="margin:0 0 4px">{heading}{evidence}{fix}{advice}{facts}{expected}{notes}</div>'


def _gist(answer: Answer) -> str:
    return f' <span style="white-space:nowrap;{SOFT}">{typeset(answer.gist)}</span>' if answer.gist else ""


def _folded(summary: str, content: str) -> str:
    return (
        f'<details style="margin:0;padding:4px 0"><summary style="cursor:pointer">{summary}</summary>'
        f'<div style="padding:6px 0 10px 16px">{content}</div></details>'
    )


def _expectation(expected: Expectation) -> str:
    """Return the prediction as a bar: remaining, uncertain and saved time; measured time, if known."""
    remaining, uncertain = expected.best_frac, expected.worst_frac - expected.best_frac
    fills = [
        ("remaining", PREDICTED, remaining),
        ("uncertain", UNCERTAIN, uncertain),
        ("saved", "none", 1 - remaining - uncertain),
    ]
    bars, keys = (
        _thin_bar(fills),
        "".join(_key(_chip(fill), name) for name, fill, frac in fills if frac >= MIN_PART_FRAC),
    )
    if expected.measured_frac is not None:
        # A step that became longer exceeds the bar of the original step: draw both to the same scale.
        longest = max(1.0, expected.measured_frac)
        measured = _thin_bar([("measured", MEASURED, expected.measured_frac)])
        bars = (
            f'<div style="width:{100 / longest:.2f}%">{bars}</div>'
            f'<div style="width:{100 * expected.measured_frac / longest:.2f}%">{measured}</div>'
        )
        keys += _key(_chip(MEASURED), "measured")
    return (
        f'<div style="max-width:460px;margin:6px 0 10px">{bars}<div style="{SMALL};padding:2px 0 0">{keys}</div></div>'
    )


def _thin_bar(fills: list[tuple[str, str, float]]) -> str:
    cells = "".join(
        f'<div style="flex:{_share(frac)} 1 0;min-width:0;box-sizing:border-box;{_fill_style(fill)}"></div>'
        for _, fill, frac in fills
    )
    return f'<div style="display:flex;height:8px;margin:0 0 3px">{cells}</div>'


def _chip(fill: str) -> str:
    return (
        f'<span style="display:inline-block;width:10px;height:10px;margin:0 6px 0 0;box-sizing:border-box;'
        f'{_fill_style(fill)}"></span>'
    )


def _fill_style(fill: str) -> str:
    return f"background:{fill};{KEEP_COLOUR}" if fill != "none" else f"background:none;border:1px dashed {NEUTRAL}"


def _share(frac: float) -> str:
    return f"{max(0.0, 100 * frac):.2f}"


def _facts(pairs: Iterable[tuple[str, str]], form: Callable[[str], str] = with_arrows) -> str:
    cell = "text-align:left;vertical-align:top;padding:3px 16px 3px 0"
    rows = "".join(
        f'<tr style="background:none"><th scope="row" style="{cell};font-weight:400;{_one_line(name)}{SOFT}">'
        f"{safe_text(name)}</th>"
        f'<td style="{cell}">{form(value)}</td></tr>'
        for name, value in pairs
    )
    return f'<div style="overflow-x:auto"><table style="{TABLE_STYLE}">{rows}</table></div>'


def _one_line(name: str) -> str:
    return "white-space:nowrap;" if len(name) <= MAX_ONE_LINE else ""


def _bar(bar: Bar) -> str:
    total = sum(segment.frac for segment in bar.segments) or 1.0
    groups = "".join(map(_group, bar.groups))
    fills = "".join(_flex_cell(_fill(segment), segment.frac) for segment in bar.segments)
    labels = "".join(_flex_cell(_label(segment, bar.length / total), segment.frac) for segment in bar.segments)
    row = "display:flex;gap:1px"
    rows = (f"{row};flex-wrap:wrap", groups), (row, fills), (row, labels)  # a narrow page puts groups below each other
    inner = "".join(f'<div style="{style}">{cells}</div>' for style, cells in rows if cells)
    name = f'<div style="margin:0 0 3px">{safe_text(bar.name)}</div>' if bar.name else ""
    return (
        f'<div role="img" aria-label="{safe_text(bar.title)}" style="margin:0 0 12px">{name}'
        f'<div style="width:{100 * bar.length:.2f}%">{inner}</div></div>'
    )


def _flex_cell(content: str, frac: float) -> str:
    return f'<div style="flex:{_share(frac)} 1 0;min-width:0;overflow:hidden">{content}</div>'


def _group(group: Segment) -> str:
    text = f"{safe_text(group.label)} {percent(group.frac, 1)}"
    # A group may be narrower than its label, which matters most: give the label the width it needs.
    return (
        f'<div style="flex:{_share(group.frac)} 1 0;min-width:{0.6 * len(text):.1f}em;{SMALL};white-space:nowrap;'
        f'padding:0 0 2px">{text}</div>'
    )


def _fill(segment: Segment) -> str:
    title = f"{safe_text(segment.label)} {percent(segment.frac, 1)}"
    return f'<div title="{title}" style="height:24px;background:{colour(segment.key)};{KEEP_COLOUR}"></div>'


def _label(segment: Segment, scale: float) -> str:
    """Return the label of a segment that is `frac * scale` of the width of the sheet; "" if it is too narrow."""
    if segment.frac * scale < MIN_LABELLED_FRAC:
        return ""
    return (
        f'<div style="{SMALL};{SOFT};white-space:nowrap;overflow:hidden;text-overflow:ellipsis;padding:2px 4px 0 0">'
        f"{safe_text(segment.label)}</div>"
    )


_NAMES = "flex:0 0 112px;min-width:0;overflow:hidden;padding:0 8px 0 0;box-sizing:border-box"


def _timeline(picture: Timeline) -> str:
    height = picture.lane_px * len(picture.lane_names)
    names = "".join(
        f'<div title="{safe_text(name)}" style="height:{picture.lane_px}px;line-height:{picture.lane_px}px;'
        f'white-space:nowrap;overflow:hidden;text-overflow:ellipsis">{safe_text(name)}</div>'
        for name in picture.lane_names
    )
    data = b64encode(picture.svg.encode()).decode()
    # A small picture has its full description below it; a screen reader would read it twice.
    alt = picture.alt if picture.table else f"Lanes: {', '.join(picture.lane_names)}. Described in the text below."
    image = (
        f'<img src="data:image/svg+xml;base64,{data}" alt="{safe_text(alt)}" '
        f'style="display:block;width:100%;max-width:none;height:{height}px;margin:0;background:none">'
    )
    shaded = f"<div>{_PATCH}{safe_text(picture.shaded)}</div>" if picture.shaded else ""
    legend = "".join(_key(swatch(key), label) for key, label in picture.legend)
    description = f'<div style="margin:0 0 6px">{safe_text(picture.alt)}</div>'
    if picture.table is None:
        below = f'<div style="{SMALL}">{description}</div>'
    else:
        below = (
            f'<details style="margin:0 0 4px"><summary style="cursor:pointer;{SMALL}">As text and table</summary>'
            f'<div style="padding:6px 0 0 16px">{description}{table_html(picture.table)}</div></details>'
        )
    step_labels = _aligned("", _scale(picture.steps)) if picture.steps else ""
    anchor = f' data-gpulab-timeline="{safe_text(picture.element_key)}"' if picture.element_key else ""
    return (
        f'<div{anchor}><div style="{SMALL}">{step_labels}'
        f'<div style="display:flex"><div style="{_NAMES}">{names}</div>'
        f'<div style="flex:1 1 0;min-width:0">{image}</div></div>{_aligned("", _scale(picture.ticks))}'
        f'<div style="margin:8px 0 6px">{legend}{shaded}</div></div>{below}</div>'
    )


_PATCH = (
    '<span style="display:inline-block;width:10px;height:10px;margin:0 8px 0 0;box-sizing:border-box;'
    f'border:1px solid {EVIDENCE};background:{EVIDENCE_SHADING};{KEEP_COLOUR}"></span>'
)


def _key(swatch: str, label: str) -> str:
    return (
        f'<span style="display:inline-block;margin:0 16px 2px 0;white-space:nowrap">{swatch}{safe_text(label)}</span>'
    )


def _aligned(name: str, content: str) -> str:
    return (
        f'<div style="display:flex"><div style="{_NAMES}">{name}</div>'
        f'<div style="flex:1 1 0;min-width:0">{content}</div></div>'
    )


def _scale(marks: tuple[Mark, ...]) -> str:
    """Return labels along the width of the picture, each from its position up to the next one."""
    cells, end = [], 0.0
    for mark in marks:
        if mark.start > end:
            cells.append(f'<div style="flex:{_share(mark.start - end)} 1 0;min-width:0"></div>')
        cells.append(
            f'<div style="flex:{_share(mark.end - mark.start)} 1 0;min-width:0;overflow:hidden;white-space:nowrap;'
            f"text-overflow:ellipsis;padding:2px 0 2px 4px;border-left:1px solid {NEUTRAL};box-sizing:border-box;"
            f'{SOFT}" title="{safe_text(mark.text)}">{safe_text(mark.text)}</div>'
        )
        end = mark.end
    if end < 1:
        cells.append(f'<div style="flex:{_share(1 - end)} 1 0;min-width:0"></div>')
    return f'<div style="display:flex">{"".join(cells)}</div>'
