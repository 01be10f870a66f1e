"""Where a run's requests come from: presets, shipped traces, a visitor's own file."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

import streamlit as st

from sim import catalog, traces
from sim.scenario import SimError
from sim.workload import Requests
from ui import controls, state
from ui.text import count, has, language, t

UPLOAD = "upload"


def models() -> list[str]:
    """Names of the catalogue's models."""
    return list(catalog.models())


def gpus() -> list[str]:
    """Names of the catalogue's GPUs."""
    return list(catalog.gpus())


@cache
def _presets() -> dict[str, Any]:
    try:
        from sim import presets
    except ImportError:
        return {}
    return dict(presets.presets())


def presets() -> None:
    """A list of ready-made scenarios; the one picked becomes both B and A."""
    found = _presets()
    if not found:
        return
    st.selectbox(
        t("playground.preset"), list(found), index=None, placeholder=t("playground.preset_hint"), key="preset",
        format_func=lambda name: _preset_title(found, name), on_change=_take_preset,
    )


def _preset_title(found: dict[str, Any], name: str) -> str:
    return str(getattr(found[name], f"title_{language()}", "") or getattr(found[name], "title", name))


def _take_preset() -> None:
    name = st.session_state.pop("preset", None)
    if name:
        preset = _presets()[name]
        state.replace(getattr(preset, "scenario", preset))


def trace() -> None:
    """Which recorded traffic is replayed; or a file of one's own."""
    names = [*getattr(traces, "SHIPPED", ["azure2023_conv"]), UPLOAD]
    controls.pick("trace", names, words=lambda n: t(f"playground.trace.{n}") if has(f"playground.trace.{n}") else n)
    if state.current().b.trace == UPLOAD:
        file = st.file_uploader(t("playground.upload"), key="upload_file", help=t("playground.upload_help"))
        if file is not None:
            _remember(file)
        report = st.session_state.get("upload_report")
        if report:
            st.caption(report)


def _remember(file: Any) -> None:
    if st.session_state.get("upload_id") == file.file_id:
        return
    st.session_state["upload_id"] = file.file_id
    st.session_state["upload_bytes"] = file.getvalue()
    st.session_state["upload_name"] = file.name


def requests(held: state.State) -> tuple[Requests | None, str]:
    """The requests that do not follow from the scenario (an uploaded trace) and a name for them; (None, "") otherwise."""
    if held.b.arrival != "trace" or held.b.trace != UPLOAD or "upload_bytes" not in st.session_state:
        return None, ""
    raise SimError("trace_needs_upload", "upload a trace")


__all__ = ["count", "gpus", "hashlib", "models", "presets", "requests", "trace"]
