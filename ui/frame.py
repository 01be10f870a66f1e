"""The frame that every page shares: title, menu, language, projector, look. And how a page is made.

A page is a file in pages/, read from top to bottom (ui/text/{en,zh}/<page>.toml has its words, `t("<page>.key")`):

    from ui import charts, controls, frame, narration, series, state
    from ui.text import t

    frame.page("budgets")                                   # first call; the key of PAGES below
    s = state.load(Scenario(...), extra={"p": 0})           # what the URL says: s.b, s.a, s.extra
    state.notices()                                         # odd links and refused changes, with repair
    controls.knob("max_num_seqs", [16, 32, 64, 128, 256])   # writes s.b before the next run
    b, a = state.runs(s)                                    # cached Runs of B and of the baseline A
    charts.timeline(t("budgets.waiting"), [charts.Line(*series.waiting(b), "waiting", "B")])
    frame.note(narration.changed(b.summary(), a.summary(), s.b, s.a))
    state.publish()                                         # last call

Blocks: `frame.question(text)`, `frame.note(text)`, `frame.badge("history")`, `frame.tiles([...])`. The words for a
choice or metric come from settings.toml (`settings.<field>.label|help`, `text.figure(name)`).
"""

from __future__ import annotations

import contextlib
import html
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.errors import StreamlitAPIException

from ui import state, text
from ui.text import t

PAGES = {
    "start": "app.py",
    "iteration": "pages/1_be_the_scheduler.py",
    "budgets": "pages/2_two_budgets.py",
    "kv": "pages/3_kv_pool.py",
    "experts": "pages/4_experts.py",
    "parallel": "pages/5_parallelism.py",
    "sweet": "pages/6_sweet_spot.py",
    "diagnose": "pages/7_diagnose.py",
    "playground": "pages/8_playground.py",
    "hood": "pages/9_under_the_hood.py",
}
"""Every page by key, in reading order. Titles: `frame.title.<key>`."""
ROOT = Path(__file__).parent.parent
BADGES = {"today": "green", "history": "gray", "what if": "violet"}

LOGO = """<svg xmlns="http://www.w3.org/2000/svg" width="150" height="32" viewBox="0 0 150 32">
<rect x="1" y="4" width="17" height="6" rx="1.5" fill="{decode}"/><rect x="20" y="4" width="9" height="6" rx="1.5" fill="{waiting}"/>
<rect x="1" y="13" width="8" height="6" rx="1.5" fill="{prefill}"/><rect x="11" y="13" width="18" height="6" rx="1.5" fill="{decode}"/>
<rect x="1" y="22" width="12" height="6" rx="1.5" fill="{decode}"/><rect x="15" y="22" width="5" height="6" rx="1.5" fill="{prefill}"/>
<rect x="22" y="22" width="7" height="6" rx="1.5" fill="{decode}"/>
<text x="38" y="23" font-family="system-ui, Segoe UI, Roboto, Noto Sans, sans-serif" font-size="20" font-weight="650" letter-spacing="-.3" fill="{ink}">Inflight</text></svg>"""

CSS = """<style>
.stMain .block-container{padding:1.1rem 2rem 2rem;max-width:84rem}
.stAppHeader{background:transparent;pointer-events:none;height:2.75rem}.stAppHeader>*,.stAppHeader button{pointer-events:auto}
.stSidebar{width:16.5rem!important;min-width:0!important}.stSidebar[aria-expanded=false]{margin-left:0}
.stSidebar [data-testid=stSidebarHeader]{height:3.4rem;margin-bottom:0;padding-top:1rem}
.stSidebar [data-testid=stSidebarUserContent]{padding:.4rem .75rem 1rem .9rem}
.stSidebar [data-testid=stPageLink] a{padding:.24rem .4rem}.stSidebar [data-testid=stPageLink] a *{font-size:.88rem}
.stSidebar [data-testid=stVerticalBlock]{gap:.15rem}
.st-key-frame_foot{margin:1.1rem 0 0 .5rem;gap:.7rem!important}
.st-key-heading{margin-bottom:.2rem}.st-key-heading button{min-height:2rem;padding:.1rem .5rem}
[data-testid=stPopoverBody]{max-width:36rem;padding:.9rem 1.1rem}[data-testid=stPopoverBody] p{font-size:.9rem;line-height:1.5}
.st-key-knobs{gap:.35rem!important}
.stMain h1{padding:0;font-size:1.4rem;letter-spacing:-.01em}
.stMain .stButtonGroup [role=group],.stMain .stButtonGroup [role=radiogroup],.stMain .stButtonGroup>div{flex-wrap:wrap}
[class*=st-key-preset_] button,.st-key-lesson_try button{min-height:1.9rem;padding:.05rem .6rem}
[class*=st-key-preset_] button p,.st-key-lesson_try button p{font-size:.875rem;white-space:normal}[class*=st-key-presets_]{gap:.4rem .5rem!important}
@media (min-width:641px){.st-key-try_next{flex-wrap:nowrap!important}}
.st-key-takeaway p{font-size:1.12rem;line-height:1.45}.st-key-lesson_row{min-height:2.6rem}
.st-key-told{border-left:3px solid var(--if-accent);padding-left:.8rem}.st-key-told p{font-size:.95rem;line-height:1.5}
.stMain [data-testid=stVerticalBlock]{gap:.6rem}
.stMain [data-testid=stWidgetLabel] p{font-size:.875rem}.stMain p code{display:inline-block;max-width:100%%}
.stMain [data-testid=stWidgetLabel] code{font-size:.83rem;background:none;padding:0;color:inherit}
.stSlider [data-testid=stSliderTickBarMin],.stSlider [data-testid=stSliderTickBarMax]{display:none}
.js-plotly-plot,.stPlotlyChart{overflow:hidden}
@media (min-width:641px){.stMain{--fit:clamp(240px,100vh - 17rem,46vh)}.stMain:has(.st-key-told){--fit:clamp(240px,100vh - 30rem,46vh)}
.stMain [class*=st-key-fit_],[data-testid=stLayoutWrapper]:has(>.st-key-fit_covered){height:var(--fit);flex-basis:auto!important}
.stMain .st-key-fit_cells,.stMain .st-key-fit_plane{min-height:300px}}
.if-tiles{display:grid;grid-template-columns:repeat(var(--n),1fr);border:1px solid var(--if-line);border-radius:6px;overflow:hidden;background:var(--if-line);gap:1px}
.if-tile{padding:.5rem .45rem .45rem;background:var(--if-paper);min-width:0}
.if-tile .l{font-size:.8rem;color:var(--if-soft);white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.if-tile .r{display:flex;align-items:baseline;justify-content:space-between;gap:.1rem}
.if-tile .v{font-size:1.25rem;font-weight:600;line-height:1.35;font-variant-numeric:tabular-nums;letter-spacing:-.01em;white-space:nowrap}
.if-tile .v small{font-size:.75rem;font-weight:400;color:var(--if-soft);letter-spacing:0}
.if-tile .d{font-size:.75rem;color:var(--if-soft);font-variant-numeric:tabular-nums;white-space:nowrap;overflow:hidden}
.if-tile>.d{white-space:normal;line-height:1.3}.if-tile .d b{font-weight:600;letter-spacing:-.02em}.if-tile .d .good{color:var(--if-good)}.if-tile .d .bad{color:var(--if-bad)}
.if-question{font-size:1.12rem;font-weight:600;line-height:1.45}
.if-note{border-left:3px solid var(--if-accent);padding:.05rem 0 .05rem .8rem;line-height:1.55;font-size:.95rem;max-width:66rem}
.if-lead{color:var(--if-soft);max-width:60rem;line-height:1.6}
.stApp:has(.stSidebar[aria-expanded=false]) .stMain .block-container{padding-top:3.3rem}
@media (max-width:640px){.stMain [data-testid=stHorizontalBlock]{row-gap:.6rem}.stColumn:has(.st-key-stage){order:-1}.stMain .block-container{padding:3.3rem .9rem 2rem}.if-tiles{grid-template-columns:repeat(2,1fr)}.if-tile .l{white-space:normal}.if-tile:last-child:nth-child(odd){grid-column:span 2}}
%s</style>"""
PROJECTOR = """html{font-size:max(21px,2.3vmin)!important}.stSidebar{zoom:.76;width:14.5rem!important}
.stSidebar [data-testid=stSidebarUserContent]{padding:.4rem 0 1rem .2rem}.stSidebar [data-testid=stPageLink] a{padding:.24rem .2rem}.st-key-lesson_row{gap:.5rem 1rem!important}
.stMain .block-container{padding:.6rem 1.2rem 1rem;max-width:none}
.stMain [data-testid=stVerticalBlock]{gap:.4rem}.stMain [data-testid=stHorizontalBlock]{gap:1rem}.stMain h1{font-size:1.15rem}
.if-question{font-size:1.05rem;line-height:1.35}.st-key-takeaway p{font-size:1.05rem;line-height:1.35}
.st-key-told p{font-size:.9rem;line-height:1.4}.st-key-told [data-testid=stVerticalBlock]{gap:.2rem}
.stMain .stButtonGroup button{min-height:1.8rem;padding:.05rem .55rem}.stMain button kbd,.stMain .st-key-lesson_show{display:none}
.stMain .stButton button{min-height:1.9rem;padding:.05rem .6rem}
@media (max-width:1400px){.st-key-stage .if-tile{padding:.3rem .35rem}.st-key-stage .if-tile .l,.st-key-stage .if-tile .d{font-size:.67rem}.st-key-stage .if-tile .v{font-size:1rem}.st-key-stage .if-tile small{font-size:.65rem}
.st-key-stage .if-note{font-size:.85rem;line-height:1.4}}
@media (min-width:641px){.stMain:has(.st-key-told){--fit:clamp(240px,100vh - 26rem,46vh)}.stMain [class*=st-key-lesson_scene_]{padding-right:4.2rem}.stMain [class*=st-key-lesson_scene_] button{padding:.05rem .24rem}
.stMain:has(.st-key-lesson_row,.st-key-part) .st-key-heading{position:absolute;right:1.2rem;width:auto;z-index:2}
.stMain:has(.st-key-lesson_row,.st-key-part) .st-key-heading h1{clip-path:inset(50%);position:absolute}
.stMain:has(.st-key-lesson_row,.st-key-part) .st-key-actions [data-testid=stPopover] p{display:none}}
"""
"""A lesson's heading gives its place to the pictures: the menu says where one is."""
CLICKER = """if (!window.clicker) { window.clicker = true; window.addEventListener('keydown', e => {
if (e.key !== 'PageDown' || !e.target.matches?.('input[type=checkbox],input[type=range]')) return;
e.stopImmediatePropagation(); e.preventDefault(); e.target.blur();
document.body.dispatchEvent(new KeyboardEvent('keydown', {key: e.key, code: e.code, keyCode: e.keyCode, bubbles: true}))}, true) }
"""
"""A switch or slider that was touched last would keep PageDown, a clicker's key, to itself: it goes on to the page."""
LOOK = {
    "light": "--if-paper:#fff;--if-line:#DCE1E6;--if-soft:#5B6672;--if-accent:#045891;--if-good:#017A4E;--if-bad:#A12607",
    "dark": "--if-paper:#0E1318;--if-line:#2A343F;--if-soft:#9AA5B1;--if-accent:#3792FA;--if-good:#36EBB3;--if-bad:#FF7A52",
}


def page(key: str) -> Any:
    """Begin a page: browser title, menu, language, projector, look, and the page's heading. The first call of a page.

    Returns the container at the right of the heading, for a page's few actions.
    """
    st.session_state["page"] = key
    text.use(state.language())
    st.set_page_config(
        page_title=f"{t(f'frame.title.{key}')} · Inflight", page_icon=":material/view_timeline:", layout="wide"
    )
    st.html(CSS % f":root{{{LOOK[theme()]}}}{PROJECTOR if projector() else ''}")
    st.logo(_logo(), size="large")
    with st.sidebar:
        for name, path in PAGES.items():
            if (ROOT / path).exists():
                link(path, t(f"frame.title.{name}"), state.menu_link(name))
        with st.container(key="frame_foot"):
            _language()
            st.toggle(t("frame.projector"), key="projector", persist_state="session", help=t("frame.projector_help"))
            top = "document.querySelector('[data-testid=stMain]').scrollTo(0, 0);" if st.session_state.pop("to_top", False) else ""
            st.html(
                f"<script>document.documentElement.lang='{'zh-CN' if text.language() == 'zh' else 'en'}';{CLICKER}{top}</script>",
                unsafe_allow_javascript=True,
            )
    with st.container(horizontal=True, vertical_alignment="center", key="heading"):
        st.title(t(f"frame.title.{key}"), anchor=False, width="stretch")
        return st.container(horizontal=True, width="content", horizontal_alignment="right", key="actions")


def link(path: str, words: str, query: dict[str, str], icon: str | None = None) -> None:
    """A link to a page of the app; nothing where a page is run alone (`streamlit run pages/…`), which knows no other."""
    with contextlib.suppress(StreamlitAPIException):
        st.page_link(path, label=words, query_params=query or None, icon=icon)


def _language() -> None:
    st.session_state["w_lang"] = text.language()
    st.segmented_control(
        t("frame.language"), list(text.LANGUAGES), format_func=text.LANGUAGES.__getitem__, key="w_lang", required=True,
        label_visibility="collapsed", wrap=False, on_change=lambda: state.choose_language(st.session_state["w_lang"]),
    )


def _logo() -> str:
    from ui.charts import COLOURS

    colours = COLOURS[theme()]
    return LOGO.format(ink="#18222D" if theme() == "light" else "#E6EAEE", **{k: colours[k] for k in ("decode", "prefill", "waiting")})


def theme() -> str:
    """"light" or "dark", as the visitor's browser shows the page."""
    return "dark" if st.context.theme.type == "dark" else "light"


def projector() -> bool:
    """Whether everything is to be drawn large, for the last row of a classroom."""
    return bool(st.session_state.get("projector"))


def scale() -> float:
    """Factor of font sizes in pictures (CSS does not reach them)."""
    return 1.3 if projector() else 1.0


# --- blocks ---------------------------------------------------------------------------------------------------------


def lead(words: str) -> None:
    """A paragraph that opens a page (plain text)."""
    st.html(f"<div class='if-lead'>{html.escape(words)}</div>")


def question(words: str) -> None:
    """The question a page asks before it shows anything (plain text)."""
    st.html(f"<div class='if-question'>{html.escape(words)}</div>")


def note(words: str) -> None:
    """What happened, said in this run's numbers (plain text; nothing is drawn for an empty one)."""
    if words:
        st.html(f"<div class='if-note' role='status'>{html.escape(words)}</div>")


def badge(status: str) -> str:
    """Markdown of the badge "today", "history" or "what if", to be put in a label or text."""
    return f":{BADGES[status]}-badge[{t('frame.badge.' + status.replace(' ', '_'))}]"


def tiles(
    entries: Iterable[tuple[str, float, float | None, str, int]], error: float = 0.0, why: str = "", was: bool = False,
) -> None:
    """Figures side by side: (name, B, A or None, unit, sense).

    `name`: a field of Summary; `unit`: of `ui.text.value` ("s", "%", "" or what to put behind the number);
    `sense`: +1 more is better, -1 less is better, 0 neither. A is shown where it is given and differs.
    `error`, `why`: the share by which times may be off, stood behind their names, and what it is (`narration.error`).
    `was`: A's figure stands below B's.
    """
    cells = []
    for name, b, a, unit, sense in entries:
        delta = ""
        if a is not None and text.value(a, unit) != text.value(b, unit) and b == b and a == a and not _difference(b, a, unit).startswith("0.0"):
            kind = "" if not sense or abs(b - a) <= 0.01 * max(abs(a), abs(b)) else " class='good'" if (b > a) == (sense > 0) else " class='bad'"
            sign = "▲" if b > a else "▼"
            tip = f"A: {text.value(a, unit)}"
            delta = f"<b{kind} title='{html.escape(tip, quote=True)}'>{sign}\u2009{html.escape(_difference(b, a, unit))}</b>"
        (label, tip), off = text.figure(name), ""
        if error and unit == "s":
            tip, off = f"{tip}\n± {why}", f" ±{error * 100:.0f}%"
        figure, _, behind = text.value(b, unit).partition(text.BLANK)
        before = f"<div class='d'>{html.escape(t('frame.was', figure=text.value(a, unit)))}</div>" if was and a is not None else ""
        if unit not in ("s", "%", ""):  # there is room for it above
            off, behind = f" {behind}", ""
        cells.append(
            f"<div class='if-tile' data-metric='{name}' title='{html.escape(tip, quote=True)}'><div class='l'>{html.escape(label)}{off}</div>"
            f"<div class='r'><span class='v'>{html.escape(figure)}<small> {html.escape(behind)}</small></span><span class='d'>{delta}</span></div>{before}</div>"
        )
    _tiles(cells)


def plain_tiles(entries: Iterable[tuple[str, str, str]]) -> None:
    """Figures that are not a run's, side by side: (label, figure, a line below it that says what it is)."""
    _tiles([
        f"<div class='if-tile'><div class='l'>{html.escape(label)}</div><div class='r'><span class='v'>{html.escape(figure)}</span></div>"
        f"<div class='d'>{html.escape(about)}</div></div>"
        for label, figure, about in entries
    ])


def _tiles(cells: list[str]) -> None:
    across = len(cells) if len(cells) < 6 else -(-len(cells) // 2)
    st.html(f"<div class='if-tiles' style='--n:{across}'>{''.join(cells)}</div>")


def _difference(b: float, a: float, unit: str) -> str:
    if unit == "%":
        return t("frame.points", value=f"{abs(b - a) * 100:.{0 if abs(b - a) >= 0.0995 else 1}f}")
    if a > 0 and b > 0:
        ratio = b / a
        if ratio >= 1.995 or ratio < 0.005:
            times = max(ratio, 1 / ratio)
            return f"{times:{'.2g' if times < 99.5 else ',.0f'}}×"
        return f"{abs(ratio - 1) * 100:.{0 if abs(ratio - 1) > 0.0995 else 1}f}%"
    return text.value(abs(b - a), unit)


def columns(n: int) -> list[Any]:
    """n columns that a narrow screen stacks."""
    return list(st.columns(n, gap="medium"))
