"""The simulator against measurements, through the commands a reader of page 9 would type."""

import json
import shutil
from pathlib import Path

import pytest

from sim import validate
from sim.__main__ import main
from sim.catalog import calibration
from sim.evidence import evidence
from sim.headlines import CHECKS
from sim.scenario import SimError
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
    recorded = {row["id"]: row["verdict"] for row in evidence()["headlines"]["results"]}
    assert outcome.verdict == recorded[name] == ("off" if name == "H15" else "holds"), outcome


HEAD = "system,model,tp,ep,attn_dp,precision,phase,batch,context,chunk_tokens,ms\n"
ROW = "h100_sxm,Llama-3.1-8B,1,1,1,bf16,decode,8,1024,0,8.0\n"


@pytest.mark.parametrize(("text", "status", "said"), [
    ("\ufeff" + HEAD + ROW, 0, "1 rows"),
    (HEAD + ROW.replace(",8,1024,0,", ",8.0,1024.0,,"), 0, "1 rows"),
    (HEAD + ROW + ROW.replace("h100_sxm", "gb200"), 0, "left out: 1 rows"),
    (HEAD + ROW.replace("8.0\n", "nan\n"), 2, "line 2"),
    (HEAD + ROW.replace("bf16", "int3"), 2, "int3"),
    (HEAD + ROW.replace(",8,1024,", ",100000,100000,"), 2, "fits in the memory"),
], ids=["bom", "floats", "unknown gpu", "nan", "unknown precision", "too large"])
def test_tables_as_other_tools_write_them(tmp_path, capsys, text, status, said):
    path = tmp_path / "steps.csv"
    path.write_text(text, encoding="utf-8")
    assert main(["validate", str(path), "--median", "9", "--p90", "9"]) == status
    assert said in "".join(capsys.readouterr())


@pytest.mark.parametrize("spelling", [
    lambda key: key.replace("_", "-"), lambda key: "--" + key.replace("_", "-"), lambda key: {"data_parallel_size": "dp"}.get(key, key)])
def test_a_runs_arguments_are_read_however_they_are_spelt(tmp_path, spelling):
    source, copy = DATA / "rtxpro6000_qwen3-30b-a3b_dp2_ep2", tmp_path / "run"
    shutil.copytree(source, copy)
    meta = json.loads((copy / "meta.json").read_text())
    meta["engine_kwargs"] = {spelling(key): str(value) if isinstance(value, int) and not isinstance(value, bool) else value
                             for key, value in meta["engine_kwargs"].items()}
    (copy / "meta.json").write_text(json.dumps(meta), encoding="utf-8-sig")
    (copy / "config.json").write_bytes((source / "config.json").read_bytes())
    assert validate.read_run(copy)[0] == validate.read_run(source)[0]


def test_a_damaged_record_fails_alone(tmp_path, capsys):
    good = sorted((DATA.parent / "oracle").glob("*.gz"))[0]
    (tmp_path / "cut.json.gz").write_bytes(good.read_bytes()[:200])
    (tmp_path / "list.json").write_text("[]")
    assert main(["conformance", str(tmp_path / "cut.json.gz"), str(tmp_path / "list.json"), str(good)]) == 1
    assert "1 passed, 2 failed" in capsys.readouterr().out


@pytest.mark.parametrize(("called", "card"), [
    ("NVIDIA H100 80GB HBM3", "H100-SXM"), ("NVIDIA A100-SXM4-80GB", "A100-80GB"), ("NVIDIA GeForce RTX 4090", "RTX-4090"),
    ("NVIDIA H100 PCIe", None), ("NVIDIA H100 NVL", None), ("NVIDIA A100-SXM4-40GB", None), ("TPU v5e", None),
])
def test_a_card_with_another_memory_is_not_taken_for_the_one_with_its_chip(called, card):
    if card:
        assert validate.gpu_name(called) == card
    else:
        with pytest.raises(SimError, match="A100-80GB"):  # the message lists those there are
            validate.gpu_name(called)
