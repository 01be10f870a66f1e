"""Incidents: the answer is always advice.py's, for every number, the right action helps, and what is said of it is so."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from sim.engine import simulate
from ui import text
from ui.incidents import INCIDENTS, INSTANCES, RIGHT, act, figures, instance, named, outcome, verdict
from ui.text import figure, value

PAGE = Path(__file__).parent.parent / "pages" / "7_diagnose.py"
PATIENTS = {incident.key: incident.scenario for incident in INCIDENTS}


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda i: i.key)
def test_every_number_has_the_disease_and_the_advised_action_helps(incident):
    for number in range(1, INSTANCES + 1):
        scenario = instance(incident, number)
        run = simulate(scenario)
        advice = verdict(run)
        assert advice.code == incident.code, number
        assert incident.code in incident.causes and RIGHT[incident.code] in incident.actions
        change = act(RIGHT[incident.code], scenario, advice)
        if not advice.promise:
            continue
        name, sign = advice.promise.lstrip("+"), 1 if advice.promise.startswith("+") else -1
        before, after = (getattr(r.summary(), name) for r in (run, simulate(scenario.but(**change))))
        assert sign * (after - before) > 0, (number, name, before, after, change)


@pytest.mark.parametrize("language", text.LANGUAGES)
@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda i: i.key)
def test_what_is_said_of_an_action_is_what_its_run_shows(incident, language):
    text.use(language)
    scenario = instance(incident, 1)
    before = simulate(scenario)
    advice = verdict(before)
    advised = simulate(scenario.but(**act(RIGHT[incident.code], scenario, advice)))
    promised, (unit, sense) = next(iter(figures(advice).items()))
    for action in incident.actions:
        change = act(action, scenario, advice)
        after = simulate(scenario.but(**change)) if change else before
        said = outcome(before, after, advised, advice, action)
        assert "**" not in said and "{" not in said
        a, b = (getattr(run.summary(), promised) for run in (before, after))
        helped = {w: text.texts(language)[f"diagnose.effect_{w}"].split("}")[-1] in said for w in ("better", "little", "worse")}
        moved = abs(b - a) > 0.01 * max(abs(a), abs(b))
        assert (helped["better"] or helped["little"]) == (moved and sense * (b - a) > 0), (action, said)
        assert helped["worse"] == (moved and sense * (b - a) < 0), (action, said)
        assert value(b, unit) in said
        if action == RIGHT[incident.code] and incident.code != "HEALTHY":
            assert helped["better"], said
        for name, (other_unit, better) in figures(advice).items():  # nothing that got worse is kept quiet
            was, now = (getattr(run.summary(), name) for run in (before, after))
            if better * (now - was) < -0.01 * max(abs(was), abs(now)):
                assert f"{figure(name)[0]} {value(was, other_unit)} → {value(now, other_unit)}" in said, (action, name, said)
        if after.scenario.data_parallel_size > scenario.data_parallel_size:
            assert "GPU" in said


@pytest.mark.parametrize("key", ["thrash", "swap"])
def test_who_is_past_the_sweet_spot_looks_as_the_card_says_and_gets_more_done_with_fewer_seats(key):
    incident = next(i for i in INCIDENTS if i.key == key)
    for number in range(1, INSTANCES + 1):
        scenario = instance(incident, number)
        run = simulate(scenario)
        before, advice = run.summary(), verdict(run)
        after = simulate(scenario.but(**act("seats_down", scenario, advice))).summary()
        assert before.waiting_mean < 0.25 * before.running_mean and before.gpu_compute > 0.5 and before.preemptions_per_s > 1
        assert after.preemptions == 0 and after.qps > 1.04 * before.qps
        assert ("PCIe" in advice.why) == (key == "swap")


def test_every_wrong_action_can_be_tried_and_changes_what_it_names():
    assert len(INCIDENTS) >= 10 and set(RIGHT.values()) <= {action for incident in INCIDENTS for action in incident.actions}
    for incident in INCIDENTS:
        scenario = instance(incident, 1)
        advice = verdict(simulate(scenario))
        for action in incident.actions:
            change = act(action, scenario, advice)
            assert all(getattr(scenario, name) != to for name, to in change.items())
            scenario.but(**change)
            assert change or f"diagnose.unchanged.{action}" in text.texts("en"), (incident.key, action)


def page(**query: str) -> AppTest:
    text.use(query["lang"])
    shown = AppTest.from_file(str(PAGE), default_timeout=60)
    shown.query_params.update(query)
    return shown.run()


def test_page_down_alone_goes_through_every_patient_to_the_end():
    shown = page(lang="en")
    for incident in INCIDENTS:
        assert shown.selectbox(key="w_case").value == incident.key
        for button in ("reveal", "reveal", "next"):
            assert not shown.exception
            if button == "next":
                told = [m.value for m in shown.markdown if m.value.startswith(f"**{named(incident.code)}.**")]
                assert told and ("Applied" in told[0] or "Nothing was changed" in told[0])
            shown.button(key=button).click().run()
    assert any(f"the last of {len(INCIDENTS)} patients" in h.proto.body for h in shown.get("html"))
    assert shown.button(key="next_page")


def test_another_patient_comes_round_again_and_keeps_the_disease():
    shown = page(lang="en", case="long", n=str(INSTANCES))
    shown.button(key="another").click().run()
    assert not shown.exception and shown.query_params.get("n", "1") in ("1", ["1"])
    assert not page(lang="en", case="ranks", n="9999").exception


@pytest.mark.parametrize("language", text.LANGUAGES)
def test_what_a_report_says_of_the_patient_and_not_of_its_source_is_the_patients(language):
    words = text.texts(language)
    assert f"{PATIENTS['stutter'].max_num_batched_tokens:,}" in words["diagnose.case.stutter"]
    assert str(PATIENTS["client"].max_num_seqs) in words["diagnose.case.client"] and str(PATIENTS["client"].num_clients) in words["diagnose.case.client"]
    assert PATIENTS["swap"].preemption_mode == "swap" and PATIENTS["swap"].host == "v1"


def test_a_simulation_that_does_not_have_the_pasted_disease_says_so():
    for what, differs in (("metrics", False), ("log", True)):
        shown = page(lang="en", part="paste")
        shown.button(key=f"sample_{what}").click().run()
        shown.button(key="simulate").click().run()
        assert not shown.exception
        assert any("does not have this disease" in info.value for info in shown.info) == differs, what


def test_another_gpu_moves_the_pasted_server_as_well_so_that_only_the_advice_is_compared():
    shown = page(lang="en", part="paste")
    shown.button(key="sample_log").click().run()
    shown.button(key="simulate").click().run()
    shown.selectbox(key="w_diagnose_gpu").select("A100-80GB").run()
    assert not shown.exception
    told = [m.value for m in shown.markdown if "kv_cache_dtype" in m.value and "→" in m.value]
    told += [h.proto.body for h in shown.get("html") if "kv_cache_dtype" in h.proto.body and "→" in h.proto.body]
    assert told and not any("A100" in words for words in told)
