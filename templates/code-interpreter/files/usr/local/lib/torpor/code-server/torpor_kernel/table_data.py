"""A DataFrame as plain JSON: a dict of lists, one per column."""

import math
from typing import Any

# A bigger table is shown by its text and HTML, which pandas shortens; its cells are fetched better by file.
CELLS_MAX = 200_000

# How pandas' markers of a missing value are written; neither can be compared.
MISSING = ("<NA>", "NaT")


def table_of_frame(frame: Any) -> dict[str, list[Any]] | None:
    """Columns by name, in order. A repeated name gets `.1`, `.2`, ... as pandas' readers do. None when it is too big."""
    rows, columns = frame.shape
    if rows * columns > CELLS_MAX:
        return None
    table: dict[str, list[Any]] = {}
    for position in range(columns):
        name = unique = column_name(frame.columns[position])
        repeat = 0
        while unique in table:
            repeat += 1
            unique = f"{name}.{repeat}"
        table[unique] = [plain(cell) for cell in frame.iloc[:, position].tolist()]
    return table


def column_name(label: Any) -> str:
    """Labels of several levels are joined by dots."""
    return ".".join(str(part) for part in label) if isinstance(label, tuple) else str(label)


def plain(value: Any) -> Any:
    """A value that JSON has: missing and infinite numbers are null, times are ISO 8601, the rest is text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a NumPy scalar
        return plain(value.item())
    if str(value) in MISSING:
        return None
    if hasattr(value, "isoformat"):
        try:
            return value.isoformat()
        except ValueError:
            return None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value)
