"""/metrics pages of every kind; unknown is never 0."""

import json

import pytest

from sim.engine import simulate
from sim.scenario import Scenario
from sim.vllm import export
from sim.vllm.paste import diagnose


def one(text):
    return diagnose(text).parse["engines"]["0"]


def test_nan_and_zero_over_zero_are_unknown():
    report = diagnose(
        'vllm:num_requests_running{engine="0"} 5\nvllm:num_requests_waiting{engine="0"} 10\n'
        'vllm:kv_cache_usage_perc{engine="0"} NaN\nvllm:prefix_cache_queries_total{engine="0"} 0.0\n'
        'vllm:prefix_cache_hits_total{engine="0"} 0.0\nvllm:time_to_first_token_seconds_sum{engine="0"} 0.0\n'
        'vllm:time_to_first_token_seconds_count{engine="0"} 0.0\n'
    )
    figures = report.parse["engines"]["0"]
    assert figures["kv_usage"] is None and figures["prefix_hit_rate"] is None and figures["ttft_mean_s"] is None
    assert report.unknown and report.advice[0].code == "UNKNOWN"


def test_a_version_in_between_has_both_names():
    report = diagnose(
        'vllm:gpu_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="0"} 0.55\n'
        'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_waiting{engine="0"} 0\n'
    )
    assert report.parse["engine_family"] == "vllm-v1" and report.parse["engines"]["0"]["kv_usage"] == 0.55


@pytest.mark.parametrize("prefix", ["ray_vllm_", "ray_vllm:", "vllm_", "vllm:"])
def test_ray_and_others_rename(prefix):
    text = "".join(
        f'{prefix}{n}{{engine="0",ReplicaId="a"}} {v}\n'
        for n, v in (("num_requests_running", 64), ("num_requests_waiting", 164), ("kv_cache_usage_perc", 0.4))
    )
    assert one(text)["waiting"] == 164 and diagnose(text).advice[0].code == "BUDGET_SMALL"


def test_replicas_on_one_page_are_kept_apart():
    text = "".join(
        f'ray_vllm_{n}{{ReplicaId="{r}",engine="0",model_name="m"}} {v}\n'
        for n, r, v in (
            ("num_requests_running", "a", 64),
            ("num_requests_running", "b", 9),
            ("num_requests_waiting", "a", 90),
            ("num_requests_waiting", "b", 0),
            ("kv_cache_usage_perc", "a", 0.9),
            ("kv_cache_usage_perc", "b", 0.1),
        )
    )
    report = diagnose(text)
    assert len(report.parse["engines"]) == 2 and report.parse["aggregate"]["waiting"] == 90
    assert report.advice[0].code == "DP_IMBALANCE"


def test_processes_of_one_engine_add_up():
    text = "".join(
        f'vllm:{n}{{engine="0",pid="{p}"}} {v}\n'
        for n, p, v in (
            ("num_requests_running", 1, 5),
            ("num_requests_running", 2, 7),
            ("kv_cache_usage_perc", 1, 0.3),
            ("kv_cache_usage_perc", 2, 0.3),
        )
    )
    assert one(text)["running"] == 12 and one(text)["kv_usage"] == 0.3


def test_nim_has_no_prefix_and_tells_its_cap():
    report = diagnose(
        "num_requests_running 256\nnum_requests_waiting 40\nnum_request_max 256\ngpu_cache_usage_perc 0.51\n"
    )
    assert report.parse["engine_family"] == "nim" and report.parse["config"]["max_num_seqs"] == 256
    assert report.advice[0].code == "BUDGET_SMALL" and report.advice[0].confidence == "high"


def test_tgi_says_nothing_of_kv():
    report = diagnose("# TYPE tgi_batch_current_size gauge\ntgi_batch_current_size 32\ntgi_queue_size 50\n")
    assert report.parse["engine_family"] == "tgi" and report.advice[0].code == "UNKNOWN"


def test_a_router_is_not_an_engine():
    report = diagnose(
        'vllm:current_qps{server="http://a"} 3\nvllm:num_requests_running{server="http://a"} 12\n'
        'vllm:num_requests_waiting{server="http://a"} 0\n'
    )
    assert report.parse["engine_family"] == "vllm-router"


def test_a_restart_between_two_scrapes_gives_no_rate():
    page = 'vllm:num_requests_running{{engine="0"}} 3\nvllm:num_preemptions_total{{engine="0"}} {}\n'
    report = diagnose(f"10:00:00\n{page.format(900)}10:01:00\n{page.format(2)}")
    assert report.parse["rates"]["preemptions_per_s"] is None and any("restarted" in w for w in report.warnings)


def test_openmetrics_times_give_the_interval():
    page = 'vllm:num_requests_running{{engine="0"}} 3 {t}\nvllm:num_preemptions_total{{engine="0"}} {n} {t}\n'
    report = diagnose(page.format(t=1764123456.5, n=3) + page.format(t=1764123486.5, n=33))
    assert report.parse["rates"]["preemptions_per_s"] == 1.0


def test_a_query_answer_of_prometheus_is_read_too():
    report = diagnose(
        '{"status":"success","data":{"resultType":"vector","result":[{"metric":{"__name__":"vllm:num_requests_running",'
        '"engine":"0"},"value":[1764123456.7,"17"]},{"metric":{"__name__":"vllm:num_requests_waiting","engine":"0"},'
        '"value":[1764123456.7,"0"]}]}}'
    )
    assert report.kind == "metrics" and report.parse["engines"]["0"]["running"] == 17


def test_a_run_reads_back_from_its_own_metrics():
    run = simulate(Scenario(duration_s=10.0, request_rate=40.0, max_num_seqs=16, prompt_tokens=200, output_tokens=100))
    report = diagnose(export.metrics_text(run))
    figures, summary = report.parse["engines"]["0"], run.summary()
    assert figures["requests_total"] == summary.finished and figures["waiting"] == 0 and figures["running"] == 0
    assert figures["ttft_mean_s"] == pytest.approx(summary.ttft_mean, rel=1e-3)
    assert figures["queue_mean_s"] == pytest.approx(summary.queue_mean, rel=1e-3)
    assert figures["generation_tokens_total"] == int(run.generated.sum())
    assert report.parse["config"]["num_gpu_blocks"] == run.num_gpu_blocks
    middle = diagnose(export.metrics_text(run, until=8.0))
    assert middle.advice[0].code == "BUDGET_SMALL" and middle.parse["engines"]["0"]["running"] >= 14


def test_ranks_of_one_sglang_engine_are_not_added_up():
    text = "".join(
        f'sglang:{n}{{model_name="m",tp_rank="{r}"}} {v}\n'
        for r in (0, 1)
        for n, v in (("num_running_reqs", 48), ("num_queue_reqs", 161), ("token_usage", 0.97))
    )
    assert one(text)["running"] == 48 and diagnose(text).advice[0].code == "KV_FULL_WITH_QUEUE"


FIGURES = {"vllm:num_requests_running": 5, "vllm:num_requests_waiting": 10, "vllm:kv_cache_usage_perc": 0.5}
VECTOR = [{"metric": {"__name__": name, "engine": "0"}, "value": [1.7e9, str(v)]} for name, v in FIGURES.items()]
EXPORTS = {
    "Prometheus, its data": json.dumps({"resultType": "vector", "result": VECTOR}),
    "Prometheus, its result": json.dumps(VECTOR, indent=1),
    "Prometheus, an answer a series": "\n".join(json.dumps({"status": "success", "data": {"result": [row]}}) for row in VECTOR),
    "VictoriaMetrics": "\n".join(
        json.dumps({"metric": {"__name__": name}, "values": [1, v], "timestamps": [1748772000000, 1748772015000]})
        for name, v in FIGURES.items()),
    "Grafana, its answer": json.dumps({"results": {"A": {"frames": [
        {"schema": {"fields": [{"name": "Time"}, {"name": "Value", "labels": {"__name__": name}}]},
         "data": {"values": [[1748772000000, 1748772015000], [1, v]]}} for name, v in FIGURES.items()]}}}),
    "Grafana, semicolons": '"Time";"' + '";"'.join(FIGURES) + '"\n2025-06-01 10:00:00;4;9;40%\n2025-06-01 10:00:15;5;10;50%\n',
    "Grafana, tabs": "Time\t" + "\t".join(FIGURES) + "\n2025-06-01 10:00:00\t4\t9\t40%\n2025-06-01 10:00:15\t5\t10\t50%\n",
    "Grafana, for Excel": "sep=,\nTime," + ",".join(FIGURES) + "\n1748772000000,4,9,0.4\n1748772015000,5,10,0.5\n",
    "Grafana, names of panels": '"Time","Num Running","Num Waiting","GPU Cache Usage"\n2025-06-01 10:00:00,4,9,40%\n2025-06-01 10:00:15,5,10,50%\n',
    "a row a sample": "Time,Metric,Value\n" + "".join(f"2025-06-01 10:00:00,{name},{v}\n" for name, v in FIGURES.items()),
    "single quotes": "".join(f"{name}{{engine='0'}} {v}\n" for name, v in FIGURES.items()),
    "vLLM's example": "".join(f"{name} (gauge) = {v}\n" for name, v in FIGURES.items()),
}


@pytest.mark.parametrize("export_", EXPORTS)
def test_every_export_is_read(export_):
    report = diagnose(EXPORTS[export_])
    figures = report.parse.get("last") or report.parse["engines"]["0"]
    assert (figures["running"], figures["waiting"], figures["kv_usage"]) == (5, 10, 0.5)


@pytest.mark.parametrize("between", ["30 seconds later:", "after 30 s", "$ sleep 30; curl -s :8000/metrics", "0.5 min later"])
def test_how_long_there_was_between_two_scrapes(between):
    page = "vllm:num_requests_running 3\nvllm:generation_tokens_total {}\n"
    report = diagnose(f"{page.format(1000)}{between}\n{page.format(4000)}")
    assert report.parse["interval_s"] == 30 and report.parse["rates"]["gen_tok_s"] == 100
