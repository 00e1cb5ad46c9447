"""Charts: every point where it belongs, every name as it is, nothing drawn where there is nothing."""

import math
import re

import numpy as np
import pytest
from matplotlib.colors import to_hex

from veca.utils.chart import (
    BASELINES,
    COLOURS,
    MAX_POINTS,
    Line,
    Panel,
    bar_chart,
    draw_panels,
    line_chart,
    spread,
    thin,
    to_svg,
)


def test_points_are_where_they_belong() -> None:
    error = [0.5, 0.25]
    panel = Panel("", [Line("a", [(1, 10), (2, 20)], error), Line("b", [(1, 5)])], "x", "y", x_ticks=[1, 2])
    axis = draw_panels([panel], columns=1).axes[0]
    first, second = axis.containers
    np.testing.assert_array_equal(first.lines[0].get_xydata(), [(1, 10), (2, 20)])
    np.testing.assert_array_equal(second.lines[0].get_xydata(), [(1, 5)])
    (bars,) = first.lines[2]
    np.testing.assert_array_equal(bars.get_segments(), [[(1, 9.5), (1, 10.5)], [(2, 19.75), (2, 20.25)]])
    assert list(axis.get_xticks()) == [1, 2]


def test_values_that_are_not_finite_are_said() -> None:
    points = [(0.0, 1.0), (1.0, math.nan), (2.0, math.inf)]
    chart = line_chart([Line("loss", points)], x_label="x", y_label="y")
    assert "loss (2 values not finite)" in chart
    assert line_chart([Line("loss", points[1:])], x_label="x", y_label="y") == ""
    assert bar_chart({}, x_label="x", y_label="y") == ""


def test_baselines_keep_their_colour_and_leave_the_palette_alone() -> None:
    names = ["random weights, 64 px", "model, 64 px", "constant", "raw pixels", "model, 128 px"]
    axis = draw_panels([Panel("", [Line(name, [(0, 1)]) for name in names], "x", "y")], columns=1).axes[0]
    colours = [to_hex(one.lines[0].get_color()) for one in axis.containers]
    assert (colours[1], colours[4]) == COLOURS[:2]
    assert [colours[0], *colours[2:4]] == [
        BASELINES[name] for name in ("random weights", "constant", "raw pixels")
    ]


def test_a_name_has_one_colour_in_all_panels_and_two_lines_of_one_name_have_two() -> None:
    lines = {"left": ["a", "b"], "right": ["b", "c", "c"]}
    panels = [
        Panel(title, [Line(name, [(0, 1)]) for name in names], "x", "y") for title, names in lines.items()
    ]
    figure = draw_panels(panels, columns=2)
    colours = [[to_hex(one.lines[0].get_color()) for one in axis.containers] for axis in figure.axes]
    assert colours == [list(COLOURS[:2]), list(COLOURS[1:4])]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c", "c"]


def test_any_name_is_shown_as_it_is() -> None:
    names = [
        "a $x_$ b",
        "_hidden",
        "$\\frac$",
        "<b>&",
        "\u4e2d\u6587",
    ]  # the last is not in matplotlib's font
    chart = line_chart([Line(name, [(0, 1)]) for name in names], x_label="$ $", y_label="y")
    shown = re.findall(r"<text[^>]*>([^<]*)</text>", chart)
    for name in ["$ $", *names]:
        assert name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") in shown


def test_the_same_chart_has_the_same_bytes() -> None:
    charts = {bar_chart({"8": 5, "16": 7}, x_label="x", y_label="y") for _ in range(2)}
    assert len(charts) == 1
    assert "42 %" in charts.pop()
    panels = [Panel("", [Line("a", [(0, 1), (1, 2)])], "x", "y", log="y")]
    assert to_svg(draw_panels(panels, columns=1)) == to_svg(draw_panels(panels, columns=1))


def test_long_lines_are_averaged() -> None:
    points = [(float(i), float(i % 2)) for i in range(100_000)]
    short = thin(points)
    assert len(short) <= MAX_POINTS
    assert all(value == 0.5 for _, value in short)
    assert thin(points[:MAX_POINTS]) == points[:MAX_POINTS]


@pytest.mark.parametrize("count", [1, 2, 5, 6, 7, 100])
def test_things_are_spread_from_first_to_last(count: int) -> None:
    shown = spread(range(count), count=6)
    assert len(shown) == min(count, 6)
    assert shown == sorted(set(shown))
    assert (shown[0], shown[-1]) == (0, count - 1)
