"""The slot Gantt: who sits in which seat, when. It plays, steps and scrubs in the browser, without a re-run.

A `Lane` is one run: a row of seats over time. Lanes stand above each other on one time axis, so the eye compares them.
The canvas reads the theme's own colours, so it follows a change of theme at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from sim.results import Run
from ui import frame
from ui.charts import COLOURS
from ui.text import t

PHASES = ("waiting", "prefill", "decode", "preempted", "idle")
COLORS = {theme: {phase: colours[phase] for phase in PHASES} for theme, colours in COLOURS.items()}
"""What each phase is painted in; the same meaning everywhere in the app."""


@dataclass(frozen=True, slots=True)
class Segment:
    """`request` sits in `seat` from `start` to `end` (s), doing `phase` (one of PHASES)."""

    seat: int
    request: int
    start: float
    end: float
    phase: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One run. Times in s.

    done: when requests return to their users. marks: moments worth a flag, with its words. cover: hides the lane.
    """

    title: str
    seats: int
    segments: Sequence[Segment]
    done: Sequence[float]
    cover: str = ""
    marks: Sequence[tuple[float, str]] = ()


def lane(run: Run, title: str, *, cover: str = "", marks: Sequence[tuple[float, str]] = ()) -> Lane:
    """A run as a lane. A seat of a static batch stays held, idle, until the whole batch leaves."""
    seat, (first, done) = seats(run.first_scheduled, run.finish), spoken(run)
    segments = []
    for i in np.flatnonzero(seat >= 0):
        for phase, start, end in (
            ("prefill", run.first_scheduled[i], first[i]), ("decode", first[i], done[i]), ("idle", done[i], run.finish[i])
        ):
            if end > start + 1e-12:
                segments.append(Segment(int(seat[i]), int(i), float(start), float(end), phase))
    return Lane(title, run.scenario.max_num_seqs, segments, run.finish[np.isfinite(run.finish)].tolist(), cover, marks)


def spoken(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """When each answer's first and last token were there, two float64 (n,) in s.

    Under static batching an answer goes home with its batch, so that the run's `first_token` and `finish` are the end of
    the batch: its tokens were there before, one a step after the prompts of the batch.
    """
    if run.scenario.batching != "static":
        return run.first_token, run.finish
    first, done, ticks = run.first_token.copy(), run.finish.copy(), run.ticks
    ends = ticks.start + ticks.duration
    for start in np.unique(run.first_scheduled[np.isfinite(run.first_scheduled)]):
        batch = np.flatnonzero((run.first_scheduled == start) & np.isfinite(run.finish))
        if not len(batch):
            continue
        last = int(np.searchsorted(ends, run.finish[batch].max() - 1e-9))
        prompts_read = last - int(run.generated[batch].max()) + 1  # the tick that gave the first tokens
        first[batch] = ends[max(prompts_read, 0)]
        done[batch] = ends[np.maximum(prompts_read + run.generated[batch] - 1, 0)]
    return first, done


def seats(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """A seat for every request, int64 (n,): the lowest one free at its start. Requests never seated (nan) get -1."""
    seat = np.full(len(start), -1, dtype=np.int64)
    free_at: list[float] = []
    for i in np.argsort(start, kind="stable"):
        if not np.isfinite(start[i]):
            continue
        place = next((k for k, t in enumerate(free_at) if t <= start[i] + 1e-12), len(free_at))
        if place == len(free_at):
            free_at.append(0.0)
        free_at[place] = end[i]
        seat[i] = place
    return seat


def draw(
    lanes: Sequence[Lane], *, alt: str, key: str, end: float | None = None, step_s: float = 0.0,
    guess: tuple[float, str] | None = None, row: int = 16,
) -> None:
    """Draw `lanes` on one time axis of `end` s (default: the last thing that happens).

    alt: the takeaway, for those who cannot see it. step_s: what one press of "step" advances, s. guess: a time and its
    name, drawn as a dashed line. row: height of a seat, px.
    """
    last = max((s.end for lane in lanes for s in lane.segments), default=1.0)
    end = end or last
    data: dict[str, Any] = {
        "lanes": [_plain(lane) for lane in lanes], "end": float(end), "step": step_s or end / 100, "phases": PHASES,
        "colors": COLORS, "labels": _labels(), "alt": alt, "guess": list(guess) if guess else None,
        "scale": frame.scale(), "row": row,
    }
    _component()(data=data, key=key)


WORDS = (
    "player", "play", "pause", "step", "back", "time", "seat", "lane", "lane_end", "tip", "idle_note",
    "waiting", "prefill", "decode", "preempted", "idle",
)  # what the player says: `lesson.gantt.<word>`


def _labels() -> dict[str, str]:
    return {word: t(f"lesson.gantt.{word}") for word in WORDS}


def _plain(lane: Lane) -> dict[str, Any]:
    """A lane as JSON: segments are [seat, request, start, end, index of the phase]."""
    return {
        "title": lane.title, "seats": lane.seats, "cover": lane.cover, "done": sorted(float(at) for at in lane.done),
        "marks": [[float(at), words] for at, words in lane.marks],
        "segments": [
            [s.seat, s.request, round(s.start, 5), round(s.end, 5), PHASES.index(s.phase)]
            for s in lane.segments
        ],
    }


@st.cache_resource
def _component() -> Any:
    return st.components.v2.component("slot_gantt", html=_HTML, css=_CSS, js=_JS)


_JS = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")

_HTML = """
<div class="player" tabindex="0" role="group">
  <div class="bar">
    <button class="play" type="button"></button>
    <button class="back" type="button"></button>
    <button class="step" type="button"></button>
    <input class="time" type="range" min="0" max="1000" step="1" value="1000">
    <output class="clock"></output>
  </div>
  <canvas role="img"></canvas>
  <div class="tip" hidden></div>
  <ul class="key" aria-hidden="true"></ul>
  <div class="sr" aria-live="polite"></div>
</div>
"""

_CSS = """
.player { font-family: var(--st-font); color: var(--st-text-color); position: relative; border-radius: 8px; }
.player:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 4px; }
.bar { display: flex; gap: 6px; align-items: center; margin-bottom: 4px; }
.time { flex: 1; min-width: 60px; accent-color: var(--st-primary-color); height: 32px; margin: 0 4px; }
.clock { font-variant-numeric: tabular-nums; min-width: 5.5em; text-align: right;
  font-size: calc(14px * var(--k, 1)); }
button { min-width: 38px; height: 34px; padding: 0 8px; border: 1px solid var(--st-border-color); border-radius: 8px;
  background: var(--st-background-color); color: var(--st-text-color); cursor: pointer;
  font-size: 15px; line-height: 1; }
button.play { background: var(--st-primary-color); border-color: var(--st-primary-color);
  color: var(--st-background-color); min-width: 48px; }
button:hover { filter: brightness(1.1); border-color: var(--st-primary-color); }
button:focus-visible, .time:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 2px; }
canvas { width: 100%; display: block; touch-action: pan-y; }
.key { display: flex; flex-wrap: wrap; gap: 2px 16px; list-style: none; margin: 4px 0 0; padding: 0;
  font-size: calc(13px * var(--k, 1)); }
.key li { display: flex; align-items: center; gap: 6px; }
.key canvas { width: 22px; height: 12px; flex: none; }
.tip { position: absolute; pointer-events: none; z-index: 2; max-width: 240px; padding: 4px 8px; border-radius: 6px;
  font-size: calc(13px * var(--k, 1)); background: var(--st-text-color); color: var(--st-background-color); }
.sr { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
"""
