"""Command lines in the forms in which people have them, and the round trip from a scenario and back."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import catalog
from sim.scenario import SETTINGS, Scenario, SimError
from sim.vllm import export, serve
from sim.vllm.paste import diagnose

FORMS = {
    "equals": "vllm serve m --max-num-seqs=64 --max-model-len=8192",
    "underscores": "python3 -m vllm.entrypoints.openai.api_server --model m --max_num_seqs 64 --max_model_len 8192",
    "backslashes": "vllm serve m \\\n  --max-num-seqs 64 \\   \n  --max-model-len 8192 2>&1 | tee vllm.log",
    "comment": "vllm serve m --max-num-seqs 64 --max-model-len 8192 # seats",
    "variable": "M=m\nvllm serve $M --max-num-seqs ${SEATS:-64} --max-model-len 8192",
    "bash -c": "docker run --gpus all vllm/vllm-openai:latest bash -c 'vllm serve m --max-num-seqs 64 --max-model-len 8192'",
    "dockerfile": 'CMD ["vllm", "serve", "m", "--max-num-seqs", "64", "--max-model-len", "8192"]',
    "systemd": '[Service]\nEnvironment="A=b"\nExecStart=/opt/venv/bin/vllm serve m --max-num-seqs 64 --max-model-len 8192',
    "ps": "root  77 99.0 python3 -m vllm.entrypoints.openai.api_server --model m --max-num-seqs 64 --max-model-len 8192",
    "arguments only": "--model m --max-num-seqs 64 --max-model-len 8192",
    "compose text": "services:\n  v:\n    image: vllm/vllm-openai:v0.9.1\n    command: >\n      --model m\n      --max-num-seqs 64 --max-model-len 8192\n",
    "compose list": 'services:\n  v:\n    image: vllm/vllm-openai\n    command: ["--model", "m", "--max-num-seqs", "64", "--max-model-len=8192"]\n',
    "k8s shell": 'spec:\n  containers:\n  - image: vllm/vllm-openai:v0.11.0\n    command: ["/bin/sh", "-c"]\n'
    '    args: ["vllm serve m --max-num-seqs 64 --max-model-len 8192"]\n',
    "yaml list": "- --model\n- m\n- --max-num-seqs\n- '64'\n- --max-model-len\n- 8192\n",
    "config file": "model: m\nmax-num-seqs: 64\nmax-model-len: 8192\n",
    "fence": "```bash\nvllm serve m --max-num-seqs 64 --max-model-len 8192\n```",
    "prompt": "(base) me@gpu01:~/x$ vllm serve m --max-num-seqs 64 --max-model-len 8192",
    "podman": "podman run --rm --device nvidia.com/gpu=all -p 8000:8000 docker.io/vllm/vllm-openai:v0.10.0 --model m --max-num-seqs 64 --max-model-len 8192",
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_server_in_every_form(form):
    report = diagnose(FORMS[form])
    assert report.kind == "serve_cmd"
    assert {k: report.parse.get(k) for k in ("model", "max_num_seqs", "max_model_len")} == {
        "model": "m",
        "max_num_seqs": 64,
        "max_model_len": 8192,
    }
    assert report.errors == []


@pytest.mark.parametrize(
    ("text", "number"), [("8k", 8000), ("8K", 8192), ("25.6k", 25_600), ("1m", 10**6), ("1M", 2**20), ("77", 77)]
)
def test_suffixes_are_read_as_vllm_reads_them(text, number):
    assert serve.read(f"vllm serve m --max-num-batched-tokens {text}").parse["max_num_batched_tokens"] == number


def test_max_num_seqs_takes_no_suffix():
    reading = serve.read("vllm serve m --max-num-seqs 1k")
    assert "max_num_seqs" not in reading.parse and "--max-num-seqs" in reading.errors[0]


def test_negations_dotted_and_json_values():
    parse = serve.read(
        "vllm serve m --no-enable-prefix-caching --no-enable-chunked-prefill -tp=4 --eplb-config.num_redundant_experts 32 "
        '--eplb-config.window_size=5 --hf-overrides \'{"a": [1, {"b": "x, y"}]}\' -O.mode=3'
    ).parse
    assert parse == {
        "model": "m",
        "enable_prefix_caching": False,
        "enable_chunked_prefill": False,
        "tensor_parallel_size": 4,
        "eplb_config": {"num_redundant_experts": 32, "window_size": 5},
        "hf_overrides": {"a": [1, {"b": "x, y"}]},
        "compilation_config": {"mode": 3},
    }


def test_sglang_is_read_in_its_own_words_and_in_ours():
    report = diagnose(
        "python3 -m sglang.launch_server --model-path m --tp 8 --mem-fraction-static 0.85 --max-running-requests 128 "
        "--chunked-prefill-size 4096 --context-length 32768 --disable-radix-cache"
    )
    assert report.what.endswith("sglang")
    assert report.parse["max_running_requests"] == report.parse["max_num_seqs"] == 128
    assert report.parse["tensor_parallel_size"] == 8 and report.parse["enable_prefix_caching"] is False


def test_what_vllm_itself_would_refuse_is_said():
    for line, word in (
        ("--gpu-memory-utilization 90", "0.9"),
        ("--max-num-seqs 512 --max-num-batched-tokens 256", "at least"),
        ("--max-num-seqs abc", "not an integer"),
        ("--max-num-seqs", "expects a value"),
    ):
        assert any(word in e for e in serve.read(f"vllm serve m {line}").errors), line


def test_defaults_depend_on_the_gpu():
    for gpu, seqs, tokens in (
        ("H100-SXM", 1024, 8192),
        ("A100-80GB", 256, 2048),
        ("B200", 1024, 16384),
        ("RTX-4090", 256, 2048),
    ):
        scenario, _ = export.settings_of({"model": "meta-llama/Llama-3.1-8B"}, gpu=gpu)
        assert (scenario.max_num_seqs, scenario.max_num_batched_tokens, scenario.gpu_memory_utilization) == (
            seqs,
            tokens,
            0.92,
        )


def setting(name):
    s = SETTINGS[name]
    if s.choices:
        return st.sampled_from(s.choices)
    if s.kind is bool:
        return st.booleans()
    if s.kind is int:
        return st.integers(int(s.low), int(min(s.high, 100_000)))
    return st.floats(s.low, s.high, allow_nan=False)


@settings(max_examples=300, deadline=None)
@given(
    st.fixed_dictionaries({}, optional={n: setting(n) for n in (*export.SERVER_FIELDS, "weights")}),
    st.sampled_from(["H100-SXM", "A100-80GB", "B200", "L40S"]),
    st.sampled_from(["Llama-3.1-8B", "Qwen3-32B", "DeepSeek-V3", "OPT-13B"]),
)
def test_a_scenario_comes_back_from_its_own_command_line(fields, gpu, model):
    try:
        scenario = Scenario(gpu=gpu, model=model, **fields)
    except SimError:
        return
    line = export.command_line(scenario)
    reading = serve.read(str(line))
    assert reading.errors == [] and reading.warnings == [] and line.not_expressible == ()
    back, _ = export.settings_of(reading.parse, base=scenario)
    assert back == scenario


def test_what_no_release_can_do_is_named_and_not_written():
    line = export.command_line(Scenario(victim="longest", preemption_mode="swap", batching="static"))
    assert {k for k, _ in line.not_expressible} == {"victim", "preemption_mode", "batching"}
    assert "longest" not in str(line) and "swap" not in str(line)


def test_the_files_in_dashboards_are_what_the_page_hands_out():
    folder = Path(__file__).parent.parent / "dashboards"
    assert json.loads((folder / "vllm-scheduler.json").read_text()) == export.grafana()
    assert (folder / "vllm-alerts.yaml").read_text() == export.alert_rules()


ARGS = "--tensor-parallel-size 2 --max-num-seqs 128 --max-model-len 32k --gpu-memory-utilization 0.9"
QUOTED = [f'"{word}"' for word in ("Qwen/Qwen3-8B", *ARGS.split())]
BELOW = ARGS.replace(" --", "\n  --")
KEYWORDS = "model='Qwen/Qwen3-8B', tensor_parallel_size=2, max_num_seqs=128, max_model_len=32000, gpu_memory_utilization=0.9"
EVERYWHERE = {
    "a sentence": f"I start it with `vllm serve Qwen/Qwen3-8B {ARGS}` and don't know why it's slow",
    "a list of Python": f"cmd = ['vllm', 'serve', {', '.join(QUOTED)}]\nsubprocess.run(cmd)",
    "a list over lines": "args = [\n  'serve', # today\n  " + ",\n  ".join(QUOTED) + ",\n]",
    "a Dockerfile": 'FROM x\nENTRYPOINT ["vllm", "serve", \\\n  ' + ", \\\n  ".join(QUOTED) + "]",
    "YAML in a sentence": "My pod has\n\n  args:\n" + "".join(f"  - {w}\n" for w in ('"--model"', *QUOTED)) + "and it is slow",
    "YAML without the image": "args:\n  - serve\n" + "".join(f"  - {word}\n" for word in QUOTED),
    "an entry point": f"docker run --gpus all --entrypoint vllm vllm/vllm-openai:v0.11 serve Qwen/Qwen3-8B {ARGS}",
    "a variable": f'MODEL="Qwen/Qwen3-8B"\nvllm serve "$MODEL" {ARGS}',
    "a variable of cmd.exe": f"set MODEL=Qwen/Qwen3-8B\r\nvllm serve %MODEL% {ARGS}\r\n",
    "a variable of PowerShell": f'$env:MODEL = "Qwen/Qwen3-8B"\r\nvllm serve $env:MODEL {ARGS}\r\n',
    "a variable of arguments": f'A="--model Qwen/Qwen3-8B {ARGS}"\npython3 -m vllm.entrypoints.openai.api_server $A',
    "an array": f'A=(\n  --model Qwen/Qwen3-8B # ours\n  {BELOW}\n)\nvllm serve "${{A[@]}}"',
    "a program": f"llm = LLM({KEYWORDS})",
    "a log": f"INFO 06-01 10:00:01 api_server.py:528] args: Namespace(host=None, {KEYWORDS}, api_key=None)",
    "a file of JSON": '{"model": "Qwen/Qwen3-8B", "tensor_parallel_size": 2, "max_num_seqs": 128, "max_model_len": 32000, '
                      '"gpu_memory_utilization": 0.9}',
    "a Helm chart": "modelSpec:\n- name: q\n  modelURL: Qwen/Qwen3-8B\n  vllmConfig:\n    maxModelLen: 32000\n    tensorParallelSize: 2\n"
                    "    extraArgs: ['--max-num-seqs', '128', '--gpu-memory-utilization', '0.9']\n",
}


@pytest.mark.parametrize("where", EVERYWHERE)
def test_arguments_are_found_wherever_they_stand(where):
    report = diagnose(EVERYWHERE[where])
    assert report.settings == {
        "model": "Qwen/Qwen3-8B", "tensor_parallel_size": 2, "max_num_seqs": 128, "max_model_len": 32000,
        "gpu_memory_utilization": 0.9,
    }


def test_the_engines_own_line_tells_its_settings():
    report = diagnose(
        "INFO 06-01 10:00:01 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='Qwen/Qwen3-8B', speculative_config=None, "
        "dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=2, quantization=None, kv_cache_dtype=fp8, enable_prefix_caching=True"
    )
    assert report.kind == "log" and report.settings == {
        "model": "Qwen/Qwen3-8B", "dtype": "bfloat16", "max_model_len": 8192, "tensor_parallel_size": 2, "kv_cache_dtype": "fp8",
        "enable_prefix_caching": True,
    }


def test_a_model_of_ones_own_is_a_path_to_fill_in_and_no_code_of_ours():
    config = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
              "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "_name_or_path": "me/mine"}
    line = export.command_line(Scenario(model=catalog.model_from_config(json.dumps(config))))
    assert "PATH/TO/" in str(line) and "~" not in str(line) and "model" in dict(line.not_expressible)
