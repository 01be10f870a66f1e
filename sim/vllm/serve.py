"""`vllm serve` command lines in all their forms <-> settings.

Read: shell lines with their wrapping, docker run, python -m, compose and Kubernetes YAML, YAML and JSON lists, vLLM's
own config files, SGLang's launch_server. Written: the shortest line that makes today's vLLM behave as a Scenario.
"""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from dataclasses import dataclass, field
from typing import Any

import yaml

from .clean import HIDDEN, is_secret_name, scrub

# --- what vLLM's flags take -------------------------------------------------------------------------------------

_INTS = [
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "data_parallel_size_local",
    "data_parallel_rank",
    "data_parallel_start_rank",
    "data_parallel_rpc_port",
    "decode_context_parallel_size",
    "prefill_context_parallel_size",
    "max_num_seqs",
    "max_num_active_seqs",
    "max_num_queued_reqs",
    "max_num_queued_tokens",
    "max_num_partial_prefills",
    "max_long_partial_prefills",
    "block_size",
    "num_gpu_blocks_override",
    "port",
    "seed",
    "max_loras",
    "max_lora_rank",
    "max_cpu_loras",
    "api_server_count",
    "max_logprobs",
    "stream_interval",
    "nnodes",
    "node_rank",
    "master_port",
    "prefill_schedule_interval",
    "max_parallel_loading_workers",
    "uvicorn_concurrency",
    "dbo_decode_token_threshold",
    "dbo_prefill_token_threshold",
    "dp_sync_interval",
    "prefix_match_unit",
    "cp_kv_cache_interleave_size",
    "max_log_len",
    "elastic_ep_max_dp_size",
    "ray_workers_use_nsight",
    "prefix_cache_retention_interval",
    "mm_processor_cache_gb",
]
_HUMAN = [
    "max_model_len",
    "max_num_batched_tokens",
    "long_prefill_token_threshold",
    "max_num_scheduled_tokens",
    "kv_cache_memory_bytes",
    "max_seq_len_to_capture",
]  # k = 1000, K = 1024
_FLOATS = ["gpu_memory_utilization", "watermark", "cpu_offload_gb", "kv_offloading_size"]
_BOOLS = [
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "enable_expert_parallel",
    "enable_eplb",
    "async_scheduling",
    "enforce_eager",
    "trust_remote_code",
    "enable_lora",
    "enable_auto_tool_choice",
    "disable_log_stats",
    "enable_log_requests",
    "long_prefill_token_threshold_adaptive",
    "scheduler_reserve_full_isl",
    "disable_chunked_mm_input",
    "disable_hybrid_kv_cache_manager",
    "enable_dbo",
    "data_parallel_hybrid_lb",
    "data_parallel_external_lb",
    "data_parallel_multi_port_external_lb",
    "enable_ep_weight_filter",
    "enable_elastic_ep",
    "kv_sharing_fast_prefill",
    "calculate_kv_scales",
    "disable_sliding_window",
    "skip_tokenizer_init",
    "enable_prompt_embeds",
    "enable_sleep_mode",
    "disable_cascade_attn",
    "disable_custom_all_reduce",
    "enable_server_load_tracking",
    "enable_prompt_tokens_details",
    "enable_request_id_headers",
    "headless",
    "disable_uvicorn_access_log",
    "disable_fastapi_docs",
    "allow_credentials",
    "enable_ssl_refresh",
    "return_tokens_as_token_ids",
    "enable_force_include_usage",
    "enable_mfu_metrics",
    "kv_cache_metrics",
    "cudagraph_metrics",
    "enable_log_outputs",
    "fully_sharded_loras",
    "enable_tokenizer_info_endpoint",
    "enable_return_routed_experts",
    "language_model_only",
    "interleave_mm_strings",
    "use_tqdm_on_load",
    "skip_mm_profiling",
    "enable_mm_embeds",
    "disable_frontend_multiprocessing",
    "enable_layerwise_nvtx_tracing",
    "show_hidden_metrics",
    "async_engine",
    "exclude_tools_when_tool_choice_none",
    "grpc",
    "enable_tower_connector_lora",
    "enable_nano_batch",
    "enable_offline_docs",
]
_TEXTS = [
    "model",
    "served_model_name",
    "host",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "tokenizer",
    "tokenizer_mode",
    "revision",
    "code_revision",
    "tokenizer_revision",
    "load_format",
    "download_dir",
    "config_format",
    "hf_config_path",
    "runner",
    "convert",
    "task",
    "distributed_executor_backend",
    "master_addr",
    "scheduling_policy",
    "scheduler_cls",
    "prefix_caching_hash_algo",
    "all2all_backend",
    "dcp_comm_backend",
    "expert_placement_strategy",
    "data_parallel_address",
    "data_parallel_backend",
    "reasoning_parser",
    "tool_call_parser",
    "chat_template",
    "chat_template_content_format",
    "response_role",
    "attention_backend",
    "mm_encoder_tp_mode",
    "mm_processor_cache_type",
    "guided_decoding_backend",
    "structured_outputs_backend",
    "uvicorn_log_level",
    "ssl_keyfile",
    "ssl_certfile",
    "ssl_ca_certs",
    "root_path",
    "middleware",
    "otlp_traces_endpoint",
    "collect_detailed_traces",
    "generation_config",
    "performance_mode",
    "worker_cls",
    "worker_extension_cls",
    "logits_processors",
    "device",
    "kv_offloading_backend",
    "tool_parser_plugin",
    "reasoning_parser_plugin",
    "logits_processor_pattern",
    "model_impl",
    "allowed_local_media_path",
    "allowed_media_domains",
    "optimization_level",
    "moe_backend",
    "linear_backend",
    "kv_cache_dtype_skip_layers",
    "io_processor_plugin",
    "pooler",
    "ray_runtime_env",
    "log_config_file",
    "uds",
    "lora_dtype",
    "ssl_ciphers",
    "disable_access_log_for_endpoints",
    "tool_server",
    "profiler",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "mamba_cache_mode",
    "gdn_prefill_backend",
    "renderer_num_workers",
    "numa_bind",
    "safetensors_load_strategy",
    "config",
]
_JSONS = [
    "speculative_config",
    "compilation_config",
    "eplb_config",
    "kv_transfer_config",
    "kv_events_config",
    "hf_overrides",
    "rope_scaling",
    "limit_mm_per_prompt",
    "mm_processor_kwargs",
    "override_generation_config",
    "additional_config",
    "model_loader_extra_config",
    "default_chat_template_kwargs",
    "chat_template_kwargs",
    "structured_outputs_config",
    "pooler_config",
    "override_pooler_config",
    "attention_config",
    "profiler_config",
    "media_io_kwargs",
    "weight_transfer_config",
    "reasoning_config",
    "ec_transfer_config",
    "kernel_config",
    "default_mm_loras",
    "cudagraph_capture_sizes",
    "allowed_origins",
    "allowed_methods",
    "allowed_headers",
    "lora_modules",
    "ir_op_priority",
    "override_attention_dtype",
]
_SECRETS = ("api_key", "hf_token")
KINDS: dict[str, str] = {
    **dict.fromkeys(_INTS, "int"),
    **dict.fromkeys(_HUMAN, "human"),
    **dict.fromkeys(_FLOATS, "float"),
    **dict.fromkeys(_BOOLS, "bool"),
    **dict.fromkeys(_TEXTS, "text"),
    **dict.fromkeys(_JSONS, "json"),
    **dict.fromkeys(_SECRETS, "secret"),
}
"""Flags of vLLM's server (with underscores) and what they take: int, human, float, bool, text, json, secret."""

_MANY = {
    "served_model_name",
    "api_key",
    "lora_modules",
    "middleware",
    "allowed_media_domains",
    "cudagraph_capture_sizes",
    "kv_cache_dtype_skip_layers",
    "logits_processors",
}
_ALIASES = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "ep": "enable_expert_parallel",
    "dcp": "decode_context_parallel_size",
    "pcp": "prefill_context_parallel_size",
    "dpl": "data_parallel_size_local",
    "dpn": "data_parallel_rank",
    "dpr": "data_parallel_start_rank",
    "dpa": "data_parallel_address",
    "dpp": "data_parallel_rpc_port",
    "dpb": "data_parallel_backend",
    "dph": "data_parallel_hybrid_lb",
    "dpe": "data_parallel_external_lb",
    "q": "quantization",
    "cc": "compilation_config",
    "O": "optimization_level",
    "sc": "speculative_config",
    "ac": "attention_config",
    "n": "nnodes",
    "r": "node_rank",
    "asc": "api_server_count",
    "device_memory_utilization": "gpu_memory_utilization",
}
_REMOVED = {
    "swap_space": "removed (V0 only)",
    "preemption_mode": "removed (V0 only)",
    "num_scheduler_steps": "removed (V0 multi-step)",
    "use_v2_block_manager": "removed",
    "enable_reasoning": "removed",
    "disable_log_requests": "removed, off by default",
    "multi_step_stream_outputs": "removed (V0 multi-step)",
    "num_lookahead_slots": "removed (V0 only)",
    "worker_use_ray": "removed (use --distributed-executor-backend ray)",
    "engine_use_ray": "removed",
    "disable_async_output_proc": "removed (V0 only)",
    "scheduler_delay_factor": "removed (V0 only)",
    "max_paddings": "removed",
    "delay_factor": "removed",
    "block_manager_version": "removed",
    "speculative_model": "removed (use --speculative-config)",
    "num_speculative_tokens": "removed (use --speculative-config)",
    "speculative_draft_tensor_parallel_size": "removed (use --speculative-config)",
    "ngram_prompt_lookup_max": "removed (use --speculative-config)",
    "ngram_prompt_lookup_min": "removed (use --speculative-config)",
    "speculative_disable_by_batch_size": "removed (use --speculative-config)",
    "num_redundant_experts": "removed (use --eplb-config)",
    "eplb_window_size": "removed (use --eplb-config)",
    "eplb_step_interval": "removed (use --eplb-config)",
    "eplb_log_balancedness": "removed (use --eplb-config)",
    "disable_custom_kernels": "removed",
    "use_beam_search": "removed",
    "enable_prefix_caching_v2": "removed",
    "max_context_len_to_capture": "removed (renamed --max-seq-len-to-capture, then dropped)",
    "long_lora_scaling_factors": "removed",
    "lora_extra_vocab_size": "removed",
    "enable_prompt_adapter": "removed",
    "max_prompt_adapters": "removed",
    "guided_decoding_disable_fallback": "removed",
    "tokenizer_pool_size": "removed",
    "tokenizer_pool_type": "removed",
    "tokenizer_pool_extra_config": "removed",
    "qlora_adapter_name_or_path": "removed",
    "quantization_param_path": "removed",
    "disable_mm_preprocessor_cache": "removed",
}
_REMOVED_BOOL = {
    "use_v2_block_manager",
    "enable_reasoning",
    "disable_log_requests",
    "multi_step_stream_outputs",
    "worker_use_ray",
    "engine_use_ray",
    "disable_async_output_proc",
    "eplb_log_balancedness",
    "disable_custom_kernels",
    "use_beam_search",
    "enable_prompt_adapter",
    "guided_decoding_disable_fallback",
    "disable_mm_preprocessor_cache",
}
_NOT_SERVER = {
    "max_concurrency": "not a server flag (use --max-num-seqs; it does not cap accepted requests)",
    "request_rate": "not a server flag (it belongs to `vllm bench serve`)",
    "num_prompts": "not a server flag (it belongs to `vllm bench serve`)",
    "dataset_name": "not a server flag (it belongs to `vllm bench serve`)",
    "dataset_path": "not a server flag (it belongs to `vllm bench serve`)",
    "random_input_len": "not a server flag (it belongs to `vllm bench serve`)",
    "random_output_len": "not a server flag (it belongs to `vllm bench serve`)",
    "burstiness": "not a server flag (it belongs to `vllm bench serve`)",
    "max_tokens": "not a server flag (a field of each request)",
    "temperature": "not a server flag (a field of each request)",
    "top_p": "not a server flag (a field of each request)",
    "n_ctx": "not a server flag (llama.cpp; use --max-model-len)",
    "ctx_size": "not a server flag (llama.cpp; use --max-model-len)",
    "max_batch_size": "not a server flag (use --max-num-seqs)",
    "batch_size": "not a server flag (use --max-num-seqs)",
    "max_running_requests": "not a vLLM flag (SGLang's; use --max-num-seqs)",
    "mem_fraction_static": "not a vLLM flag (SGLang's; use --gpu-memory-utilization)",
    "context_length": "not a vLLM flag (SGLang's; use --max-model-len)",
    "chunked_prefill_size": "not a vLLM flag (SGLang's; use --max-num-batched-tokens)",
    "num_gpus": "not a server flag (use --tensor-parallel-size)",
    "gpus": "not a server flag (docker's; use --tensor-parallel-size)",
}
_SGLANG = {  # SGLang's name -> (kind, vLLM's word for the same thing)
    "model_path": ("text", "model"),
    "model": ("text", "model"),
    "tp": ("int", "tensor_parallel_size"),
    "tp_size": ("int", "tensor_parallel_size"),
    "tensor_parallel_size": ("int", "tensor_parallel_size"),
    "dp": ("int", "data_parallel_size"),
    "dp_size": ("int", "data_parallel_size"),
    "data_parallel_size": ("int", "data_parallel_size"),
    "pp_size": ("int", "pipeline_parallel_size"),
    "ep": ("int", ""),
    "ep_size": ("int", ""),
    "mem_fraction_static": ("float", "gpu_memory_utilization"),
    "max_running_requests": ("int", "max_num_seqs"),
    "chunked_prefill_size": ("int", "max_num_batched_tokens"),
    "max_prefill_tokens": ("int", ""),
    "max_total_tokens": ("int", ""),
    "context_length": ("int", "max_model_len"),
    "page_size": ("int", "block_size"),
    "kv_cache_dtype": ("text", "kv_cache_dtype"),
    "quantization": ("text", "quantization"),
    "dtype": ("text", "dtype"),
    "schedule_policy": ("text", ""),
    "schedule_conservativeness": ("float", ""),
    "host": ("text", "host"),
    "port": ("int", "port"),
    "served_model_name": ("text", "served_model_name"),
    "disable_radix_cache": ("bool", "enable_prefix_caching"),
    "trust_remote_code": ("bool", "trust_remote_code"),
    "enable_metrics": ("bool", ""),
    "enable_dp_attention": ("bool", ""),
    "disable_cuda_graph": ("bool", ""),
    "enable_mixed_chunk": ("bool", ""),
    "enable_torch_compile": ("bool", ""),
    "disable_overlap_schedule": ("bool", ""),
    "attention_backend": ("text", ""),
    "cuda_graph_max_bs": ("int", ""),
    "max_queued_requests": ("int", ""),
    "max_loras_per_batch": ("int", ""),
    "speculative_algorithm": ("text", ""),
    "speculative_num_steps": ("int", ""),
    "speculative_eagle_topk": ("int", ""),
    "speculative_num_draft_tokens": ("int", ""),
    "speculative_draft_model_path": ("text", ""),
    "reasoning_parser": ("text", "reasoning_parser"),
    "tool_call_parser": ("text", "tool_call_parser"),
    "log_level": ("text", ""),
    "tokenizer_path": ("text", "tokenizer"),
    "chat_template": ("text", "chat_template"),
    "random_seed": ("int", "seed"),
    "nnodes": ("int", "nnodes"),
    "node_rank": ("int", "node_rank"),
    "dist_init_addr": ("text", ""),
    "api_key": ("secret", ""),
    "load_balance_method": ("text", ""),
    "moe_a2a_backend": ("text", ""),
    "skip_server_warmup": ("bool", ""),
    "enable_ep_moe": ("bool", "enable_expert_parallel"),
    "enable_cache_report": ("bool", ""),
    "is_embedding": ("bool", ""),
}

MAX_COMMAND = 40_000
"""Characters of a command or manifest that are read."""

_RUNNER = re.compile(r"^(?:\S*/)?(?:docker|podman|nerdctl)$")
_IMAGE = re.compile(
    r"(?:^|/)(?:[\w.\-]*vllm[\w.\-]*|[\w.\-]*sglang[\w.\-]*)(?::[\w.\-]+)?(?:@sha256:[0-9a-f]+)?$", re.I
)
_VLLM_MODULE = re.compile(
    r"^vllm\.entrypoints\.(?:openai\.)?(?:api_server|run_server)$|^vllm\.entrypoints\.api_server$|api_server\.py$"
)
_ENV = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=(.*)$", re.S)
_REDIRECT = re.compile(r"(?<=\s)(?:[012]|&)?>{1,2}\s*(?:&\d|[^\s;&|<>'\"]+)|(?<=\s)<\s*[^\s;&|<>'\"]+|(?<=\s)\d>&\d")
_HUMAN_NUMBER = re.compile(r"^(\d+(?:\.\d+)?)([kKmMgGtT])$")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_DASHES = "–—―−‐‑‒﹣－"
_QUOTES = {
    "“": '"',
    "”": '"',
    "„": '"',
    "«": '"',
    "»": '"',
    "‘": "'",
    "’": "'",
    "‚": "'",
    "＂": '"',
    "＇": "'",
    "＝": "=",
}
_LOOKS = re.compile(
    r"\bvllm[\"',\s]+serve\b|vllm\.entrypoints|vllm/vllm-openai|\bsglang[. ](?:launch_server|serve)|lmsysorg/sglang|(?:^|\s)--?[\w\-]*(?:max[-_]num[-_]seqs|max[-_]model[-_]len"
    r"|max[-_]num[-_]batched[-_]tokens|gpu[-_]memory[-_]utilization|tensor[-_]parallel[-_]size)|api_server\.py|vllm-openai",
    re.I,
)


@dataclass(slots=True)
class Reading:
    """What a command line says; `parse` holds today's names and typed values, `engine` is vllm or sglang."""

    parse: dict[str, Any] | None
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    image: str | None = None
    redact: list[str] = field(default_factory=list)
    format: str = ""
    engine: str = "vllm"
    removed: dict[str, Any] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def looks_like_serve(text: str) -> bool:
    """Whether the text holds a command or a manifest that starts a server."""
    head = text[:300_000]
    if _LOOKS.search(head):
        return True
    return bool(re.search(rf"[{_DASHES}]\s?(?:enable|max|gpu|tensor)[-_{_DASHES}]", head[:20_000])) or bool(
        re.search(
            r"(?m)^\s*(?:max[-_]num[-_]seqs|max[-_]num[-_]batched[-_]tokens|gpu[-_]memory[-_]utilization)\s*:", head
        )
    )


# --- text -> tokens ---------------------------------------------------------------------------------------------


def _repair(text: str, reading: Reading) -> str:
    def dashes(match: re.Match[str]) -> str:
        run = match[0]
        return "-" if run == "-" else "--" if any(c in _DASHES for c in run) or len(run) > 2 else run

    fixed = re.sub(rf"(?<![\w\-{_DASHES}])[\-{_DASHES}]{{1,4}}(?=[A-Za-z])", dashes, text)
    fixed = re.sub(rf"(?<=[a-z])[{_DASHES}](?=[a-z])", "-", fixed)
    for bad, good in _QUOTES.items():
        fixed = fixed.replace(bad, good)
    if fixed != text:
        reading.warnings.append("typographic dashes/quotes repaired")
    return fixed


def _tokens(line: str) -> list[str]:
    """The words of one shell line, with ; & | as words of their own."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:
        return line.replace('"', " ").replace("'", " ").split()


def _commands(text: str) -> list[list[str]]:
    """Simple commands in a piece of shell, as words."""
    text = re.sub(r"[\\^`]\s*\n\s*", " ", text)
    text = re.sub(r"(?m)(?:^|\s)#(?!\S*\")[^\n]*$", "", text)
    # a flag at the start of a line goes on with the command before it: backslashes are lost when people copy
    text = re.sub(r"\n\s*(?=--?[A-Za-z])", " ", text)
    text = _REDIRECT.sub(" ", text)
    commands: list[list[str]] = []
    quoted = text.count("'") % 2 == 0 and text.count('"') % 2 == 0 and re.search(r"['\"][^'\"]*\n[^'\"]*['\"]", text)
    for line in [text] if quoted and len(text) < 20_000 else text.split("\n"):
        current: list[str] = []
        for word in _tokens(line):
            if word and set(word) <= set(";&|"):
                commands.append(current)
                current = []
            else:
                current.append(word)
        commands.append(current)
    return [c for c in commands if c]


def _expand(words: list[str], env: dict[str, str], reading: Reading) -> list[str]:
    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], match[2]
        if name in env:
            return env[name]
        if default is not None:
            return default
        reading.warnings.append(f"${name[:60]}: not set in the paste, its value is unknown")
        return match[0][:200]

    pattern = re.compile(r"\$\{([A-Za-z_]\w*)(?::?-([^}$]{0,200}))?\}|\$([A-Za-z_]\w*)")
    return [pattern.sub(value, w) if "$" in w else w for w in words]


def _take_env(word: str, env: dict[str, str], reading: Reading) -> bool:
    match = _ENV.match(word)
    if not match:
        return False
    name, value = match.groups()
    if is_secret_name(name):
        if name not in reading.redact:
            reading.redact.append(name)
        env[name] = HIDDEN
    else:
        env[name] = str(scrub(value))
        reading.env[name] = env[name]
    return True


def _find_args(
    words: list[str], reading: Reading, env: dict[str, str], depth: int = 0
) -> tuple[list[str], bool] | None:
    """The server's own arguments in one command, and whether a first bare word is the model; None: no server here."""
    docker = -1
    for i, word in enumerate(words):
        if _RUNNER.match(word) and "run" in words[i + 1 : i + 4]:
            docker = i
        if (
            docker >= 0
            and i > docker
            and _IMAGE.search(word)
            and not word.startswith("-")
            and "=" not in word
            and (
                not words[i - 1].startswith("-")
                or words[i - 1] in ("-d", "-it", "-i", "-t", "--rm", "--init", "--privileged", "--detach")
                or "=" in words[i - 1]
            )
            and ":/" not in word
        ):
            reading.image = word
            reading.format = reading.format or "docker run"
            _docker_env(words[docker + 1 : i], env, reading)
            if "sglang" in word:
                reading.engine = "sglang"
            inner = words[i + 1 :]
            found = _find_args(inner, reading, env, depth + 1) if depth < 4 else None
            return found if found is not None else (inner, True)
        if word in ("vllm", "vllm.exe") or word.endswith("/vllm"):
            rest = words[i + 1 :]
            if rest[:1] == ["serve"]:
                reading.format = reading.format or "plain"
                _prefix_env(words[:i], env, reading)
                return rest[1:], True
            if rest[:2] == ["bench", "serve"] or rest[:1] == ["bench"]:
                reading.errors.append("vllm bench: the benchmark's client, not the server")
                return None
        if word == "-m" and i + 1 < len(words):
            module = words[i + 1]
            after = i + 2
            if (
                module in ("vllm.entrypoints.openai", "vllm.entrypoints")
                and words[after : after + 1]
                and words[after].startswith(("api_server", "openai"))
            ):
                reading.warnings.append("module path has a space")
                module += "." + words[after]
                after += 1
            if module.startswith("vllm.entrypoints") and "api_server" in module:
                reading.format = reading.format or "python -m"
                _prefix_env(words[:i], env, reading)
                return words[after:], False
            if module == "vllm.entrypoints.cli.main" and words[after : after + 1] == ["serve"]:
                _prefix_env(words[:i], env, reading)
                return words[after + 1 :], True
            if module.startswith("sglang") and "launch_server" in module:
                reading.engine, reading.format = "sglang", reading.format or "python -m"
                _prefix_env(words[:i], env, reading)
                return words[after:], False
        if word == "sglang" and words[i + 1 : i + 2] == ["serve"]:
            reading.engine = "sglang"
            return words[i + 2 :], False
        if _VLLM_MODULE.search(word) and not word.startswith("-"):
            _prefix_env(words[:i], env, reading)
            return words[i + 1 :], False
        if " " in word and depth < 4 and re.search(r"vllm\s+serve|vllm\.entrypoints|sglang\.launch_server", word):
            _prefix_env(words[:i], env, reading)
            for command in _commands(word):
                found = _find_args(_expand(command, env, reading), reading, env, depth + 1)
                if found:
                    return found
    return None


def _prefix_env(words: list[str], env: dict[str, str], reading: Reading) -> None:
    for word in words:
        _take_env(word, env, reading)


def _docker_env(words: list[str], env: dict[str, str], reading: Reading) -> None:
    for i, word in enumerate(words):
        if word in ("-e", "--env") and i + 1 < len(words):
            _take_env(words[i + 1], env, reading)
        elif word.startswith("--env="):
            _take_env(word.removeprefix("--env="), env, reading)
        elif word.startswith("-e") and "=" in word and not word.startswith("--"):
            _take_env(word[2:].lstrip("="), env, reading)


# --- tokens -> values -------------------------------------------------------------------------------------------


def human_int(text: str) -> int:
    """vLLM's own reading of a count: 8k is 8000, 8K is 8192, 25.6k is 25600. Raises ValueError."""
    match = _HUMAN_NUMBER.match(text.strip())
    if not match:
        return int(text)
    number, unit = match.groups()
    if unit in _DECIMAL:
        return round(float(number) * _DECIMAL[unit])
    if "." in number:
        raise ValueError(f"{text}: no fraction with a binary suffix, use {unit.lower()}")
    return int(number) * _BINARY[unit]


def _is_flag(word: str) -> bool:
    return bool(re.match(r"^--?[A-Za-z]", word)) and not re.match(r"^-\d", word)


def _merge_path(target: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        inner = target.setdefault(part, {})
        if not isinstance(inner, dict):
            inner = target[part] = {}
        target = inner
    last = path[-1]
    if last.endswith("+"):
        target.setdefault(last[:-1], [])
        if isinstance(target[last[:-1]], list):
            target[last[:-1]].append(value)
    else:
        target[last] = value


def _plain_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def _convert(name: str, kind: str, raw: str, shown: str, reading: Reading) -> Any:
    if "$" in raw and re.search(r"\$\{?[A-Za-z_]", raw):
        return None  # said already: unknown
    try:
        if kind == "int":
            return int(raw)
        if kind == "human":
            if raw.lower() in ("auto", "-1") and name == "max_model_len":
                return raw.lower() if raw.lower() == "auto" else -1
            return human_int(raw)
        if kind == "float":
            return float(raw)
    except ValueError:
        hint = " (this flag takes no k/K/m/M)" if kind == "int" and _HUMAN_NUMBER.match(raw) else ""
        wanted = "a number" if kind == "float" else "an integer"
        reading.errors.append(f"{shown}: {str(scrub(raw))[:60]!r} is not {wanted}{hint}")
        return None
    if kind == "json":
        try:
            return json.loads(raw)
        except ValueError:
            if raw.lstrip().startswith(("{", "[")):
                try:  # quotes lost to a shell or single ones: YAML reads both
                    loaded = yaml.load(raw, Loader=_LOADER) if len(raw) < 10_000 else None
                except (yaml.YAMLError, RecursionError, ValueError):
                    loaded = None
                if isinstance(loaded, (dict, list)):
                    reading.warnings.append(f"{shown}: not JSON as it stands (lost or single quotes), read as meant")
                    return loaded
                reading.errors.append(f"{shown}: not valid JSON")
                return None
            return _plain_value(raw)
    return raw


def _lookup(name: str, table: dict[str, Any], reading: Reading, shown: str) -> str | None:
    if name in table:
        return name
    near = [k for k in table if k.startswith(name)] if len(name) > 4 else []
    if len(near) == 1:
        reading.warnings.append(
            f"{shown}: read as --{near[0].replace('_', '-')} (argparse accepts an unambiguous beginning)"
        )
        return near[0]
    return None


def _read_args(words: list[str], positional_model: bool, reading: Reading) -> dict[str, Any]:
    parse: dict[str, Any] = {}
    sglang = reading.engine == "sglang"
    i = 0

    def put(name: str, value: Any, shown: str) -> None:
        if value is None:
            return
        if name in parse and parse[name] != value and not isinstance(value, dict):
            reading.warnings.append(f"{shown}: given twice, the last one counts")
        parse[name] = scrub(value)

    while i < len(words):
        word = words[i]
        i += 1
        if not _is_flag(word):
            if word.startswith("--") or word in ("-", "\\", "^", ""):
                continue
            if positional_model and "model" not in parse and not sglang:
                put("model", word, "model")
            elif len(reading.ignored) < 20:
                reading.ignored.append(str(scrub(word))[:80])
            continue
        head, equals, tail = word.partition("=")
        value: str | None = tail if equals else None
        long = head.startswith("--")
        body = head.lstrip("-")
        shown = head
        if not long:
            short = re.match(r"^(tp|pp|dp|dcp|pcp)(\d+)$", body)
            if short:
                body, value = short[1], short[2]
            elif re.match(r"^O\d$", body):
                body, value = "O", body[1:]
        root, dot, path = body.partition(".")
        name = root.replace("-", "_")
        name = name if sglang else _ALIASES.get(name, name)
        if name == "optimization_level" and dot:
            name = "compilation_config"
        negated = False
        if sglang:
            found = name if name in _SGLANG else None
            kind, ours = _SGLANG.get(name, ("", ""))
            if found is None and name in KINDS:
                kind = KINDS[name]
        else:
            if name.startswith("no_") and name[3:] in KINDS:
                name, negated = name[3:], True
            if name in _REMOVED or name in _NOT_SERVER or (name in ("disable_log_request",)):
                takes = i < len(words) and not _is_flag(words[i]) and value is None
                is_bool = name in _REMOVED_BOOL or name.startswith(("disable_", "enable_", "use_"))
                if takes and not is_bool:
                    value = words[i]
                    i += 1
                if name in _NOT_SERVER:
                    reading.errors.append(f"{shown}: {_NOT_SERVER[name]}")
                elif name in _REMOVED:
                    reading.warnings.append(f"{shown}: {_REMOVED[name]}")
                    if not is_secret_name(name):
                        reading.removed[name] = scrub(value) if value is not None else True
                else:
                    reading.warnings.append(f"{shown}: not a current flag")
                continue
            found = _lookup(name, KINDS, reading, shown)
            kind, ours = KINDS.get(found or "", ""), found or ""
        if not kind:
            if value is None and i < len(words) and not _is_flag(words[i]):
                i += 1
            reading.warnings.append(
                f"{shown}: not a flag known here, left out (vLLM exits on a flag that it does not know)"
            )
            continue
        name = found or name
        if dot and kind in ("json", "text"):
            if value is None and i < len(words) and not _is_flag(words[i]):
                value = words[i]
                i += 1
            whole = parse.get(name) if isinstance(parse.get(name), dict) else {}
            assert isinstance(whole, dict)
            _merge_path(whole, path.replace("-", "_").split("."), _plain_value(value) if value is not None else True)
            parse[name] = scrub(whole)
            continue
        if kind == "bool":
            truth = True
            given = value
            if given is None and i < len(words) and words[i].lower() in ("true", "false"):
                given = words[i]
                i += 1
                if not sglang:
                    reading.warnings.append(
                        f"{shown} {given}: today a switch without a value (use {shown} or --no-...)"
                    )
            if given is not None:
                truth = given.strip().lower() not in ("false", "0", "no", "off")
            truth = truth != negated
            if sglang:
                put(name, truth, shown)
                if ours:
                    put(ours, (not truth) if name == "disable_radix_cache" else truth, shown)
            else:
                put(name, truth, shown)
            continue
        if value is None:
            if i < len(words) and not _is_flag(words[i]):
                value = words[i]
                i += 1
            elif name == "optimization_level":
                value = ""
            else:
                reading.errors.append(f"{shown}: expects a value")
                continue
        values = [value]
        if name in _MANY:
            while i < len(words) and not _is_flag(words[i]):
                values.append(words[i])
                i += 1
        if kind == "secret":
            reading.redact.append(shown)
            continue
        if kind == "json" and name in _MANY and len(values) > 1:
            put(name, [_plain_value(v) for v in values], shown)
            continue
        converted = _convert(name, kind, value, shown, reading)
        put(name, [value, *values[1:]] if len(values) > 1 else converted, shown)
        if sglang and ours and ours != name and converted is not None:
            if ours == "gpu_memory_utilization":
                reading.warnings.append(
                    f"{shown}: SGLang's share is weights + KV pool, not the whole process: near, not the same"
                )
            put(ours, converted, shown)
    return parse


def _check(parse: dict[str, Any], reading: Reading) -> None:
    """What `vllm serve` itself would refuse or do otherwise than written."""
    util = parse.get("gpu_memory_utilization")
    if isinstance(util, float) and not 0 < util <= 1:
        reading.errors.append(
            f"--gpu-memory-utilization: {util:g} is not in (0, 1]"
            + (f" (did you mean {util / 100:g}?)" if 1 < util <= 100 else "")
        )
    for name in ("max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size", "data_parallel_size", "block_size"):
        value = parse.get(name)
        if isinstance(value, int) and value < 1 and not (reading.engine == "sglang" and value == -1):
            reading.errors.append(f"--{name.replace('_', '-')}: {value} must be at least 1")
    seqs, tokens, length = parse.get("max_num_seqs"), parse.get("max_num_batched_tokens"), parse.get("max_model_len")
    if reading.engine == "vllm" and isinstance(tokens, int):
        if isinstance(seqs, int) and 0 < tokens < seqs:
            reading.errors.append(f"max_num_batched_tokens ({tokens}) must be at least max_num_seqs ({seqs})")
        if parse.get("enable_chunked_prefill") is False and isinstance(length, int) and 0 < tokens < length:
            reading.errors.append(
                f"max_num_batched_tokens ({tokens}) must be at least max_model_len ({length}) when chunked prefill is off"
            )
    visible = reading.env.get("CUDA_VISIBLE_DEVICES")
    tp = parse.get("tensor_parallel_size", 1)
    if visible and isinstance(tp, int) and re.match(r"^\d+(,\d+)*$", visible):
        cards = len(visible.split(","))
        need = tp * (parse.get("pipeline_parallel_size") or 1) * (parse.get("data_parallel_size") or 1)
        if need > cards:
            reading.errors.append(f"{need} GPUs wanted, CUDA_VISIBLE_DEVICES names {cards}")


# --- YAML ---------------------------------------------------------------------------------------------------------

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _load_yaml(text: str) -> list[Any]:
    if len(text) > 200_000 or ("&" in text and text.count("*") > 200):
        return []
    for attempt in (textwrap.dedent(text), re.sub(r"(?m)^\s*(?:```\w*|[$>] .*)$", "", text)):
        try:
            docs = [d for d in yaml.load_all(attempt.replace("\t", "  "), Loader=_LOADER) if d is not None]
        except (yaml.YAMLError, RecursionError, ValueError, TypeError, AttributeError):
            continue
        if any(isinstance(d, (dict, list)) for d in docs):
            return docs
    return []


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [
            v
            if isinstance(v, str)
            else json.dumps(v)
            if isinstance(v, (dict, list))
            else ("true" if v else "false")
            if isinstance(v, bool)
            else str(v)
            for v in value
            if v is not None
        ]
    return []


def _yaml_env(value: Any, env: dict[str, str], reading: Reading) -> None:
    if isinstance(value, dict):
        for k, v in value.items():
            if isinstance(v, (str, int, float, bool)):
                _take_env(f"{k}={v}", env, reading)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, str):
                _take_env(item, env, reading)
            elif isinstance(item, dict) and isinstance(item.get("value"), (str, int, float, bool)):
                _take_env(f"{item.get('name')}={item['value']}", env, reading)


def _containers(node: Any, budget: list[int], out: list[dict[str, Any]]) -> None:
    budget[0] -= 1
    if budget[0] < 0 or len(out) > 50:
        return
    if isinstance(node, dict):
        if any(k in node for k in ("args", "command", "entrypoint", "Cmd", "Args", "Entrypoint", "vllmConfig")):
            out.append(node)
        for v in node.values():
            _containers(v, budget, out)
    elif isinstance(node, list):
        for v in node:
            _containers(v, budget, out)


def _list_words(items: list[str], reading: Reading) -> list[str]:
    words: list[str] = []
    for item in items:
        if item.startswith("-") and re.match(r"^--?[\w\-.]+\s+\S", item) and not re.match(r"^--?[\w\-.]+=", item):
            reading.warnings.append(
                f"{item.split()[0]}: flag and value in one list item; split here, vLLM would refuse it"
            )
            words.extend(_tokens(item))
        else:
            words.append(item)
    return words


def _from_yaml(text: str, reading: Reading) -> dict[str, Any] | None:
    docs = _load_yaml(text)
    for doc in docs:
        if isinstance(doc, list) and doc and all(isinstance(x, (str, int, float, bool)) for x in doc):
            words = _list_words(_strings(doc), reading)
            if any(_is_flag(w) for w in words):
                reading.format = "list of arguments"
                env: dict[str, str] = {}
                found = _find_args(_expand(words, env, reading), reading, env)
                args, positional = found if found else (words, True)
                return _read_args(args, positional, reading)
        found_nodes: list[dict[str, Any]] = []
        try:
            _containers(doc, [20_000], found_nodes)
        except RecursionError:
            return None
        for node in found_nodes:
            env = {}
            trial = Reading({}, image=str(node["image"]) if isinstance(node.get("image"), str) else None)
            trial.warnings = list(reading.warnings)
            for key in ("env", "environment", "Env"):
                _yaml_env(node.get(key), env, trial)
            words = []
            for key in ("entrypoint", "Entrypoint", "command", "args", "Args", "Cmd"):
                value = node.get(key)
                if isinstance(value, str):
                    commands = _commands(value)
                    words += (
                        [w for c in commands for w in [*c, ";"]][:-1]
                        if len(commands) > 1
                        else (commands[0] if commands else [])
                    )
                else:
                    words += _list_words(_strings(value), trial)
            if not words and not node.get("vllmConfig"):
                continue
            words = _expand(words, env, trial)
            if trial.image and "sglang" in trial.image:
                trial.engine = "sglang"
            found = _find_args(words, trial, env)
            if found is None and not (
                (trial.image and re.search("vllm|sglang", trial.image))
                or any(w.startswith("--") and w.lstrip("-").partition("=")[0].replace("-", "_") in KINDS for w in words)
            ):
                continue
            args, positional = found if found else ([w for w in words if w not in ("python3", "python", "-m")], True)
            if ";" in args:
                args = args[: args.index(";")]
            trial.format = (
                "compose" if "environment" in node or isinstance(node.get("command"), str) else "kubernetes args list"
            )
            result = _read_args(args, positional, trial)
            for name in (
                "warnings",
                "errors",
                "env",
                "image",
                "redact",
                "format",
                "engine",
                "removed",
                "ignored",
                "notes",
            ):
                setattr(reading, name, getattr(trial, name))
            return result
        if isinstance(doc, dict):
            keys = {str(k).replace("-", "_"): v for k, v in doc.items()}
            if sum(k in KINDS for k in keys) >= max(1, len(keys) // 2) and not any(
                isinstance(v, dict) and k not in KINDS for k, v in keys.items()
            ):
                reading.format = "vLLM config file"
                words = []
                for k, v in keys.items():
                    if isinstance(v, bool):
                        words.append(f"--{k}={str(v).lower()}")
                    elif isinstance(v, (dict, list)):
                        words.append(f"--{k}={json.dumps(v)}")
                    elif v is not None:
                        words.append(f"--{k}={v}")
                return _read_args(words, False, reading)
    return None


def read(text: str) -> Reading:
    """Everything a pasted command or manifest says. `parse` is None if it starts no server."""
    reading = Reading({})
    text = _repair(text[:MAX_COMMAND], reading)
    text = re.sub(r"(?m)^\s*```[\w\-]*\s*$", "", text)
    manifest = bool(
        re.search(
            r"(?m)^\s*-?\s*(?:args|command|image|services|containers|environment|entrypoint|kind|apiVersion|max[-_]num[-_]seqs|model|Cmd|\"?Args\"?)\"?\s*:"
            r"|^\s*-\s+['\"]?--|^\s*\[",
            text,
        )
    )
    parse: dict[str, Any] | None = None
    if manifest:
        parse = _from_yaml(text, reading)
    if parse is None:
        parse = _from_shell(text, reading)
    if parse is None:
        reading.parse = None
        return reading
    _check(parse, reading)
    if reading.image and reading.engine == "vllm":
        version = re.search(r":v?(\d+)\.(\d+)", reading.image)
        if version and (int(version[1]), int(version[2])) < (0, 8):
            reading.notes.append(f"{scrub(reading.image)}: V0; its defaults (256 seqs, swapping) differ from today's")
    reading.warnings = sorted(
        (str(scrub(w)) for w in dict.fromkeys(reading.warnings)), key=lambda w: w.startswith("module path")
    )
    reading.errors = [str(scrub(e)) for e in dict.fromkeys(reading.errors)]
    if reading.image:
        reading.image = str(scrub(reading.image))
    reading.parse = parse
    return reading


def _from_shell(text: str, reading: Reading) -> dict[str, Any] | None:
    text = re.sub(r"(?m)^\s*(?:\([\w.\-]+\)\s*)?(?:[\w.\-]+@[\w.\-]+:?[^\n$#]{0,80}[$#]|\$|>)\s+", "", text)
    text = re.sub(r"(?m)^\s*(?:CMD|ENTRYPOINT|ExecStart\s*=|RUN)\s*", "", text)
    env: dict[str, str] = {}
    text = re.sub(
        r'(?m)^\s*\[\s*("[^\n]*")\s*,?\s*\]\s*$',
        lambda m: " ".join(shlex.quote(w) for w in re.findall(r'"([^"]*)"', m[1])),
        text,
    )
    commands = _commands(text)
    for words in commands:
        if words[0].startswith("Environment="):
            for word in [words[0].removeprefix("Environment="), *words[1:]]:
                _take_env(word, env, reading)
            continue
        if words[0] in ("export", "set", "setenv") or all(_ENV.match(w) for w in words):
            for word in words:
                _take_env(word, env, reading)
            continue
        words = _expand(words, env, reading)
        found = _find_args(words, reading, env)
        if found is not None:
            if (
                any("_" in re.split("[=.]", w, maxsplit=1)[0] for w in found[0] if w.startswith("--"))
                and reading.format
            ):
                reading.format += ", underscores"
            return _read_args(found[0], found[1], reading)
    for words in commands:  # arguments alone, without a command
        known = [
            w
            for w in words
            if w.startswith("-") and w.lstrip("-").partition("=")[0].partition(".")[0].replace("-", "_") in KINDS
        ]
        if known:
            reading.format = reading.format or "arguments only"
            start = next(i for i, w in enumerate(words) if w.startswith("-"))
            return _read_args(_expand(words[start:], env, reading), False, reading)
    return None
