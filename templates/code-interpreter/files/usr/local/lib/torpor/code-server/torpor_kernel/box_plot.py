"""Finds the boxes of a box plot again. Matplotlib keeps no record of them: they are lines and patches like any other."""

from dataclasses import dataclass, field
from typing import Any

Segment = list[tuple[float, float]]


@dataclass
class _Box:
    """In plot coordinates: `across` is along the axis of categories, `low` and `high` along that of values."""

    left: float
    right: float
    low: float
    high: float
    median: float | None = None
    ends: list[float] = field(default_factory=list)
    outliers: list[float] = field(default_factory=list)

    @property
    def middle(self) -> float:
        return (self.left + self.right) / 2


def boxes_of(axes: Any) -> list[dict[str, Any]]:
    """`{label, min, first_quartile, median, third_quartile, max, outliers}` per box; empty when there is no box plot."""
    from matplotlib.patches import PathPatch

    outlines = [_points(line) for line in axes.lines] + [
        [(float(x), float(y)) for x, y in patch.get_path().vertices] for patch in axes.patches if isinstance(patch, PathPatch)
    ]
    frames = [outline for outline in outlines if _is_rectangle(outline)]
    if not frames:
        return []
    lines = [(line, _points(line)) for line in axes.lines]
    # Whiskers leave a box along the values: which way tells how the plot stands.
    horizontal = not any(_is_upright_whisker(points, frame) for _, points in lines for frame in frames)
    turn = (lambda point: (point[1], point[0])) if horizontal else (lambda point: point)
    boxes = []
    for frame in frames:
        turned = [turn(point) for point in frame]
        across, along = [point[0] for point in turned], [point[1] for point in turned]
        boxes.append(_Box(min(across), max(across), min(along), max(along)))
    for line, points in lines:
        _assign([turn(point) for point in points], line.get_linestyle() in ("None", "", " "), boxes)
    found = [box for box in boxes if box.median is not None]
    axis = axes.yaxis if horizontal else axes.xaxis
    texts = {round(float(at), 9): label.get_text() for at, label in zip(axis.get_majorticklocs(), axis.get_majorticklabels())}
    return [
        {
            "label": texts.get(round(box.middle, 9)) or f"{box.middle:g}",
            "min": min([box.low, *box.ends]),
            "first_quartile": box.low,
            "median": box.median,
            "third_quartile": box.high,
            "max": max([box.high, *box.ends]),
            "outliers": sorted(box.outliers),
        }
        for box in found
    ]


def _assign(points: Segment, only_markers: bool, boxes: list[_Box]) -> None:
    """Gives a line to the box it belongs to, as outliers, median or whisker."""
    for box in boxes:
        if only_markers:
            if points and all(_near(across, box.middle) for across, _ in points):
                outside = [along for _, along in points if along < box.low or along > box.high]
                box.outliers.extend(outside)  # a mark within is the mean's
        elif len(points) == 2:
            (across_1, along_1), (across_2, along_2) = points
            if _near(along_1, along_2) and _near(min(across_1, across_2), box.left) and _near(max(across_1, across_2), box.right):
                if box.median is None and box.low <= along_1 <= box.high:
                    box.median = along_1
            elif _near(across_1, box.middle) and _near(across_2, box.middle):
                box.ends.extend((along_1, along_2))


def _points(line: Any) -> Segment:
    return [(float(x), float(y)) for x, y in line.get_xydata()]


def _is_rectangle(points: Segment) -> bool:
    if len(points) not in (5, 6) or points[0] != points[4]:
        return False
    return len({x for x, _ in points[:4]}) == 2 and len({y for _, y in points[:4]}) == 2


def _is_upright_whisker(points: Segment, frame: Segment) -> bool:
    """Whether a line stands on the middle of the frame's upper or lower side. One that spans the frame is a median."""
    if len(points) != 2 or not _near(points[0][0], points[1][0]) or points[0] == points[1]:
        return False
    left, right = min(x for x, _ in frame), max(x for x, _ in frame)
    low, high = min(y for _, y in frame), max(y for _, y in frame)
    from_y, to_y = sorted(y for _, y in points)
    spans = _near(from_y, low) and _near(to_y, high)
    return _near(points[0][0], (left + right) / 2) and not spans and (_near(to_y, low) or _near(from_y, high))


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-9 * max(1.0, abs(one), abs(other))
