"""Plots: a Figure as an SVG file, the same bytes for the same numbers."""

from __future__ import annotations

from pathlib import Path

from bench._report import Figure, Result

__all__ = ["chart", "draw"]

WIDTH, HEIGHT = 8.0, 4.2
"""Inches."""


def draw(result: Result, folder: Path) -> Path | None:
    """Draw a result's figure into a folder and return its path; None if it has none.

    Needs matplotlib, of the extra `bench`.
    """
    if result.figure is None:
        return None
    import matplotlib as mpl  # noqa: PLC0415 - an extra, and slow to import

    mpl.use("Agg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tenantq", "font.size": 9})
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure = result.figure
    canvas, axes = plt.subplots(figsize=(WIDTH, HEIGHT), layout="constrained")
    places = range(len(figure.x))
    for number, (name, values) in enumerate(figure.series.items()):
        known = [(place, value) for place, value in zip(places, values, strict=True) if value is not None]
        if not known:
            continue
        if figure.is_line:
            axes.plot([place for place, _ in known], [value for _, value in known], marker="o", label=name)
        else:
            width = 0.8 / len(figure.series)
            shift = (number - (len(figure.series) - 1) / 2) * width
            axes.bar([place + shift for place, _ in known], [value for _, value in known], width, label=name)
    axes.set_xticks(list(places), [str(x) for x in figure.x])
    axes.set_title(figure.title + (" (lower is better)" if figure.lower_is_better else ""))
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel(figure.y_label)
    if figure.is_log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.name}.svg"
    canvas.savefig(path, metadata={"Date": None})
    plt.close(canvas)
    return path


def series_of(
    rows: list[dict[str, object]], x: str, y: str, by: str
) -> tuple[list[object], dict[str, list[float | None]]]:
    """Return the x values and the y values of each `by`, both in the order of the rows."""
    xs = list(dict.fromkeys(row[x] for row in rows))
    names = list(dict.fromkeys(str(row[by]) for row in rows))
    found = {(str(row[by]), row[x]): row[y] for row in rows}
    return xs, {name: [_number(found.get((name, at))) for at in xs] for name in names}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def chart(rows: list[dict[str, object]], *, x: str, y: str, by: str, title: str, **options: object) -> Figure:
    """Return a Figure of a result's rows: `y` over `x`, one series for each `by`."""
    xs, series = series_of(rows, x, y, by)
    return Figure(
        title=title,
        x_label=str(options.pop("x_label", x)),
        y_label=str(options.pop("y_label", y)),
        x=xs,
        series=series,
        **options,  # type: ignore[arg-type]
    )
