"""Many runs on a page: made with progress and a Stop that loses none; shown as a heatmap over two settings, as throughput
against P99 latency, and as the proof of what a search found.

A click on a cell or a point says which. Runs that keep the limits are outlined; on the Pareto front are those of them
than which none has both more throughput and a lower P99.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import streamlit as st

from sim.results import Summary
from sim.scenario import SimError
from sim.sweep import Answer, Tried
from sim.vllm import export
from ui import charts, frame, state
from ui.text import count, figure, percent, seconds, t

METRICS = {"qps": "decode", "goodput_qps": "decode", "e2e_p99": "waiting", "preemptions": "preempted", "gpu_compute": "ink"}
"""What a heatmap can show, and its colour."""
WORDS: dict[str, Callable[[float], str]] = {
    "e2e_p99": seconds, "ttft_p99": seconds, "itl_p99": seconds, "gpu_compute": percent, "gpu_memory_utilization": "{:g}".format,
}
SPLIT = {"tensor_parallel_size", "data_parallel_size"}
FEW = 10  # columns up to which a cell has room for its figure
EQUAL = 0.995  # figures that differ by less than half a percent are the same, as in a search

# --- making them

PACE = 0.7  # s between two pictures of a job that is going: drawing one takes about 0.2 s


class Pause(Exception):
    """Enough runs for now: the page shows them."""


@dataclass
class Job:
    """Runs that a visitor asked for, kept as they are made."""

    of: str  # what says all of them: where it changes, another job begins
    runs: list[Tried] = field(default_factory=list)
    going: bool = True
    done: bool = False
    spent: float = 0.0  # s
    answer: Answer | None = None  # of a search that has come to its end

    def set(self, going: bool) -> None:
        """Callback of the button."""
        self.going = going


def job(name: str, of: str) -> Job:
    """The visitor's job of this name."""
    held: Job | None = st.session_state.get(f"job_{name}")
    if held is None or held.of != of:
        held = st.session_state[f"job_{name}"] = Job(of)
    return held


def progress(job: Job, total: int, whole: bool) -> None:
    """Until the job is done: how far it is, and the button that stops it or lets it go on.

    total: runs there could be; whole: whether all of them are made.
    """
    if job.done:
        return
    made = len(job.runs)
    with st.container(horizontal=True, vertical_alignment="center", key="job"):
        if job.going:
            st.button(t("sweet_spot.stop"), icon=":material/stop:", key="job_stop", on_click=job.set, args=(False,))
        else:
            st.button(t("sweet_spot.go_on_with"), icon=":material/play_arrow:", key="job_run", on_click=job.set, args=(True,))
        if whole:
            left = t("sweet_spot.map_left", left=seconds(job.spent / made * (total - made))) if made and job.going else ""
            st.progress(made / total, t("sweet_spot.map_progress", done=made, total=total, left=left))
        else:
            st.markdown(t("sweet_spot.search_progress", runs=made, total=f"{total:,}"))


def work(job: Job, make: Callable[[Callable[[Tried], None]], Answer | None]) -> None:
    """The last line of a page with a job. While it is going, `make(watch)` makes its runs and tells of each, those that
    were made already left out; every now and then the page is drawn anew with what there is."""
    if not job.going:
        return
    state.publish()
    begun = time.perf_counter()

    def watch(tried: Tried) -> None:
        job.runs.append(tried)
        if time.perf_counter() - begun > PACE:
            raise Pause

    try:
        job.answer = make(watch)
        job.going, job.done = False, True
    except Pause:
        pass
    job.spent += time.perf_counter() - begun
    st.rerun()


# --- showing them


def summaries(runs: Iterable[Tried]) -> list[tuple[Tried, Summary]]:
    """Those that could start."""
    return [(tried, tried.result) for tried in runs if isinstance(tried.result, Summary)]


def front(runs: Iterable[Tried]) -> list[Tried]:
    """The Pareto front of those that keep the limits: most throughput first, each next one with a lower P99 end-to-end."""
    found: list[Tried] = []
    least = float("inf")
    for tried, s in sorted(summaries(runs), key=lambda pair: (-pair[1].qps, pair[1].e2e_p99)):
        if not tried.excess and s.e2e_p99 < EQUAL * least:
            found.append(tried)
            least = s.e2e_p99
    return found


def heatmap(
    runs: Sequence[Tried], axes: Mapping[str, Sequence[Any]], metric: str, here: Mapping[str, Any],
    pick: Callable[[dict[str, Any]], None], alt: str, height: int,
) -> None:
    """`axes`: the two fields, across and up, and their values. `here`: the changes that are shown now."""
    colours, ((across, xs), (up, ys)) = charts.palette(), axes.items()

    def place(changes: Mapping[str, Any]) -> tuple[int, int]:
        return xs.index(changes[across]), ys.index(changes[up])

    started = summaries(runs)
    z = np.full((len(ys), len(xs)), np.nan, np.float32)
    for tried, s in started:
        z[place(tried.changes)[::-1]] = getattr(s, metric)
    figures = [float(getattr(s, metric)) for _, s in started]
    middle = (max(figures, default=0.0) + min(figures, default=0.0)) / 2
    cells, best = [place(tried.changes) for tried, _ in started], [place(tried.changes) for tried in front(runs)]
    layout = _layout(t(f"sweet_spot.map_{metric}"), height, across)
    for axis, values in (("xaxis", xs), ("yaxis", ys)):
        layout[axis] |= {"range": [-0.5, len(values) - 0.5], "tickvals": list(range(len(values))), "showgrid": False,
                         "ticktext": [f"{v:,}" if isinstance(v, int) else f"{v:g}" for v in values]}
    layout["annotations"] = [{  # not along the axis: it is longer than a projector's picture is high
        "text": f"↑ {up}", "xref": "paper", "yref": "paper", "x": 1, "y": 1, "xanchor": "right", "yanchor": "bottom", "yshift": 4,
        "showarrow": False, "font": layout["xaxis"]["title"]["font"],
    }]
    layout["margin"]["l"] = 54 * frame.scale()
    if here[across] in xs and here[up] in ys:
        x, y = place(here)
        layout["shapes"] = [{"type": "rect", "x0": x - 0.42, "x1": x + 0.42, "y0": y - 0.42, "y1": y + 0.42,
                             "line": {"color": colours["ink"], "width": 1.5, "dash": "3px,2px"}}]
    outline = _outline({place(tried.changes) for tried, _ in started if not tried.excess})
    data = [
        {"type": "heatmap", "z": z, "showscale": False, "xgap": 2, "ygap": 2, "hoverongaps": False, "hoverinfo": "skip",
         "colorscale": [[0, colours["grid"]], [1, colours[METRICS[metric]]]]},
        {"type": "scatter", "mode": "text", "x": [x for x, _ in cells], "y": [y for _, y in cells], "hoverinfo": "skip",
         "text": [WORDS.get(metric, count)(v) if len(xs) <= FEW else "" for v in figures],
         "textfont": {"size": 12 * frame.scale(), "color": [colours["paper" if v > middle else "ink"] for v in figures]}},
        {"type": "scatter", "mode": "lines", "x": [p[0] for p in outline], "y": [p[1] for p in outline], "hoverinfo": "skip",
         "line": {"color": colours["ink"], "width": 2.5}},
        {"type": "scatter", "mode": "markers", "x": [x + 0.36 for x, _ in best], "y": [y + 0.3 for _, y in best],
         "hoverinfo": "skip", "marker": {"color": colours["ink"], "size": 6, "symbol": "diamond"}},
        {"type": "scatter", "mode": "markers", "x": [x for x, _ in cells], "y": [y for _, y in cells],
         **_told(started), "marker": {"symbol": "square", "size": 0.8 * height / len(ys), "opacity": 0}},  # a heatmap cannot be clicked: these can
    ]
    _draw({"data": data, "layout": layout}, started, pick, alt or t(f"sweet_spot.map_{metric}"), "fit_cells")


def plane(
    runs: Sequence[Tried], here: Mapping[str, Any], pick: Callable[[dict[str, Any]], None], alt: str, height: int
) -> None:
    """The better runs as throughput against P99; the Pareto front is a line. The best run of each split of the GPUs is named."""
    colours, started, best = charts.palette(), summaries(runs), summaries(front(runs))
    layout = _layout(t("sweet_spot.chart_front"), height, t("sweet_spot.axis_qps"))
    of_split: dict[str, tuple[Tried, Summary]] = {}
    for run in started:
        if run[0].changes.keys() >= SPLIT:
            name = value(run[0].changes, "split")
            of_split[name] = max(of_split.get(name, run), run, key=lambda pair: pair[0].rank)
    top, low = max((s.qps for _, s in started), default=1.0), min((s.e2e_p99 for _, s in started), default=1.0)
    least = min([0.63 * top, *(s.qps for _, s in of_split.values())])
    highest = max([1.7 * low, *(s.e2e_p99 for _, s in of_split.values())])
    layout["xaxis"] |= {"range": [0.95 * least, 1.05 * top], "showline": True, "linecolor": colours["idle"]}
    layout["yaxis"] |= {"range": [0.8 * low, 1.05 * highest]}
    left = 0.95 * least + 0.1 * (1.05 * top - 0.95 * least)  # there a name in the middle would run over the axis
    layout["annotations"] = [
        {"text": f"<b>{name}</b>", "x": s.qps, "y": s.e2e_p99, "yanchor": "bottom", "yshift": 9, "showarrow": False,
         "xanchor": "left" if s.qps < left else "center",
         "font": {"size": 13 * frame.scale(), "color": colours["ink" if not tried.excess else "preempted"]}}
        for name, (tried, s) in of_split.items()]
    kept, shown = [not tried.excess for tried, _ in started], [tried.changes == here for tried, _ in started]
    data = [
        {"type": "scatter", "mode": "lines+markers", "x": [s.qps for _, s in best], "y": [s.e2e_p99 for _, s in best],
         "line": {"color": colours["ink"], "width": 2}, "marker": {"color": colours["ink"], "size": 15, "symbol": "diamond"},
         "hoverinfo": "skip"},
        {"type": "scatter", "mode": "markers", "x": [s.qps for _, s in started], "y": [s.e2e_p99 for _, s in started], **_told(started),
         "selected": {"marker": {"opacity": 1}}, "unselected": {"marker": {"opacity": 1}},
         "marker": {"size": [13 if now else 9 for now in shown], "opacity": 1,
                    "symbol": ["circle" if keeps else "triangle-up-open" for keeps in kept],
                    "color": [colours["decode" if keeps else "preempted"] for keeps in kept],
                    "line": {"width": [3 if now else 1 for now in shown],
                             "color": [colours["ink" if now else "paper" if keeps else "preempted"]
                                       for now, keeps in zip(shown, kept, strict=True)]}}},
    ]
    _draw({"data": data, "layout": layout}, started, pick, alt or t("sweet_spot.chart_front"), "fit_plane")


def proof(answer: Answer) -> None:
    """What a search found, beside it the run one value lower and one higher in each setting, and the command that sets it."""
    best = answer.best.result
    assert isinstance(best, Summary)

    def side(name: str, tried: Tried | None) -> str:
        if tried is None:
            return "–"
        equal = isinstance(s := tried.result, Summary) and not tried.excess and s.qps > EQUAL * best.qps
        return t("sweet_spot.side_equal" if equal else "sweet_spot.side", value=value(tried.changes, name),
                 says=says(tried, answer.limits), p99=seconds(s.e2e_p99) if isinstance(s, Summary) else "")

    columns: dict[str, list[str]] = {
        t("sweet_spot.col_setting"): [], t("sweet_spot.col_best", qps=best.qps, p99=seconds(best.e2e_p99)): [],
        t("sweet_spot.col_lower"): [], t("sweet_spot.col_higher"): [],
    }
    for name, sides in answer.neighbours.items():
        cells = (name_of(name), f"**{value(answer.best.changes, name)}**", *(side(name, tried) for tried in sides))
        for column, cell in zip(columns.values(), cells, strict=True):
            column.append(cell)
    st.table(columns)
    st.caption(t("sweet_spot.serve_line"))
    st.code(str(export.command_line(answer.scenario)), language="bash", wrap_lines=True)


def name_of(field: str) -> str:
    """What a setting is called."""
    return t("sweet_spot.split") if field == "split" else state.label(field)


def value(changes: Mapping[str, Any], name: str) -> str:
    """One setting of a run in words; as everywhere, engines of TP n are so many times TPn."""
    if name == "split":
        return f"{changes['data_parallel_size']} × TP{changes['tensor_parallel_size']}"
    return WORDS.get(name, count)(changes[name])


def settings(changes: Mapping[str, Any]) -> str:
    """All settings of a run in words."""
    split = SPLIT if changes.keys() >= SPLIT else set()
    return t("narration.comma").join([
        *([value(changes, "split")] if split else []), *(f"{name_of(k).strip('`')} {value(changes, k)}" for k in changes if k not in split)])


def says(tried: Tried, limits: Mapping[str, float] | None = None) -> str:
    """A run in short: its throughput, and of these limits those that it breaks."""
    if isinstance(tried.result, SimError):
        return t("sweet_spot.does_not_start")
    s = tried.result
    broken = [f"{figure(name)[0]} {WORDS.get(name, count)(getattr(s, name))}" for name, most in (limits or {}).items()
              if not getattr(s, name) <= most]
    return t("narration.comma").join([f"{s.qps:.1f} req/s", *broken])


def _told(runs: Iterable[tuple[Tried, Summary]]) -> dict[str, Any]:
    """What a point says under the pointer, and which run a click on it takes."""
    words = [f"{settings(tried.changes).replace(t('narration.comma'), '<br>')}<br>"
             + t("sweet_spot.cell_says", qps=s.qps, p99=seconds(s.e2e_p99), preemptions=s.preemptions) for tried, s in runs]
    return {"customdata": [[i] for i in range(len(words))], "text": words, "hovertemplate": "%{text}<extra></extra>"}


def _outline(cells: set[tuple[int, int]]) -> list[tuple[float | None, float | None]]:
    """The border of an area of cells, as segments with gaps between them."""
    found: list[tuple[float | None, float | None]] = []
    for i, j in sorted(cells):
        for di, dj in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            if (i + di, j + dj) not in cells:
                x, y, across, up = i + di / 2, j + dj / 2, abs(dj) / 2, abs(di) / 2
                found += [(x - across, y - up), (x + across, y + up), (None, None)]
    return found


def _layout(title: str, height: int, across: str) -> dict[str, Any]:
    layout, scale = charts.base_layout(title, height), frame.scale()
    for axis in ("xaxis", "yaxis"):
        layout[axis] |= {"showgrid": True, "showline": False, "ticklen": 0}
    layout["xaxis"]["title"] = charts.axis_title(across)
    return layout | {
        "clickmode": "event+select", "dragmode": False, "hovermode": "closest",
        "margin": {"l": 40 * scale, "r": 12, "t": 34 * scale, "b": 44 * scale},
    }


def _draw(
    drawn: dict[str, Any], runs: Sequence[tuple[Tried, Summary]], pick: Callable[[dict[str, Any]], None], alt: str, key: str
) -> None:
    def picked() -> None:
        for point in st.session_state[key].selection.points:
            if point.get("customdata"):
                return pick(runs[point["customdata"][0]][0].changes)

    st.plotly_chart(
        charts.Picture(drawn), width="stretch", height="stretch", theme=None, key=key, config=charts.CONFIG,
        on_select=picked, selection_mode="points", alt=alt,
    )
