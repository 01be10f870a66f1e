"""Knobs: each shows a field of the Scenario, explains it, and writes it before the next run.

    controls.knob("max_num_seqs", [16, 32, 64, 128, 256, 512])      a slider over stops (8 to 12: every stop is cached)
    controls.choice("batching", ["static", "continuous"])           side by side
    controls.pick("gpu", ["H100-SXM", ...])                         a list to pick from
    controls.switch("enable_prefix_caching")
    controls.number("seed")
    controls.extra_choice("which", ["ttft", "e2e"], words=...)       the same for page-local state (`extra`)

Names, help, flag and badge come from settings.toml and SETTINGS. The key of a widget is `w_<page>_<field>`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from sim.scenario import SETTINGS
from ui import frame, state
from ui.text import count, has, t

COUNTED = ("tokens", "blocks")
"""Units that a setting's own name says."""


def knob(name: str, stops: Sequence[Any], *, words: Callable[[Any], str] | None = None, label: str = "", idle: str = "") -> None:
    """A slider over stops, which need not be evenly spaced. A value between them (from a link) becomes a stop.

    `idle`: why it does nothing as things stand: then it is grey, and its help begins with that.
    """
    value = getattr(state.current().b, name)
    options = sorted({*stops, value})
    key = _prepare(name, value)
    unit = SETTINGS[name].unit
    shown = words or (lambda v: f"{_plain(v)} {unit}".rstrip() if unit not in COUNTED else _plain(v))
    st.select_slider(
        label or _label(name), options, format_func=shown, key=key, help=f"{idle}\n\n{help_text(name)}".strip(),
        on_change=_commit, args=(name, key), disabled=bool(idle),
    )


def choice(name: str, options: Sequence[str] | None = None, *, label: str = "") -> None:
    """A few choices side by side, each with its badge where it is not today's."""
    value = getattr(state.current().b, name)
    options = list(options or SETTINGS[name].choices)
    if value not in options:
        options.append(value)
    key = _prepare(name, value)
    st.segmented_control(
        label or _label(name), options, format_func={o: option(name, o) for o in options}.__getitem__, key=key,
        help=help_text(name), required=True, on_change=_commit, args=(name, key),
    )


def pick(name: str, options: Sequence[str] | None = None, *, label: str = "", words: Callable[[str], str] | None = None) -> None:
    """A list to pick one from."""
    value = getattr(state.current().b, name)
    options = list(options or SETTINGS[name].choices)
    if value not in options:
        options.append(value)
    key = _prepare(name, value)
    st.selectbox(
        label or _label(name), options, format_func={o: words(o) if words else option(name, o) for o in options}.__getitem__,
        key=key, help=help_text(name), on_change=_commit, args=(name, key), filter_mode=None if len(options) < 10 else "contains",
    )


def switch(name: str, *, label: str = "") -> None:
    """On or off."""
    key = _prepare(name, getattr(state.current().b, name))
    st.toggle(label or _label(name), key=key, help=help_text(name), on_change=_commit, args=(name, key))


def number(name: str, *, step: float | None = None, label: str = "") -> None:
    """A number to type, within the setting's bounds."""
    setting, value = SETTINGS[name], getattr(state.current().b, name)
    kind = setting.kind
    key = _prepare(name, kind(value))
    st.number_input(
        label or _label(name) + (f" ({setting.unit})" if setting.unit else ""), kind(setting.low), kind(setting.high),
        step=kind(step) if step else (1 if kind is int else None), key=key, help=help_text(name), on_change=_commit,
        args=(name, key), format=None if kind is int else "%g",
    )


def extra_choice(
    name: str, options: Sequence[str], *, words: Callable[[str], str] | None = None, label: str = "", title: str = "",
    pills: bool = False,
) -> str:
    """A choice of page-local state (declared in `state.load(extra=...)`); returns what is chosen.

    `label` is shown above it; `title` is its name for screen readers where there is no label.
    """
    value = str(state.current().extra[name])
    if value not in options:  # of a link
        state.current().extra[name] = value = options[0]
    key = _prepare(name, value)
    kind = st.pills if pills else st.segmented_control
    kind(
        label or title or name, list(options), format_func={o: (words or str)(o) for o in options}.__getitem__,
        key=key, required=True,
        label_visibility="visible" if label else "collapsed", on_change=_commit, args=(name, key),
    )
    return value


def help_text(name: str) -> str:
    """What a setting is, its vLLM flag, its status: Markdown."""
    setting = SETTINGS[name]
    parts = [t(f"settings.{name}.help")]
    if setting.flag:
        parts.append(f"`{setting.flag}`")
        if has(f"settings.{name}.label"):
            parts.insert(0, f"**{t(f'settings.{name}.label')}**")
    for o in setting.choices:
        if has(f"settings.{name}.{o}_help"):
            parts.append(f"- **{option(name, o)}**: {t(f'settings.{name}.{o}_help')}")
    return "\n\n".join(parts)


def option(name: str, value: str) -> str:
    """The word for one choice of a setting; choices without words of their own are shown as vLLM writes them."""
    return t(f"settings.{name}.{value}") if has(f"settings.{name}.{value}") else str(value)


def _label(name: str) -> str:
    """The name of a setting, with a badge where what is chosen is not what vLLM does today, or could be otherwise."""
    setting = SETTINGS[name]
    words = state.label(name)
    if setting.status == "today":
        return words
    chosen = getattr(state.current().b, name)
    return f"{words} {frame.badge('today' if setting.choices and chosen == setting.default else setting.status)}"


def _prepare(name: str, value: Any) -> str:
    key = f"w_{st.session_state['page']}_{name}"
    if st.session_state.get(key) != value or key not in st.session_state:
        st.session_state[key] = value
    return key


def _commit(name: str, key: str) -> None:
    value = st.session_state[key]
    if value is not None:  # a browser's first word about a widget that it draws anew
        state.change(**{name: value})


def _plain(value: Any) -> str:
    return count(value) if isinstance(value, int) else f"{value:g}"
