"""The playground without a browser: what a visitor can do to it, and what the address says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
from streamlit.testing.v1 import AppTest

from sim import catalog, experts, link, memory
from sim.engine import simulate
from sim.scenario import Scenario
from ui import charts, exports, narration, series, state, text

ROOT = Path(__file__).parent.parent


def visit(**query: str) -> AppTest:
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    at.switch_page("pages/8_playground.py")
    for key, value in query.items():
        at.query_params[key] = value
    return at.run()


def knob(at: AppTest, name: str):
    return at.select_slider(key=f"w_playground_{name}")


def address(at: AppTest) -> dict[str, str]:
    return {k: v[0] if isinstance(v, list) else v for k, v in at.query_params.items()}


def tiles(at: AppTest) -> str:
    return next(block.body for block in at.get("html") if "if-tiles" in block.body)


def test_an_untouched_page_keeps_a_bare_address() -> None:
    at = visit()
    assert not at.exception and not address(at)


def test_a_change_is_in_the_address_with_its_baseline() -> None:
    at = visit()
    knob(at, "max_num_seqs").set_value(256).run()
    assert not at.exception
    assert address(at)["ms"] == "256" and address(at)["a.ms"] == "64"


def test_a_link_shows_the_same_figures_in_a_fresh_session() -> None:
    at = visit()
    knob(at, "max_num_seqs").set_value(256).run()
    knob(at, "request_rate").set_value(20.0).run()
    assert tiles(visit(**address(at))) == tiles(at)


def test_going_back_undoes() -> None:
    at = visit()
    knob(at, "max_num_seqs").set_value(256).run()
    before = address(at)
    knob(at, "max_num_seqs").set_value(128).run()
    at.query_params.clear()
    for key, value in before.items():
        at.query_params[key] = value
    at.run()
    assert knob(at, "max_num_seqs").value == 256


def test_a_contradiction_is_explained_and_repaired_by_one_click() -> None:
    at = visit(v="1", ms="512", mt="512")
    knob(at, "max_num_seqs").set_value(1024).run()
    assert not at.exception and "max_num_batched_tokens" in at.warning[0].value
    assert knob(at, "max_num_seqs").value == 512
    next(b for b in at.button if "max_num_batched_tokens" in b.label).click().run()
    assert not at.warning and (address(at)["ms"], address(at)["mt"]) == ("1024", "1024")


def test_a_model_that_does_not_fit_is_explained_with_a_repair() -> None:
    at = visit(v="1", mo="Llama-3.1-70B")
    assert not at.exception and "GiB" in at.warning[0].value
    next(b for b in at.button if "tensor_parallel_size" in b.label).click().run()
    assert not at.exception and not at.warning


def test_odd_links_are_shown_and_explained() -> None:
    at = visit(v="9", ms="abc", mt="-5", zz="1")
    assert not at.exception and len(at.info) >= 4


def test_the_page_speaks_chinese_and_the_link_keeps_it() -> None:
    at = visit(lang="zh")
    assert "实验台" in at.title[0].value
    knob(at, "max_num_seqs").set_value(256).run()
    assert address(at)["lang"] == "zh" and not at.exception


def test_the_azure_slice_is_replayed() -> None:
    at = visit(v="1", ar="trace", tr="azure2023_conv", du="60", rs="4", ms="128")
    assert not at.exception and "if-tiles" in tiles(at)


@pytest.mark.parametrize("group", ["traffic", "hardware", "scheduler", "what_if"])
def test_every_drawer_opens(group: str) -> None:
    at = visit()
    at.session_state[f"group_{group}"] = True
    at.run()
    assert not at.exception


def test_pinning_makes_the_present_the_baseline() -> None:
    at = visit()
    knob(at, "max_num_seqs").set_value(256).run()
    next(b for b in at.button if b.label == "Pin as A").click().run()
    assert not [k for k in address(at) if k.startswith("a.")] and not at.exception


# --- what the parts promise


@pytest.fixture(scope="module")
def starved():
    return simulate(Scenario(max_num_seqs=128, num_gpu_blocks_override=2100, duration_s=10.0))


def test_thinning_keeps_every_peak() -> None:
    x = np.arange(100_000.0)
    y = np.zeros(100_000)
    y[54_321] = 7.0
    _, thin = charts.bucket(x, y)
    assert thin.max() == 7.0 and len(thin) <= 2 * charts.POINTS + 3


def test_every_picture_is_a_valid_figure(starved, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(charts, "draw", lambda figure, alt, key=None: drawn.append((go.Figure(**figure), alt)))
    lines = [charts.Line(*series.waiting(starved), "waiting", "B", fill=True), charts.Line([0, 1], [2, 3], "idle", "A", True)]
    charts.timeline("queue", lines, limits=[("limit", 5)], events=[(1.0, "full")])
    charts.stacked("bands", [charts.Line([0, 1, 2], [1, 2, 3], "kv", "a"), charts.Line([0, 1, 2], [1, 1, 1], "decode", "b")])
    charts.bars("bars", ["A", "B"], [charts.Part("p", "prefill", [1, 2]), charts.Part("q", "waiting", [2, 0])], words=str)
    charts.bars("bars", ["A", "B"], [charts.Part("p", "prefill", [1, 2])], horizontal=True)
    charts.curve("curve", lines[1:], log_x=True, log_y=True, marks=[(1, 2, "now")])
    assert len(drawn) == 5 and all(alt for _, alt in drawn)


def test_an_error_band_lies_around_its_line_and_leaves_gaps_out(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(charts, "draw", lambda figure, alt, key=None: drawn.append(figure))
    charts.timeline("latency", [charts.Line([0, 1, 2, 3, 4], [1, 2, np.nan, 4, 4], "prefill", error=0.25)])
    band = drawn[0]["data"][0]
    edges = {x: sorted(band["y"][band["x"] == x].tolist()) for x in range(5)}
    assert edges == {0: [0.75, 1.25], 1: [1.5, 2.5], 2: [], 3: [3, 5], 4: [3, 5]}


def test_an_event_stands_at_its_place_on_a_log_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(charts, "draw", lambda figure, alt, key=None: drawn.append(figure))
    charts.curve("rates", [charts.Line([1, 100], [1, 2], "prefill")], x_start=1, log_x=True, events=[(10.0, "bend")])
    layout = drawn[0]["layout"]
    # plotly.js: on a log axis shapes are placed by value, annotations by its power of ten
    assert layout["shapes"][-1]["x0"] == 10.0 and layout["annotations"][-1]["x"] == 1.0


def test_windows_of_utilisation_add_up_to_the_run(starved) -> None:
    summary = starved.summary()
    for kind in ("compute", "bandwidth", "busy"):
        _, y = series.utilisation(starved, kind)
        assert y.mean() == pytest.approx(getattr(summary, f"gpu_{kind}"), rel=0.02)


def test_ttft_splits_into_queue_and_prefill(starved) -> None:
    queue, prefill = series.ttft_split(starved, 0.5)
    assert queue + prefill == pytest.approx(starved.summary().ttft_p50, rel=0.15)


def test_downloads_hold_every_step_and_request(starved) -> None:
    assert exports.ticks_csv(starved).count("\n") == len(starved.ticks) + 1
    assert exports.requests_csv(starved).count("\n") == len(starved.requests) + 1
    assert '"max_num_seqs": 128' in exports.scenario_json(starved)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_sentence_says_what_was_changed_and_that_preemption_began(starved, language: str) -> None:
    text.use(language)
    calm = simulate(Scenario(max_num_seqs=16, num_gpu_blocks_override=2100, duration_s=10.0))
    said = narration.changed(starved.summary(), calm.summary(), starved.scenario, calm.scenario)
    text.use("en")
    assert "max_num_seqs 16 → 128" in said and str(starved.summary().preempted_requests) in said
    assert narration.changed(calm.summary(), calm.summary(), calm.scenario, calm.scenario) == ""


@pytest.mark.parametrize("language", text.LANGUAGES)
def test_requests_that_were_sent_away_are_named_beside_the_figures_that_miss_them(language: str) -> None:
    text.use(language)
    a = simulate(Scenario(duration_s=10.0, prompt_cv=2.0))
    b = simulate(a.scenario.but(max_model_len=2048))
    said = narration.changed(b.summary(), a.summary(), b.scenario, a.scenario)
    text.use("en")
    assert b.summary().refused > 0 and a.summary().refused == 0
    sentence = text.texts(language)["narration.refused"].format(n=b.summary().refused, a=0)
    assert sentence in said


def test_an_address_names_only_what_the_baseline_has_different() -> None:
    b = Scenario(max_num_seqs=128)
    held = state.State(b, {"u": "compute"}, b, b.but(seed=9), {"u": "busy"})
    written = state.address(held)
    assert {k: v for k, v in written.items() if k.startswith("a.")} == {"a.sd": "9"}
    assert written["u"] == "busy" and link.decode({k: v for k, v in written.items() if k in link.encode(b)})[0] == b


def test_a_hot_rank_is_told_with_what_copies_of_experts_cost() -> None:
    """Under expert parallelism: the fullest rank's load against the mean; copies even it out and take KV memory."""
    hot = {"mo": "Qwen3-30B-A3B", "tp": "4", "ep": "1", "sk": "1.2"}
    ours = Scenario(model="Qwen3-30B-A3B", tensor_parallel_size=4, enable_expert_parallel=True, expert_skew=1.2, max_num_seqs=64)
    ratio = experts.rank_imbalance(catalog.model(ours.model), 1.2, 4)
    assert ratio > 1.1
    at = visit(v="1", nr="20", re="32", **hot, **{f"a.{key}": value for key, value in {**hot, "nr": "20", "re": "0"}.items()})
    said = " ".join(caption.value for caption in at.caption).replace(text.BLANK, " ")
    pools = [f"{memory.plan(ours.but(num_redundant_experts=n)).kv / 2**30:.1f} GiB" for n in (32, 0)]
    assert f"A: {ratio:.2f} ×" in said and pools[0] in said and pools[1] in said and pools[0] != pools[1]
    assert "fullest" not in " ".join(c.value for c in visit(v="1", mo="Llama-3.1-8B", tp="4").caption)


def test_of_many_changes_the_last_moved_is_named_first() -> None:
    at = visit(lang="en")
    for name, value in (("max_num_seqs", 256), ("max_num_batched_tokens", 4096), ("prompt_tokens", 256), ("request_rate", 20.0), ("max_num_seqs", 128)):
        knob(at, name).set_value(value).run()
    said = next(block.body for block in at.get("html") if "class='if-note'" in block.body)
    assert "max_num_seqs 64 → 128, Request rate" in said and "1 more" in said


@pytest.mark.parametrize("language", text.LANGUAGES)
def test_who_was_sent_away_is_said_with_the_reason(language) -> None:
    at = visit(lang=language, ml="2048", pt="3000")
    text.use(language)
    refused = simulate(Scenario(max_num_seqs=64, request_rate=30.0, duration_s=60.0, max_model_len=2048, prompt_tokens=3000)).refusals
    assert any(f"{len(refused):,}" in c.value and "max_model_len" in c.value for c in at.caption)
