"""What a page shows, and its link: the URL is the state.

Of every page: a Scenario **B** (what the knobs say), a pinned baseline **A** to compare with, and a few page-local
*extras* (which step of a lesson, which prediction). All three are in the URL, whole: a link shows the same in any
session, and Back and Forward are undo and redo.

    s = state.load(DEFAULT, extra={"p": 0})         # after frame.page(): s.b, s.a, s.extra["p"], s.compared (A differs)
    st.button(..., on_click=state.change, kwargs={"max_num_seqs": 256, "p": 2})     # Scenario fields and extras alike
    st.button(..., on_click=state.pin)              # A becomes what B is now
    run_b, run_a = state.runs(s)                    # cached; a scenario that cannot run is explained and ends the page
    state.publish()                                 # last line of every page

`change`, `pin`, `replace` are for callbacks (`on_click`, `on_change`), which run before the page does. A change that
contradicts itself (SimError) leaves B as it was and is explained where `state.notices()` (or the frame) says it, with a
button that repairs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import streamlit as st

from sim import link
from sim.engine import simulate
from sim.memory import plan
from sim.results import Run
from sim.scenario import SETTINGS, Scenario, SimError
from sim.workload import Requests
from ui.text import LANGUAGES, has, t

Extra = str | int | float | bool


@dataclass
class State:
    """What the page shows now. `b` is live, `a` the baseline; `extra` holds the page's own settings."""

    default: Scenario
    default_extra: dict[str, Extra]
    b: Scenario
    a: Scenario
    extra: dict[str, Extra]
    together: frozenset[str] = frozenset()  # settings of which a change moves A too: they are not what is compared
    seen: dict[str, str] | None = None  # the URL that this state was read from or last written to
    notices: list[str] = field(default_factory=list)  # what was odd about the link
    told: bool = False  # whether the notices are on the page already
    refusal: tuple[SimError, dict[str, Any]] | None = None  # a change that could not be made
    broken: bool = False  # whether B, being its own baseline, cannot run: A then goes along with what mends it

    @property
    def compared(self) -> bool:
        """Whether the baseline differs from what is shown: if not, there is nothing to compare."""
        return self.a != self.b


# --- the page's state -----------------------------------------------------------------------------------------------


def load(default: Scenario, extra: Mapping[str, Extra] | None = None) -> State:
    """The state of this page: what the URL says if the visitor came by a link, Back or Forward, else what it was."""
    defaults = dict(extra or {})
    held: State | None = st.session_state.get(_slot())
    incoming = st.query_params.to_dict()
    if held is None or (incoming != held.seen and not st.session_state.get("dirty")):
        held = _adopt(default, defaults, incoming)
        st.session_state[_slot()] = held
    held.told = held.broken = False
    return held


def _adopt(default: Scenario, defaults: dict[str, Extra], incoming: dict[str, str]) -> State:
    given = {k: v for k, v in incoming.items() if k != "lang" and k not in defaults}
    own = {k: v for k, v in given.items() if not k.startswith("a.")}
    pinned = {k[2:]: v for k, v in given.items() if k.startswith("a.")}
    notices: list[str] = []
    b = _decode({**link.encode(default), **own}, default, notices) if own else default
    a = _decode({**link.encode(b), **pinned}, b, notices) if pinned else b
    read = {k: _typed(incoming[k], v) for k, v in defaults.items() if k in incoming}
    odd = [f"{k}={incoming[k]}" for k, v in read.items() if v is None]
    twice = [k for k in incoming if len(st.query_params.get_all(k)) > 1]
    notices += [_odd(code, *keys) for code, keys in (("link_unknown", odd), ("link_repeated", twice)) if keys]
    extra = defaults | {k: v for k, v in read.items() if v is not None}
    return State(default, defaults, b, a, extra, seen=incoming, notices=notices)


def _decode(mapping: dict[str, str], fallback: Scenario, notices: list[str]) -> Scenario:
    try:
        scenario, found = link.decode(mapping)
    except SimError as error:
        notices.append(message(error))
        return fallback
    notices += [message(n) for n in found]
    return scenario


def _typed(raw: str, default: Extra) -> Extra | None:
    """What a link says of an extra, in the type that it has; None if it cannot be that."""
    try:
        return raw == "1" if isinstance(default, bool) else type(default)(raw)
    except ValueError:
        return None


def _odd(code: str, *keys: str) -> str:
    key = ", ".join(key[:40] for key in keys[:10])
    return message(SimError(code, key, key=key))


def unknown(what: str) -> None:
    """Say that the link asks for something that this page does not have."""
    held = current()
    held.notices = list(dict.fromkeys([*held.notices, _odd("link_unknown", what)]))


def address(state: State) -> dict[str, str]:
    """The query parameters that say all of this state (without the language)."""
    extra = {
        k: str(int(v) if isinstance(v, bool) else v) for k, v in state.extra.items() if v != state.default_extra[k]
    }
    return {**extra, **scenarios(state)}


def scenarios(state: State) -> dict[str, str]:
    """The query parameters that say B and A, on any page."""
    b = link.encode(state.b)
    return b | {f"a.{k}": v for k, v in link.encode(state.a).items() if b.get(k) != v}


def publish() -> None:
    """Write the state to the URL if the visitor changed something. The last line of every page."""
    if st.session_state.get("dirty") and (want := _settled()) != st.query_params.to_dict():
        st.query_params.from_dict(want)


def leave() -> None:
    """The visitor goes on to another page: this one is kept as it is now, and the next one begins untouched."""
    if st.session_state.get("dirty"):
        _settled()


def _settled() -> dict[str, str]:
    """What was changed is part of the state from now on; the query parameters that say it."""
    st.session_state.pop("dirty")
    held: State | None = st.session_state.get(_slot())
    want = address(held) if held else {}
    if st.session_state.get("lang_chosen"):
        want = {"lang": st.session_state["lang"], **want}
    if held:
        held.seen = want
    return want


def menu_link(page: str) -> dict[str, str]:
    """The query parameters with which the menu leads back to a page as it was left."""
    held: State | None = st.session_state.get(f"state:{page}")
    seen = {k: v for k, v in (held.seen or {}).items() if k != "lang"} if held else {}
    return {"lang": st.session_state["lang"], **seen} if st.session_state.get("lang_chosen") else seen


def current() -> State:
    """The state that this page loaded."""
    held: State = st.session_state[_slot()]
    return held


def _slot() -> str:
    return f"state:{st.session_state.get('page', '')}"


# --- changes: callbacks only ----------------------------------------------------------------------------------------


def change(**fields: Any) -> None:
    """Change fields of B, and extras, by name. What contradicts itself is refused, explained and offered to repair."""
    held = current()
    held.refusal, held.notices = None, []
    st.session_state["dirty"] = True
    settings = {k: v for k, v in fields.items() if k in SETTINGS}
    try:
        b, a = held.b.but(**settings), held.a.but(**{k: v for k, v in settings.items() if k in held.together})
    except SimError as error:
        held.refusal = (error, settings)
        return
    held.b, held.a = b, b if held.broken else a
    held.extra |= {k: v for k, v in fields.items() if k not in SETTINGS}


def replace(b: Scenario, a: Scenario | None = None, **extra: Extra) -> None:
    """Show a whole scenario (a preset, a link), by default as its own baseline."""
    held = current()
    held.refusal, held.notices = None, []
    held.b, held.a = b, a or b
    held.extra |= extra
    st.session_state["dirty"] = True


def pin() -> None:
    """What is shown becomes the baseline A."""
    held = current()
    held.a = held.b
    st.session_state["dirty"] = True


def back_to_a() -> None:
    """Show the baseline again."""
    replace(current().a)


# --- runs -----------------------------------------------------------------------------------------------------------


MOST_TICKS = 1_000_000  # of a run on a page, of all replicas: about 10 s, and 160 MB in the cache


@st.cache_resource(max_entries=24, show_spinner=False)
def _run(key: str, upload: str, _scenario: Scenario, _requests: Requests | None) -> Run | SimError:
    """One run per codec string, whoever asks: concurrent askers wait for the first. Shared: never write to it."""
    try:
        run = simulate(_scenario, _requests, most_ticks=MOST_TICKS // _scenario.data_parallel_size)
    except SimError as error:
        return error.with_traceback(None)  # which would keep alive the frames of whoever asked
    if len(run.ticks):
        return run
    nobody = SimError("no_requests", "no request comes in this time: raise request_rate or duration_s", field="duration_s",
                      repair={"request_rate": 10.0, "duration_s": 60.0})
    return next(iter(run.refusals.values()), nobody)


def run_key(scenario: Scenario, without: Iterable[str] = ()) -> str:
    """A scenario, but for these fields, as one string: the key of every cache."""
    left_out = {SETTINGS[name].key for name in without}
    return "&".join(value for key, value in link.encode(scenario).items() if key not in left_out)


def attempt(scenario: Scenario, requests: Requests | None = None, upload: str = "") -> Run | SimError:
    """The run of a scenario, cached, or why it cannot start. `upload` names `requests` that do not follow from it."""
    return _run(run_key(scenario), upload, scenario, requests)


def run(scenario: Scenario, requests: Requests | None = None, upload: str = "") -> Run:
    """As `attempt`; a scenario that cannot start is explained, and ends the page."""
    found = attempt(scenario, requests, upload)
    return end(found, scenario) if isinstance(found, SimError) else found


def end(error: SimError, of: Scenario | None = None) -> NoReturn:
    """Explain why what is shown (B, or A if that is the scenario `of`) cannot run, with ways out, and end the page."""
    held = current()
    if not held.told:
        notices()
    held.broken = not held.compared
    explain(error, {}, baseline=held.compared and of == held.a)
    publish()
    st.stop()


Source = Callable[[Scenario], tuple[Requests | None, str]]


def runs(state: State, source: Source = lambda scenario: (None, "")) -> tuple[Run, Run]:
    """The runs of B and A (the same object if they do not differ). One that cannot run is explained, and ends the page.

    source: the requests of a scenario where they do not follow from it, and a name for them.
    """
    found = []
    for scenario in (state.b, state.a) if state.compared else (state.b,):
        try:
            found.append(run(scenario, *source(scenario)))
        except SimError as error:  # of the source
            end(error, scenario)
    return found[0], found[-1]


# --- what to tell ---------------------------------------------------------------------------------------------------


def message(what: Any) -> str:
    """A SimError or notice in the visitor's language, by its code; in English where the code has no text."""
    code, params = getattr(what, "code", ""), dict(getattr(what, "params", {}))
    params |= {k: _literal(str(params[k])) for k in ("given", "key", "columns", "line", "file", "example") if k in params}
    if "field" in params:
        params["name"] = label(str(params["field"]))
    if "why" in params and has(f"trace.{params['why']}"):
        params |= {"what": t(f"trace.{params['why']}", **params), "works": t("trace.works")}
    try:
        if has(f"errors.{code}"):
            return t(f"errors.{code}", **{k: _shown(v) for k, v in params.items()})
    except (KeyError, IndexError, ValueError):
        pass
    return str(what)


def _literal(text: str) -> str:
    """A visitor's words as they are: no link, formula or icon in them is one."""
    return re.sub(r"([\\`*_{}\[\]()<>#$:~|!])", r"\\\1", text)


def label(name: str) -> str:
    """The name of a setting: vLLM's own where it has one, else the visitor's words."""
    return f"`{name}`" if name in SETTINGS and SETTINGS[name].flag else t(f"settings.{name}.label")


def _shown(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def notices() -> None:
    """Say what was odd about the link and which change was refused, with a repair. Call once, near the controls."""
    held = current()
    held.told = True
    for notice in dict.fromkeys(held.notices):
        st.info(notice, icon=":material/link:")
    if held.refusal:
        explain(*held.refusal)


def explain(error: SimError, changes: dict[str, Any], baseline: bool = False) -> None:
    """A message for an error, and a button for each repair it allows.

    changes: those of B that were refused; without any it is B, or the baseline A, that cannot start.
    """
    held, of = current(), "change" if changes else "page"  # a page that cannot run may refuse a change as well
    said = message(error)
    with st.container(horizontal=True, vertical_alignment="center", key=f"refusal_{of}"):
        st.warning(t("errors.of_a", why=said) if baseline else said, icon=":material/block:", width="stretch")
        for fix in repairs(error, changes, held.a if baseline else held.b):
            words = ", ".join(f"{label(k).strip('`')} = {_shown(v)}" for k, v in fix.items() if k not in changes)
            st.button(t("errors.repair", what=words), on_click=_mend_a if baseline else change, kwargs={**changes, **fix},
                      type="primary", key=f"repair_{of}-{words}")
        if baseline:
            st.button(t("errors.pin_b"), on_click=pin, key="pin_b")
        elif not changes and held.compared:
            st.button(t("errors.back_to_a"), on_click=back_to_a)
        if not changes:
            st.button(t("errors.begin_anew"), on_click=replace, args=(current().default,), key="begin_anew")


def _mend_a(**fields: Any) -> None:
    """Callback: change fields of A alone."""
    held = current()
    replace(held.b, held.a.but(**fields))


def repairs(error: SimError, changes: dict[str, Any], b: Scenario) -> list[dict[str, Any]]:
    """Changes with which b and `changes` would work, nearest first."""
    name, params = str(error.params.get("field", "")), error.params
    wanted: list[dict[str, Any]] = []
    if "repair" in params and isinstance(params["repair"], Mapping):
        wanted.append(dict(params["repair"]))
    if error.code == "budget_below_seqs":
        seqs = changes.get("max_num_seqs", b.max_num_seqs)
        budget = changes.get("max_num_batched_tokens", b.max_num_batched_tokens)
        wanted += [{"max_num_batched_tokens": seqs}] if "max_num_seqs" in changes else [{"max_num_seqs": budget}]
    elif error.code == "budget_below_model_len":
        wanted += [{"enable_chunked_prefill": True}, {"max_num_batched_tokens": params["low"]}]
    elif error.code == "trace_needs_upload":
        wanted.append({"trace": SETTINGS["trace"].default})
    elif error.code == "prompt_too_long":
        wanted.append({"max_model_len": 2 * int(params["value"])})
    elif error.code == "model_len_too_large":
        wanted.append({"max_model_len": max(params["longest"], 2)})
    elif error.code == "empty_window":
        wanted.append({"trace_start_s": 0.0})
    elif error.code == "too_many_requests":
        wanted.append({"num_requests": int(params["high"])})
    elif error.code in ("weights_too_large", "no_kv_memory"):
        usual = SETTINGS["gpu_memory_utilization"].default
        wanted += [{"gpu_memory_utilization": usual}] if b.gpu_memory_utilization < usual else []
        wanted += [{"tensor_parallel_size": params["tp"]}] if params["tp"] else []
        wanted += [{"weights": w} for w in ("fp8", "int4") if w != b.weights]
    elif "works" in params:
        works = [int(n) for n in str(params["works"]).split(",")]
        wanted.append({name: min(works, key=lambda n: abs(n - getattr(b, name)))})
    elif error.code == "tp_width":
        wanted.append({name: 1})
    elif name in SETTINGS and "value" in params:
        low, high, value = params.get("low"), params.get("high"), params["value"]
        if low is not None and value < low:
            wanted.append({name: SETTINGS[name].kind(low)})
        elif high is not None and value > high:
            wanted.append({name: SETTINGS[name].kind(high)})
    return [fix for fix in wanted if _works(b, {**changes, **fix}, starts=not changes)]


def _works(b: Scenario, changes: dict[str, Any], starts: bool) -> bool:
    """Whether b may be changed so and, where that is asked, has memory to start with."""
    try:
        mended = b.but(**changes)
        if starts:
            plan(mended)
    except SimError:
        return False
    return True


# --- language -------------------------------------------------------------------------------------------------------


def language() -> str:
    """The visitor's language: as chosen, as the link says, or as the browser prefers."""
    asked = st.query_params.get("lang")
    if asked in LANGUAGES and not st.session_state.get("dirty"):
        st.session_state["lang"], st.session_state["lang_chosen"] = asked, True
    if "lang" not in st.session_state:
        st.session_state["lang"] = "zh" if str(st.context.locale or "").lower().startswith("zh") else "en"
    return str(st.session_state["lang"])


def choose_language(chosen: str) -> None:
    """Callback of the switch."""
    st.session_state["lang"], st.session_state["lang_chosen"], st.session_state["dirty"] = chosen, True, True
