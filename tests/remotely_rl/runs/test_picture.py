"""Tests of pictures: the SVGs of a report.  Those of the PNG are in test_curve.py."""

import math
import re

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
