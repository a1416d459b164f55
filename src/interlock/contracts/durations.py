"""Time spans in words."""

_UNITS: tuple[tuple[float, int, str, int, str], ...] = (
    (3_600, 60, "min", 1, "s"),
    (86_400, 3_600, "h", 60, "min"),
    (float("inf"), 86_400, "d", 3_600, "h"),
)


def span(seconds: float | None) -> str:
    """A time span in the units that fit it: `12 ms`, `1.2 s`, `3 min 5 s`, `2 h 4 min`, `3 d 1 h`."""
    if seconds is None:
        return ""
    seconds = max(seconds, 0)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    full = round(seconds)
    _, size, unit, below, below_unit = next(units for units in _UNITS if full < units[0])
    whole, rest = divmod(full, size)
    return f"{whole} {unit} {rest // below} {below_unit}" if rest // below else f"{whole} {unit}"
