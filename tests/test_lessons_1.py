"""The lessons of app.py and pages 1 to 3: the flow, and every claim of their texts, by running the preset behind it."""

import re
import sys
from importlib import util
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from sim import link
from sim.engine import simulate
from sim.memory import plan
from sim.scenario import SETTINGS
from ui import gantt, series, text
from ui.text import texts

ROOT = Path(__file__).parent.parent
PAGES = {
    "app.py": ("start", ("eight", "stream", "few")),
    "pages/1_be_the_scheduler.py": ("be_the_scheduler", ("budget", "seats", "pool", "return")),
    "pages/2_two_budgets.py": ("two_budgets", ("queue", "other", "tokens", "starve")),
    "pages/3_kv_pool.py": ("kv_pool", ("pool", "match", "blocks", "signs", "mode", "victim", "thrash")),
}


def names(path):
    """What a page defines above its first call of frame.page: its scenarios and pure functions."""
    source = (ROOT / path).read_text(encoding="utf-8").split("\nwith frame.page(")[0]
    spec = util.spec_from_loader(Path(path).stem, loader=None)
    module = util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    exec(compile(source, path, "exec"), module.__dict__)
    return module


def visit(path, **query):
    page = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    if path != "app.py":
        page.switch_page(path)
    for name, value in query.items():
        page.query_params[name] = value
    page.run()
    assert not page.exception, page.exception[0].message
    return page


def at(page):
    """Where in the lesson the address says we are."""
    value = page.query_params.get("p", "eight.ask")
    return value if isinstance(value, str) else value[0]


def shown_question(page):
    """The question as it stands on the page."""
    def bodies(block):
        for child in getattr(block, "children", {}).values():
            yield str(getattr(getattr(child, "proto", None), "body", ""))
            yield from bodies(child)

    return next(re.sub(r"<[^>]+>", "", body) for body in bodies(page.main) if "if-question" in body and "<style" not in body)


def said(page):
    return "\n".join(m.value for m in page.markdown)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(("path", "scene"), [(p, s) for p, (_, scenes) in PAGES.items() for s in scenes])
def test_every_scene_opens_by_link_at_each_step_and_tells_its_takeaway_at_the_end_only(path, scene, language):
    takeaway = texts(language)[f"{PAGES[path][0]}.{scene}_takeaway"]
    for step in ("ask", "lock", "reveal"):
        assert takeaway not in said(visit(path, p=f"{scene}.{step}", lang=language))
    assert takeaway in said(visit(path, p=f"{scene}.next", lang=language))


def test_the_primary_button_walks_ask_lock_reveal_next_and_on_to_the_next_scene_and_page():
    page = visit("app.py", lang="en")
    seen = []
    for _ in range(12):
        seen.append(at(page))
        page.button(key="lesson_primary").click().run()
        assert not page.exception
    assert seen[:5] == ["eight.ask", "eight.lock", "eight.reveal", "eight.next", "stream.ask"]
    assert seen[11] == "few.next"
    assert page.title[0].value == "1 · Be the scheduler"


def test_a_prediction_is_kept_through_the_reveal_and_never_travels_in_the_link():
    page = visit("pages/2_two_budgets.py", p="queue.ask", lang="en")
    page.button_group(key="lesson_answer_two_budgets_queue").set_value("seats").run()
    page.button(key="lesson_primary").click().run()
    assert "You said: **raise max_num_seqs**" in said(page)
    assert not any("seats" in str(v) for v in page.query_params.values())
    page.button(key="lesson_primary").click().run()
    assert "You said: **raise max_num_seqs**" in said(page)


def test_a_knob_moved_after_the_reveal_keeps_the_step_and_changes_the_numbers():
    page = visit("pages/2_two_budgets.py", p="queue.reveal", lang="en")
    before = said(page)
    page.select_slider(key="w_budgets_max_num_seqs").set_value(128).run()
    assert at(page) == "queue.reveal"
    assert said(page) != before


def literals(words):
    """The numbers that stand in a text as they are: not filled in, not part of a name."""
    words = re.sub(r"\{[^}]*\}|`[^`]*`|P\d+|V\d\b|FP\d", "", words)
    return {float(n.replace(",", "")) for n in re.findall(r"(?<![A-Za-z\d.])\d(?:[\d,.]*\d)?", words)}


def values(page):
    """The numbers that the scenario on show is made of, and where in its lesson the page stands."""
    held = page.session_state["state:" + page.session_state["page"]]
    found = [getattr(held.b, name) for name in SETTINGS] + list(held.extra.values())
    return {float(v) for v in found if isinstance(v, (int, float))}


ELSEWHERE = {  # what no scenario says
    "two_budgets.queue_honest": {70, 1024},  # vLLM's defaults since 0.8, by memory of the card in GiB
    "two_budgets.other_takeaway": {3},  # the page of that number
    **{f"kv_pool.pool_{k}": {8} for k in ("less", "same", "more")},  # %, asserted below
}


@pytest.mark.parametrize(("path", "scene"), [(p, s) for p, (_, scenes) in PAGES.items() for s in scenes])
def test_a_number_in_a_text_is_set_by_its_scene_and_a_preset_sets_what_its_button_says(path, scene):
    page, known = visit(path, p=f"{scene}.next", lang="en"), set()
    shown = next(s for s in names(path).SCENES if s.name == scene)
    for scenario in (shown.b, shown.a or shown.b):
        known |= {float(v) for v in (getattr(scenario, n) for n in SETTINGS) if isinstance(v, (int, float))}
    for button in [b for b in page.button if b.key.startswith(("preset_", "lesson_try"))]:
        page = visit(path, p=f"{scene}.next", lang="en")
        page.button(key=button.key).click().run()
        assert not page.exception
        assert literals(button.label) <= values(page), button.label
        known |= values(page)
    for language in text.LANGUAGES:
        for key, words in texts(language).items():
            if key.startswith(f"{PAGES[path][0]}.{scene}_"):
                assert literals(words) <= known | ELSEWHERE.get(key, set()), (language, key)


# --- app.py


def test_the_eight_the_last_short_answer_comes_more_than_four_times_sooner_and_the_long_one_loses_nothing():
    app = names("app.py")
    static, continuous = app.eight(app.EIGHT.but(batching="static")), app.eight(app.EIGHT)
    assert app.last_short(static) > 4 * app.last_short(continuous)
    idle = gantt.lane(static, "").segments
    assert {seg.request for seg in idle if seg.phase == "idle"} == set(range(7))
    assert continuous.finish[7] == pytest.approx(static.finish[7], rel=0.05)
    assert gantt.spoken(static)[1][0] < 0.1 * static.finish[0]  # the seven were done long before they went home
    same = [app.last_short(app.eight(app.EIGHT.but(batching=b, output_tokens=100))) for b in ("static", "continuous")]
    assert same[0] == pytest.approx(same[1], rel=0.1)


def test_a_stream_p99_falls_to_a_quarter_while_static_seats_idle_beside_a_queue():
    app = names("app.py")
    continuous, static = (simulate(s) for s in app.pair(app.STREAM))
    assert continuous.summary().e2e_p99 <= static.summary().e2e_p99 / 4
    assert app.at_work(static) < 0.5 * app.STREAM.max_num_seqs
    assert static.summary().waiting_max > 10


def test_at_every_rate_people_wait_beside_idle_static_seats_and_the_median_gains_more_than_the_tail():
    app = names("app.py")
    for rate in (1.0, 6.0, 12.0):  # the presets
        c, s = (simulate(x).summary() for x in app.pair(app.STREAM.but(request_rate=rate)))
        assert s.waiting_max > 1 and s.e2e_p50 / c.e2e_p50 > 1.5 * s.e2e_p99 / c.e2e_p99 > 1.5


def test_one_user_gains_nothing_and_pays_the_fixed_cost_alone():
    app = names("app.py")
    continuous, static = (simulate(s) for s in app.pair(app.FEW))
    assert continuous.summary().qps == pytest.approx(static.summary().qps, rel=0.02)
    crowd = simulate(app.FEW.but(num_clients=64))
    assert crowd.summary().qps > 1.3 * simulate(app.FEW.but(num_clients=64, batching="static")).summary().qps
    (one, alone), (many, together) = (app.fullest_step(r) for r in (continuous, crowd))
    assert (one, many) == (1, 64)
    assert sum(together.values()) < 1.5 * sum(alone.values())  # sixty-four sequences in hardly more than the time of one
    assert sum(together[k] for k in ("fixed", "linear", "head")) < 1.1 * sum(alone[k] for k in ("fixed", "linear", "head"))


@pytest.mark.parametrize(("changes", "said_then"), [({"num_clients": 3}, "Users at a time: 3."), ({"max_num_seqs": 32}, "With 32 sequences a step")])
def test_a_link_with_other_users_or_seats_is_told_in_its_own_figures(changes, said_then):
    scenario = names("app.py").FEW.but(**changes)
    told = said(visit("app.py", p="few.reveal", lang="en", **link.encode(scenario)))
    assert said_then in told and "–" not in told and "nan" not in told


def test_answers_of_one_token_are_a_draw_without_a_decode_step():
    told = said(visit("app.py", p="few.reveal", ot="1", oc="0", lang="en"))
    assert texts("en")["start.few_explain_prefill"] in told


def test_users_gain_as_soon_as_their_answers_differ_in_length_and_nothing_while_they_do_not():
    app = names("app.py")

    def gain(**changes):
        continuous, static = (simulate(s).summary().qps for s in app.pair(app.FEW.but(**changes)))
        return continuous / static - 1

    assert gain(num_clients=2) > 0.2
    assert all(abs(gain(num_clients=n, output_cv=0.0)) < 0.03 for n in (1, 2, 64))


def test_the_eight_in_words():
    app = names("app.py")
    assert (app.EIGHT.max_num_seqs, app.LONG_ONE + 1, app.SHORT) == (8, 8, 100)


# --- page 1


def test_the_dozen_meets_every_rule_the_page_teaches():
    page = names("pages/1_be_the_scheduler.py")
    moments = page.record(page.DOZEN, page.Requests.of(
        np.array(page.ARRIVAL), np.array(page.PROMPT), np.array(page.OUTPUT)))
    reasons = {row.reason for m in moments for row in m.rows}
    assert {"decode", "prompt_end", "admitted", "admitted_part", "victim", "resumed", "after_preemption", "no_seat",
            "no_blocks", "no_budget", "behind"} <= reasons
    for m in moments:
        assert m.given <= page.DOZEN.max_num_batched_tokens
        assert m.seated <= page.DOZEN.max_num_seqs
        assert len(m.owners_after) <= m.usable
        assert not (m.preempted and m.admitted)  # who throws out lets nobody in
        for victim in m.preempted:
            assert victim == [row.request for row in m.rows if row.seated][-1]


@pytest.mark.parametrize("language", list(text.LANGUAGES))
def test_a_step_is_told_by_what_happened_in_it_and_not_by_what_did_not(language):
    page = names("pages/1_be_the_scheduler.py")
    text.use(language)
    for m in page.moments():
        said = page.did(m)
        assert 0 not in literals(said)
        moved = {r + 1 for r in (*m.admitted, *m.preempted)}
        assert moved <= literals(said) and literals(said) <= moved | {m.given, page.DOZEN.max_num_batched_tokens}
        assert all("{" not in page.reason(row) for row in m.rows)
    text.use("en")


def test_after_the_last_step_there_is_no_next_one():
    last = len(names("pages/1_be_the_scheduler.py").moments())
    offered = [[b.key for b in visit("pages/1_be_the_scheduler.py", p="pool.next", k=str(k), lang="en").button] for k in (last - 1, last)]
    assert ["lesson_try" in keys for keys in offered] == [True, False]


def test_a_step_other_than_the_scenes_own_is_asked_about_as_it_is():
    assert "Whom do you throw out?" in shown_question(visit("pages/1_be_the_scheduler.py", p="pool.ask", lang="en"))
    other = shown_question(visit("pages/1_be_the_scheduler.py", p="pool.ask", k="3", lang="en"))
    assert other.startswith("Engine step 3,") and "is anybody thrown out?" in other


def test_how_much_the_one_that_comes_back_must_be_given_is_not_told_before_the_reveal():
    page = names("pages/1_be_the_scheduler.py")
    back = next(r for r in page.moments()[page.key_moment("return") - 1].rows if r.reason == "resumed")
    chips = visit("pages/1_be_the_scheduler.py", p="return.ask", lang="en").button_group(key=f"give_{page.key_moment('return')}").options
    mine = next(c for c in chips if c.startswith(f"{back.request + 1} ·"))
    assert {float(back.prompt), float(back.tokens - back.prompt)} <= literals(mine) and back.want not in literals(mine)


def test_the_block_grid_agrees_with_the_engine_in_every_step():
    page = names("pages/1_be_the_scheduler.py")
    requests = page.Requests.of(np.array(page.ARRIVAL), np.array(page.PROMPT), np.array(page.OUTPUT))
    free = []
    simulate(page.DOZEN, requests, observer=lambda step: free.append(step.free))
    moments = page.record(page.DOZEN, requests)
    assert [m.usable - len(m.owners_after) for m in moments] == free


# --- page 2


def test_a_queue_beside_an_idle_gpu_goes_away_with_more_seats():
    page = names("pages/2_two_budgets.py")
    a, b = simulate(page.QUEUE).summary(), simulate(page.QUEUE.but(max_num_seqs=256)).summary()
    assert a.waiting_max > 200 and a.gpu_compute < 0.55 and a.gpu_busy > 0.95
    assert b.qps > 1.25 * a.qps and b.waiting_max < 0.1 * a.waiting_max and b.gpu_compute > a.gpu_compute
    assert b.itl_p99 > a.itl_p99
    tokens = simulate(page.QUEUE.but(max_num_batched_tokens=16_384)).summary()
    assert tokens.qps < 1.1 * a.qps  # the other budget was not the wall
    assert simulate(page.NARROW).summary().waiting_max > 100  # and starved, it is one
    hint = said(visit("pages/2_two_budgets.py", p="queue.next", lang="en"))
    assert "starve the other budget" in hint and "TPOT target" not in hint  # what the scene is about, not another figure


def test_a_small_token_budget_favours_itl_and_a_large_one_ttft():
    page = names("pages/2_two_budgets.py")
    small, large = (simulate(page.TOKENS.but(max_num_batched_tokens=n)).summary() for n in (2048, 16_384))
    assert large.ttft_p50 < 0.9 * small.ttft_p50
    assert large.itl_p99 > 1.8 * small.itl_p99


def test_each_remedy_against_a_long_prompt_does_what_the_text_says():
    page = names("pages/2_two_budgets.py")
    requests = page.starving(page.STARVE)
    found = {k: page.short_figures(simulate(page.STARVE.but(**v), requests)) for k, v in page.REMEDIES.items()}
    together = found.pop("all")
    ttft, pause = ({k: v[i] for k, v in found.items()} for i in (0, 1))
    assert pause["chunk"] < 0.2 * pause["none"]  # chunking ends the freeze of those who write
    assert ttft["chunk"] > 0.8 * ttft["none"]  # but short prompts still queue behind the chunks
    assert ttft["threshold"] < 0.6 * ttft["chunk"]
    assert ttft["prefix"] < 0.8 * ttft["none"]
    assert min(ttft, key=ttft.get) == "threshold"
    assert together[0] < 0.5 * min(ttft.values()) and together[1] < min(pause.values())  # they add up
    told = said(visit("pages/2_two_budgets.py", p="starve.reveal", lang="en"))
    assert f"most: {texts('en')['two_budgets.remedy_threshold']}." in told
    short = page.STARVE.but(long_prompt_tokens=2000)
    assert max(page.short_figures(simulate(short, page.starving(short)))) < 0.1  # fits into an ordinary step: nobody starves


# --- page 3


def test_eight_percent_more_memory_for_vllm_is_more_than_eight_percent_of_the_pool():
    page = names("pages/3_kv_pool.py")
    scene = page.SCENES[0]
    assert scene.b.gpu_memory_utilization / scene.a.gpu_memory_utilization == pytest.approx(1.08, abs=0.01)
    assert plan(scene.b).kv > 1.09 * plan(scene.a).kv
    assert "0.92: vLLM gets 8% more memory" in shown_question(visit("pages/3_kv_pool.py", p="pool.ask", lang="en"))
    larger = [s.but(model="Qwen3-32B", max_model_len=8192) for s in (scene.b, scene.a)]
    assert plan(larger[0]).kv / plan(larger[1]).kv > plan(scene.b).kv / plan(scene.a).kv  # the larger the model, the more so


def test_the_pool_says_what_changed_and_not_what_stayed():
    page = visit("pages/3_kv_pool.py", p="pool.reveal", lang="en")
    page.button(key="preset_pool_1").click().run()  # half the card
    assert "activations and graphs stay" in said(page) and "(−55%)" in said(page)
    page.select_slider(key="w_kv_gpu_memory_utilization").set_value(0.85).run()
    assert texts("en")["lesson.same"] in said(page)


def test_512_seats_over_blocks_for_256_throw_out_and_are_slower():
    page = names("pages/3_kv_pool.py")
    a, b = simulate(page.FULL).summary(), simulate(page.OVER).summary()
    assert (page.FULL.num_gpu_blocks_override - 1) // page.PER_REQUEST == 256
    assert a.preemptions == 0 and b.preemptions > 100 and b.kv_max > 0.99
    assert b.e2e_p99 > 1.1 * a.e2e_p99 and b.qps < a.qps
    assert b.queue_p50 < 0.1 * a.queue_p50 and b.e2e_p50 > a.e2e_p50  # sooner in, later done


def test_512_seats_with_blocks_for_all_are_said_to_make_each_token_slower():
    page = visit("pages/3_kv_pool.py", p="match.reveal", lang="en")
    page.button(key="preset_match_3").click().run()  # twice the pool
    state = names("pages/3_kv_pool.py")
    a, b = (simulate(s).summary() for s in (state.FULL, state.OVER.but(num_gpu_blocks_override=2 * state.BLOCKS)))
    assert b.e2e_p99 > a.e2e_p99 and not b.preemptions
    assert f"median TPOT {text.seconds(a.tpot_p50)} → {text.seconds(b.tpot_p50)}" in said(page)


def test_queue_empty_cache_full_more_seats_change_nothing_and_more_memory_does():
    page = names("pages/3_kv_pool.py")
    a, b = simulate(page.USERS).summary(), simulate(page.USERS.but(max_num_seqs=1024)).summary()
    run = simulate(page.USERS)
    later = (run.ticks.start > 60) & (run.ticks.start < page.USERS.duration_s)
    assert (1 - run.ticks.free_blocks[later] / run.num_gpu_blocks).mean() > 0.97 and run.ticks.waiting[later].mean() < 20
    assert a.preemptions > 100 and a.running_max < page.USERS.max_num_seqs
    assert (b.qps, b.e2e_p99, b.preemptions) == (a.qps, a.e2e_p99, a.preemptions)
    double = simulate(page.USERS.but(num_gpu_blocks_override=2 * page.BLOCKS)).summary()
    assert double.preemptions == 0


def test_queue_full_cache_full_more_seats_bring_preemptions_and_not_answers():
    page = names("pages/3_kv_pool.py")
    few, full, many = (simulate(page.USERS.but(num_clients=600, max_num_seqs=n)).summary() for n in (256, 512, 1024))
    assert full.waiting_mean > 50 and full.kv_max > 0.97  # it is what its button says
    assert few.preemptions == 0 and min(full.preemptions, many.preemptions) > 100
    assert few.qps > full.qps >= many.qps


def test_a_button_of_the_two_gauges_shows_what_it_says_whatever_was_clicked_before():
    visited = visit("pages/3_kv_pool.py", p="signs.next", lang="en")
    page, shown = names("pages/3_kv_pool.py"), {}
    for label in ("twice the pool", "256 seats", "queue full, cache full", "256 seats", "twice the pool"):
        next(b for b in visited.button if b.label == label and b.key.startswith("preset")).click().run()
        held = visited.session_state["state:kv"]
        shown[label, held.b.num_clients] = held.b, said(visited)
    crowd = page.USERS.but(num_clients=600)
    assert held.a == crowd  # a remedy is compared with none, at the same load
    assert shown["queue full, cache full", 600][0] == crowd and "600 users, 512 seats" in shown["queue full, cache full", 600][1]
    assert shown["twice the pool", 600][0] == crowd.but(num_gpu_blocks_override=2 * page.BLOCKS)
    few, words = shown["256 seats", 600]
    assert few == crowd.but(max_num_seqs=256) and "P99 end-to-end fell" in words


def test_swapping_loses_on_a_slow_link_wins_on_a_fast_one_and_fewer_seats_beat_both():
    page = names("pages/3_kv_pool.py")
    recompute = simulate(page.OVER).summary().e2e_p99
    swap = page.OVER.but(preemption_mode="swap", swap_space_gib=64.0)
    runs = [simulate(swap.but(pcie_gb_s=g)).summary() for g in page.LINKS]
    p99, qps = [s.e2e_p99 for s in runs], [s.qps for s in runs]
    assert p99 == sorted(p99, reverse=True) and qps == sorted(qps)
    assert p99[page.LINKS.index(25.0)] < recompute < p99[page.LINKS.index(3.0)]
    assert simulate(page.FULL).summary().e2e_p99 < min(p99)


@pytest.mark.parametrize(("speed", "close"), [("3", True), ("100", False)])
def test_swapping_is_called_better_only_where_it_differs_by_more_than_the_model_may_be_off(speed, close):
    assert ("neither wins here" in said(visit("pages/3_kv_pool.py", p="mode.reveal", pb=speed, lang="en"))) == close


@pytest.mark.parametrize("scene", ["match", "blocks"])
def test_a_pool_that_comes_from_memory_is_asked_about_in_its_own_figures(scene):
    asked = shown_question(visit("pages/3_kv_pool.py", p=f"{scene}.ask", nb="0", lang="en"))
    assert "{" not in asked and "-1" not in asked


def test_the_choice_of_victim_hardly_moves_the_p99():
    page = names("pages/3_kv_pool.py")
    last, fewest = (simulate(page.OVER.but(victim=v)).summary() for v in ("last_admitted", "fewest_remaining"))
    assert fewest.e2e_p99 == pytest.approx(last.e2e_p99, rel=0.05)
    assert fewest.preemptions < last.preemptions / 2
    assert fewest.recomputed_tokens / fewest.preemptions > 2 * last.recomputed_tokens / last.preemptions  # each had much to lose


def test_from_the_victims_one_click_leads_to_a_victim_whose_blocks_can_be_seen():
    page = visit("pages/3_kv_pool.py", p="victim.next", lang="en")
    page.button(key="lesson_try").click().run()
    assert at(page) == "blocks.reveal" and "gives back **19 blocks**" in said(page) and not page.info


def test_beginning_what_does_not_fit_thrashes():
    page = names("pages/3_kv_pool.py")
    a, b = simulate(page.THRASH).summary(), simulate(page.THRASH.but(scheduler_reserve_full_isl=False)).summary()
    assert b.preemptions > 10 * a.preemptions and b.qps < 0.85 * a.qps and b.e2e_p99 > 1.5 * a.e2e_p99
    assert b.recomputed_tokens > page.THRASH.duration_s * page.THRASH.request_rate * (3000 + 300)  # more twice than once


def test_the_split_of_ttft_sums_to_a_ttft():
    page = names("pages/2_two_budgets.py")
    run = simulate(page.QUEUE)
    assert sum(series.ttft_split(run, 0.5)) == pytest.approx(run.summary().ttft_p50, rel=0.1)


def test_a_victim_gives_back_all_its_blocks_and_the_next_preemption_is_near():
    page = names("pages/3_kv_pool.py")
    p = page.pool.first_preemption(page.SMALL, page.draw(page.SMALL))
    before, now = p.moments[p.at - 1], p.moments[p.at]
    assert len(before.owners) == p.usable  # not a block was free
    assert len(p.victims) == 1 and len(p.freed) > 10
    following = next(m.index for m in p.moments[p.at + 1:] if m.preempted) - now.index
    assert 24 <= following <= 60  # a few dozen steps
    assert len({block for block, r in now.owners.items() if before.owners.get(block) != r}) == 1  # the one that was missing
    assert not set(now.owners.values()) & set(p.victims)
    assert p.gone(p.at) < len(p.freed) / 2 and p.gone(len(p.moments) - 1) == len(p.freed)
    assert any(m.preempted for m in p.moments[p.at + 1 :])
