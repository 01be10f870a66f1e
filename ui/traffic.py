"""Where a run's requests come from: presets, shipped traces, a visitor's own file."""

from __future__ import annotations

import streamlit as st

from sim import catalog, traces
from sim import presets as shipped
from sim.scenario import Scenario
from sim.workload import Requests
from ui import controls, state
from ui.text import count, has, language, t

UPLOAD = "upload"


def models() -> list[str]:
    """Names of the catalogue's models."""
    return list(catalog.models())


def has_experts(model: str) -> bool:
    """Whether the model is a mixture of experts."""
    return catalog.model(model).experts > 0


def gpus() -> list[str]:
    """Names of the catalogue's GPUs."""
    return list(catalog.gpus())


def presets() -> None:
    """A list of ready-made scenarios; the one picked becomes both B and A, and stays named while it is A."""
    found, a = shipped.presets(), state.current().a
    here = next((name for name, preset in found.items() if preset.scenario == a), None)
    st.session_state["preset"] = here
    st.selectbox(
        t("playground.preset"), list(found), index=None, placeholder=t("playground.preset_hint"), key="preset",
        format_func={name: getattr(preset, f"title_{language()}") for name, preset in found.items()}.__getitem__,
        on_change=_take_preset,
    )
    if here:
        st.caption(getattr(found[here], f"about_{language()}"))


def _take_preset() -> None:
    if name := st.session_state["preset"]:
        state.replace(shipped.presets()[name].scenario)


# --- traces ---------------------------------------------------------------------------------------------------------


def trace() -> None:
    """Which recorded traffic is replayed; or a file of one's own, which stays in this session's memory."""
    names = [*traces.SHIPPED, UPLOAD]
    controls.pick("trace", names, words=lambda n: t(f"playground.trace.{n}") if has(f"playground.trace.{n}") else n)
    if state.current().b.trace == UPLOAD:
        file = st.file_uploader(t("playground.upload"), key="upload_file", help=t("playground.upload_help"))
        if file is not None:
            st.session_state["upload"] = file
        if "upload" in st.session_state:
            st.caption(st.session_state["upload"].name)


def requests(scenario: Scenario) -> tuple[Requests | None, str]:
    """The requests that do not follow from the scenario alone (an uploaded trace) and a name for them; else (None, "").

    Raises SimError if the file is no trace.
    """
    file = st.session_state.get("upload")
    if scenario.arrival != "trace" or scenario.trace != UPLOAD or file is None:
        return None, ""
    window = (scenario.trace_start_s, scenario.duration_s, scenario.rate_scale, scenario.num_requests, scenario.seed)
    name = f"{file.file_id}{window}"
    kept = st.session_state.setdefault("upload_read", {})
    if name not in kept:
        if len(kept) > 3:
            kept.clear()
        file.seek(0)
        start, duration, scale, most, seed = window
        kept[name] = traces.read(
            file, start_s=start, duration_s=duration, rate_scale=scale, limit=most or traces.LIMIT, seed=seed
        )
    return kept[name][0], name


def report(scenario: Scenario) -> str:
    """What the reader made of an uploaded trace, in one line with its peculiarities; "" for other traffic."""
    _, name = requests(scenario)
    if not name:
        return ""
    found = st.session_state["upload_read"][name][1]
    words = [t("playground.upload_report", rows=count(found.rows), kept=count(found.used))]
    words += [t(f"playground.dropped.{why}", n=count(n)) for why, n in found.dropped.items()]
    words += [t(f"note.{note.code}", **note.params) for note in found.notes]
    return " · ".join(words)
