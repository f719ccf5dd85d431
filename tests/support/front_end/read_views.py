"""Reads what a view wrote as a browser, a reader or a sanitizer would, independently of how it was written."""

import base64
import re
from html.parser import HTMLParser

# JupyterLab 4.6's sanitizer for untrusted notebooks lets these CSS properties through, of those a report may want.
SURVIVING_CSS = {
    "align-items", "background", "border", "border-bottom", "border-collapse", "border-left", "border-radius",
    "border-top", "box-sizing", "cursor", "display", "flex", "flex-wrap", "font", "font-family", "font-size",
    "font-weight", "gap", "height", "line-height", "margin", "max-width", "min-width", "opacity", "overflow",
    "overflow-wrap", "overflow-x", "padding", "table-layout", "text-align", "text-indent", "text-overflow",
    "vertical-align", "white-space", "width", "word-break",
}  # fmt: skip
DECORATION = {"font-variant-numeric", "forced-color-adjust"}  # taken away there; the page reads the same without it
SURVIVING_TAGS = {
    "div", "span", "table", "thead", "tbody", "tr", "th", "td", "pre", "img", "details", "summary", "b", "code",
}  # fmt: skip
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


class Page(HTMLParser):
    """Tags, attributes and visible text of some HTML."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.text += " "

    def handle_data(self, data):
        self.text += data

    def all(self, attribute):
        return [value for _, name, value in self.attributes if name == attribute]

    @property
    def css(self):
        declarations = (each for style in self.all("style") for each in style.split(";"))
        return {each.split(":")[0].strip() for each in declarations if each.strip()}

    @property
    def pictures(self):
        return [base64.b64decode(src.split(",", 1)[1]).decode() for src in self.all("src")]


def numbers(text):
    return set(_NUMBER.findall(text))


def contrast(one, other):
    """WCAG 2 contrast of two #rrggbb colours."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour):
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
