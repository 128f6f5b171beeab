"""Pictures: well-formed, within the frame, nothing in them but what was drawn."""

import itertools
import re
from xml.dom import minidom

from hypothesis import given
from hypothesis import strategies as st

from bench.picture import HEIGHT, WIDTH, Line, Picture, distribution, draw

POSITIVE = st.floats(1e-6, 1e9)


def _picture(*lines: Line, percentiles: bool = False) -> str:
    return draw(Picture(title="a <title> & more", x="bytes", y="ms", lines=lines, percentiles=percentiles))


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=20))
def test_each_point_lies_within_the_frame(points: list[tuple[float, float]]) -> None:
    """Whatever the values: the polyline stays inside of the picture, and it is XML."""
    text = _picture(Line(name="one", points=tuple(points), dots=True))
    (line,) = minidom.parseString(text).getElementsByTagName("polyline")  # noqa: S318 - the text is of our own making
    drawn = [tuple(map(float, pair.split(","))) for pair in line.getAttribute("points").split()]
    assert len(drawn) == len(points)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in drawn)


@given(st.lists(POSITIVE, min_size=1, max_size=300))
def test_a_distribution_goes_from_the_least_to_the_most(values: list[float]) -> None:
    """It never falls, and begins at 1, where nothing is left out."""
    points = list(distribution(values))
    assert points[0] == (1.0, min(values))
    assert points[-1] == (float(len(values)), max(values))
    assert all(one[1] <= other[1] * (1 + 1e-12) for one, other in itertools.pairwise(points))


def test_a_distribution_has_its_median_at_two() -> None:
    """And its ticks say so."""
    points = dict(distribution([float(number) for number in range(1, 1002)]))
    near = min(points, key=lambda x: abs(x - 2))
    assert abs(points[near] - 501 - 1000 * (0.5 - 1 / near)) < 1
    text = _picture(Line(name="one", points=tuple(points.items())), percentiles=True)
    assert re.findall(r'font-size="11" text-anchor="middle">([^<]+)<', text) == ["min", "median", "90 %", "99 %", "99.9 %", "99.99 %"]


def test_names_are_escaped_and_nothing_is_asked_for() -> None:
    """The only address is the name of what SVG is."""
    text = _picture(Line(name="<script>", points=((1, 1), (2, 2))))
    assert ("<script>" in text, text.count("://"), "&lt;script&gt;" in text) == (False, 1, True)


def test_points_that_no_logarithm_has_are_left_out() -> None:
    """Nothing but such points: the picture says that there is nothing."""
    assert "nothing was measured" in _picture(Line(name="one", points=((0, 1), (1, 0))))
    assert "nothing was measured" in _picture()
    kept = _picture(Line(name="one", points=((0, 1), (1, 5), (2, 6))))
    assert len(re.findall(r'points="([^"]+)"', kept)[0].split()) == 2


def test_ticks_are_few_enough_to_be_read() -> None:
    """From within a hundred to many powers of ten, at most a dozen on an axis."""
    for high in (1, 2, 99, 101, 1e4, 1e9):
        text = _picture(Line(name="one", points=((1, 1), (high, high))))
        assert 2 <= len(re.findall('font-size="11" text-anchor="middle"', text)) <= 12
