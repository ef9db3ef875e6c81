"""Tests of pictures: the SVGs of a report.  Those of the PNG are in test_curve.py."""

import math
import re

import pytest

from remotely_rl.runs import picture
from remotely_rl.runs.picture import Curve


def test_an_svg_has_a_title_and_its_lines_and_refers_to_nothing() -> None:
    curve = Curve([0, 1, 2, None, 4], [0, None, 5, 6, 10], [0, 1, 4, 5, 9], [1, 2, 6, 7, 11])
    drawn = picture.svg([curve], "a & b")
    assert drawn.startswith('<svg role="img" aria-label="a &amp; b"')
    assert "<title>a &amp; b</title>" in drawn
    assert drawn.rstrip().endswith("</svg>")
    assert picture.COLOURS[0] in drawn
    assert "href=" not in drawn
    assert "url(" not in drawn


def test_an_svg_of_nothing_is_no_svg() -> None:
    assert picture.svg([], "empty") == ""
    assert picture.svg([Curve([1, 2], [])], "empty") == ""
    assert picture.svg([Curve([1], [None]), Curve([math.nan], [2.0])], "empty") == ""


def test_axes_have_units() -> None:
    drawn = picture.svg([Curve([0, 2_000_000], [3, 3])], "flat")
    assert re.search(r">\d\.?\d* M<", drawn)


@pytest.mark.parametrize(
    ("ticks", "labels"),
    [
        ((1.0398, 1.04, 1.0402), ["1.0398", "1.04", "1.0402"]),
        ((1.04, 1.0400001), ["1.04", "1.0400001"]),
        ((0.0, 5e6, 1e7), ["0", "5 M", "10 M"]),
        ((0.0, 2500.0, 5000.0), ["0", "2.5 k", "5 k"]),
        ((-0.1, -1e-18, 0.1), ["-0.1", "0", "0.1"]),
        ((12_345_000.0, 12_346_000.0), ["12.345 M", "12.346 M"]),
        ((1e-5, 2e-5), ["1e-05", "2e-05"]),
        ((), []),
    ],
)
def test_no_two_ticks_have_the_same_label(ticks: tuple[float, ...], labels: list[str]) -> None:
    assert picture.tick_labels(ticks) == labels


def test_no_two_lines_have_the_same_colour() -> None:
    assert len({picture.colour_of(place) for place in range(60)}) == 60


def test_ticks_of_a_narrow_range_differ_in_the_svg() -> None:
    drawn = picture.svg([Curve([0, 1, 2], [1.0385, 1.0389, 1.0392])], "narrow", 300, 150)
    labels = re.findall(r">([\d.]+)</text>", drawn)
    assert len(labels) == len(set(labels)) > 4
