"""Pages 4, 5, 6 and 9: they open at every step in both languages, and what their texts claim comes out of the simulator."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from sim import link
from sim.scenario import Scenario
from tests.test_lessons_1 import names, shown_question
from ui.text import BLANK

ROOT = Path(__file__).parent.parent
SCENES = {
    "4_experts": ("skew", "batch", "place"), "5_parallelism": ("layout", "alone", "kv"),
    "6_sweet_spot": ("climb", "first", "second", "map", "search", "targets", "knee"),
}


def page(name: str, **query: str) -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    app.switch_page(f"pages/{name}.py")
    for key, value in query.items():
        app.query_params[key] = value
    return app.run()


def words(app: AppTest) -> str:
    """Everything the page says in notes and paragraphs."""
    found = [e.value for e in [*app.markdown, *app.caption]]

    def walk(block: Any) -> None:
        for child in getattr(block, "children", {}).values():
            body = getattr(getattr(child, "proto", None), "body", "")
            if isinstance(body, str) and "if-note" in body:
                found.append(re.sub(r"<[^>]+>", "", body))
            walk(child)

    walk(app.main)
    return "\n".join(found).replace(BLANK, " ")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(("name", "scene"), [(n, s) for n, scenes in SCENES.items() for s in scenes])
def test_opens_at_every_step(name: str, scene: str, language: str) -> None:
    for step in ("ask", "lock", "reveal", "next"):
        app = page(name, p=f"{scene}.{step}", lang=language)
        assert not app.exception, (step, [e.message for e in app.exception])


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("part", ["how", "decisions", "silicon", "runs", "headlines", "status"])
def test_under_the_hood_opens(part: str, language: str) -> None:
    assert not page("9_under_the_hood", part=part, lang=language).exception


def test_pagedown_walks_from_question_to_takeaway() -> None:
    app = page("4_experts", p="skew.ask")
    for _ in range(3):
        app = app.button(key="lesson_primary").click().run()
        assert not app.exception
    assert "Take away" in words(app)


def test_the_result_is_hidden_until_the_reveal() -> None:
    result = re.compile(r"19 ms → 18 ms")
    assert not result.search(words(page("4_experts", p="skew.lock")))
    assert result.search(words(page("4_experts", p="skew.reveal")))


def after(name: str, scene: str, *clicks: str, **address: str) -> AppTest:
    """A scene at its end, and then some buttons by what they say; "try next" is the one offered there."""
    app = page(name, p=f"{scene}.next", **address)
    for label in clicks:
        app = next(b for b in app.button if (b.key == "lesson_try" if label == "try next" else b.label == label)).click().run()
        assert not app.exception
    return app


def arrows(text: str, before: str) -> list[float]:
    """The figures, in ms where they are times, of the first "19 ms → 18 ms" or "89 → 128" behind these words."""
    found = re.compile(re.escape(before) + r"\D{0,9}?([\d.,]+) ?(µs|ms|s|GiB)? → ([\d.,]+) ?(µs|ms|s|GiB)?").search(text)
    assert found, (before, text)
    scale = {"µs": 1e-3, "s": 1e3}
    return [float(n.replace(",", "")) * scale.get(unit, 1.0) for n, unit in (found.group(1, 2), found.group(3, 4))]


def set_to(app: AppTest, page_key: str) -> tuple[Scenario, Scenario]:
    held = app.session_state[f"state:{page_key}"]
    return held.a, held.b


def test_what_a_scene_asks_about_experts_is_what_it_sets() -> None:
    asked = {scene: shown_question(page("4_experts", p=f"{scene}.ask")) for scene in SCENES["4_experts"]}
    a, b = set_to(after("4_experts", "skew"), "experts")
    assert (a.expert_skew, b.expert_skew, b.max_num_seqs, b.tensor_parallel_size) == (0.4, 0.8, 32, 8)
    assert "Eight cards hold whole experts; 32 sequences decode" in asked["skew"] and "from 0.4 to 0.8" in asked["skew"]
    a, b = set_to(after("4_experts", "batch"), "experts")
    assert (a.max_num_seqs, b.max_num_seqs) == (32, 256) and "from 32 to 256 puts eight times" in asked["batch"]
    a, b = set_to(after("4_experts", "place"), "experts")
    assert (a.enable_expert_parallel, b.enable_expert_parallel) == (False, True)
    assert f"{b.max_num_batched_tokens:,} prompt tokens at skew {b.expert_skew}" in asked["place"]


def test_more_skew_makes_a_small_decode_step_shorter_as_fewer_experts_are_read() -> None:
    for clicks, shortest in ((), 0.93), (("Skew 1.6",), 0.75):
        said = words(after("4_experts", "skew", *clicks))
        before, now = arrows(said, "a decode step of 32 sequences:")
        assert shortest < now / before < 1.0
        read = arrows(said, "Experts read:")
        assert read[1] < read[0] < 128
        full = arrows(said, "Fullest card:")
        assert full[1] > 1.3 * full[0] and "weights that nobody asks for are not read" in said
        more = re.search(r"Why no fuller than at skew 1.0 \(([\d.]+)\)\?", said)
        assert (more is not None) == bool(clicks) and (not more or float(more[1]) > full[1])


def test_with_many_sequences_the_full_card_makes_the_step_longer_and_the_pool_holds_fewer() -> None:
    app = after("4_experts", "skew", "try next")
    _, b = set_to(app, "experts")
    assert (b.expert_skew, b.max_num_seqs) == (1.6, 1024)
    said = words(app)
    room = int(re.search(r"the KV pool holds (\d+) such", said)[1])
    before, now = arrows(said, f"a decode step of {room} sequences:")
    assert now > 1.03 * before and "All cards wait for the fullest one." in said


def test_a_hot_expert_shows_in_prefill_and_hardly_in_decode() -> None:
    said = words(after("4_experts", "skew"))
    decode = arrows(said, "against none: a decode step of 32 sequences takes")
    prefill = arrows(said, "a prefill step of 8,192 tokens")
    assert decode[1] < decode[0] and prefill[1] > 1.1 * prefill[0]
    assert "In decode the hot expert hardly shows, in prefill it does" in said


def test_eight_times_the_tokens_take_far_less_than_eight_times_as_long_and_a_quarter_more_than_a_quarter() -> None:
    for clicks, tokens in ((), 8), (("8 sequences",), 0.25), (("Async scheduling off",), 8):
        said = words(after("4_experts", "batch", *clicks))
        ratio, of = map(float, re.search(r"That is ([\d.]+) × for ([\d.]+) × the tokens", said).groups())
        assert of == tokens and (1.2 < ratio < 3.0 if tokens > 1 else 0.5 < ratio < 1.0)


def test_more_seats_than_the_pool_holds_gain_nothing() -> None:
    said = words(after("4_experts", "batch", "1,024 sequences"))
    most = re.search(r"holds (\d+) → (\d+) sequences of 1,024 tokens.* that is ([\d,]+) tokens/s", said)
    assert int(most[2]) < int(most[1]) and f"the KV pool holds {most[2]} such" in said
    assert f"→ {most[3]}." in re.search(r"Tokens/s: .*?\.", said)[0]
    small = words(after("4_experts", "batch", "Small model, one card"))
    assert int(re.search(r"KV pool holds (\d+) such", small)[1]) < 256


def test_the_hosts_work_costs_more_without_async_scheduling() -> None:
    shares = [float(re.search(r"a step here, ([\d.]+)% of it at 256", words(after("4_experts", "batch", *c)))[1]) for c in ((), ("Async scheduling off",))]
    assert shares[1] > 2 * shares[0]


def test_whole_experts_make_one_card_hot_in_prefill_and_copies_even_it_out() -> None:
    said = words(after("4_experts", "place"))
    before, now = arrows(said, "a prefill step of 8,192 tokens:")
    even = float(re.search(r"(\d+) ms were the cards even", said)[1])
    assert even < 0.9 * before and 1.1 * even < now < before
    assert arrows(said, "Fullest card:")[1] > 1.3
    sliced, whole, copied = map(float, re.findall(r"([\d.]+) × (?:the mean )?with (?:slices|whole|copies)", said))
    assert whole > 1.3 > 1.05 > max(sliced, copied)
    none = words(after("4_experts", "place", "No skew"))
    assert "no card waits for another" in none and "Fullest card: 1.00 × the mean" in none


def test_copies_of_hot_experts_gain_in_prefill_and_cost_in_decode() -> None:
    for scene in ("skew", "place"):
        said = words(after("4_experts", scene, "Copy the hot experts"))
        decode = arrows(said, "Copies, 0 → 32: a decode step of 32 sequences")
        prefill = arrows(said, "; a prefill step of 8,192 tokens")
        assert decode[1] > 1.05 * decode[0] and prefill[1] < 0.9 * prefill[0]
        reads, room = arrows(said, "more experts a layer ("), arrows(said, "fit the pool (")
        assert reads[1] > reads[0] and room[1] < room[0]
        assert "as copies are read, too" in said and "as no card is fuller than the others" in said


def layouts(said: str, before: str) -> dict[str, float]:
    """The figures of a list "8 × TP1 24,952; 4 × TP2 17,213; ..." behind these words."""
    listed = said.split(before, 1)[1].split(". ")[0]
    return {name: float(n.replace(",", "")) for name, n in re.findall(r"((?:\d × )?TP\d),? ([\d,]+)", listed)}


def test_what_a_scene_asks_about_layouts_is_what_it_sets() -> None:
    a, b = set_to(after("5_parallelism", "layout"), "parallel")
    assert (a.tensor_parallel_size, a.data_parallel_size, b.num_clients) == (8, 1, 256)
    assert "Eight cards, 256 users" in shown_question(page("5_parallelism", p="layout.ask"))
    for scene, users in ("alone", 1), ("kv", 256):
        a, b = set_to(after("5_parallelism", scene), "parallel")
        assert (a.tensor_parallel_size, b.tensor_parallel_size, b.num_clients) == (1, 8, users)
        assert "TP1" in shown_question(page("5_parallelism", p=f"{scene}.ask"))


def test_many_users_are_served_best_by_small_groups_and_one_user_by_all_cards_together() -> None:
    many = words(after("5_parallelism", "layout"))
    most, least = (re.search(word + r": ((?:\d × )?TP\d), ([\d,]+)", many) for word in ("Most output tokens/s", "least"))
    assert most[1] == "4 × TP2" and least[1] == "TP8" and "the model's own median error: 2 × TP4." in many
    assert "Largest difference in a mean step: all-reduce" in many
    one = words(after("5_parallelism", "layout", "1 user"))
    assert "Most output tokens/s: TP8" in one and "least: 8 × TP1" in one and "Not with this load" in one


def test_over_pcie_copies_win_by_far() -> None:
    before, now = (words(after("5_parallelism", "layout", *clicks)) for clicks in ((), ("try next",)))
    rate = layouts(before, "over PCIe, users: 256:")
    assert list(rate) == ["8 × TP1", "4 × TP2", "2 × TP4", "TP8"]
    assert rate["8 × TP1"] == max(rate.values()) > 2 * rate["TP8"]
    assert f"Most output tokens/s: 8 × TP1, {rate['8 × TP1']:,.0f}" in now and f"least: TP8, {rate['TP8']:,.0f}" in now
    share = [float(n) for n in re.findall(r"All-reduce in .*?\(([\d.]+)%\).*?\(([\d.]+)%\)", now)[0]]
    assert share[0] < 50 < share[1]


def test_with_long_prompts_a_large_tp_buys_time_to_first_token_and_not_throughput() -> None:
    said = re.search(r"prompts of 8,000 tokens\) the most tokens/s come from ([^;]+);.* at the median (\S+ ms) with 8 × TP1 and (\S+ ms) with TP8",
                     words(after("5_parallelism", "layout", f"Long prompts: 8,000{BLANK}tokens")).replace(BLANK, " "))
    assert said and "TP8" not in said[1] and float(said[2].split()[0]) > 2 * float(said[3].split()[0])


def test_eight_cards_make_one_user_faster_but_never_eight_times() -> None:
    for clicks in (), ("PCIe between the cards",), ("MLA: DeepSeek-V4-Flash",):
        said = words(after("5_parallelism", "alone", *clicks))
        assert 1.2 < float(re.search(r"with TP8 and .*?: ([\d.]+) × as fast", said)[1]) < 4
        parts = re.search(r"Above their share: (.*)\.", said)[1]
        assert all(part in parts for part in ("linear", "all-reduce", "fixed, host"))


def test_the_more_users_the_smaller_the_quickest_tensor_parallel_size() -> None:
    said = words(after("5_parallelism", "alone", "256 users"))
    best = re.search(r"Lowest mean TPOT here: TP8 up to (\d+) users; 2 × TP4 up to (\d+) users; 4 × TP2 with more", said)
    assert best and 8 < int(best[1]) < 64 < int(best[2]) < 256
    assert "with 4 × TP2 and 10 ms with TP8" in said
    pcie = re.search(r"TP8 up to (\d+) users; .*; 8 × TP1 with more", words(after("5_parallelism", "alone", "PCIe between the cards")))
    assert pcie and int(pcie[1]) < int(best[1])


@pytest.mark.parametrize(("address", "reason"), [
    ({"p": "layout.reveal", "pt": "100000"}, "A prompt of 100,000 tokens is longer"), ({"p": "alone.next", "ot": "1"}, "has no TPOT"),
    ({"p": "alone.next", "ot": "20000", "ml": "30000"}, "more than 111,111 engine steps"),
])
def test_what_has_no_figures_is_explained_with_a_way_out(address: dict[str, str], reason: str) -> None:
    app = page("5_parallelism", **address)
    assert not app.exception and reason in app.warning[0].value.replace(BLANK, " ")
    app = next(b for b in app.button if str(b.key).startswith("repair")).click().run()
    assert not app.exception and not app.warning


def test_a_cards_share_of_the_pool_grows_only_by_the_room_that_weights_leave() -> None:
    share = {}
    for label in ("Large: Qwen3-32B", "Small weights: Llama-3.1-8B", "4 KV heads: Qwen3-30B-A3B", "MLA: DeepSeek-V4-Flash"):
        said = words(after("5_parallelism", "kv", label))
        before, now = (float(n.replace(",", "")) for n in re.search(r"card's share goes from ([\d,]+) to ([\d,]+) tokens", said).groups())
        share[label.split(":")[0]] = now / before
        pool = [float(n) for n in re.search(r"pool goes from (\d+) to (\d+) GiB", said).groups()]
        assert pool[1] > pool[0]
    assert share["Large"] > 5 and 1 < share["Small weights"] < 1.5
    assert share["4 KV heads"] < 0.7 and share["MLA"] < 0.2


def test_where_a_model_does_not_fit_one_card_the_other_layouts_are_compared() -> None:
    large = names("pages/5_parallelism.py").ONE.but(model="Llama-3.1-70B", gpu="H200")
    said = words(page("5_parallelism", p="kv.next", **link.encode(large)))
    assert "8 × TP1 is left out: Out of memory" in said and "From TP2 to TP8" in said


def test_the_climb_raises_says_stop_and_why() -> None:
    app = page("6_sweet_spot", p="climb.ask")
    for _ in range(4):
        app = app.button(key="climb_up").click().run()
    assert not app.exception
    assert "Stop. At 384 the pool ran dry" in words(app) and "Step back to 256" in words(app)


def test_the_sum_of_it_all_continuous_batching_carries_more() -> None:
    said = re.search(r"([\d.]+) × the load before", words(page("6_sweet_spot", p="knee.reveal")))
    assert said and float(said[1]) > 1.5


def test_a_map_that_was_stopped_before_its_first_run_waits_for_a_click() -> None:
    app = page("6_sweet_spot", p="map.reveal", cells="4")
    job = app.session_state["job_map"]
    assert job.done and len(job.runs) == 16
    job.runs.clear()
    job.going, job.done = False, False
    assert not app.run().exception and not app.button(key="job_run").disabled


def test_under_the_hood_shows_no_unknown_as_a_figure():
    for part in ("decisions", "silicon", "runs", "headlines"):
        app = page("9_under_the_hood", part=part)
        assert not app.exception
        assert "nan" not in words(app).lower()
        cells = [cell for shown in [*app.dataframe, *app.table] for cell in shown.value.to_numpy().ravel()]
        assert cells and not {"nan", "inf", "-inf", "none", "nat"} & {str(cell).strip().lower() for cell in cells}


def test_a_tokens_price_follows_the_price_of_a_card() -> None:
    def per_million(**address: str) -> list[float]:
        return [float(usd) for usd in re.findall(r"\$([\d.]+) per million", words(page("5_parallelism", p="layout.reveal", **address)))]

    assert per_million(usd="20")[0] == pytest.approx(2 * per_million(usd="10")[0], rel=0.01)
    assert per_million(usd="-3") == per_million() == per_million(usd="nan")


def test_what_a_scene_does_not_ask_about_moves_a_as_well() -> None:
    app = page("4_experts", p="skew.next")
    app = app.button(key="lesson_try").click().run()
    held = app.session_state["state:experts"]
    assert held.b.max_num_seqs == held.a.max_num_seqs == 1024
    assert (held.a.expert_skew, held.b.expert_skew) == (0.4, 1.6)


@pytest.mark.parametrize(("left", "last", "entered", "compares"), [
    ("1_be_the_scheduler", "return", "budgets", "max_num_seqs"), ("2_two_budgets", "starve", "kv", "gpu_memory_utilization"),
    ("3_kv_pool", "thrash", "experts", "expert_skew"), ("4_experts", "place", "parallel", "tensor_parallel_size"),
])
def test_pagedown_leads_to_a_next_page_that_still_compares(left: str, last: str, entered: str, compares: str) -> None:
    app = page(left, p=f"{last}.next").button(key="lesson_primary").click().run()
    held = app.session_state[f"state:{entered}"]
    assert app.session_state["page"] == entered and not app.exception
    assert getattr(held.a, compares) != getattr(held.b, compares)


def test_tpot_stands_there_for_1_8_64_and_256_users_and_the_lowest_in_bold() -> None:
    shown = after("5_parallelism", "alone").table[0].value
    cells = shown.set_index(shown.columns[0])
    assert list(cells.columns) == [f"users: {n}" for n in (1, 8, 64, 256)]
    figures = cells.map(lambda cell: float(cell.strip("*")))
    assert (cells.map(lambda cell: cell.startswith("**")) == (figures == figures.min())).all(axis=None)
    assert figures.idxmin()["users: 1"] == "TP8" != figures.idxmin()["users: 256"]
