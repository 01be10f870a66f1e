"""Incidents: the answer is always advice.py's, for every number, and the right action helps."""

import pytest

from sim.engine import simulate
from ui.incidents import INCIDENTS, RIGHT, act, instance, verdict


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda i: i.key)
def test_every_number_has_the_disease_and_the_advised_action_helps(incident):
    for number in range(1, 6):
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


def test_there_are_at_least_ten_and_every_wrong_action_can_be_tried():
    assert len(INCIDENTS) >= 10
    for incident in INCIDENTS:
        scenario = instance(incident, 1)
        advice = verdict(simulate(scenario))
        for action in incident.actions:
            scenario.but(**act(action, scenario, advice))
