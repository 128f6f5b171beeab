"""Pictures of a run as SVG text: lines over logarithmic axes, drawn by hand so that nothing has to be installed.

Its job: axes with ticks, lines, their names.
Not its job: what is drawn (``report.py``).
Laws:
1. What is drawn is text of this module and escaped names: no script, no address but the SVG name space (tests/unit/test_bench_picture.py).
2. Each point lies within the frame (tests/unit/test_bench_picture.py).
"""

import dataclasses
import html
import math
from collections.abc import Iterator, Sequence

from bench.numbers import quantile

WIDTH, HEIGHT = 900, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 150, 40, 50
# told apart by people who see colours differently (Okabe and Ito); ours is the thick black line
_COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#b2912f")
_DASHES = ("", "", "", "6 3", "", "2 3", "6 3", "2 3", "8 2 2 2")
_POINTS = 120  # of one curve


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """A named line; ``dots`` marks its points."""

    name: str
    points: tuple[tuple[float, float], ...]
    dots: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
    """What is drawn, over two logarithmic axes. ``percentiles`` says that x is as ``distribution`` gives it, and names its ticks so."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    percentiles: bool = False


def distribution(values: Sequence[float]) -> Iterator[tuple[float, float]]:
    """The points (1 / (1 - share), the value that this share does not exceed): 2 is the median, at 100 one in a hundred is left."""
    ordered = sorted(values)
    last = math.log(len(ordered))
    steps = min(_POINTS, max(2, len(ordered)))
    for step in range(steps):
        x = math.exp(last * step / (steps - 1))
        yield x, quantile(ordered, 1 - 1 / x)
    yield float(len(ordered)), ordered[-1]


def draw(picture: Picture) -> str:
    """The picture as an SVG element; one with nothing to draw says so."""
    lines = [(line, [point for point in line.points if min(point) > 0]) for line in picture.lines]
    every = [point for _, points in lines for point in points]
    body = [_text(_LEFT, 20, picture.title, size=15, anchor="start")]
    if not every:
        return _wrapped([*body, _text(WIDTH / 2, HEIGHT / 2, "nothing was measured")])
    ticks = _ticks([x for x, _ in every], 10.0 if picture.percentiles else None), _ticks([y for _, y in every])
    body += _axes(picture, *ticks)
    drawn = [(line, points) for line, points in lines if points]
    for number, (line, points) in enumerate(drawn):
        body += _drawn(line, number, [_placed(point, *ticks) for point in points])
    return _wrapped(body)


def _ticks(values: Sequence[float], base: float | None = None) -> list[float]:
    """Powers from below the values to above them: of ten, of two where all is within a hundred, so that their names do not touch."""
    low, high = min(values), max(values)
    base = base or (2.0 if high / low <= 100 else 10.0)
    first, last = math.floor(math.log(low, base) + 1e-9), math.ceil(math.log(high, base) - 1e-9)
    return [base**power for power in range(first, max(last, first + 1) + 1)]


def _placed(point: tuple[float, float], x_ticks: list[float], y_ticks: list[float]) -> tuple[float, float]:
    across, up = (
        math.log(value / ticks[0]) / math.log(ticks[-1] / ticks[0]) for value, ticks in zip(point, (x_ticks, y_ticks), strict=True)
    )
    return _LEFT + across * (WIDTH - _LEFT - _RIGHT), HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM)


def _axes(picture: Picture, x_ticks: list[float], y_ticks: list[float]) -> Iterator[str]:
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    across = [(value, _percentile(value)) for value in sorted({*x_ticks, 2.0})]
    for value, name in across if picture.percentiles else [(value, _named(value)) for value in x_ticks]:
        x, _ = _placed((value, y_ticks[0]), x_ticks, y_ticks)
        yield f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>'
        yield _text(x, bottom + 16, name, size=11)
    for value in y_ticks:
        _, y = _placed((x_ticks[0], value), x_ticks, y_ticks)
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>'
        yield _text(_LEFT - 6, y + 4, _named(value), size=11, anchor="end")
    yield f'<rect x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" height="{bottom - _TOP}" fill="none" stroke="#888"/>'
    yield _text((_LEFT + right) / 2, HEIGHT - 12, picture.x, size=12)
    yield f'<g transform="translate(16 {(_TOP + bottom) / 2:.0f}) rotate(-90)">{_text(0, 0, picture.y, size=12)}</g>'


def _percentile(x: float) -> str:
    return {1.0: "min", 2.0: "median"}.get(x, f"{100 * (1 - 1 / x):.6g} %")


def _named(value: float) -> str:
    for size, word in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{word}"
    return f"{value:.3g}"


def _drawn(line: Line, number: int, placed: Sequence[tuple[float, float]]) -> Iterator[str]:
    colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]
    style = f'stroke="{colour}" stroke-width="{3 if number == 0 else 1.6}"' + (f' stroke-dasharray="{dash}"' if dash else "")
    yield f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in placed)}" fill="none" {style}/>'
    if line.dots:
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in placed)
    x, y = WIDTH - _RIGHT + 12, _TOP + 12 + 20 * number
    yield f'<line x1="{x}" y1="{y}" x2="{x + 24}" y2="{y}" {style}/>'
    yield _text(x + 30, y + 4, line.name, size=12, anchor="start")


def _text(x: float, y: float, words: str, *, size: int = 13, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{html.escape(words)}</text>'


def _wrapped(body: Sequence[str]) -> str:
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="system-ui, sans-serif" role="img">'
    return head + '<rect width="100%" height="100%" fill="#fff"/>' + "".join(body) + "</svg>"
