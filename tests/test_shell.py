"""python -m sim run and replay: figures for people and for programs, and a clear sentence on bad input."""

import json
import subprocess
import sys

import pytest

from sim import link, shell
from sim.__main__ import COMMANDS, main
from sim.presets import presets
from sim.scenario import Scenario

SHORT = ["--set", "duration_s=3"]


def as_json(capsys, words):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_run_for_reading(capsys):
    assert main(["run", *SHORT]) == 0
    said = capsys.readouterr().out
    for words in ("TTFT", "p99", "req/s", "gpu_compute", "preemptions", "littles_law"):
        assert words in said


def test_a_run_as_json_says_figures_scenario_and_link(capsys):
    run = as_json(capsys, ["run", *SHORT, "--set", "max-num-seqs=8", "--set", "enable_prefix_caching=off"])
    assert run["summary"]["running_max"] == 8 and run["scenario"]["max_num_seqs"] == 8
    assert run["scenario"]["enable_prefix_caching"] is False
    again = as_json(capsys, ["run", "--link", run["link"]])
    assert again == run
    assert as_json(capsys, ["run", "--link", f"https://example.org/?{run['link']}&lang=zh&a.ms=4"]) == run


def test_what_is_odd_about_a_link_is_said(capsys):
    assert main(["run", "--link", "v=1&ms=99999&du=2", "--json"]) == 0
    captured = capsys.readouterr()
    assert "max_num_seqs" in captured.err and json.loads(captured.out)["scenario"]["max_num_seqs"] == 4096


@pytest.mark.parametrize("name", list(presets()))
def test_every_preset_runs_and_has_words_in_both_languages(name, capsys):
    preset = presets()[name]
    assert all((preset.title_en, preset.title_zh, preset.about_en, preset.about_zh))
    assert link.decode(link.encode(preset.scenario)) == (preset.scenario, [])
    run = as_json(capsys, ["run", "--preset", name])
    assert run["summary"]["finished"] > 0 and run["summary"]["drained"] and not run["stopped"]
    assert run["scenario"] == preset.scenario.as_dict()


def test_replay_of_a_shipped_trace_and_of_a_file(capsys, tmp_path):
    run = as_json(capsys, ["replay", "azure2023_conv", "--start", "60", "--window", "30", "--rate-scale", "2"])
    assert run["trace"]["format"] == "Azure" and run["summary"]["finished"] == run["trace"]["used"] > 50
    path = tmp_path / "mine.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0.0,100,5\n1.5,0,0\n3.0,200,7\n")
    assert main(["replay", str(path), "--set", "max_num_seqs=4"]) == 0
    said = capsys.readouterr().out
    assert "3 rows read, 2 used; dropped 1 that failed" in said and "finished 2" in said


def test_requests_that_can_never_run_are_counted_and_explained(capsys, tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0.0,100,5\n1.0,500000,5\n")
    assert main(["replay", str(path)]) == 0
    assert "1 requests were refused" in capsys.readouterr().out


@pytest.mark.parametrize("words, says", [
    (["run", "--set", "max_num_seq=3"], "did you mean max_num_seqs"),
    (["run", "--set", "max_num_seqs"], "KEY=VALUE"),
    (["run", "--set", "max_num_seqs=many"], "whole number"),
    (["run", "--set", "request_rate=nan"], "request_rate must lie between"),
    (["run", "--set", "max_num_seqs=0"], "between 1 and 4096"),
    (["run", "--set", "arrival=sometimes"], "one of poisson"),
    (["run", "--set", "enable_prefix_caching=perhaps"], "true or false"),
    (["run", "--set", "max_num_batched_tokens=8"], "at least max_num_seqs"),
    (["run", "--set", "model=gpt-9"], "gpt-9"),
    (["run", "--set", "arrival=trace", "--set", "trace=upload"], "uploaded trace"),
    (["run", "--preset", "nonsense"], "lesson_exp1_64"),
    (["run", "--preset", "spike", "--link", "v=1"], "give one of them"),
    (["replay", "/nowhere.csv"], "cannot open"),
    (["replay", "azure2023_conv", "--start", "1e9"], "the trace holds"),
    (["replay", "azure2023_conv", "--sample", "2"], "sample"),
])
def test_bad_input_ends_with_2_and_a_sentence(words, says, capsys):
    assert main(words) == 2
    captured = capsys.readouterr()
    assert says in captured.err and "Traceback" not in captured.err and not captured.out


def test_the_command_line_itself():
    help_ = subprocess.run([sys.executable, "-m", "sim", "--help"], capture_output=True, text=True, check=True).stdout
    for name in COMMANDS:
        assert name in help_
    wrong = subprocess.run([sys.executable, "-m", "sim", "nonsense"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "invalid choice" in wrong.stderr
    closed = subprocess.run(f"{sys.executable} -m sim run --set duration_s=1 --json | head -1", shell=True,
                            capture_output=True, text=True, check=True)
    assert closed.stdout.strip() == "{" and "Traceback" not in closed.stderr


def test_the_default_scenario_is_the_beginning(capsys):
    assert as_json(capsys, ["run", *SHORT])["scenario"] == Scenario(duration_s=3.0).as_dict()


@pytest.mark.parametrize("words, says", [
    (["run", "--link", "%%%"], "says no setting"), (["run", "--link", "http://[::1"], "says no setting"),
    (["replay", "azure2023_conv", "--rate-scale", "1e-6"], "--rate-scale"),
    (["replay", "azure2023_conv", "--start", "1e9"], "the trace holds 3,502 s"),
    (["run", "--set", "max_num_seqs=1k"], "whole number"),
])
def test_what_cannot_be_done_is_said(capsys, words, says):
    assert main(words) == 2
    assert says in capsys.readouterr().err


def test_a_count_may_be_written_as_vllm_reads_it():
    assert shell.assignment("max_num_batched_tokens=8k") == ("max_num_batched_tokens", 8000)
    assert shell.assignment("--max-model-len=32K") == ("max_model_len", 32768)
