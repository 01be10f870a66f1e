"""Terms on demand: what the words of a page mean in vLLM, with the metric or the flag behind them.

    with frame.page("kv"):
        terms.explain("kv", "preemptions", "kv_block", "max_num_seqs")

A term is a setting (its words are those of its knob), a figure of a Summary ("ttft", "waiting"; its words are those of
its tile), or a word of the trade, which terms.toml explains. Each is told in one place only.
"""

from __future__ import annotations

import re

import streamlit as st

from sim.scenario import SETTINGS
from ui.text import figure, has, t


def explain(*names: str) -> None:
    """A button that opens what these terms mean."""
    with st.popover(t("terms.button"), icon=":material/menu_book:", type="tertiary"):
        st.markdown("\n\n".join(f"**{label}**  \n{words}" for label, words in map(term, names)))


def term(name: str) -> tuple[str, str]:
    """What a term is called and what it means, in Markdown; names of vLLM's metrics and flags as code.

    Raises KeyError if nothing explains it.
    """
    if name in SETTINGS:
        label, words, flag = t(f"settings.{name}.label"), t(f"settings.{name}.help"), SETTINGS[name].flag
        return (f"`{name}` · {label}", f"{words} `{flag}`") if flag else (label, words)
    label, words = (t(f"terms.{name}.label"), t(f"terms.{name}.help")) if has(f"terms.{name}.label") else figure(name)
    return label, re.sub(r"(?<!`)(vllm:\w+|--[\w.-]*\w)", r"`\1`", words)
