"""Links: what is shown can be passed on, and no link breaks the page."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

from sim import link
from sim.scenario import SETTINGS, Scenario, SimError

ROOT = Path(__file__).parent.parent


def _field(setting):
    if setting.kind is bool:
        return st.booleans()
    if setting.choices:
        return st.sampled_from(setting.choices)
    if setting.kind is int:
        return st.integers(int(setting.low), int(setting.high))
    if setting.kind is float:
        return st.floats(setting.low, setting.high)
    return st.just(setting.default)


@st.composite
def scenarios(draw):
    values = {name: draw(_field(s)) for name, s in SETTINGS.items()}
    values["enable_chunked_prefill"] |= values["max_num_batched_tokens"] < values["max_model_len"]
    values["max_num_batched_tokens"] = max(values["max_num_batched_tokens"], values["max_num_seqs"])
    return Scenario(**values)


@given(scenarios())
@settings(max_examples=100)
def test_a_link_reproduces_the_scenario_exactly_and_silently(scenario):
    decoded, notices = link.decode(link.encode(scenario))
    assert decoded == scenario
    assert not notices
    whole = f"https://example.org/playground?{link.query(scenario)}&lang=zh&a.rr=5"
    assert link.decode(link.parse(whole)) == (scenario, [])


KEYS = st.sampled_from([*(s.key for s in SETTINGS.values()), "v", "zz"]) | st.text(max_size=3)
VALUES = st.text(max_size=12) | st.integers().map(str) | st.floats().map(str)


@given(st.dictionaries(KEYS, VALUES, max_size=12))
@settings(max_examples=300)
def test_no_link_raises_and_whatever_comes_out_is_a_valid_scenario(mapping):
    decoded, notices = link.decode(mapping)
    assert dataclasses.replace(decoded) == decoded
    assert all(isinstance(n, SimError) and str(n) for n in notices)
    assert link.decode(link.encode(decoded)) == (decoded, [])


def test_out_of_range_is_clamped_and_said():
    decoded, notices = link.decode({"v": "1", "ms": "100000", "rr": "inf"})
    assert decoded.max_num_seqs == 4096 and decoded.request_rate == 5000.0
    assert [n.code for n in notices] == ["link_clamped", "link_clamped"]
    assert "max_num_seqs" in str(notices[0]) and notices[0].params["value"] == 4096


def test_unknown_keys_values_and_versions_are_said():
    odd = {"v": "9", "colour": "red", "gp": "H9000", "ar": "never", "ms": "12.5", "px": "maybe"}
    decoded, notices = link.decode(odd)
    assert decoded == Scenario()
    assert sorted({n.code for n in notices}) == ["link_unknown", "link_unreadable", "link_version"]
    assert "9" in str(notices[0]) and "colour" in str(notices[-1])


def test_contradictions_are_repaired_and_said():
    decoded, notices = link.decode({"v": "1", "ms": "512", "mt": "256"})
    assert (decoded.max_num_seqs, decoded.max_num_batched_tokens) == (512, 512)
    assert [n.code for n in notices] == ["link_repaired"]
    decoded, notices = link.decode({"v": "1", "cp": "0", "mt": "512", "ml": "2000000"})
    assert decoded.enable_chunked_prefill and notices
    decoded, _ = link.decode({"v": "1", "cp": "0", "mt": "512", "ml": "4096"})
    assert not decoded.enable_chunked_prefill and decoded.max_num_batched_tokens == 4096


def test_keys_are_short_and_unique():
    keys = [s.key for s in SETTINGS.values()]
    assert len(set(keys)) == len(keys) and "v" not in keys


def notices(page, **query):
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    app.switch_page(f"pages/{page}.py")
    for key, value in query.items():
        app.query_params[key] = value
    app.run()
    assert not app.exception
    return [box.value for box in (*app.info, *app.warning)]


@pytest.mark.parametrize("query, says", [
    ({"rr": "[click](https://evil.example) $x$"}, r"\[click\]\(https\://evil.example\) \$x\$"),
    ({"ms": ["4", "8"]}, "ms more than once"), ({"rr": "1" * 100_000}, "became 5,000"), ({"v": "2"}, "another version"),
    ({"ms": "4096", "mt": "16"}, "became 4,096"), ({"x" * 100_000: "1"}, "left out"), ({"rr": "٣٠", "ms": "nan"}, "cannot be “nan”"),
])
def test_a_strange_link_is_answered_and_said(query, says):
    assert any(says in notice for notice in notices("8_playground", **query))


def test_a_scene_that_there_is_not_is_said_and_what_was_clamped_too_where_nothing_can_run():
    assert any("p=nowhere" in notice for notice in notices("2_two_budgets", p="nowhere.reveal"))
    said = " ".join(notices("2_two_budgets", tp="3", ms="1e9"))
    assert "became 4,096" in said and "attention heads" in said


def test_what_a_link_says_of_a_page_and_cannot_be_is_said():
    assert any("n=abc" in notice for notice in notices("7_diagnose", n="abc"))
    assert any("ms 出现了" in notice or "多次写了 ms" in notice for notice in notices("8_playground", ms=["4", "8"], lang="zh"))
