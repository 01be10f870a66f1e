"""Everything to take away: the link, the server's command line, and files of ticks, requests and scenario."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any
from urllib.parse import urlencode

import numpy as np
import streamlit as st

from sim.results import FINISHED, REFUSED, UNFINISHED, Run, Ticks
from sim.scenario import Scenario
from sim.vllm import export
from ui import state
from ui.text import language, t

STATUS = {FINISHED: "finished", REFUSED: "refused", UNFINISHED: "unfinished"}
PER_REQUEST = ("arrival", "first_scheduled", "first_token", "finish", "preemptions", "cached", "recomputed", "generated", "replica")

_COPY = st.components.v2.component(
    "copy_link",
    html="<button type='button' id='b'></button>",
    css="""
button{font:inherit;font-size:.9rem;line-height:1.5;box-sizing:border-box;height:2rem;padding:0 .75rem;white-space:nowrap;cursor:pointer;color:var(--st-text-color);
background:var(--st-background-color);border:1px solid var(--st-border-color);border-radius:var(--st-button-radius,6px)}
button:hover{border-color:var(--st-primary-color);color:var(--st-primary-color)}
button:focus-visible{outline:2px solid var(--st-primary-color);outline-offset:1px}
""",
    js="""
export default function ({ data, parentElement }) {
  const button = parentElement.querySelector('#b')
  button.textContent = data.label
  button.onclick = async () => {
    const url = location.origin + location.pathname + '?' + data.query
    try { await navigator.clipboard.writeText(url) } catch {
      const box = document.createElement('textarea')
      box.value = url; document.body.append(box); box.select(); document.execCommand('copy'); box.remove()
    }
    button.textContent = data.done
    setTimeout(() => { button.textContent = data.label }, 1800)
  }
}
""",
)


def copy_link(held: state.State) -> None:
    """A button that puts the whole state, language included, on the clipboard as a link."""
    query = urlencode({"lang": language(), **state.address(held)})
    _COPY(data={"label": t("playground.copy"), "done": t("playground.copied"), "query": query}, key="copy_link", width="content")


def serve_line(scenario: Scenario) -> None:
    """The `vllm serve` line that makes this scenario's server, to copy; and what no line can say."""
    with (drawer := st.popover("vllm serve", icon=":material/terminal:", on_change="rerun", key="serve_line")):
        if drawer.open:
            line = export.command_line(scenario)
            st.code(str(line), language="bash", wrap_lines=True)
            if line.not_expressible:
                st.caption(t("playground.serve_lost", names=", ".join(f"{k} = {v}" for k, v in line.not_expressible)))


def downloads(run: Run) -> None:
    """Files of the run, made when asked for."""
    with (drawer := st.popover(t("playground.download"), icon=":material/download:", on_change="rerun", key="downloads")):
        if drawer.open:
            st.download_button(t("playground.ticks_csv"), lambda: ticks_csv(run), "inflight_ticks.csv", "text/csv", on_click="ignore")
            st.download_button(t("playground.requests_csv"), lambda: requests_csv(run), "inflight_requests.csv", "text/csv", on_click="ignore")
            st.download_button(t("playground.scenario_json"), scenario_json(run), "inflight_scenario.json", "application/json", on_click="ignore")


def ticks_csv(run: Run) -> str:
    """A row an engine step; times in s."""
    return _csv({f.name: getattr(run.ticks, f.name) for f in fields(Ticks)})


def requests_csv(run: Run) -> str:
    """A row a request, in order of arrival; times in s, empty where it did not happen."""
    columns: dict[str, Any] = {"request": np.arange(len(run.requests))}
    columns |= {"prompt_tokens": run.requests.prompt, "output_tokens": run.requests.output, "priority": run.requests.priority}
    columns |= {name: getattr(run, name) for name in PER_REQUEST}
    columns["status"] = [STATUS.get(int(s), "never issued") for s in run.status]
    return _csv(columns)


def scenario_json(run: Run) -> str:
    """The scenario and its summary."""
    figures = {k: None if v != v else v for k, v in run.summary().as_dict().items()}
    return json.dumps({"scenario": run.scenario.as_dict(), "summary": figures}, indent=2)


def _csv(columns: dict[str, Any]) -> str:
    def cell(value: Any) -> str:
        if isinstance(value, float):
            return "" if value != value else f"{value:.9g}"
        return str(value)

    lists = [c.tolist() if isinstance(c, np.ndarray) else c for c in columns.values()]
    return "\n".join([",".join(columns), *(",".join(map(cell, row)) for row in zip(*lists, strict=True))]) + "\n"
