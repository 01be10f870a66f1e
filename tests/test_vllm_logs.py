"""Log lines of all versions, in all wrappers."""

import json

import pytest

from sim.vllm.paste import diagnose

V1 = (
    "INFO 06-01 10:00:0{n} [loggers.py:116] Engine 000: Avg prompt throughput: 100.0 tokens/s, Avg generation throughput: 2000.0 "
    "tokens/s, Running: 256 reqs, Waiting: 9{n} reqs, GPU KV cache usage: 33.0%, Prefix cache hit rate: 12.5%"
)


def wrapped(line, width=80):
    return "\n".join(line[i : i + width] for i in range(0, len(line), width))


WRAPPERS = {
    "plain": lambda s: s,
    "docker json": lambda s: json.dumps({"log": s + "\n", "stream": "stdout", "time": "2025-06-01T10:00:00.1Z"}),
    "kubectl": lambda s: "2025-10-15T00:02:38.756689123Z " + s,
    "journald": lambda s: "Oct 15 00:02:38 gpu01 vllm[1234]: \x1b[1;36m(EngineCore_0 pid=33)\x1b[0;0m " + s,
    "colour spelled out": lambda s: "#033[32m" + s.replace("INFO", "INFO#033[0m", 1),
    "compose": lambda s: "vllm-1  | (APIServer pid=1) " + s,
    "narrow terminal": wrapped,
    "very narrow terminal": lambda s: wrapped(s, 47),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_every_wrapper_comes_off(wrapper):
    report = diagnose("\n".join(WRAPPERS[wrapper](V1.format(n=n)) for n in (1, 2, 3)))
    assert report.kind == "log" and report.parse["samples"] == 3
    last = report.parse["last"]
    assert (last["running"], last["waiting"], last["kv_usage"], last["prefix_hit_rate"]) == (256, 93, 0.33, 0.125)
    assert report.advice[0].code == "BUDGET_SMALL"


def test_sglang():
    report = diagnose(
        "[2025-06-01 10:00:01 TP0] Decode batch. #running-req: 48, #token: 412233, token usage: 0.97, cuda graph: True, gen throughput "
        "(token/s): 2310.70, #queue-req: 161,\n[2025-06-01 10:00:02 TP0] Prefill batch. #new-seq: 1, #new-token: 512, #cached-token: 128, "
        "token usage: 0.98, #running-req: 47, #queue-req: 160,"
    )
    assert report.parse["engine_family"] == "sglang"
    assert report.parse["last"]["waiting"] == 160 and report.parse["last"]["gen_tok_s"] == 2310.7
    assert report.advice[0].code == "KV_FULL_WITH_QUEUE"


def test_a_cpu_build_has_its_main_pool_under_the_old_name_of_swap():
    report = diagnose(
        "INFO 03-01 10:00:00 [loggers.py:123] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 12.3 "
        "tokens/s, Running: 8 reqs, Waiting: 0 reqs, CPU KV cache usage: 46.1%"
    )
    assert report.parse["last"]["kv_usage"] == 0.461


def test_a_hit_rate_of_nan_is_unknown():
    report = diagnose(V1.format(n=1).replace("12.5%", "nan%"))
    assert report.parse["last"]["prefix_hit_rate"] is None


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (
            "ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be stored in KV cache (3664). Try "
            "increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
            "STARTUP_KV_TOO_SMALL",
        ),
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
            "STARTUP_KV_TOO_SMALL",
        ),
        (
            "ValueError: Free memory on device (10.7/23.6 GiB) on startup is less than desired GPU memory utilization (0.9, 21.3 GiB). Decrease GPU "
            "memory utilization or reduce GPU memory used by other processes.",
            "STARTUP_MEMORY_TAKEN",
        ),
        (
            "ValueError: max_num_batched_tokens (2048) is smaller than max_model_len (4096). This effectively limits the maximum sequence length",
            "STARTUP_BUDGET_BELOW_MODEL_LEN",
        ),
        (
            "ValueError: Total number of attention heads (40) must be divisible by tensor parallel size (3).",
            "STARTUP_TP_HEADS",
        ),
        ("api_server.py: error: unrecognized arguments: --max-concurrency 20", "STARTUP_UNKNOWN_FLAG"),
        ("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}", "STARTUP_OTHER"),
        ("vllm: error: argument --max-num-seqs: invalid int value: '1k'", "STARTUP_OTHER"),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "STARTUP_KV_TOO_SMALL"),
        ("ValueError: The decoder prompt (length 40000) is longer than the maximum model length of 32768.", "NEVER_FITS"),
        ("Input prompt (9000 tokens) is too long and exceeds limit of 8192", "NEVER_FITS"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB.", "STARTUP_OOM"),
    ],
)
def test_why_it_did_not_start(line, code):
    report = diagnose(f"(EngineCore_DP0 pid=9) ERROR 03-16 06:12:38 [core.py:1] {line}")
    assert report.kind == "log" and report.advice[0].code == code


STORES = {
    "Loki": json.dumps({"data": {"resultType": "streams", "result": [
        {"stream": {"app": "vllm"}, "values": [[f"174877200{n}000000000", V1.format(n=n)] for n in (1, 2, 3)]}]}}),
    "Google": json.dumps([{"textPayload": V1.format(n=n), "timestamp": f"2025-06-01T10:00:0{n}Z"} for n in (1, 2, 3)], indent=1),
    "Elasticsearch": json.dumps({"hits": {"hits": [{"_source": {"message": V1.format(n=n)}} for n in (1, 2, 3)]}}),
    "CloudWatch": "timestamp,message\n" + "".join(f'174877200{n}000,"{V1.format(n=n)}"\n' for n in (1, 2, 3)),
    "cut off": "\n".join(V1.format(n=n) for n in (1, 2, 3)) + "\n" + V1.format(n=4)[:150],
}


@pytest.mark.parametrize("store", STORES)
def test_what_a_log_store_gives_back(store):
    report = diagnose(STORES[store])
    assert report.parse["samples"] == 3 and report.parse["last"]["waiting"] == 93


def test_memory_at_start_up_in_the_words_of_three_versions():
    report = diagnose("INFO 10-01 10:00:00 model_runner.py:1110] Loading model weights took 14.9888 GB")
    assert report.parse["config"] == {"weights_gib": 14.9888}
    report = diagnose("INFO 10-01 10:00:00 [gpu_model_runner.py:2653] Model loading took 14.9889 GiB and 5.5 seconds")
    assert report.parse["config"] == {"weights_gib": 14.9889}
    report = diagnose(
        "INFO 02-13 10:00:00 worker.py:267] the current vLLM instance can use total_gpu_memory (79.11GiB) x gpu_memory_utilization (0.90) = 71.20GiB\n"
        "INFO 02-13 10:00:00 worker.py:267] model weights take 14.99GiB; the rest of the memory reserved for KV Cache is 54.91GiB."
    )
    assert report.parse["config"] == {"gpu_memory_utilization": 0.9, "weights_gib": 14.99, "available_kv_gib": 54.91}


def test_a_flag_that_is_not_known_is_named_without_its_value():
    assert diagnose("vllm: error: unrecognized arguments: --max-concurrency 64").parse["flag"] == "--max-concurrency"
