"""Log lines -> figures: vLLM of every version, SGLang and TGI, through Docker, kubectl, journald and narrow terminals.

Records are matched with their blanks taken out, so that a line which a terminal broke inside a word still reads.
"""

from __future__ import annotations

import re
from typing import Any

from .clean import Reading, clock, note, strip_colour, unwrap_json_lines
from .metrics import aggregate

# A line that begins a record. Anything else is the rest of the line before it.
_START = re.compile(
    r"""^\s*(?:
      .{0,240}?\b(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)\ +\d\d-\d\d\ \d\d:\d\d:\d\d   # vLLM's own stamp, behind whatever wrapper
      |(?:\S{1,80}\s+\|\s*)?                                   # compose: service  |
      (?:\[?\d{4}-\d\d-\d\d[T\s]|[A-Z][a-z]{2}\s+\d{1,2}\s\d\d:|\d{10,19}\s)   # a time stamp
      |(?:\S{1,80}\s+\|\s*)?(?:\([A-Za-z_]\w*(?:\ \w+=\S+)*\s+pid=\d+[^)]{0,60}\)|\([A-Za-z]\w*\ [^)]{0,60}pid=\d+[^)]{0,40}\))
      |(?:\S{1,80}\s+\|\s*)?(?:INFO|WARNING|WARN|ERROR|DEBUG|CRITICAL|Traceback)\b
      |(?:Engine\ \d+:\s*)?Avg\ prompt|\d+\ Engines\ Aggregated|Decode\ batch|Prefill\ batch|\#\ GPU\ blocks
      |(?:GPU|CPU)\ KV\ cache\ size|Maximum\ concurrency|Available\ KV|[A-Za-z_.]*(?:Error|Exception):|vllm:|\{|\[
      |To\ serve\ at\ least|The\ model's\ max|No\ available\ memory|Free\ memory\ on|\S+@\S+[:~$\#]|\$\ |vllm\ serve|usage:
    )""",
    re.X,
)
def _field(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(" ", "").replace("<n>", r"(-?[\d,]*\.?\d+|nan|NaN|inf)"))


_GPU_HITS = _field(r"Prefix cache hit rate: GPU: <n> %")
_FIELDS: tuple[tuple[str, re.Pattern[str], float], ...] = (
    ("prompt_tok_s", _field(r"Avg prompt throughput: <n> tok"), 1.0),
    ("gen_tok_s", _field(r"Avg generation throughput: <n> tok"), 1.0),
    ("running", _field(r"Running: <n> req"), 1.0),
    ("swapped", _field(r"Swapped: <n> req"), 1.0),
    ("waiting", _field(r"(?:Pending|Waiting): <n> req"), 1.0),
    ("waiting_deferred", _field(r"Deferred: <n> req"), 1.0),
    ("preemptions", _field(r"Preemptions: <n>"), 1.0),
    ("kv_usage", _field(r"GPU KV cache usage: <n> %"), 0.01),
    ("cpu_kv_usage", _field(r"CPU KV cache usage: <n> %"), 0.01),
    ("prefix_hit_rate", _field(r"(?<!External)(?:(?<!cachehit)(?<!GPU))Prefix cache hit rate: <n> %"), 0.01),
    ("prefix_hit_rate", _GPU_HITS, 0.01),
    ("external_prefix_hit_rate", _field(r"External prefix cache hit rate: <n> %"), 0.01),
    ("mm_hit_rate", _field(r"MM cache hit rate: <n> %"), 0.01),
)
_SGLANG: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("running", _field(r"#running-req: <n>")),
    ("waiting", _field(r"#queue-req: <n>")),
    ("kv_usage", _field(r"(?<!full)(?<!swa)token usage: <n>")),
    ("kv_usage", _field(r"full token usage: <n>")),
    ("gen_tok_s", _field(r"gen throughput \(token/s\): <n>")),
    ("prompt_tok_s", _field(r"input throughput \(token/s\): <n>")),
    ("used_tokens", _field(r"#(?:full)?token: <n>")),
    ("new_tokens", _field(r"#new-token: <n>")),
    ("cached_tokens", _field(r"#cached-token: <n>")),
    ("retracted", _field(r"#retracted_reqs: <n>")),
)
_ENGINE = re.compile(r"Engine(\d{1,4}):Avg|\((?:EngineCore|DPEngineCore)[^)]*?DP(\d+)[^)]*\)|\bDP(\d+)TP\d+")
_AGGREGATED = re.compile(r"(\d+)EnginesAggregated:")

_CONFIG: tuple[tuple[str, re.Pattern[str], type], ...] = (
    ("num_gpu_blocks", _field(r"# (?i:GPU|cuda|rocm) blocks: <n>"), int),
    ("num_cpu_blocks", _field(r"# CPU blocks: <n>"), int),
    ("kv_tokens", _field(r"(?:GPU|CPU) KV cache size: <n> tokens"), int),
    ("max_model_len", _field(r"Maximum concurrency for <n> tokens"), int),
    ("max_concurrency_full_len", _field(r"tokens per request: <n> x"), float),
    ("available_kv_gib", _field(r"Available KV cache memory: <n> GiB"), float),
    ("weights_gib", _field(r"(?:Model loading|Loading model weights) took <n> Gi?B"), float),
    ("weights_gib", _field(r"model weights take <n> Gi?B"), float),
    ("available_kv_gib", _field(r"reserved for KV Cache is <n> Gi?B"), float),
    ("kv_tokens", _field(r"max_total_num_tokens= <n>"), int),
    ("max_num_batched_tokens", _field(r"Chunked prefill is enabled with max_num_batched_tokens= <n>"), int),
    ("num_gpu_blocks_override", _field(r"num_gpu_blocks_override= <n>"), int),
    ("max_num_seqs", _field(r"max_running_requests= <n>"), int),
    ("max_num_seqs", _field(r"'?max_num_seqs'?[=:] <n>"), int),
    ("max_num_batched_tokens", _field(r"'max_num_batched_tokens'[=:] <n>"), int),
    ("tensor_parallel_size", _field(r"tensor_parallel_size= <n>"), int),
    ("gpu_memory_utilization", _field(r"'?gpu_memory_utilization'?[=:(] <n>(?!GiB)"), float),
)

# What stops a server. The first that matches counts: (our name, pattern without blanks, names of its numbers).
_ERRORS: tuple[tuple[str, re.Pattern[str], tuple[str, ...]], ...] = (
    ("oom_sampler_warmup", _field(r"warming up sampler with <n> dummy requests"), ("dummy_requests",)),
    (
        "kv_too_small",
        _field(
            r"max seq len \(<n>\),? \(? <n> Gi?B [^.]{0,40}? is needed, which is larger than the available KV cache memory \(<n> Gi?B\)"
        ),
        ("max_model_len", "needed_gib", "available_gib"),
    ),
    (
        "kv_too_small",
        _field(
            r"max seq len \(<n>\) is larger than the maximum number of tokens that can be stored in (?:the )?KV cache \(<n>\)"
        ),
        ("max_model_len", "kv_tokens"),
    ),
    ("no_kv_memory", _field(r"No available memory for the cache blocks"), ()),
    ("no_kv_memory", _field(r"Not enough memory\. Please try to increase --mem-fraction-static"), ()),
    (
        "memory_taken",
        _field(
            r"Free memory on device [^(]{0,30}? \(<n>/<n> GiB\) on startup is less than desired GPU memory utilization \(<n>, <n> GiB\)"
        ),
        ("free_gib", "total_gib", "gpu_memory_utilization", "desired_gib"),
    ),
    (
        "budget_below_model_len",
        _field(r"max_num_batched_tokens \(<n>\) is smaller than max_model_len \(<n>\)"),
        ("max_num_batched_tokens", "max_model_len"),
    ),
    (
        "budget_below_seqs",
        _field(r"max_num_batched_tokens \(<n>\) must be greater than or equal to max_num_seqs \(<n>\)"),
        ("max_num_batched_tokens", "max_num_seqs"),
    ),
    (
        "model_len_too_long",
        _field(r"max_model_len \(<n>\) is greater than the derived max_model_len"),
        ("max_model_len",),
    ),
    (
        "tp_heads",
        _field(r"attention heads \(<n>\) must be divisible by tensor parallel size \(<n>\)"),
        ("num_attention_heads", "tensor_parallel_size"),
    ),
    (
        "too_few_gpus",
        _field(
            r"(?:World size|tensor_parallel_size|Tensor parallel size) \(<n>\) (?:is larger than|cannot be larger than|is greater than|should not exceed) [^(]{0,60}? \(<n>\)"
        ),
        ("world_size", "num_gpus"),
    ),
    ("too_few_gpus", _field(r"number of required GPUs exceeds the total number of available GPUs"), ()),
    ("unknown_flag", _field(r"unrecognized arguments: (--?[\w\-]+)"), ("flag",)),
    (
        "model_access",
        re.compile(r"GatedRepoError|accessagatedrepo|401ClientError|isrestricted\.Youmusthaveaccess|RepositoryNotFoundError|notavalidmodelidentifier"),
        (),
    ),
    ("port_taken", re.compile(r"\[Errno98\]|addressalreadyinuse", re.I), ()),
    ("prompt_too_long", _field(r"maximum context length is <n> tokens"), ("max_model_len",)),
    ("prompt_too_long", _field(r"maximum model length of <n>"), ("max_model_len",)),
    ("prompt_too_long", _field(r"too long and exceeds (?:the )?(?:limit|capacity) of (?:block_manager)?<n>"), ("max_model_len",)),
    ("oom", re.compile(r"CUDAoutofmemory|OutOfMemoryError|HIPoutofmemory"), ()),
    ("other", _field(r"(?i:engine ?core (?:initialization failed|failed to start|encountered|proc)|engine process failed|EngineDeadError)"), ()),
    ("other", _field(r"validation error for \w*Config|error: argument --"), ()),
)
_SUGGESTED = _field(r"estimated maximum model length is <n>")
_PREEMPTED = _field(r"preempted by (?:PreemptionMode\.)?(SWAP|RECOMPUTE) mode")
_CUMULATIVE = _field(r"total_num_cumulative_preemption= <n>")
_MARKS = re.compile(
    r"Avg\s?prompt\s?throughput|Running:\s*\d+\s*req|KV\s?cache\s?(?:usage|size)|#\s?GPU\s?blocks|Maximum\s?concurrency|#running-req"
    r"|Available KV cache memory|max seq len|out of memory|OutOfMemoryError|PreemptionMode|cumulative_preemption|EngineCore|\[loggers\.py"
    r"|unrecognized arguments|memory for the cache blocks|GPU memory utilization|GatedRepoError|must be divisible by tensor"
    r"|derived max_model_len|Retract requests|retracted_reqs|max_total_num_tokens=|max_num_batched_tokens \(\d|VllmWorker|Prefix cache hit rate"
    r"|maximum (?:context|model) length|too long and exceeds|[Ee]ngine ?(?:[Cc]ore )?(?:init|proc)|EngineDeadError|Not enough memory|error for \w*Config|error: argument --|[Aa]ddress already in use|gated repo|World size|required GPUs|valid model identifier"
    r"|gpu_memory_utilization \(|model weights take|[Mm]odel (?:loading|weights) took|(?i:# ?(?:cuda|rocm) blocks)|Chunked prefill is enabled|non-default args|args: Namespace\(|with config:"
)


def looks_like_log(text: str) -> bool:
    """Whether the text holds a log line of an inference server that says something of load, memory or a failure."""
    head = text if len(text) < 600_000 else text[:300_000] + text[-300_000:]
    if _MARKS.search(head):
        return True
    return bool(re.search(r"Avgpromptthroughput|KVcacheusage", re.sub(r"\s+", "", head[:20_000])))


def records(text: str) -> list[str]:
    """Whole log records: lines broken by a terminal are put together again."""
    out: list[str] = []
    glued = 0
    for line in text.split("\n"):
        if not line.strip():
            glued = 99
            continue
        if not out or glued >= 8 or _START.match(line) or len(out[-1]) > 8000:
            out.append(line)
            glued = 0
        else:
            out[-1] += line
            glued += 1
    return out


def _value(text: str) -> float | None:
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return None
    return number if number == number and abs(number) != float("inf") else None


def _tidy(number: float | None) -> float | int | None:
    return int(number) if number is not None and number == int(number) else number


def read(text: str) -> Reading:
    """Everything the pasted log says. `parse` is None if it holds no line of an inference server."""
    text, was_json = unwrap_json_lines(strip_colour(text))
    reading = Reading({}, format="docker json" if was_json else "")
    samples: dict[str, list[dict[str, Any]]] = {}
    stamps: dict[str, list[float | None]] = {}
    config: dict[str, Any] = {}
    cumulative: list[int] = []
    parse: dict[str, Any] = {}
    family, error, is_cpu = "", "", False
    all_records = records(text)
    others = 0
    for record in all_records:
        if not _MARKS.search(record) and not ("Avg" in record and "throughpu" in record):
            squeezed = ""
            if len(record) < 2000 and ("KV" in record or "prompt" in record):
                squeezed = re.sub(r"\s+", "", record)
            if "Avgpromptthroughput" not in squeezed and "KVcache" not in squeezed:
                others += 1
                continue
        bare = re.sub(r"\s+", "", record[:8000])
        if re.search(r"cpu_executor|cpu_worker|cpu_model_runner|CPUKVcachesize", bare):
            is_cpu = True
        if "Avgpromptthroughput" in bare or ("Running:" in bare and "KVcacheusage" in bare):
            sample: dict[str, Any] = {}
            for key, pattern, scale in _FIELDS:
                match = pattern.search(bare)
                if match:
                    number = _value(match[1])
                    if number is not None and scale != 1.0:
                        number = round(number * scale, 6)
                    if number is None:
                        reading.unknown.append(note("value_unknown", name=key, value=match[1]))
                    sample[key] = (
                        _tidy(number)
                        if key not in ("kv_usage", "prompt_tok_s", "gen_tok_s", "prefix_hit_rate")
                        else number
                    )
            if "cpu_kv_usage" in sample and "kv_usage" not in sample:
                sample["kv_usage"] = sample.pop("cpu_kv_usage")
                is_cpu = True
            who = _ENGINE.search(bare)
            key = str(int(next(g for g in who.groups() if g))) if who else "0"
            if _AGGREGATED.search(bare):
                key = "all"
            if key in samples and samples[key][-1].keys() & {"running", "kv_usage"} - sample.keys():  # cut off at the end
                continue
            samples.setdefault(key, []).append(sample)
            stamps.setdefault(key, []).append(clock(record[:400]))
            family = "vllm-v0" if "Pending:" in bare or "Swapped:" in bare else "vllm-v1"
            continue
        if "#running-req" in bare or "#retracted_reqs" in bare:
            family = "sglang"
            sample = {}
            for key, sg in _SGLANG:
                match = sg.search(bare)
                if match and _value(match[1]) is not None:
                    sample[key] = _tidy(_value(match[1]))
            if "retracted" in sample:
                parse["preemptions_delta"] = parse.get("preemptions_delta", 0) + (sample.pop("retracted") or 0)
                parse["preemption_mode"] = "RETRACT"
            if "running" in sample:
                who = re.search(r"DP(\d+)", bare[:80])
                key = str(int(who[1])) if who else "0"
                earlier = samples.setdefault(key, [])
                if (
                    "Prefillbatch" in bare and earlier
                ):  # a prefill line says nothing of generation: what was known stays
                    sample = {**{k: v for k, v in earlier[-1].items() if k == "gen_tok_s"}, **sample}
                earlier.append(sample)
                stamps.setdefault(key, []).append(clock(record[:400]))
            continue
        hits = _GPU_HITS.search(bare)
        if hits and "0" in samples:  # V0 prints it on a line of its own
            samples["0"][-1]["prefix_hit_rate"] = round((_value(hits[1]) or 0.0) * 0.01, 6)
        mode = _PREEMPTED.search(bare)
        if mode:
            parse["preemption_mode"] = mode[1]
            family = family or "vllm-v0"
        count = _CUMULATIVE.search(bare)
        if count:
            cumulative.append(int(count[1].replace(",", "")))
        for key, pattern, kind in _CONFIG:
            match = pattern.search(bare)
            number = _value(match[1]) if match else None
            if number is not None:
                config[key] = kind(number)
        if re.search(
            r"(?:GPU|CPU)KVcachesize|kv_cache_utils|gpu_worker|EngineCore|APIServer|VllmWorker|WorkerProc", bare
        ):
            family = family or "vllm-v1"
        elif re.search(r"#GPUblocks|llm_engine\.py|worker\.py:", bare):
            family = family or "vllm-v0"
        for name, pattern, keys in _ERRORS:
            match = pattern.search(bare)
            if not match:
                continue
            rank = [e[0] for e in _ERRORS].index
            if error and rank(error) <= rank(name):
                break
            error = name
            for key, raw in zip(keys, match.groups(), strict=False):
                number = _value(raw)
                parse[key] = raw if number is None else _tidy(number)
                if key.endswith("_gib") and number is not None:
                    parse[key] = number
            flag = re.search(r"arguments:\s+(--?[\w-]+)", record)  # with the blank that ends it
            if name == "unknown_flag" and flag:
                parse["flag"] = flag[1]
            suggested = _SUGGESTED.search(bare)
            if suggested:
                parse["suggested_max_model_len"] = int(suggested[1].replace(",", ""))
            if name == "kv_too_small":
                family = family or ("vllm-v1" if "available_gib" in parse else "vllm-v0")
            break
    if not samples and not config and not error and not cumulative and "preemption_mode" not in parse:
        return Reading(None)
    parse = {"engine_family": family or "vllm-v1", **parse}
    if error:
        parse["error"] = error
    if cumulative:
        parse["preemptions_total"] = cumulative[-1]
        if len(cumulative) > 1 and cumulative[-1] >= cumulative[0]:
            parse["preemptions_delta"] = cumulative[-1] - cumulative[0]
            reading.warnings.append(note("every_50th"))
    if is_cpu:
        for mine in samples.values():
            for sample in mine:
                cpu = sample.get("cpu_kv_usage")
                if cpu is not None and not sample.get("kv_usage"):
                    sample["kv_usage"] = sample.pop("cpu_kv_usage")
        reading.warnings.append(note("cpu_build"))
    if "all" in samples and len(samples) > 1:
        del samples["all"]
    if samples or error:
        parse["samples"] = max((len(s) for s in samples.values()), default=0)
    if len(samples) > 1:
        parse["engines"] = {who: mine[-1] for who, mine in sorted(samples.items(), key=lambda kv: kv[0].zfill(5))}
        parse["aggregate"] = aggregate(parse["engines"])
    elif samples:
        (mine,) = samples.values()
        parse["last"] = mine[-1]
        _trend(parse, mine, next(iter(stamps.values())))
        if parse["last"].get("preemptions") is not None:
            parse["preemptions_delta"] = sum(s.get("preemptions") or 0 for s in mine)
    _finish_config(config, reading)
    if config:
        parse["config"] = config
    if samples and "preemptions_total" not in parse and "preemptions_delta" not in parse:
        reading.unknown.append(note("preemptions_not_logged" if parse["engine_family"] == "vllm-v1" else "no_preemption_line"))
    if others:
        reading.ignored.append(note("other_lines", count=others))
    reading.parse = parse
    return reading


def _trend(parse: dict[str, Any], mine: list[dict[str, Any]], times: list[float | None]) -> None:
    """What several samples of one engine say of the way things go."""
    if len(mine) < 2:
        return
    running = [s.get("running") for s in mine]
    parse["running_flat"] = len(set(running)) == 1 and running[0] is not None
    first, last = times[0], times[-1]
    if first is not None and last is not None and last > first:
        parse["interval_s"] = round(last - first, 3)
    rates = [s["gen_tok_s"] for s in mine if s.get("gen_tok_s") is not None]
    if len(rates) > 1:
        parse["gen_tok_s_first"] = rates[0]


def _finish_config(config: dict[str, Any], reading: Reading) -> None:
    blocks, length, times = (config.get(k) for k in ("num_gpu_blocks", "max_model_len", "max_concurrency_full_len"))
    if blocks and length and times and "block_size" not in config:
        near = times * length / blocks
        size = min((1, 8, 16, 32, 64, 128, 256), key=lambda s: abs(s - near))
        if abs(size - near) < 0.02 * size:
            config["block_size"] = size
            config.setdefault("kv_tokens", blocks * size)
            reading.warnings.append(note("block_size", size=size))
    if times:
        reading.warnings.append(note("maximum_concurrency", times=times))
