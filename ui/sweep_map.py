"""A sweep as pictures: a heatmap over two settings, and the same runs as throughput against P99 latency.

A click on a cell or a point says which. Cells that keep the limits are outlined; on the Pareto front are those of them
than which none has both more throughput and a lower P99.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import streamlit as st

from sim.results import Summary
from ui import charts, frame
from ui.text import count, percent, seconds, t

Cell = tuple[Any, Any]
METRICS = {"qps": "decode", "goodput_qps": "decode", "e2e_p99": "waiting", "preemptions": "preempted", "gpu_compute": "prefill"}
"""What a heatmap can show, and its colour."""
WORDS: dict[str, Callable[[float], str]] = {"e2e_p99": seconds, "gpu_compute": percent}
FEW = 10  # columns up to which a cell has room for its figure


def front(kept: Mapping[Cell, Summary]) -> list[Cell]:
    """The Pareto front: most throughput first, each next one with a lower P99 end-to-end latency."""
    found: list[Cell] = []
    for cell in sorted(kept, key=lambda c: (-kept[c].qps, kept[c].e2e_p99)):
        if not found or kept[cell].e2e_p99 < kept[found[-1]].e2e_p99:
            found.append(cell)
    return found


def heatmap(
    done: Mapping[Cell, Summary], kept: Mapping[Cell, Summary], axes: Mapping[str, Sequence[Any]], metric: str, here: Cell,
    pick: Callable[[Cell], None], alt: str, height: int,
) -> None:
    """`axes`: the two fields, across and up, and their values. `here`: the cell of the scenario that is shown."""
    colours, (xs, ys) = charts.COLOURS[frame.theme()], list(axes.values())
    z = np.full((len(ys), len(xs)), np.nan, np.float32)
    words = [[""] * len(xs) for _ in ys]
    for (x, y), summary in done.items():
        i, j = xs.index(x), ys.index(y)
        z[j, i] = getattr(summary, metric)
        words[j][i] = WORDS.get(metric, count)(getattr(summary, metric))
    best = front(kept)
    cells = list(done)
    layout = _layout(t(f"sweet_spot.map_{metric}"), height, *axes)
    for axis, values in (("xaxis", xs), ("yaxis", ys)):
        layout[axis] |= {"range": [-0.5, len(values) - 0.5], "tickvals": list(range(len(values))), "showgrid": False,
                         "ticktext": [f"{v:,}" if isinstance(v, int) else f"{v:g}" for v in values]}
    if here[0] in xs and here[1] in ys:
        x, y = xs.index(here[0]), ys.index(here[1])
        layout["shapes"] = [{"type": "rect", "x0": x - 0.42, "x1": x + 0.42, "y0": y - 0.42, "y1": y + 0.42,
                             "line": {"color": colours["ink"], "width": 1.5, "dash": "3px,2px"}}]
    outline = _outline({(xs.index(x), ys.index(y)) for x, y in kept})
    data = [
        {"type": "heatmap", "z": z, "text": words, "showscale": False, "xgap": 2, "ygap": 2, "hoverongaps": False, "hoverinfo": "skip",
         "colorscale": [[0, colours["grid"]], [1, colours[METRICS[metric]]]],
         "texttemplate": "%{text}" if len(xs) <= FEW else "", "textfont": {"size": 12 * frame.scale()}},
        {"type": "scatter", "mode": "lines", "x": [p[0] for p in outline], "y": [p[1] for p in outline], "hoverinfo": "skip",
         "line": {"color": colours["ink"], "width": 2.5}},
        {"type": "scatter", "mode": "markers", "x": [xs.index(x) + 0.36 for x, _ in best], "y": [ys.index(y) + 0.3 for _, y in best],
         "hoverinfo": "skip", "marker": {"color": colours["ink"], "size": 6, "symbol": "diamond"}},
        {"type": "scatter", "mode": "markers", "x": [xs.index(x) for x, _ in cells], "y": [ys.index(y) for _, y in cells],
         "customdata": [list(c) for c in cells], "text": [_says(axes, c, done[c]) for c in cells],
         "hovertemplate": "%{text}<extra></extra>",
         "marker": {"symbol": "square", "size": 0.8 * height / len(ys), "opacity": 0}},  # a heatmap cannot be clicked: these can
    ]
    _draw({"data": data, "layout": layout}, pick, alt, "sweep_cells")


def plane(
    done: Mapping[Cell, Summary], kept: Mapping[Cell, Summary], axes: Mapping[str, Sequence[Any]], here: Cell,
    pick: Callable[[Cell], None], alt: str, height: int,
) -> None:
    """Every run as throughput against P99; the Pareto front is a line."""
    colours, best, cells = charts.COLOURS[frame.theme()], front(kept), list(done)
    layout = _layout(t("sweet_spot.chart_front"), height, t("sweet_spot.axis_qps"), "")
    layout["xaxis"] |= {"rangemode": "tozero", "showline": True, "linecolor": colours["idle"]}
    layout["yaxis"] |= {"rangemode": "tozero"}
    data = [
        {"type": "scatter", "mode": "lines", "x": [done[c].qps for c in best], "y": [done[c].e2e_p99 for c in best],
         "line": {"color": colours["ink"], "width": 2}, "hoverinfo": "skip"},
        {"type": "scatter", "mode": "markers", "x": [done[c].qps for c in cells], "y": [done[c].e2e_p99 for c in cells],
         "customdata": [list(c) for c in cells], "text": [_says(axes, c, done[c]) for c in cells],
         "hovertemplate": "%{text}<extra></extra>",
         "selected": {"marker": {"opacity": 1}}, "unselected": {"marker": {"opacity": 1}},
         "marker": {"size": [13 if c == here else 9 for c in cells], "opacity": 1,
                    "symbol": ["circle" if c in kept else "triangle-up-open" for c in cells],
                    "color": [colours["decode" if c in kept else "preempted"] for c in cells],
                    "line": {"width": [3 if c == here else 1 for c in cells],
                             "color": [colours["ink" if c == here else "paper" if c in kept else "preempted"] for c in cells]}}},
    ]
    _draw({"data": data, "layout": layout}, pick, alt, "sweep_plane")


def _says(axes: Mapping[str, Any], cell: Cell, s: Summary) -> str:
    settings = "<br>".join(f"{name} {value:,}" for name, value in zip(axes, cell, strict=True))
    return settings + "<br>" + t("sweet_spot.cell_says", qps=s.qps, p99=seconds(s.e2e_p99), preemptions=s.preemptions)


def _outline(cells: set[tuple[int, int]]) -> list[tuple[float | None, float | None]]:
    """The border of an area of cells, as segments with gaps between them."""
    found: list[tuple[float | None, float | None]] = []
    for i, j in sorted(cells):
        for di, dj in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            if (i + di, j + dj) not in cells:
                x, y, across, up = i + di / 2, j + dj / 2, abs(dj) / 2, abs(di) / 2
                found += [(x - across, y - up), (x + across, y + up), (None, None)]
    return found


def _layout(title: str, height: int, across: str, up: str) -> dict[str, Any]:
    colours, scale = charts.COLOURS[frame.theme()], frame.scale()
    axis = {"zeroline": False, "fixedrange": True, "gridcolor": colours["grid"], "tickfont": {"size": 13 * scale, "color": colours["soft"]}}

    def named(words: str) -> dict[str, Any]:
        return {**axis, "title": {"text": words, "standoff": 4, "font": {"size": 13 * scale, "color": colours["soft"]}}}

    return {
        "height": round(height * scale), "showlegend": False, "clickmode": "event+select", "dragmode": False, "hovermode": "closest",
        "font": {"family": charts.FONT, "size": 13 * scale, "color": colours["ink"]},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": (72 if up else 40) * scale, "r": 12, "t": 34 * scale, "b": 44 * scale},
        "title": {"text": f"<b>{title}</b>", "x": 0, "xref": "container", "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top",
                  "pad": {"t": 4, "l": 2}, "font": {"size": 15 * scale, "color": colours["ink"]}},
        "xaxis": named(across), "yaxis": named(up),
    }


def _draw(figure: dict[str, Any], pick: Callable[[Cell], None], alt: str, key: str) -> None:
    def picked() -> None:
        points = [p for p in st.session_state[key].selection.points if p.get("customdata")]
        if points:
            pick(tuple(points[0]["customdata"][:2]))

    st.plotly_chart(
        charts.Picture(figure), width="stretch", height=figure["layout"]["height"], theme=None, key=key, config=charts.CONFIG,
        on_select=picked, selection_mode="points", alt=alt,
    )
