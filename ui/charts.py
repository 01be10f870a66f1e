"""Pictures: small figures with one look. Every function draws where it is called (inside `with column:` too).

    charts.timeline(title, [charts.Line(x, y, "waiting", "B"), charts.Line(xa, ya, "idle", "A", dotted=True)],
                    limits=[("max_num_seqs", 256)], events=[(t, "pool full")], percent=False)
    charts.stacked(title, [charts.Line(x, y1, "kv", ...), ...])      areas on top of each other
    charts.bars(title, ["A", "B"], [charts.Part("queue", "waiting", values), ...])      stacked bars side by side
    charts.curve(title, [charts.Line(...)], x_title=..., marks=[(x, y, "now")])     any x, e.g. rate against P99

A colour means one thing everywhere: waiting, prefill, decode, preempted, kv, idle (also the baseline A), ink. The unit
belongs in the title. B is solid, A is dotted: `both(series_of, b, a, colour)` makes the two lines of a chart.
"""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import streamlit as st
from plotly.basedatatypes import BaseFigure

from ui import frame
from ui.text import t

COLOURS = {
    "light": {
        "waiting": "#B58009", "prefill": "#045891", "decode": "#029D68", "preempted": "#A12607", "kv": "#BD4FCF",
        "idle": "#8D959E", "ink": "#18222D", "soft": "#5B6672", "grid": "#E9ECEF", "paper": "#FFFFFF",
    },
    "dark": {
        "waiting": "#F6D75D", "prefill": "#3792FA", "decode": "#36EBB3", "preempted": "#FC3803", "kv": "#ED8CD0",
        "idle": "#6F767D", "ink": "#E6EAEE", "soft": "#9AA5B1", "grid": "#222B34", "paper": "#0E1318",
    },
}
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "PingFang SC", "Microsoft YaHei", "Noto Sans CJK SC", sans-serif'
HATCH = {"waiting": "/", "preempted": "x", "idle": "."}
HEIGHT = 210  # px


class Fit(int):
    """A height of so many px at least, and on a wide screen of what the window leaves (frame.CSS, `fit_`)."""


POINTS = 150  # buckets of a line: twice as many points are drawn, which is what a picture has pixels for


@dataclass(frozen=True, slots=True)
class Line:
    """A line: x, y, colour (a name of COLOURS), the word at its end. `steps`: y holds until the next x.

    `error`: the share by which y may be off, drawn as a pale band (`narration.error` has the figure and the words).
    """

    x: Any
    y: Any
    colour: str
    label: str = ""
    dotted: bool = False
    fill: bool = False
    steps: bool = False
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Part:
    """A part of stacked bars: its name, colour and a value for each bar."""

    label: str
    colour: str
    values: Sequence[float]


# --- the pictures ---------------------------------------------------------------------------------------------------


def timeline(
    title: str, lines: Sequence[Line], *, x_end: float | None = None, y_end: float | None = None, percent: bool = False,
    limits: Sequence[tuple[str, float]] = (), events: Sequence[tuple[float, str]] = (), height: int = HEIGHT,
    alt: str = "", key: str | None = None,
) -> None:
    """Lines over time in s. `percent`: y is a share 0..1. `limits`: (name, value) dashed; `events`: (time, word)."""
    curve(
        title, lines, x_title=t("frame.time_axis"), x_end=x_end, y_end=1.0 if percent and y_end is None else y_end,
        percent=percent, limits=limits, events=events, height=height, alt=alt, key=key,
    )


def curve(
    title: str, lines: Sequence[Line], *, x_title: str = "", x_start: float = 0.0, x_end: float | None = None,
    y_end: float | None = None, percent: bool = False, log_x: bool = False, log_y: bool = False,
    limits: Sequence[tuple[str, float]] = (), events: Sequence[tuple[float, str]] = (),
    marks: Sequence[tuple[float, float, str]] = (), height: int = HEIGHT, alt: str = "", key: str | None = None,
    band: bool = False,
) -> None:
    """Lines over any x. `marks`: points (x, y, word). `band`: the lines are areas stacked in their order."""
    factor = 100.0 if percent else 1.0
    shown, ends, total = [], [], None
    for line in lines:
        x, y = np.asarray(line.x, np.float64), np.asarray(line.y, np.float64) * factor
        if not band:
            x, y = bucket(x, y)
        total = y if total is None or not band else total + y
        shown.append((line, x, y))
        finite = np.flatnonzero(np.isfinite(y))
        if len(finite):
            at = total[finite[-1]] - (y[finite[-1]] / 2 if band else 0) if band else y[finite[-1]]
            ends.append((line, float(at)))
    drawn = [total] if band and total is not None else [y * (1 + line.error) for line, _, y in shown]
    top = _top([*drawn, np.array([v * factor for _, v in limits])]) if y_end is None else y_end * factor
    right = x_end if x_end is not None else max((float(x[-1]) for _, x, _ in shown if len(x)), default=1.0)
    traces = [_error_band(line, x, y) for line, x, y in shown if line.error > 0]
    traces += [_line(line, x, y, band) for line, x, y in shown]
    layout = base_layout(title, height, right_words=[line.label for line in lines])
    low = 0.0
    if log_y:
        values = np.concatenate([y[np.isfinite(y) & (y > 0)] for _, _, y in shown] or [np.ones(1)])
        low = float(values.min()) * 0.5 if len(values) else 0.1  # room for a word below the lowest point
        top = max(float(values.max()) if len(values) else 1.0, *(v * factor for _, v in limits), low * 2) * 1.25
    across, upright = _range(x_start, right, log_x), _range(low, top, log_y)
    if marks:
        axes = (across, log_x), (upright, log_y)
        runs = [np.column_stack([_shares(x, *axes[0]), _shares(y, *axes[1])]) for _, x, y in shown if len(x)]
        traces.append(_points([(x, y * factor, word) for x, y, word in marks], axes, runs, height))
    layout["xaxis"] |= {"title": axis_title(x_title), "range": across}
    layout["yaxis"] |= {"range": upright}
    if log_x:
        layout["xaxis"] |= {"type": "log", "dtick": 1, "tickformat": ","}
    if log_y:
        layout["yaxis"] |= {"type": "log", "dtick": 1}
    if top < 100_000:  # wider numbers are cut to 100k
        layout["yaxis"]["tickformat"] = ","
    if percent:
        layout["yaxis"] |= {"ticksuffix": "%", "nticks": 5}
    layout["annotations"] += _end_words(ends, low, top, height, log_y)
    for name, value in limits:
        if 0 <= value * factor <= top * 1.0001:
            above = [x[(y >= value * factor) & (y < value * factor + 0.2 * top)] - x_start for _, x, y in shown]
            in_the_way = np.concatenate(above) / ((right - x_start) or 1.0) if above else np.empty(0)
            to_right = bool((in_the_way < 0.4).any() and not (in_the_way > 0.6).any())
            _limit(layout, _named(name, value, percent), value * factor, log_y, to_right)
    for time, word in events:
        if np.isfinite(time):
            _event(layout, time, word, log_x)
    draw({"data": traces, "layout": layout}, alt or title, key)


def stacked(title: str, lines: Sequence[Line], **options: Any) -> None:
    """Areas on top of each other over time, first line lowest. All lines have the same x. Options as `timeline`."""
    options.setdefault("x_title", t("frame.time_axis"))
    curve(title, lines, band=True, **options)


def bars(
    title: str, names: Sequence[str], parts: Sequence[Part], *, y_end: float | None = None, percent: bool = False,
    horizontal: bool = False, limits: Sequence[tuple[str, float]] = (), height: int = HEIGHT, alt: str = "",
    key: str | None = None, words: Callable[[float], str] | None = None,
) -> None:
    """One bar a name, each stacked from the parts; part names stand beside the last bar, `words(value)` inside or, of a lying bar of one part, at its end."""
    factor = 100.0 if percent else 1.0
    colours = palette()
    traces: list[dict[str, Any]] = []
    heights = np.zeros(len(names))
    ends: list[tuple[Line, float]] = []
    beside = [words(v) for v in parts[0].values if v > 0] if words and horizontal and len(parts) == 1 else []  # at each bar's end
    for part in parts:
        values = np.asarray(part.values, np.float64) * factor
        inside = [words(v) if words and v > 0 else "" for v in np.asarray(part.values, np.float64)]
        bar = {
            "type": "bar", "name": part.label, "orientation": "h" if horizontal else "v", "hoverinfo": "x+y+name",
            "marker": {
                "color": colours.get(part.colour, part.colour), "line": {"width": 0},
                "pattern": {"shape": HATCH.get(part.colour, ""), "size": 6, "solidity": 0.2, "fillmode": "overlay",
                            "fgcolor": colours["paper"]},
            },
            "text": inside, "textposition": "outside" if beside else "auto" if len(parts) == 1 else "inside", "insidetextanchor": "middle",
            "textangle": 0, "textfont": {"size": 12 * frame.scale(), "color": colours["paper"]}, "constraintext": "inside",
            "outsidetextfont": {"color": colours["ink"]}, "cliponaxis": False,
        }
        values32 = values.astype(np.float32)
        bar |= {"x": values32, "y": list(names)} if horizontal else {"x": list(names), "y": values32}
        traces.append(bar)
        if len(has := np.flatnonzero(values > 0)):  # the last bar that has the part
            ends.append((Line((), (), part.colour, part.label), float(heights[has[-1]] + values[has[-1]] / 2)))
        heights = heights + np.nan_to_num(values)
    top = y_end * factor if y_end is not None else _top([heights, np.array([v * factor for _, v in limits])])
    ends += [(Line((), (), "soft", _named(name, value, percent)), value * factor) for name, value in limits]
    layout = base_layout(title, height, right_words=[] if horizontal else [line.label for line, _ in ends])
    layout |= {"barmode": "stack", "bargap": 0.35, "uniformtext": {"mode": "hide", "minsize": 11}}  # no word too small to read
    value_axis, name_axis = ("xaxis", "yaxis") if horizontal else ("yaxis", "xaxis")
    layout[value_axis] |= {"range": [0, top]} | ({"ticksuffix": "%"} if percent else {})
    if top < 100_000:  # wider numbers are cut to 100k
        layout[value_axis]["tickformat"] = ","
    if not heights.any():  # no axis of tenths for what did not happen
        layout[value_axis]["tickvals"] = [0]
    layout[name_axis] |= {"type": "category", "showgrid": False, "nticks": 0}  # every bar has its name
    if horizontal:
        layout["yaxis"] |= {"autorange": "reversed", "automargin": True}
        layout["xaxis"] |= {"showgrid": not beside, "showticklabels": not beside, "ticks": "" if beside else "outside",
                            "gridcolor": colours["grid"], "nticks": 4 if frame.scale() == 1 else 3, "tickangle": 0}
        if beside:
            layout["margin"] |= {"b": 12, "r": (8 + 7.4 * max(map(_width, beside))) * frame.scale()}
    else:
        layout["annotations"] += _end_words(ends, 0.0, top, height, False)
        layout["shapes"] += [_dashes(value * factor) for _, value in limits]
    draw({"data": traces, "layout": layout}, alt or title, key)


def swatches(parts: Sequence[Part]) -> None:
    """What the colours of lying bars mean: some of their parts are too thin for a word."""
    colours = palette()
    st.html(" ".join(  # a line may break at the blanks
        f"<span style='margin-right:1.1rem;font-size:.875rem;white-space:nowrap'><span style='color:{colours.get(p.colour, p.colour)}'>■</span> "
        f"{html.escape(p.label)}</span>" for p in parts
    ))


def both(of: Callable[..., tuple[Any, Any]], b: Any, a: Any, colour: str, *args: Any, **options: Any) -> list[Line]:
    """The two lines of a chart: `of(run, *args)` of the baseline (dotted, left out if it is the same run) and of B."""
    lines = [] if a is b else [Line(*of(a, *args), "idle", "A", dotted=True, steps=options.get("steps", False))]
    return [*lines, Line(*of(b, *args), colour, "" if a is b else "B", **options)]


class Picture(BaseFigure):
    """A finished figure, given as the dict that plotly.js takes.

    go.Figure copies and validates every property, which costs more than everything else on a page; the tests do that.
    """

    def __init__(self, figure: dict[str, Any]) -> None:
        self._figure = figure

    def to_dict(self) -> dict[str, Any]:
        """The dict, its arrays in base64 as plotly.js reads them."""
        traces = [{k: _typed(v) if isinstance(v, np.ndarray) else v for k, v in trace.items()} for trace in self._figure["data"]]
        return {"data": traces, "layout": self._figure["layout"]}


def _typed(array: Any) -> dict[str, Any]:
    found = {"dtype": array.dtype.str.lstrip("<|"), "bdata": b64encode(np.ascontiguousarray(array)).decode()}
    return found | ({"shape": ", ".join(map(str, array.shape))} if array.ndim > 1 else {})


def draw(figure: dict[str, Any], alt: str, key: str | None = None) -> None:
    """Put a figure (a plain dict) on the page. `alt` says what it shows to those who do not see it."""
    height = figure["layout"]["height"]
    fit = isinstance(height, Fit)
    st.plotly_chart(
        Picture(figure), width="stretch", height="stretch" if fit else height, theme=None,
        key=f"fit_{key or figure['layout']['title']['text']}" if fit else key, alt=alt, config=CONFIG,
    )


CONFIG = {"displayModeBar": False, "scrollZoom": False, "doubleClick": "reset"}


def diagonal(title: str, x: Any, y: Any, *, x_title: str, alt: str = "", key: str | None = None) -> None:
    """A cloud of points (x, y) about the line y = x, which is dashed; both axes logarithmic, values above 0."""
    x, y = np.asarray(x, np.float32), np.asarray(y, np.float32)
    ends = [float(min(x.min(), y.min())), float(max(x.max(), y.max()))]
    colours, layout = palette(), base_layout(title, HEIGHT)
    axis = {"type": "log", "dtick": 1}
    layout["xaxis"] |= axis | {"title": axis_title(x_title)}
    layout["yaxis"] |= axis
    draw({"data": [
        {"type": "scatter", "mode": "lines", "x": ends, "y": ends, "line": {"color": colours["soft"], "dash": "6px,4px"}},
        {"type": "scatter", "mode": "markers", "x": x, "y": y, "marker": {"size": 4, "opacity": 0.5, "color": colours["prefill"]},
         "hoverinfo": "x+y"},
    ], "layout": layout | {"hovermode": "closest"}}, alt, key)


# --- parts ----------------------------------------------------------------------------------------------------------


def bucket(x: Any, y: Any, buckets: int = POINTS) -> tuple[Any, Any]:
    """Thin a line to the smallest and the largest value of each bucket, in their order: no peak is lost."""
    n = len(x)
    if n <= 2 * buckets:
        return x, y
    size = -(-n // buckets)
    whole = n // size
    parts = y[: whole * size].reshape(whole, size)
    at = np.arange(whole) * size
    chosen = np.sort(np.stack([at + parts.argmin(1), at + parts.argmax(1)], 1), axis=1).ravel()
    rest = np.arange(whole * size, n)
    if len(rest) > 2:
        tail = y[rest]
        rest = np.unique([rest[0] + tail.argmin(), rest[0] + tail.argmax(), n - 1])
    chosen = np.unique(np.concatenate([[0], chosen, rest]).astype(np.int64))
    return x[chosen], y[chosen]


def palette() -> dict[str, str]:
    """COLOURS of the theme in which the visitor sees the page."""
    return COLOURS[frame.theme()]


def _line(line: Line, x: Any, y: Any, band: bool) -> dict[str, Any]:
    colour = palette()[line.colour] if not line.colour.startswith("#") else line.colour
    trace: dict[str, Any] = {
        "type": "scatter", "mode": "lines", "name": line.label, "x": x.astype(np.float32), "y": y.astype(np.float32),
        "line": {"color": colour, "width": 1.6 if line.dotted else 2.2, "dash": "2px,3px" if line.dotted else "solid",
                 "shape": "hv" if line.steps else "linear"},
        "hovertemplate": "%{y:.3~g}<extra>" + line.label + "</extra>",
    }
    if band:
        trace |= {"stackgroup": "all", "fillcolor": _faint(colour, 0.75), "line": {"color": colour, "width": 0.5}}
    elif line.fill:
        trace |= {"fill": "tozeroy", "fillcolor": _faint(colour, 0.16)}
    return trace


def _error_band(line: Line, x: Any, y: Any) -> dict[str, Any]:
    """The area y * (1 +- error): there along its upper edge and back along the lower, once for each stretch without nan."""
    there = []
    for part in np.ma.clump_unmasked(np.ma.masked_invalid(y)):
        low, high = y[part] * (1 - line.error), y[part] * (1 + line.error)
        there.append((np.concatenate([x[part], x[part][::-1], [np.nan]]), np.concatenate([high, low[::-1], [np.nan]])))
    outline = [np.concatenate(column).astype(np.float32) for column in zip(*there, strict=True)] or [(), ()]
    return {
        "type": "scatter", "mode": "lines", "x": outline[0], "y": outline[1], "line": {"width": 0}, "hoverinfo": "skip",
        "fill": "toself", "fillcolor": _faint(palette().get(line.colour, line.colour), 0.18),
    }


SIDES = ("top center", "top left", "top right", "bottom center", "bottom left", "bottom right", "middle right", "middle left")
"""Where a word may stand beside its point, the best first."""


def _points(
    marks: Sequence[tuple[float, float, str]], axes: Sequence[tuple[list[float], bool]], lines: Sequence[Any], height: int
) -> dict[str, Any]:
    """Points with words. axes: of x and y, what they range over (in powers of ten if logarithmic), and whether they are.

    lines: the picture's, their points (x, y) as shares of its width and height. A word stands where it hides least.
    """
    ink, scale = palette()["ink"], frame.scale()
    met: dict[tuple[float, float], list[str]] = {}  # words of points that lie on each other
    for at_x, at_y, word in marks:
        met.setdefault((float(at_x), float(at_y)), []).append(word)
    (x, y), words = zip(*met, strict=True), [", ".join(filter(None, there)) for there in met.values()]
    places = np.column_stack([_shares(v, *axis) for v, axis in zip((x, y), axes, strict=True)])
    grid = np.linspace(0.0, 1.0, 12)[:, None]
    under = [(1 - grid) * start + grid * end for line in lines for start, end in pairwise(line)]
    sides = _sides(places, words, np.concatenate([*under, np.empty((0, 2))]), max(height - 76.0 * scale, 40.0))
    return {
        "type": "scatter", "mode": "markers+text", "x": list(x), "y": list(y), "text": list(words),
        "textposition": sides, "textfont": {"size": 13 * scale, "color": ink}, "cliponaxis": False,
        "marker": {"color": ink, "size": 9}, "hoverinfo": "x+y+text",
    }


def _sides(places: Any, words: Sequence[str], drawn: Any, high: float) -> list[str]:
    """The side of its point on which each word hides least, in a narrow picture (four in a row of the page) and a wide one.

    places, drawn: the points and what else is drawn, (n, 2), as shares of the picture; high: its height, px.
    """
    scale, px = frame.scale(), np.array([[270.0, high], [800.0, high]])
    boxes: dict[int, tuple[Any, Any]] = {}  # of the words so far: lower left and upper right corners, (2 widths, x and y)
    sides = [""] * len(words)

    def inside(points: Any, low: Any, top: Any) -> Any:
        return ((points[:, None] > low) & (points[:, None] < top)).all(2)  # (points, widths)

    for i in [*range(len(words))] * 3:  # the first was placed before it knew where the others would be
        size, least = np.array([_width(words[i]) * 7.5, 16.0]) * scale / px, np.inf
        others = np.delete(places, i, 0)
        for side in SIDES:
            upright, across = side.split()
            away = np.array([("left", "center", "right").index(across) - 1, ("bottom", "middle", "top").index(upright) - 1])
            low = places[i] + away * (size / 2 + 5.0 / px) - size / 2
            top = low + size
            hidden = inside(others, low - 7.0 / px, top + 7.0 / px).sum()  # so near it would be taken for the other's word
            hidden += sum(((low < t) & (b < top)).all(1).sum() for j, (b, t) in boxes.items() if j != i)
            outside = (low < [0.0, -0.02]).any(1).sum() + (top > [1.03, 1.15]).any(1).sum()
            cost = 4 * hidden + 2 * outside + inside(drawn, low, top).any(0).sum()
            if cost < least:
                least, sides[i], boxes[i] = cost, side, (low, top)
    return sides


def _shares(values: Sequence[float], ends: list[float], log: bool) -> Any:
    """Where values lie on an axis, 0..1."""
    at = np.log10(np.maximum(values, 1e-6)) if log else np.asarray(values, np.float64)
    return (at - ends[0]) / (ends[1] - ends[0])


def base_layout(title: str, height: int, right_words: Sequence[str] = ()) -> dict[str, Any]:
    """The look that all pictures share: title, axes, margins. `right_words` stand right of the picture, which leaves room for them."""
    colours, scale = palette(), frame.scale()
    widest = max((_width(w) for w in right_words), default=0)
    axis = {
        "tickfont": {"size": 13 * scale, "color": colours["soft"]}, "gridcolor": colours["grid"], "zeroline": False,
        "linecolor": colours["idle"], "fixedrange": True, "nticks": max(3, min(6, int((height - 76 * scale) / (16 * scale)))),
    }
    return {
        "height": height, "showlegend": False, "hovermode": "x unified",
        "title": {"text": f"<b>{title}</b>", "x": 0, "xref": "container", "xanchor": "left", "y": 1, "yref": "container",
                  "yanchor": "top", "pad": {"t": 4, "l": 2}, "font": {"size": 15 * scale, "color": colours["ink"]}},
        "font": {"family": FONT, "size": 13 * scale, "color": colours["ink"]},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 50 * scale, "r": (12 + 8.6 * widest) * scale, "t": 36 * scale, "b": 40 * scale},
        "xaxis": {**axis, "showgrid": False, "showline": True, "ticks": "outside", "ticklen": 4, "nticks": 6 if scale == 1 else 4},
        "yaxis": {**axis, "ticklen": 0},
        "annotations": [], "shapes": [],
        "hoverlabel": {"font": {"size": 13 * scale}},
    }


def axis_title(words: str) -> dict[str, Any]:
    """The words beside an axis."""
    return {"text": words, "font": {"size": 13 * frame.scale(), "color": palette()["soft"]}, "standoff": 4}


def _range(low: float, high: float, log: bool) -> list[float]:
    if log:
        return [float(np.log10(max(low, 1e-6))), float(np.log10(max(high, 1e-6)))]
    return [low, high if high > low else low + 1.0]


def _top(values: Sequence[Any]) -> float:
    """A round end of an axis a little above the largest value."""
    most = max((float(np.nanmax(v)) for v in values if len(v) and np.isfinite(v).any()), default=0.0)
    if most <= 0:
        return 1.0
    most *= 1.06
    step = 10.0 ** np.floor(np.log10(most))
    return float(next(step * m for m in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * m >= most))


def _end_words(ends: Sequence[tuple[Line, float]], low: float, top: float, height: int, log: bool) -> list[dict[str, Any]]:
    """The names of lines at their right ends, pushed apart where they would overlap."""
    named = sorted(((line, y) for line, y in ends if line.label), key=lambda e: e[1])
    if not named or top <= low:
        return []
    share = [(np.log10(y / low) / np.log10(top / low) if log and y > 0 else (y - low) / (top - low)) for _, y in named]
    gap = 17.0 * frame.scale() / max(height - 76.0 * frame.scale(), 40.0)
    place = [min(max(float(s), 0.0), 1.0) for s in share]
    for i in range(1, len(place)):
        place[i] = max(place[i], place[i - 1] + gap)
    over = max(place[-1] - 1.0, 0.0)
    for i in range(len(place) - 1, -1, -1):
        limit = 1.0 if i == len(place) - 1 else place[i + 1] - gap
        place[i] = min(place[i], limit) if over else place[i]
    colours = palette()
    return [
        {"xref": "paper", "x": 1, "xanchor": "left", "xshift": 5, "yref": "paper", "y": at, "yanchor": "middle",
         "showarrow": False, "text": f"<b>{line.label}</b>",
         "font": {"size": 13 * frame.scale(), "color": colours["soft"] if line.dotted else colours.get(line.colour, line.colour)}}
        for (line, _), at in zip(named, place, strict=True)
    ]


def _named(name: str, value: float, percent: bool) -> str:
    """A limit's name and value; a share of 1 needs none."""
    shown = f"{value * 100:g}%" if percent else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return name if percent and value == 1 else f"{name} {shown}".strip()


def _dashes(value: float) -> dict[str, Any]:
    return {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": value, "y1": value, "layer": "below",
        "line": {"color": palette()["soft"], "width": 1.4, "dash": "6px,4px"},
    }


def _limit(layout: dict[str, Any], words: str, value: float, log: bool, to_right: bool = False) -> None:
    """A dashed line and its words above it: at the left, or where a line runs through there and not at the right, there."""
    colours = palette()
    layout["shapes"].append(_dashes(value))
    if frame.scale() > 1 and _width(words) > 16:  # a projector's type: four pictures in a row
        words = "<br>".join(words.rsplit(" ", 1))
    layout["annotations"].append({
        "xref": "paper", "x": int(to_right), "xanchor": "right" if to_right else "left",
        "y": float(np.log10(value)) if log else value, "yanchor": "bottom",
        "showarrow": False, "xshift": -4 if to_right else 4, "align": "left", "text": words,
        "font": {"size": 12.5 * frame.scale(), "color": colours["soft"]}, "bgcolor": _faint(colours["paper"], 0.7),
        "borderpad": 0,
    })


def _event(layout: dict[str, Any], time: float, word: str, log: bool) -> None:
    colours = palette()
    layout["shapes"].append({
        "type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": time, "x1": time,
        "line": {"color": colours["preempted"], "width": 1.4, "dash": "2px,3px"},
    })
    if not word:
        return
    layout["annotations"].append({
        "yref": "paper", "y": 1, "yanchor": "bottom", "xanchor": "left", "showarrow": False, "xshift": -4,
        "x": float(np.log10(time)) if log else time,  # on a log axis annotations count in powers of ten, shapes do not
        "text": f"▼ {word}", "font": {"size": 12.5 * frame.scale(), "color": colours["preempted"]},
    })


def _faint(colour: str, alpha: float) -> str:
    return f"rgba({int(colour[1:3], 16)},{int(colour[3:5], 16)},{int(colour[5:7], 16)},{alpha})"


def _width(word: str) -> float:
    return sum(1.8 if ord(c) > 0x2E80 else 1.0 for c in word)
