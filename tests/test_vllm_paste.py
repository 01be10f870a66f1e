"""The 31 pastes that broke parsers, and what is no paste of ours at all."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.__main__ import main
from sim.vllm.paste import diagnose

CASES = sorted(Path(__file__).parent.glob("data/pastes/*.txt"))


def contains(actual, expected, path="parse"):
    """Where `actual` differs from what is expected of it; more keys than expected are welcome."""
    if isinstance(expected, dict):
        if not isinstance(actual, dict):
            return [f"{path}: {actual!r} instead of {expected!r}"]
        return [d for k, v in expected.items() for d in contains(actual.get(k, "missing"), v, f"{path}.{k}")]
    same = actual == expected and isinstance(actual, bool) == isinstance(expected, bool)
    return [] if same else [f"{path}: {actual!r} instead of {expected!r}"]


@pytest.mark.parametrize("case", CASES, ids=lambda p: p.stem)
def test_a_real_looking_paste_is_read_and_diagnosed_as_its_keeper_says(case):
    expected = json.loads(case.with_suffix(".expected.json").read_text())
    got = json.loads(json.dumps(diagnose(case.read_bytes()).as_dict()))
    assert got["kind"] == expected["kind"]
    for key in ("parse", "env", "image", "redact", "warnings", "errors", "error"):
        if key in expected:
            assert contains(got.get(key), expected[key], key) == []
    wanted = expected.get("diagnosis")
    assert (got["diagnosis"] or {}).get("code") == (wanted or {}).get("code")


WRAPPED = {
    "a string of JSON": json.dumps, "a quotation": lambda s: "".join(f"> {line}\n" for line in s.split("\n")),
    "grep -n": lambda s: "".join(f"{n}:{line}\n" for n, line in enumerate(s.split("\n"), 7)),
    "a report": lambda s: f"<details>\n<summary>output</summary>\n\n```text\n{s}\n```\n</details>\nThanks, it's urgent!\n",
    "UTF-16": lambda s: s.encode("utf-16"), "Windows": lambda s: s.replace("\r", "").replace("\n", "\r\n"),
    "HTML": lambda s: s.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;"),
}


@pytest.mark.parametrize("wrapping", WRAPPED)
@pytest.mark.parametrize("case", CASES, ids=lambda p: p.stem)
def test_a_wrapping_does_not_change_what_is_read(case, wrapping):
    plain, wrapped = diagnose(case.read_text()), diagnose(WRAPPED[wrapping](case.read_text()))
    assert (wrapped.kind, wrapped.parse) == (plain.kind, plain.parse)


SECRETS = {
    "docker": 'docker run -e HF_TOKEN=hf_abcdefghijABCDEFGH1234 -e "OPENAI_API_KEY=sk-proj-abcdefgh12345678" vllm/vllm-openai --model m '
    "--api-key tok-verysecret",
    "compose": "services:\n  v:\n    image: vllm/vllm-openai\n    command: --model m --api-key tok-verysecret\n    environment:\n"
    "      - HF_TOKEN=hf_abcdefghijABCDEFGH1234\n      - AWS_SECRET_ACCESS_KEY=sk-proj-abcdefgh12345678\n",
    "shell": "export HF_TOKEN=hf_abcdefghijABCDEFGH1234\nvllm serve m --api-key=tok-verysecret --served-model-name sk-proj-abcdefgh12345678",
    "variable": "KEY=tok-verysecret; HF_TOKEN=hf_abcdefghijABCDEFGH1234 vllm serve m --api-key $KEY --foo sk-proj-abcdefgh12345678",
    "label": 'vllm:num_requests_running{engine="0",instance="http://me:tok-verysecret@h",model_name="hf_abcdefghijABCDEFGH1234"} 1\n',
    "log": "INFO 06-01 10:00:01 [loggers.py:1] Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.0% Bearer tok-verysecret",
}


@pytest.mark.parametrize("where", SECRETS)
def test_no_secret_of_a_paste_comes_out(where):
    out = json.dumps(diagnose(SECRETS[where]).as_dict())
    for secret in ("verysecret", "abcdefghijABCDEFGH1234", "sk-proj-abcdefgh12345678"):
        assert secret not in out


M = 10_000_000
STRANGE = {
    "binary": bytes(range(256)) * (M // 256),
    "nulls": "\0" * 1000,
    "empty": "",
    "blank": " \n" * 1000,
    "novel": "It was the best of times, it was the worst of times.\n" * (M // 53),
    "novel in a line": "It was the best of times, " * (M // 26),
    "html": "<!DOCTYPE html><html>" + "<p>hello</p>\n" * (M // 13) + "</html>",
    "dashes": "-" * M,
    "dashes, long": "vllm serve " + "—" * (M // 3),
    "braces": "{" * M,
    "brackets": "[" * M,
    "open labels": "vllm:x{" * (M // 7),
    "quotes": '"' * M,
    "colours": "\x1b[1m" * (M // 4),
    "dollars": "vllm serve m " + "${A:-" * (M // 5),
    "redirections": "vllm serve m " + " >" * (M // 2),
    "digits": "Avg prompt throughput: " + "1" * M,
    "deep yaml": "args: " + "[" * 20_000 + "\n--max-num-seqs 3",
    "csv": "1,2,3,4\n" * (M // 8),
    "surrogates": "\ud800" * 1000,
    "yaml bomb": 'a: &a ["x","x"]\n'
    + "\n".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]" for i in range(9))
    + "\nargs: [--max-num-seqs, 3]",
}


def cpu(read):
    """CPU time of reading something, s, and what came of it."""
    begin = time.process_time()
    found = read()
    return time.process_time() - begin, found


@pytest.fixture(scope="module")
def honest():
    """What a log of M characters costs, s."""
    line = "INFO 06-01 10:00:{:02d} [loggers.py:1] Engine 000: Avg prompt throughput: 9.0 tokens/s, Running: {} reqs, GPU KV cache usage: 3.0%\n"
    log = "".join(line.format(i % 60, i % 100) for i in range(M // len(line)))
    took, report = cpu(lambda: diagnose(log))
    assert report.kind == "log"
    return took


@pytest.mark.parametrize("what", STRANGE)
def test_anything_at_all_is_answered_sooner_than_a_log_of_its_length(what, honest):
    took, report = cpu(lambda: diagnose(STRANGE[what]))
    assert took < honest
    assert report.error or report.parse is not None or report.errors or report.advice
    json.dumps(report.as_dict())


@given(st.text(max_size=400) | st.binary(max_size=400))
def test_no_paste_raises(data):
    diagnose(data).as_dict()


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(CASES), st.data())
def test_a_damaged_paste_does_not_raise(case, data):
    text = case.read_text()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 60)))
    diagnose(text[:start] + data.draw(st.text(max_size=8)) + text[end:]).as_dict()


def test_from_a_shell(capsys, monkeypatch):
    assert main(["diagnose", str(CASES[0]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "serve_cmd"
    assert main(["diagnose", "no such file"]) == 2
    assert main(["diagnose", str(CASES[0].with_name("m05.txt"))]) == 0
    words = capsys.readouterr().out
    assert "kv_usage: 0.999" in words and "DP_IMBALANCE (high confidence)" in words
    assert main(["diagnose", str(CASES[0].with_name("m21.txt"))]) == 1


def test_of_a_huge_file_the_beginning_and_the_end_are_read(tmp_path, capsys):
    line = "INFO 06-01 10:00:00 [loggers.py:1] Engine 000: Avg prompt throughput: 0.0 tokens/s, Running: {} reqs, GPU KV cache usage: 3.0%\n"
    file, others = tmp_path / "server.log", b"INFO: GET /health 200 OK\n" * 300_000
    with file.open("wb") as out:
        out.write(line.format(1).encode() + others)
        out.seek(2**31)  # sparse between them
        out.write(others + line.format(7).encode())
    whole = tmp_path / "whole.log"
    whole.write_bytes(line.format(1).encode() + others + line.format(7).encode())
    small, _ = cpu(lambda: main(["diagnose", str(whole), "--json"]))
    capsys.readouterr()
    huge, _ = cpu(lambda: main(["diagnose", str(file), "--json"]))
    assert huge < 5 * small  # of 300 times the bytes
    parse = json.loads(capsys.readouterr().out)["parse"]
    assert parse["samples"] == 2 and parse["last"]["running"] == 7


@pytest.mark.parametrize("text, what, says", [
    ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,4808,10\n", "trace", "Azure"),
    (json.dumps({"completed": 4, "total_input_tokens": 400, "total_output_tokens": 80, "request_rate": 2.0}), "trace", "vllm bench"),
    ("Successful requests:   1000\nBenchmark duration (s):   101.50\nMean TTFT (ms):   145.20\nP99 TTFT (ms):  420.31\n", "benchmark", "/metrics"),
])
def test_what_belongs_elsewhere_is_sent_there(text, what, says):
    report = diagnose(text)
    assert (report.what, report.parse) == (what, None) and says in str(report.notes)


def test_a_config_json_without_a_field_names_it():
    report = diagnose('{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096}')
    assert "num_hidden_layers" in str(report.errors)
