"""Charts as SVG that is light or dark like the page around it, in an <img> and without a script or style sheet.

A media query inside the SVG replaces the colours of background, text and grid. In an <img>, browsers answer
`prefers-color-scheme` by the `color-scheme` of the element, which JupyterLab (4.3 or later) and pages of gpulab set to
that of their theme, else by the setting of the operating system. The background is opaque, so that a chart is readable
even on a page of the other theme. Text stays text: a third of the size of a PNG, sharp at any zoom.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping
from xml.sax.saxutils import escape, quoteattr

from gpulab.views.charts.drawing.text_layout import SVG_FAMILIES, svg_text_width

_SVG, _HREF = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_DROPPED = ("metadata", "style")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
_NO_ROTATION = re.compile(r"rotate\(-?0 [^)]*\)")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_LONG_PATH = re.compile(r'<path d="[^"]{120,}"[^>]*/>')
_COLOUR_PROPERTIES = ("fill", "stroke")
_MIN_FITTED = 2  # characters of a text whose width is prescribed


def themed_svg(svg: str, dark: Mapping[str, str]) -> str:
    """Return an SVG written by matplotlib, compact and with the colours of `dark`, light to dark, in dark themes."""
    root = ElementTree.fromstring(svg)
    names = _Names(root)
    body = _share_paths("".join(_element(child, names, in_defs=False) for child in root))
    width, height = (float(root.attrib[side].removesuffix("pt")) for side in ("width", "height"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_short(width, 2)} {_short(height, 2)}" '
        f'width="{_short(width, 2)}pt" height="{_short(height, 2)}pt" font-family={quoteattr(SVG_FAMILIES)} '
        f'stroke-linejoin="round">{_dark_style(body, dark)}{body}</svg>'
    )


def _dark_style(body: str, dark: Mapping[str, str]) -> str:
    rules = "".join(
        f'[{name}="{light}"]{{{name}:{shade}}}'
        for light, shade in dark.items()
        for name in _COLOUR_PROPERTIES
        if f'{name}="{light}"' in body
    )
    return f"<style>@media(prefers-color-scheme:dark){{{rules}}}</style>" if rules else ""


def _share_paths(body: str) -> str:
    """Write a long path once, also if several hatches have it."""
    for index, (path, times) in enumerate(Counter(_LONG_PATH.findall(body)).items()):
        if times > 1:
            before, *rest = body.split(path)
            body = f'{before}<path id="p{index}"{path[5:]}' + f'<use href="#p{index}"/>'.join(rest)
    return body


class _Names:
    """Short names for the elements that others refer to; the same picture has the same names."""

    def __init__(self, root: ElementTree.Element) -> None:
        targets: list[str] = []
        for element in root.iter():
            for name, value in element.attrib.items():
                targets += [value.removeprefix("#")] if name == _HREF else _REFERENCE.findall(value)
        self._short = {target: f"i{index}" for index, target in enumerate(dict.fromkeys(targets))}

    def of(self, target: str) -> str | None:
        """Return the short name of an element; None if nothing refers to it."""
        return self._short.get(target)

    def renamed(self, value: str) -> str:
        """Return a value with its references renamed."""
        return _REFERENCE.sub(lambda match: f"url(#{self._short[match[1]]})", value)


def _element(element: ElementTree.Element, names: _Names, *, in_defs: bool) -> str:
    tag = element.tag.removeprefix(_SVG)
    if tag in _DROPPED:
        return ""
    in_defs = in_defs or tag in ("defs", "pattern", "clipPath")
    _share_style(element)
    attributes = _attributes(element, tag, names, digits=2 if in_defs else 1)
    content = "".join(_element(child, names, in_defs=in_defs) for child in element)
    if tag == "text":
        # Of several spaces, SVG shows one.
        content = escape((element.text or "").replace("  ", " \N{NO-BREAK SPACE}")) + content
    if tag in ("g", "defs") and (not attributes or not content):
        return content if tag == "g" else f"<defs>{content}</defs>" if content else ""
    written = "".join(f" {name}={quoteattr(value)}" for name, value in attributes.items())
    return f"<{tag}{written}>{content}</{tag}>" if content else f"<{tag}{written}/>"


def _share_style(group: ElementTree.Element) -> None:
    """Move the style that all marks of a group have to the group."""
    marks = [child for child in group if child.tag == f"{_SVG}use"]
    styles = {mark.get("style") for mark in marks}
    if len(marks) > 1 and len(marks) == len(group) and len(styles) == 1 and (style := styles.pop()):
        group.set("style", style)
        for mark in marks:
            del mark.attrib["style"]


def _attributes(element: ElementTree.Element, tag: str, names: _Names, *, digits: int) -> dict[str, str]:
    attributes: dict[str, str] = {}
    for name, value in element.attrib.items():
        if name == "id":
            if short := names.of(value):
                attributes["id"] = short
        elif name == _HREF:
            target = names.of(value.removeprefix("#")) if value.startswith("#") else None
            attributes["href"] = f"#{target}" if target else value.replace("\n", "")
        elif name == "style":
            attributes |= _properties(value, names)
        elif name == "d":
            attributes["d"] = _path(value, digits)
        elif name == "transform" and _NO_ROTATION.fullmatch(value):
            continue
        elif name in ("clip-path", "transform"):
            attributes[name] = names.renamed(value) if name == "clip-path" else _rounded(value, 3)
        else:
            attributes[name] = _rounded(value, 2) if _NUMBER.fullmatch(value) else value
    if tag == "text":
        attributes |= _text_fit(element, attributes)
    return attributes


def _properties(style: str, names: _Names) -> dict[str, str]:
    """Return a style as presentation attributes, which the rules for dark themes override."""
    pairs = (part.split(":", 1) for part in style.split(";") if ":" in part)
    properties = {name.strip(): names.renamed(value.strip()) for name, value in pairs}
    properties.pop("font-family", None)
    if properties.get("text-anchor") == "start":
        del properties["text-anchor"]
    return {name: value.removesuffix("px") if name == "font-size" else value for name, value in properties.items()}


def _text_fit(element: ElementTree.Element, attributes: Mapping[str, str]) -> dict[str, str]:
    """Prescribe the width that a text has in the layout, so that it fits in the font of any machine."""
    text = (element.text or "").strip()
    if len(text) < _MIN_FITTED or "font-size" not in attributes:
        return {}
    bold = attributes.get("font-weight", "normal") not in ("normal", "400")
    width = svg_text_width(text, float(attributes["font-size"]), "bold" if bold else "normal")
    return {"textLength": _short(width, 1), "lengthAdjust": "spacingAndGlyphs"}


def _path(data: str, digits: int) -> str:
    """Return path data with rounded coordinates and no spaces that are not needed."""
    parts = data.split()
    written: list[str] = []
    command = ""
    for part in parts:
        if part.isalpha():
            # Further pairs after the first of M are lines, after those of another command more of the same.
            implied = (command, part) in (("M", "L"), ("L", "L"), ("C", "C"), ("Q", "Q"))
            command = part
            if not implied:
                written.append(part)
        else:
            number = _short(float(part), digits)
            joint = "" if not written or written[-1].isalpha() or number.startswith("-") else " "
            written.append(joint + number)
    return "".join(written)


def _rounded(value: str, digits: int) -> str:
    return _NUMBER.sub(lambda match: _short(float(match[0]), digits), value)


def _short(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text
