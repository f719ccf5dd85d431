"""The colours, as people with each kind of colour vision see them, on every page they are drawn on.

Colour vision deficiency is simulated in linear RGB with the matrices of Machado, Oliveira and Fernandes, "A
Physiologically-based Model for Simulation of Color Vision Deficiency" (IEEE TVCG 15(6), 2009), table for severity 1.0.
Differences are CIEDE2000 (Sharma, Wu, Dalal 2005), checked here against pairs of their test data.
"""

import itertools
import re

import numpy as np
import pytest

from gpulab.analysis.steps.ledger import CPU_PARTS, GPU_PARTS
from gpulab.views.sheet import palette
from tests.support.front_end.read_views import contrast

MACHADO = {
    "all colours": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
SRGB_TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
NEIGHBOURS, NEXT_BUT_ONE, ANY = 12, 8, 4
EVIDENCE_FROM_ANY = 6
LIGHT, DARK, PAPER = "#ffffff", "#111111", "#fbfbfa"


def seen(colour, vision="all colours"):
    """CIELAB of a #rrggbb colour as somebody sees it."""
    code = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(code <= 0.04045, code / 12.92, ((code + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(MACHADO[vision]) @ linear, 0, 1)
    ratio = (SRGB_TO_XYZ @ linear) / SRGB_TO_XYZ.sum(axis=1)
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio * (29 / 6) ** 2 / 3 + 4 / 29)
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


def difference(one, other):
    """CIEDE2000 of two CIELAB colours."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean_c = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    stretch = 1.5 - 0.5 * np.sqrt(mean_c**7 / (mean_c**7 + 25.0**7))
    c1, c2 = np.hypot(a1 * stretch, b1), np.hypot(a2 * stretch, b2)
    h1, h2 = (np.degrees(np.arctan2(b, a * stretch)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    mean_h = (h1 + turn / 2) % 360 if c1 * c2 else h1 + h2
    mean_l, mean_c = (l1 + l2) / 2, (c1 + c2) / 2
    t = 1 - 0.17 * cos(mean_h - 30) + 0.24 * cos(2 * mean_h) + 0.32 * cos(3 * mean_h + 6) - 0.2 * cos(4 * mean_h - 63)
    lightness = (l2 - l1) / (1 + 0.015 * (mean_l - 50) ** 2 / np.sqrt(20 + (mean_l - 50) ** 2))
    chroma = (c2 - c1) / (1 + 0.045 * mean_c)
    hue = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2)) / (1 + 0.015 * mean_c * t)
    twist = (
        -2 * np.sqrt(mean_c**7 / (mean_c**7 + 25.0**7)) * np.sin(np.radians(60 * np.exp(-(((mean_h - 275) / 25) ** 2))))
    )
    return float(np.sqrt(lightness**2 + chroma**2 + hue**2 + twist * chroma * hue))


def cos(degrees):
    return np.cos(np.radians(degrees))


def apart(one, other, vision):
    return difference(seen(palette.colour(one), vision), seen(palette.colour(other), vision))


def closest(pairs, vision):
    return min((round(apart(one, other, vision), 1), one, other) for one, other in pairs)


KEYS = [part.key for part in GPU_PARTS]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, -1.1848, -84.8006), (50, 0, -82.7485), 1.0),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((50, 2.49, -0.001), (50, -2.49, 0.0011), 7.2195),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((22.7233, 20.0904, -46.6940), (23.0331, 14.9730, -42.5619), 2.0373),
        ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_difference_is_ciede2000(one, other, expected):
    assert difference(one, other) == pytest.approx(expected, abs=1e-4)
    assert difference(other, one) == pytest.approx(expected, abs=1e-4)


def test_who_lacks_a_kind_of_cone_confuses_what_is_known_to_be_confused():
    red_and_green = [
        difference(seen("#c84b00", v), seen("#6b7a00", v)) for v in ("all colours", "protanopia", "deuteranopia")
    ]
    assert red_and_green[0] > 1.8 * max(red_and_green[1:])
    blue_and_green = [difference(seen("#0072b2", v), seen("#007a6b", v)) for v in ("all colours", "tritanopia")]
    assert blue_and_green[0] > 1.8 * blue_and_green[1]
    assert all(difference(seen("#8a8a8a"), seen("#8a8a8a", vision)) < 0.1 for vision in MACHADO), "grey stays grey"


@pytest.mark.parametrize("vision", MACHADO)
def test_parts_beside_each_other_are_told_apart(vision):
    on_cpu = [part.key for part in CPU_PARTS]
    # What took too little to be drawn alone stands after the busy parts and after the idle ones, in the neutral colour.
    beside = [
        *itertools.pairwise(KEYS),
        *itertools.pairwise(on_cpu),
        ("copies", "rest"),
        ("rest", "loader"),
        ("python", "rest"),
    ]
    assert closest(beside, vision)[0] >= NEIGHBOURS


@pytest.mark.parametrize("vision", MACHADO)
def test_where_a_part_is_missing_those_around_it_are_told_apart(vision):
    assert closest(zip(KEYS, KEYS[2:], strict=False), vision)[0] >= NEXT_BUT_ONE


@pytest.mark.parametrize("vision", MACHADO)
def test_no_two_parts_look_the_same(vision):
    assert closest(itertools.combinations([*KEYS, "rest"], 2), vision)[0] >= ANY
    assert closest([("evidence", key) for key in [*KEYS, "rest"]], vision)[0] >= EVIDENCE_FROM_ANY


@pytest.mark.parametrize("vision", MACHADO)
def test_what_is_certain_perhaps_and_measured_are_told_apart(vision):
    three = (palette.PREDICTED, palette.UNCERTAIN, palette.MEASURED)
    assert min(difference(seen(a, vision), seen(b, vision)) for a, b in itertools.combinations(three, 2)) >= NEIGHBOURS
    # Badges have a word, too: their colours need not be as far apart as those of neighbours.
    assert difference(seen(palette.GOOD, vision), seen(palette.BAD, vision)) >= 7


@pytest.mark.parametrize("vision", MACHADO)
def test_a_colour_that_is_no_part_of_a_step_is_none_of_the_colours_of_parts(vision):
    others = (palette.PREDICTED, palette.UNCERTAIN, palette.MEASURED, palette.GOOD, palette.BAD)
    parts = [palette.colour(key) for key in (*KEYS, "rest", "evidence")]
    assert min(difference(seen(a, vision), seen(b, vision)) for a in others for b in parts) >= ANY


def test_every_colour_is_seen_on_a_light_page_a_dark_page_and_on_the_paper_of_charts():
    colours = {
        name: told
        for name, told in vars(palette).items()
        if isinstance(told, str) and re.fullmatch("#[0-9A-F]{6}", told)
    }
    assert len(colours) >= 5
    for name, told in {**palette._BY_KEY, **colours}.items():
        for page in (LIGHT, DARK, PAPER):
            assert contrast(told, page) >= 3, (name, page)


def test_white_letters_can_be_read_on_what_says_how_it_turned_out():
    for shade in (palette.GOOD, palette.BAD, palette.UNDECIDED):
        assert contrast(shade, "#FFFFFF") >= 4.5


def test_every_part_of_a_ledger_has_a_colour_of_its_own():
    for parts in (GPU_PARTS, CPU_PARTS):
        colours = [palette.colour(part.key) for part in parts]
        assert len({*colours, palette.NEUTRAL}) == len(colours) + 1


def test_a_mark_and_its_wash_are_the_same_hue():
    red, green, blue = map(int, re.match(r"rgba\((\d+),(\d+),(\d+),", palette.EVIDENCE_SHADING).groups())
    assert f"#{red:02X}{green:02X}{blue:02X}" == palette.EVIDENCE == palette.colour("evidence")
