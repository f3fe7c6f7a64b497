"""What a Matplotlib figure plots, as data in the shape that E2B's clients know."""

import re
from typing import Any

from torpor_kernel.box_plot import boxes_of
from torpor_kernel.table_data import plain

# More points than a client would draw again; the picture is still there.
POINTS_MAX = 50_000
UNIT = re.compile(r"[(\[]([^()\[\]]*)[)\]]\s*$")
KNOWN_SCALES = ("linear", "log", "symlog", "logit", "function", "functionlog", "asinh")


def chart_of_figure(figure: Any) -> dict[str, Any] | None:
    """One chart, or a `superchart` of several. None when nothing is plotted, or too much."""
    charts = [chart_of_axes(axes) for axes in figure.axes if axes.get_label() != "<colorbar>" and axes.has_data()]
    if not charts or sum(_points_in(chart) for chart in charts) > POINTS_MAX:
        return None
    if len(charts) == 1:
        return charts[0]
    title = figure._suptitle.get_text() if figure._suptitle is not None else None
    return {"type": "superchart", "title": title or None, "elements": charts}


def chart_of_axes(axes: Any) -> dict[str, Any]:
    """The chart that one pair of axes shows. What is drawn decides, the most telling kind first."""
    from matplotlib.collections import PathCollection
    from matplotlib.container import BarContainer
    from matplotlib.patches import Wedge

    title = axes.get_title() or None
    wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)]
    if wedges:
        slices = [{"label": wedge.get_label(), "angle": float(wedge.theta2 - wedge.theta1), "radius": float(wedge.r)} for wedge in wedges]
        return {"type": "pie", "title": title, "elements": slices}
    boxes = boxes_of(axes)
    if boxes:
        return {"type": "box_and_whisker", "title": title, **_labels(axes), "elements": boxes}
    bars = [container for container in axes.containers if isinstance(container, BarContainer)]
    if bars:
        return {"type": "bar", "title": title, **_labels(axes), "elements": [bar for container in bars for bar in _bars(axes, container)]}
    scatters = [collection for collection in axes.collections if isinstance(collection, PathCollection)]
    if scatters:
        series = [_series(axes, scatter, scatter.get_offsets()) for scatter in scatters]
        return {"type": "scatter", "title": title, **_point_axes(axes), "elements": series}
    if axes.lines:
        series = [_series(axes, line, zip(line.get_xdata(orig=False), line.get_ydata(orig=False))) for line in axes.lines]
        return {"type": "line", "title": title, **_point_axes(axes), "elements": series}
    return {"type": "unknown", "title": title, "elements": []}


def _points_in(chart: dict[str, Any]) -> int:
    return sum(len(element.get("points", element.get("outliers", ()))) + 1 for element in chart["elements"])


def _labels(axes: Any) -> dict[str, Any]:
    x_label, y_label = axes.get_xlabel() or None, axes.get_ylabel() or None
    return {"x_label": x_label, "y_label": y_label, "x_unit": _unit(x_label), "y_unit": _unit(y_label)}


def _unit(label: str | None) -> str | None:
    """`s` of a label such as `Time (s)`."""
    found = UNIT.search(label) if label else None
    return found.group(1).strip() or None if found else None


def _point_axes(axes: Any) -> dict[str, Any]:
    described = _labels(axes)
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        described[f"{name}_ticks"] = [_coordinate(axis, tick) for tick in axis.get_majorticklocs()]
        described[f"{name}_tick_labels"] = [label.get_text() for label in axis.get_majorticklabels()]
        described[f"{name}_scale"] = _scale(axis)
    return described


def _scale(axis: Any) -> str:
    if _is_date(axis):
        return "datetime"
    if _categories(axis):
        return "categorical"
    scale = axis.get_scale()
    return scale if scale in KNOWN_SCALES else "unknown"


def _is_date(axis: Any) -> bool:
    from matplotlib.dates import DateConverter, _SwitchableDateConverter

    return isinstance(axis.converter, (DateConverter, _SwitchableDateConverter)) or type(axis.converter).__name__ in ("DatetimeConverter", "TimeConverter")


def _categories(axis: Any) -> dict[float, str]:
    """Names of the positions on an axis of categories; empty for other axes."""
    mapping = getattr(axis.units, "_mapping", None)
    return {float(position): str(name) for name, position in mapping.items()} if mapping else {}


def _coordinate(axis: Any, value: Any) -> Any:
    number = plain(value)
    if not isinstance(number, (int, float)):
        return number
    if _is_date(axis):
        from matplotlib.dates import num2date

        return num2date(number).replace(tzinfo=None).isoformat()
    return _categories(axis).get(float(number), number)


def _series(axes: Any, artist: Any, points: Any) -> dict[str, Any]:
    # Read once, not once a point.
    x_of, y_of = _reader(axes.xaxis), _reader(axes.yaxis)
    return {"label": artist.get_label(), "points": [[x_of(x), y_of(y)] for x, y in points]}


def _reader(axis: Any) -> Any:
    names = _categories(axis)
    if names:
        return lambda value: names.get(float(value), plain(value))
    if _is_date(axis):
        return lambda value: _coordinate(axis, value)
    return plain


def _bars(axes: Any, container: Any) -> list[dict[str, Any]]:
    horizontal = container.orientation == "horizontal"
    axis = axes.yaxis if horizontal else axes.xaxis
    # Texts at the bars' middles: those of an axis of categories, or those the user set.
    texts = {round(float(at), 9): label.get_text() for at, label in zip(axis.get_majorticklocs(), axis.get_majorticklabels()) if label.get_text()}
    bars = []
    for patch in container.patches:
        middle = float(patch.get_y() + patch.get_height() / 2 if horizontal else patch.get_x() + patch.get_width() / 2)
        text = texts.get(round(middle, 9))
        if text is None:
            text = f"{middle:g}"
        bars.append({"label": text, "group": container.get_label(), "value": plain(float(patch.get_width() if horizontal else patch.get_height()))})
    return bars
