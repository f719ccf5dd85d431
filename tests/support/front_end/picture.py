"""Shared by several tests: from test_views_picture."""

import re

from gpulab.views.sheet.palette import colour


def areas(drawing, key):
    """The area of each path of a colour, by the shoelace formula, in columns x levels."""
    chunks = []
    for path in re.findall(rf'fill="{colour(key)}" d="([^"]+)"', drawing):
        total = 0.0
        for outline in path.split("z")[:-1]:
            total += shoelace(points(outline))
        chunks.append(total)
    return chunks


def points(outline):
    x = y = 0.0
    pixels = []
    for command, values in re.findall(r"([MHV])([\d. ]+)", outline):
        if command == "M":
            x, y = map(float, values.split())
        elif command == "H":
            x = float(values)
        else:
            y = float(values)
        pixels.append((x, y))
    return pixels


def shoelace(corners):
    pairs = zip(corners, corners[1:] + corners[:1], strict=True)
    return abs(sum(a * d - c * b for (a, b), (c, d) in pairs)) / 2
