"""The flow of every lesson: a question, a prediction that is locked, the reveal, what to try next.

    frame.page("kv")
    flow = lesson.begin("kv_pool", SCENES)         # question, prediction, the one primary button; the takeaway at the end
    lesson.bench(flow, {"max_num_seqs": [64, 256]}, CLAIMS)     # what A and B are; once revealed, the knobs
    ...pictures of flow.s.b and flow.s.a; what gives the answer away only `if flow.revealed`...
    lesson.end(flow, explain="...", run=b, against=a)      # above the pictures: what happened, what to try next
    state.publish()

A page is a handful of scenes, each with one question about one change: from A (`Scene.a`, what you have) to B
(`Scene.b`, what you do). PageDown, which is what a clicker in class sends, presses the primary button: it locks,
reveals, says what follows, and goes on to the next scene or page. Where one is stands in the URL (`p=scene.step`), so
that a link opens a page at any point of the lesson; what was predicted stays with the visitor. Nothing is graded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import streamlit as st

from sim import catalog
from sim.advice import Figures, advise, changes
from sim.results import Run
from sim.scenario import SETTINGS, Scenario
from sim.sentences import Blanks
from ui import charts, controls, frame, narration, state
from ui.text import joined, t

STEPS = ("ask", "lock", "reveal", "next")
"""ask: choose an answer. lock: it is fixed. reveal: the result shows. next: the takeaway and where to go from here."""
PICTURE = charts.Fit(240)
"""Height of a scene's pictures: with what was said about them they fit on a screen of 1280x720."""


@dataclass(frozen=True, slots=True)
class Guess:
    """A prediction that is a number, chosen on a slider and drawn into the picture as a line."""

    low: float
    high: float
    step: float
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Scene:
    """One question. Its texts are {page}.{name}_title, _question, _takeaway and one {page}.{name}_{answer} an answer.

    b: the Scenario the scene shows first; a: what it is compared with (None: nothing). about: settings that the question
    is about beside those in which B and A differ.
    """

    name: str
    b: Scenario
    a: Scenario | None = None
    answers: tuple[str, ...] = ()
    guess: Guess | None = None
    about: tuple[str, ...] = ()

    def besides(self) -> frozenset[str]:
        """The settings that the question is not about."""
        a = self.a or self.b
        return frozenset(n for n in SETTINGS if getattr(a, n) == getattr(self.b, n)) - set(self.about)


@dataclass(frozen=True, slots=True)
class Flow:
    """Where the visitor is: which scene, which step of it, and what was predicted (a name of `answers` or a number).

    scenes: all of the page; extra: its page-local settings as a scene begins with them; told: the place above the pictures
    for what happened; movable: the settings that this scene's knobs and claims move; claims: as `bench` was given them.
    """

    page: str
    scenes: Sequence[Scene]
    scene: Scene
    step: str
    answer: str | float | None
    s: state.State
    extra: Mapping[str, state.Extra]
    told: Any = None
    movable: set[str] = field(default_factory=set)
    claims: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def revealed(self) -> bool:
        """Whether the result may be shown."""
        return STEPS.index(self.step) >= 2

    @property
    def name(self) -> str:
        """The scene's."""
        return self.scene.name

    @property
    def untouched(self) -> bool:
        """Whether A and B are still those the scene's own words are about."""
        return self.s.b == self.scene.b and self.s.a == (self.scene.a or self.scene.b)

    def guess_line(self) -> tuple[float, str] | None:
        """The numeric prediction as a line for a picture: its place and its name."""
        if not isinstance(self.answer, float) or not self.scene.guess:
            return None
        return self.answer, t("lesson.your_guess", value=f"{self.answer:g} {self.scene.guess.unit}".strip())


Numbers = Callable[[str, state.State], dict[str, str]]


def begin(
    page: str, scenes: Sequence[Scene], numbers: Numbers | None = None, extra: Mapping[str, state.Extra] | None = None,
    isolate: bool = False,
) -> Flow:
    """Draw the scene's question, the prediction and the primary button; tell where the visitor stands.

    Call it after frame.page(). `page` is the stem of the page's texts; numbers(scene, state) fills a question; a
    "question" among them takes its place.
    extra: page-local settings beside `p`; a scene begins with these values. isolate: A and B differ in what the question
    is about and in nothing else: whatever else the visitor moves, moves both.
    """
    if follow := st.session_state.pop("lesson_follow", None):
        state.leave()
        st.switch_page(follow)
    names, own = [scene.name for scene in scenes], dict(extra or {})
    asked, _, _ = st.query_params.get("p", "").partition(".")
    s = state.load(scenes[names.index(asked) if asked in names else 0].b, extra={"p": f"{names[0]}.{STEPS[0]}", **own})
    if asked and asked not in names:
        state.unknown(f"p={asked}")
    name, _, step = str(s.extra["p"]).partition(".")
    scene, step = scenes[names.index(name) if name in names else 0], step if step in STEPS else STEPS[0]
    if set(s.seen or {}) <= {"p", "lang", "v", *own} and scene.a and not st.session_state.get("dirty"):
        s.a = scene.a  # the address names no Scenario, and nothing was moved: it is the scene's own
    s.together = scene.besides() if isolate else frozenset()
    flow = Flow(page, scenes, scene, step, _answers(page).get(scene.name), s, own)
    if len(scenes) > 1:
        _tabs(flow)
    if step == "next":
        if flow.untouched or not frame.projector():  # a class has read it, and looks at something else now
            with st.container(key="takeaway"):
                st.markdown(f":material/push_pin: **{t('lesson.takeaway')}** {t(f'{page}.{scene.name}_takeaway')}")
    else:
        _question(flow, numbers)
    with st.container(horizontal=True, vertical_alignment="center", key="lesson_row"):
        if step == "ask":
            _predict(page, scene)
        else:
            _said(flow)
        st.button(_button(flow), key="lesson_primary", type="primary", shortcut="PageDown", on_click=_advance, args=(flow,))
        if not flow.revealed:
            st.button(t("lesson.show"), key="lesson_show", type="tertiary", on_click=_go, args=(flow, scene, "reveal"))
        else:
            st.button(t("lesson.again"), key="lesson_again", type="tertiary", on_click=_again, args=(flow,))
    state.notices()
    return replace(flow, told=st.container(key="told")) if flow.revealed else flow


def _question(flow: Flow, numbers: Numbers | None) -> None:
    asked_of = flow.s if flow.untouched or not flow.revealed else replace(flow.s, b=flow.scene.b, a=flow.scene.a or flow.scene.b)
    known = numbers(flow.name, asked_of) if numbers else {}
    question = known.get("question") or t(f"{flow.page}.{flow.name}_question", **known)
    if asked_of is flow.s:
        frame.question(question)
    else:  # the question stays what it was; what is shown now is told below
        st.markdown(f":gray[{t('lesson.was_asked', question=question)}]")


def _go(flow: Flow, to: Scene, step: str) -> None:
    """Callback: to a step of this scene, or of another one as it begins."""
    if to is flow.scene:
        state.change(p=f"{to.name}.{step}")
    else:
        state.replace(to.b, to.a, **{**flow.extra, "p": f"{to.name}.{step}"})
        st.session_state["to_top"] = True


def _advance(flow: Flow) -> None:
    """Callback of the primary button: the next step, scene or page."""
    at, index = STEPS.index(flow.step), flow.scenes.index(flow.scene)
    if at + 1 < len(STEPS):
        _go(flow, flow.scene, STEPS[at + 1])
    elif index + 1 < len(flow.scenes):
        _go(flow, flow.scenes[index + 1], STEPS[0])
    else:
        first = flow.scenes[0]
        state.replace(first.b, first.a, **{**flow.extra, "p": f"{first.name}.{STEPS[0]}"})
        st.session_state["lesson_follow"], st.session_state["to_top"] = _next_page(), True


def _again(flow: Flow) -> None:
    _answers(flow.page).pop(flow.name, None)
    _go(flow, flow.scene, STEPS[0])


def lines(flow: Flow, of: Callable[..., tuple[Any, Any]], b: Run, a: Run, colour: str) -> list[charts.Line]:
    """The lines of a chart about B and A: A alone before the reveal, then both."""
    return charts.both(of, b, a, colour) if flow.revealed else [charts.Line(*of(a), colour, "A")]


def bench(
    flow: Flow, knobs: Mapping[str, Any] | None = None, claims: Sequence[tuple[str, dict[str, Any]]] = ()
) -> bool:
    """Before the reveal which server it is; then (and this is returned) the knobs and the section's claims, one click each.

    knobs: field -> its stops, or a function that draws its widget. claims: as `presets` takes them.
    """
    knobs = knobs or {}
    if not flow.revealed:
        a = flow.s.a
        server = " · ".join([catalog.model(a.model).name, *([a.weights] if a.weights != "bf16" else []), a.gpu])
        st.caption(t("lesson.shown" if flow.s.compared else "lesson.shown_one", server=server))
    if not flow.revealed or not (knobs or claims):
        return flow.revealed
    flow.movable.update(knobs, *(changes for _, changes in claims))
    flow.claims.extend(claims)
    wide = len(knobs) > 2  # the claims then have a row of their own
    places = st.columns([3] * len(knobs) + [4] * (not wide), vertical_alignment="bottom", gap="medium")
    for place, (name, stops) in zip(places, knobs.items(), strict=False):
        with place:
            stops() if callable(stops) else controls.knob(name, stops)
    with st.container() if wide else places[-1]:
        presets(claims, key=flow.name)
    return True


def end(
    flow: Flow, *, explain: str = "", note: str = "", run: Run | None = None, against: Run | None = None,
    then: tuple[str, dict[str, Any]] | None = None, pictures: Sequence[str] = (),
) -> None:
    """Once revealed: above the pictures what happened, in this run's numbers, and what to try next; below them the rest.

    explain: the scene's own words; they hold for its own A and B. run, against: B and A; where the visitor has set
    something else, what changed is said from them, first the figures that the `pictures` show. note: what holds besides.
    One thing to try is `then` (words, changes of B and extras; `p` may name a step of another scene) as long as nothing was
    moved: it follows from the scene. After that it comes from `sim.advice` about `run`, if that moves what this scene lets
    one move and does not lead back to A; else it is what was not tried yet.
    """
    if not flow.revealed:
        return
    if run and against and not flow.untouched:
        explain = narration.changed(
            run.summary(), against.summary(), run.scenario, against.scenario, pictures=pictures) or t("lesson.same")
    with flow.told:
        if explain and not (flow.step == "next" and flow.untouched and frame.projector()):  # a class has just read it
            st.markdown(explain)
        if flow.step == "next":
            _try_next(flow, *((flow.untouched and then) or _advised(flow, run) or _open(flow, then)))
    if note:
        st.markdown(note)


def _advised(flow: Flow, run: Run | None) -> tuple[str, dict[str, Any]] | None:
    """The first advice for this run that one can follow here: its words, and the changes that it names."""
    for advice in advise(Figures.of(run)) if run else []:
        wanted = changes(advice, run.scenario) if run else {}
        if wanted and flow.movable.issuperset(wanted) and flow.s.b.but(**wanted) != flow.s.a:
            why, action = (t(f"advice.{key}").format_map(Blanks(advice.params)) for key in (advice.why_key, advice.action_key))
            return t("lesson.advised_why" if frame.projector() else "lesson.advised", why=why, action=action), wanted
    return None


def _open(flow: Flow, then: tuple[str, dict[str, Any]] | None) -> tuple[str, dict[str, Any]]:
    """The first of `then` and the claims that is not how things stand already."""
    offers = [*([then] if then else []), *(("", changes) for _, changes in flow.claims)]  # a claim's button says it
    return next((offer for offer in offers if not (offer[1] and _holds(flow.s, offer[1]))), ("", {}))


def _holds(s: state.State, changes: Mapping[str, Any]) -> bool:
    return all((s.extra[k] if k in s.extra else getattr(s.b, k)) == v for k, v in changes.items())


def _try_next(flow: Flow, words: str, wanted: dict[str, Any]) -> None:
    if not words and not wanted:
        return
    with st.container(horizontal=True, vertical_alignment="center", key="try_next"):
        st.markdown(f":material/arrow_forward: **{t('lesson.try_next')}** {words}")
        settings = {k: v for k, v in wanted.items() if k in SETTINGS}
        if wanted:
            named = next((claim for claim, changes in flow.claims if changes == wanted), "")  # as its own button is
            label = named or ", ".join(f"{narration.name(k)} = {narration.word(k, v)}" for k, v in settings.items()) or t("lesson.go")
            to = next((s for s in flow.scenes if s is not flow.scene and str(wanted.get("p")).startswith(f"{s.name}.")), None)
            show, whole = (state.replace, (to.b, to.a)) if to else (state.change, ())
            st.button(label, key="lesson_try", on_click=show, args=whole, kwargs=wanted)


def covered(height: int = PICTURE) -> None:
    """The place of a picture that would give the answer away."""
    with st.container(border=True, height=height, vertical_alignment="center", horizontal_alignment="center", key="fit_covered"):
        st.markdown(f":material/visibility_off: {t('lesson.covered')}", width="content")


def presets(entries: Sequence[tuple[str, dict[str, Any]]], *, key: str) -> None:
    """Claims one click away: buttons (label, changes of B and extras), the one that holds now with a tick."""
    s = state.current()
    with st.container(horizontal=True, key=f"presets_{key}"):
        for i, (words, changes) in enumerate(entries):
            st.button(
                words, key=f"preset_{key}_{i}", type="secondary", on_click=state.change, kwargs=changes,
                icon=":material/check:" if _holds(s, changes) else None,
            )


def pale(why: str) -> str:
    """Markdown: what the pale band about a line is (`narration.error`)."""
    return f":small[{joined([t('lesson.band'), why])}]"


def says(words: str) -> str:
    """Markdown: where the lesson's text and today's vLLM differ, told kindly."""
    return f":gray-badge[{t('lesson.badge.lesson')}] {words}"


def _next_page() -> str:
    keys = [key for key, path in frame.PAGES.items() if (frame.ROOT / path).exists()]
    at = keys.index(st.session_state["page"])
    return frame.PAGES[keys[(at + 1) % len(keys)]]


def _tabs(flow: Flow) -> None:
    key, names = f"lesson_scene_{flow.page}", [scene.name for scene in flow.scenes]
    st.session_state[key] = flow.name

    def picked() -> None:
        _go(flow, flow.scenes[names.index(st.session_state[key])], STEPS[0])

    st.segmented_control(
        t("lesson.scenes"), names, format_func=lambda name: f"{names.index(name) + 1} · {t(f'{flow.page}.{name}_title')}",
        key=key, on_change=picked, label_visibility="collapsed", required=True,
    )


def _predict(page: str, scene: Scene) -> None:
    key = f"lesson_answer_{page}_{scene.name}"
    kept = _answers(page)

    def picked() -> None:
        value = st.session_state[key]
        if value is None:
            kept.pop(scene.name, None)
        else:
            kept[scene.name] = float(value) if scene.guess else value

    if scene.guess:
        g = scene.guess
        st.session_state[key] = kept.get(scene.name, g.low)
        words = t(f"{page}.{scene.name}_guess")
        st.slider(words, g.low, g.high, step=g.step, format=f"%g {g.unit}", key=key, on_change=picked)
    elif scene.answers:
        st.session_state[key] = kept.get(scene.name)
        st.pills(
            t("lesson.predict"), scene.answers, format_func=lambda a: t(f"{page}.{scene.name}_{a}"), key=key,
            on_change=picked, label_visibility="collapsed",
        )


def _said(flow: Flow) -> None:
    icon = ":material/visibility:" if flow.revealed else ":material/lock:"
    answer = flow.answer
    if not flow.scene.answers and not flow.scene.guess:
        return
    if answer is None:
        st.markdown(f"{icon} {t('lesson.no_prediction')}")
        return
    unit = flow.scene.guess.unit if flow.scene.guess else ""
    words = f"{answer:g} {unit}".strip() if isinstance(answer, float) else t(f"{flow.page}.{flow.name}_{answer}")
    st.markdown(f"{icon} {t('lesson.you_said', answer=words)}")


def _button(flow: Flow) -> str:
    if flow.step == "ask":
        return t("lesson.lock" if flow.answer is not None or not (flow.scene.answers or flow.scene.guess) else "lesson.lock_none")
    if flow.step == "lock":
        return t("lesson.reveal")
    if flow.step == "reveal":
        return t("lesson.and_then")
    after = flow.scenes[flow.scenes.index(flow.scene) + 1 :]
    return t("lesson.next_scene", title=t(f"{flow.page}.{after[0].name}_title")) if after else t("lesson.next_page")


def _answers(page: str) -> dict[str, Any]:
    """What was predicted on this page, by scene; of this session only."""
    kept: dict[str, Any] = st.session_state.setdefault(f"lesson_answers_{page}", {})
    return kept
