"""Sweeps: the same figures wherever they run; failures are results; the sweet spot comes with its proof."""

import csv
import io
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from sim.__main__ import main
from sim.results import Summary
from sim.scenario import Scenario, SimError
from sim.sweep import Workers, every, grid, judge, search, splits, sweep

BASE = Scenario(duration_s=5.0, request_rate=20.0, prompt_tokens=200, output_tokens=50, enable_prefix_caching=False)
VARY = {"max_num_seqs": [4, 16, 64], "max_num_batched_tokens": [32, 512, 2048]}


def figures(results):
    """Results in a form that compares: bit for bit, with nan equal to itself."""
    return [(i, str(r) if isinstance(r, SimError) else repr(r)) for i, r in results]


def test_the_grid_is_in_order_and_names_contradictions():
    scenarios = list(grid(BASE, VARY))
    assert [s.max_num_seqs for s in scenarios if isinstance(s, Scenario)] == [4, 4, 4, 16, 16, 16, 64, 64]
    assert isinstance(scenarios[6], SimError) and scenarios[6].code == "budget_below_seqs"


def test_a_failure_is_a_result_and_stops_nothing():
    broken = BASE.but(model="no such model")
    results = list(sweep([BASE, broken, SimError("x", "y"), BASE]))
    assert [type(r) for _, r in results] == [Summary, SimError, SimError, Summary]
    assert results[0][1] == results[3][1] and "no such model" in str(results[1][1])


def test_it_is_lazy_and_its_memory_bounded():
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield BASE.but(duration_s=0.2)

    runs = sweep(endless())
    next(runs)
    assert len(taken) == 1
    taken.clear()
    with ThreadPoolExecutor(2) as executor:
        runs = sweep(endless(), executor)
        for _ in range(20):
            next(runs)
        assert len(taken) < 400
        runs.close()


def test_five_thousand_scenarios_stream_through():
    given = 0

    def tiny():
        nonlocal given
        for seed in range(5000):
            given += 1
            yield BASE.but(duration_s=0.1, request_rate=10.0, output_tokens=2, seed=seed)

    with ThreadPoolExecutor(2) as executor:
        for done, (index, result) in enumerate(sweep(tiny(), executor)):
            assert index == done and isinstance(result, Summary) and given - done <= 256
    assert done == 4999


def test_a_killed_process_loses_nothing_and_doubles_nothing():
    scenarios = [BASE.but(seed=seed) for seed in range(60)]
    with Workers(2) as executor:
        pid = executor.submit(os.getpid).result()
        runs = sweep(scenarios, executor)
        results = [next(runs)]
        os.kill(pid, signal.SIGKILL)
        results += runs
    assert figures(results) == figures(sweep(scenarios))


class Deadly(Scenario):
    """Ends the process to which it is sent."""

    def __reduce__(self):
        return os._exit, (1,)


def test_a_scenario_that_kills_its_process_is_named_and_the_others_come_through():
    scenarios = [(Deadly if seed == 13 else Scenario)(**BASE.but(seed=seed).as_dict()) for seed in range(40)]
    with Workers(2) as executor:
        results = [result for _, result in sweep(scenarios, executor)]
    lost = [i for i, result in enumerate(results) if isinstance(result, SimError)]
    assert lost == [12, 13, 14, 15] and results[13].code == "worker_lost"


def test_the_overhead_of_a_run_is_said(capsys):
    assert main(["sweep", "--set", "duration_s=1", "--vary", "max_num_seqs=8,16", "--csv", "-"]) == 0
    assert re.search(r"2 runs in [\d.]+ s: [\d.]+ ms each, of which [\d.]+ ms not simulating", capsys.readouterr().err)


def test_threads_give_the_same_bit_for_bit():
    with ThreadPoolExecutor(2) as executor:
        assert figures(sweep(grid(BASE, VARY), executor)) == figures(sweep(grid(BASE, VARY)))


def test_workers_give_the_same_bit_for_bit(capsys):
    words = ["sweep", "--set", "duration_s=3", "--vary", "max_num_seqs=8,64", "--vary", "max_num_batched_tokens=32,512"]
    assert main([*words, "--csv", "-"]) == 0
    alone = capsys.readouterr().out
    assert main([*words, "--csv", "-", "--workers", "2"]) == 0
    assert capsys.readouterr().out == alone
    rows = list(csv.DictReader(io.StringIO(alone)))
    assert [row["max_num_seqs"] for row in rows] == ["8", "8", "64", "64"]
    assert float(rows[0]["qps"]) > 0 and "at least max_num_seqs" in rows[2]["error"]


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("dask.distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as running, distributed.Client(running) as client:
        yield client


def test_a_dask_cluster_gives_the_same_bit_for_bit(cluster):
    broken = BASE.but(gpu="no such card")
    scenarios = [*grid(BASE, VARY), broken]
    with cluster.get_executor() as executor:
        assert figures(sweep(scenarios, executor)) == figures(sweep(scenarios))


def test_a_killed_worker_loses_nothing(cluster):
    scenarios = [BASE.but(seed=seed) for seed in range(60)]
    pids = list(cluster.run(os.getpid).values())
    with cluster.get_executor() as executor:
        runs = sweep(scenarios, executor)
        results = [next(runs)]
        os.kill(pids[0], signal.SIGKILL)
        results += runs
    assert figures(results) == figures(sweep(scenarios))


def test_the_shell_reaches_a_cluster_and_says_when_there_is_none(cluster, capsys):
    address = cluster.scheduler.address
    words = ["sweep", "--set", "duration_s=1", "--vary", "max_num_seqs=8,16", "--csv", "-"]
    assert main([*words, "--dask", address]) == 0
    through = capsys.readouterr().out
    assert main(words) == 0
    assert capsys.readouterr().out == through


def test_parquet_holds_the_same(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "runs.parquet"
    words = ["sweep", "--set", "duration_s=1", "--vary", "max_num_seqs=8,64", "--vary", "max_num_batched_tokens=32,512"]
    assert main([*words, "--parquet", str(path)]) == 0
    table = parquet.read_table(path).to_pylist()
    assert [row["max_num_seqs"] for row in table] == [8, 8, 64, 64]
    assert table[0]["qps"] > 0 and table[2]["qps"] is None and table[2]["error"]
    assert main([*words, "--parquet", str(tmp_path)]) == 2  # a directory
    assert not [*tmp_path.parent.glob("*.part"), *tmp_path.glob("*.part")]


def test_a_value_out_of_range_is_a_row_that_says_so(capsys):
    assert main(["sweep", "--set", "duration_s=1", "--vary", "max_num_seqs=0,8"]) == 0
    _, wrong, right = capsys.readouterr().out.splitlines()
    assert "must lie between 1 and 4096" in wrong and float(right.split()[1]) > 0


def test_no_scheduler_at_the_address_is_said(capsys, monkeypatch):
    pytest.importorskip("dask.distributed")
    monkeypatch.setattr("sim.sweep._PATIENCE_S", 0.2)
    assert main(["sweep", "--vary", "max_num_seqs=8", "--dask", "tcp://127.0.0.1:9"]) == 2
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in capsys.readouterr().err


def test_gpus_are_split_in_every_way(capsys):
    words = ["sweep", "--gpus", "4", "--set", "duration_s=2", "--set", "model=Llama-3.1-70B", "--set", "max_model_len=4096"]
    assert main([*words, "--csv", "-"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["tensor_parallel_size"], row["data_parallel_size"]) for row in rows] == [("1", "4"), ("2", "2"), ("4", "1")]
    assert "GiB of weights" in rows[0]["error"] and float(rows[2]["qps"]) > 0
    assert main([*words, "--search"]) == 0
    said = capsys.readouterr().out
    assert "split lower: tensor_parallel_size=2, data_parallel_size=2" in said or "--tensor-parallel-size 2" in said


RANGES = {"max_num_seqs": [4, 8, 16, 32, 64, 128], "max_num_batched_tokens": [128, 256, 512, 1024, 2048, 4096]}
LOADED = BASE.but(request_rate=80.0, num_gpu_blocks_override=700, max_model_len=4096)


def test_the_search_finds_what_the_whole_grid_finds_in_fewer_runs():
    limits = {"itl_p99": 0.03, "preemptions": 0}
    answer = search(LOADED, RANGES, limits)
    everything = [r for _, r in sweep(grid(LOADED, RANGES)) if isinstance(r, Summary)]
    kept = [r for r in everything if r.itl_p99 <= 0.03 and r.preemptions == 0]
    assert answer.feasible and answer.best.value >= 0.99 * max(r.output_tok_s for r in kept)
    assert len(answer.runs) < 36
    assert answer.scenario.max_num_seqs == answer.best.changes["max_num_seqs"]


def test_a_ridge_of_equals_is_followed_to_its_better_end():
    base = Scenario(
        arrival="closed", num_clients=512, num_requests=3000, duration_s=3600.0, lengths="fixed", prompt_tokens=64, output_tokens=128,
        gpu="A100-80GB", max_model_len=4096, num_gpu_blocks_override=4300, enable_prefix_caching=False, max_num_batched_tokens=16_384,
    )
    ranges = {"max_num_seqs": [16, 48, 96, 160, 256, 320, 384, 512],
              "max_num_batched_tokens": [512, 1024, 1536, 2560, 5120, 8192, 12_288, 16_384]}
    answer = search(base, ranges, {"preemptions": 0}, maximise="qps")
    everything = [r for _, r in sweep(grid(base, ranges)) if isinstance(r, Summary) and not r.preemptions]
    assert answer.best.value >= max(r.qps for r in everything) / 1.006 and len(answer.runs) < 40


def test_the_answer_comes_with_its_neighbours_none_of_which_is_better():
    answer = search(LOADED, RANGES, {"preemptions": 0})
    for name, sides in answer.neighbours.items():
        place = RANGES[name].index(answer.best.changes[name])
        assert (sides[0] is None) == (place == 0) and (sides[1] is None) == (place == len(RANGES[name]) - 1)
        for tried in filter(None, sides):
            assert tried in answer.runs
            assert tried.excess > 0 or tried.value <= answer.best.value * 1.006
    assert len({tuple(run.changes.values()) for run in answer.runs}) == len(answer.runs)


def test_a_search_that_was_broken_off_goes_on_where_it_stopped():
    whole = search(LOADED, RANGES, {"preemptions": 0})
    first, more = whole.runs[:10], []
    rest = search(LOADED, RANGES, {"preemptions": 0}, made=first, watch=more.append)
    assert rest.best.changes == whole.best.changes and len(more) == len(whole.runs) - 10
    assert [tried.changes for tried in rest.runs] == [tried.changes for tried in whole.runs]


FIVE = {"split": splits(4), "max_num_seqs": [8, 16, 32, 64, 128], "max_num_batched_tokens": [256, 512, 1024, 2048],
        "gpu_memory_utilization": [0.85, 0.95], "long_prefill_token_threshold": [0, 128, 512]}


def test_five_settings_at_once_with_the_gpus_split_among_engines():
    base = Scenario(
        model="Qwen3-32B", arrival="closed", num_clients=60, think_time_s=2.0, duration_s=4.0, lengths="mixture", prompt_tokens=600,
        output_tokens=100, long_prompt_tokens=8000, max_model_len=16_384, enable_prefix_caching=False,
    )
    limits = {"ttft_p99": 2.0, "itl_p99": 0.1, "preemptions": 0}
    answer = search(base, FIVE, limits, maximise="qps")
    everything = [judge(c, r, limits, "qps") for c, (_, r) in zip(every(FIVE), sweep(grid(base, FIVE)), strict=True)]
    assert len(answer.runs) < len(everything) / 3
    top = max(everything, key=lambda tried: tried.rank)
    assert answer.feasible and answer.best.value > 0.99 * top.value
    assert answer.scenario.tensor_parallel_size * answer.scenario.data_parallel_size == 4


def test_without_a_way_to_keep_the_limits_the_nearest_is_named():
    answer = search(LOADED, RANGES, {"ttft_p99": 1e-6})
    assert not answer.feasible and answer.best.excess > 0
    for wrong in ({}, {"max_num_seqs": []}):
        with pytest.raises(SimError):
            search(LOADED, wrong)
    with pytest.raises(SimError, match="no figure"):
        search(LOADED, RANGES, {"latency": 1.0})


def test_the_search_from_the_shell(capsys):
    assert main(["sweep", "--search", "--set", "duration_s=2", "--vary", "max_num_seqs=4,16,64", "--limit", "preemptions=0"]) == 0
    said = capsys.readouterr().out
    assert "best of 3 runs" in said and "keeps all limits" in said and "max_num_seqs lower" in said
    assert "vllm serve" in said and "--max-num-seqs 64" in said


@pytest.mark.parametrize("words, says", [
    ([], "nothing to sweep"), (["--vary", "max_num_seqs"], "KEY=A,B,C"), (["--vary", "seats=1,2"], "no setting"),
    (["--vary", "max_num_seqs=a,b"], "whole number"), (["--vary", "max_num_seqs=8", "--workers", "-1"], "--workers"),
    (["--vary", "max_num_seqs=8", "--csv", "/nowhere/x.csv"], "No such file or directory: '/nowhere/x.csv'"),
    (["--vary", "max_num_seqs=8", "--set", "duration_s=1", "--csv", "/dev/full"], "No space left"),
    (["--vary", "max_num_seqs=8", "--search", "--limit", "ttft"], "FIGURE=MOST"),
    (["--vary", "max_num_seqs=8", "--limit", "ttft_p99=1"], "give --search"),
    (["--gpus", "8", "--vary", "tensor_parallel_size=1,2"], "--gpus"), (["--gpus", "-2"], "--gpus"),
])
def test_bad_input_ends_with_2_and_a_sentence(words, says, capsys):
    assert main(["sweep", *words]) == 2
    assert says in capsys.readouterr().err
