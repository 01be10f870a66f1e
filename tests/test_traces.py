"""Trace files as people have them: every kind reads, and what is odd about one is said."""

import gzip
import io
import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import traces
from sim.scenario import SimError
from ui import text
from ui.state import message

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:05.0000000,110,27"""


def read(text, **how):
    return traces.read(text.encode() if isinstance(text, str) else text, **how)


def codes(report):
    return {note.code for note in report.notes}


@pytest.mark.parametrize("text", [
    AZURE,
    AZURE + "\n",
    AZURE.replace("\n", "\r\n"),
    "\ufeff" + AZURE,
    AZURE.replace("\n", "\n\n") + "\n\n",
    AZURE.replace(",", ";"),
    AZURE.replace(",", "\t"),
    AZURE.replace(" 18", "T18").replace("00,", "00Z,"),
    AZURE.replace("TIMESTAMP,ContextTokens", "TIMESTAMP,NumImages,ContextTokens")
    .replace("00,4808", "00,0,4808").replace("00,3180", "00,2,3180").replace("00,110", "00,1,110"),
])
def test_azure_2023_however_it_was_saved(text):
    requests, report = read(text)
    assert requests.arrival == pytest.approx([0.0, 0.052, 1.02004])
    assert requests.prompt.tolist() == [4808, 3180, 110] and requests.output.tolist() == [10, 8, 27]
    assert (report.rows, report.used, report.dropped) == (3, 3, {})


def test_azure_2024_has_a_zone_and_sometimes_no_fraction():
    requests, _ = read("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,1452,3\n"
                       "2024-05-10 00:00:01+00:00,584,3\n2024-05-10 02:00:02.500000+02:00,862,38\n")
    assert requests.arrival == pytest.approx([0.0, 0.99007, 2.49007])


BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,0,0,0,Conversation log
45,GPT-4,417,0,417,API log
45,GPT-4,417,276,693,Conversation log
45,GPT-4,100,20,120,Conversation log
60,GPT-4,7,9,16,Conversation log
"""


def test_burstgpt_drops_failures_and_spreads_seconds():
    requests, report = read(BURST)
    assert report.dropped == {"failed": 2} and "2 that failed" in str(report)
    assert requests.prompt.tolist() == [472, 417, 100, 7]
    assert "ticks" in codes(report)
    assert 40 <= requests.arrival[1] < requests.arrival[2] < 41


def test_burstgpt_3_is_read_by_name():
    requests, _ = read(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n19440161.5,d5983bf9,2,ChatGPT,36,29,65,API log\n"
    )
    assert requests.arrival.tolist() == [0.0, 51.5] and requests.prompt.tolist() == [906, 36]


def mooncake(rows):
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    return "\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows)


def test_mooncake_shares_blocks_of_512_and_its_ticks_are_spread():
    rows = [(3000 * (i // 4), 1100 + i, 5, [0, 1 + i % 2, 100 + i]) for i in range(40)]
    requests, report = read(mooncake(rows))
    assert {"ticks", "shared_blocks"} <= codes(report)
    assert "3 s" in str(report)
    assert len(np.unique(requests.arrival)) == 40
    assert (requests.arrival // 3).tolist() == [i // 4 for i in range(40)]
    assert requests.prefix[0] == ((("b", 0), 512), (("b", 1), 512), (("b", 100), 76))
    assert requests.prefix[3][:2] == requests.prefix[1][:2]
    assert all(sum(n for _, n in p) == length for p, length in zip(requests.prefix, requests.prompt, strict=True))


def test_bailian_has_seconds_and_blocks_of_16():
    rows = [{"chat_id": i, "parent_chat_id": -1, "timestamp": 61.114 + i, "input_length": 40, "output_length": 7,
             "type": "text", "turn": 1, "hash_ids": [1, 2, 10 + i]} for i in range(3)]
    requests, report = read("\n".join(map(json.dumps, rows)))
    assert report.format == "Qwen-Bailian"
    assert requests.arrival == pytest.approx([0, 1, 2])
    assert requests.prefix[2] == ((("b", 1), 16), (("b", 2), 16), (("b", 12), 8))


def test_lengths_without_times_get_arrivals():
    text = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n" + "74,918,992,0.08\n" * 400
    requests, report = read(text, rate=20.0)
    assert requests.arrival[-1] == pytest.approx(20.0, rel=0.2) and "no_times" in codes(report)
    assert "20 req/s" in str(report)


BENCH = {
    "model_id": "m", "num_prompts": 4, "request_rate": 2.0, "burstiness": 1.0, "max_concurrency": None, "duration": 3.0,
    "completed": 4, "total_input_tokens": 400, "total_output_tokens": 80, "request_goodput:": None,
}


def test_results_of_vllm_bench():
    requests, report = read(json.dumps(BENCH))
    assert requests.prompt.tolist() == [100] * 4 and requests.output.tolist() == [20] * 4
    assert {"result_means", "drawn_arrivals"} <= codes(report)
    at_once, report = read(json.dumps(BENCH | {"request_rate": "inf"}))
    assert at_once.arrival.tolist() == [0.0] * 4 and "all_at_once" in codes(report)
    detail = {"input_lens": [10, 20, 30, 40], "output_lens": [1, 2, 0, 4], "start_times": [907.5, 908.0, 908.5, 909.0],
              "ttfts": [], "itls": [], "max_concurrency": 2}
    detailed, report = read(json.dumps(BENCH | detail, indent=2))
    assert detailed.arrival.tolist() == [0.0, 0.5, 1.5] and detailed.prompt.tolist() == [10, 20, 40]
    assert report.dropped == {"failed": 1} and {"result_detailed", "max_concurrency"} <= codes(report)
    appended, report = read(json.dumps(BENCH) + "\n" + json.dumps(BENCH | detail))
    assert len(appended) == 3 and "several_results" in codes(report)


def test_a_stage_report_is_a_result_and_its_percentiles_make_traffic_like_it():
    spread = {"mean": 204.1, "min": 196.0, "p10": 198.0, "median": 205.0, "p90": 209.0, "max": 212.0}
    report = {"load_summary": {"count": 300, "requested_rate": 5.0, "achieved_rate": 5.0},
              "successes": {"count": 300, "prompt_len": spread, "output_len": spread}, "failures": {"count": 0}}
    requests, said = read(json.dumps(report))
    assert len(requests) == 300 and requests.prompt.mean() == pytest.approx(204.1, abs=1)
    assert requests.arrival[-1] == pytest.approx(60, rel=0.2)
    assert "result, not a trace" in str(said)


def test_guidellm_reports_and_arrays():
    rows = [{"prompt_tokens": 10 + i, "output_tokens": 5, "start_time": 1.7e9 + i} for i in range(3)]
    requests, _ = read(json.dumps({"benchmarks": [{"requests": {"successful": rows, "errored": []}}]}))
    assert requests.arrival.tolist() == [0.0, 1.0, 2.0] and requests.prompt.tolist() == [10, 11, 12]
    requests, _ = read(json.dumps(rows, indent=1))
    assert len(requests) == 3


def test_rows_out_of_order_and_rows_that_cannot_be_read():
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n10.0,5,5\n9.0,6,6\nnonsense,7,7\n11.0,-4,7\n12.0,8\n13.0,1e99,8\n14,nan,2\n"
    requests, report = read(text)
    assert requests.arrival.tolist() == [0.0, 1.0] and requests.prompt.tolist() == [6, 5]
    assert report.dropped == {"unreadable": 5} and "sorted" in codes(report)
    assert report.rows == report.used + sum(report.dropped.values())


def test_a_file_cut_off_in_the_middle_loses_its_last_row_only():
    requests, report = read(mooncake([(0, 600, 5, [1, 2]), (10, 600, 5, [1, 3])])[:-9])
    assert len(requests) == 1 and report.dropped == {"unreadable": 1}


def test_windows_scale_sampling_and_limit():
    text = "arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(f"{i},{i + 1},3\n" for i in range(1000))
    requests, report = read(text, start_s=100.0, duration_s=50.0, rate_scale=2.0)
    assert requests.prompt.tolist() == list(range(101, 151))
    assert requests.arrival == pytest.approx(np.arange(50) / 2)
    assert report.rows == report.used + sum(report.dropped.values())
    some, report = read(text, sample=0.2)
    assert 150 < len(some) < 250 and report.dropped["not_sampled"] == 1000 - len(some)
    assert np.array_equal(some.prompt, read(text, sample=0.2)[0].prompt)
    few, report = read(text, limit=10)
    assert len(few) == 10 and "over_limit" in codes(report)


@pytest.mark.parametrize("stamp", ["1700000000", "1700000000000", "1700000000000000", "1700000000000000000"])
def test_unix_times_in_s_ms_us_and_ns(stamp):
    zeros = len(stamp) - 10
    text = f"time,input_tokens,output_tokens\n{stamp},5,5\n{int(stamp) + 2 * 10**zeros},5,5\n"
    assert read(text)[0].arrival == pytest.approx([0.0, 2.0], abs=1e-3)


def test_paths_bytes_open_files_and_gzip(tmp_path):
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(AZURE.encode()))
    upload = io.BytesIO(AZURE.encode())
    for source in (path, str(path), AZURE.encode(), upload, upload, io.StringIO(AZURE), AZURE.encode("utf-16")):
        assert len(traces.read(source)[0]) == 3
    assert not upload.closed


@pytest.mark.parametrize("content, says", [
    (b"", "empty"), (b"\n\n", "empty"), (b"PAR1....", "Parquet"), (b"PK\x03\x04....", "zip"), (b"\x89PNG\x00\x01", "not text"),
    (b"<!DOCTYPE html><html>", "web page"), (b"a,b,c\n1,2,3\n", "prompt tokens"), (b"TIMESTAMP,ContextTokens\n1,2\n", "generated"),
    (b"2023-11-16 18:17:03.97,4808,10\n", "names no column"), (b"{\"a\": 1", "breaks off"), (b"[1, 2]", "no objects"),
    (b"{\"a\": 1}", "no column"), (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"), (b"BZh91AY", "bzip2"),
    (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "no row"), (b"\x1f\x8b\x08broken", "gzip"),
    (b"[{\"conversations\": []}]", "ShareGPT"), (b"{\"benchmarks\": []}", "guidellm"),
    (b'{"benchmarks": [{"requests": 10}]}', "guidellm"),
    (json.dumps({"completed": 0, "total_input_tokens": 0}).encode(), "no request"),
    (json.dumps({"completed": 5, "total_input_tokens": 10}).encode(), "not whole"),
    (json.dumps({"load_summary": {}}).encode(), "not whole"),
])
def test_what_is_no_trace_is_refused_with_what_was_wrong(content, says):
    with pytest.raises(SimError, match=says):
        traces.read(content)


def test_a_page_says_it_in_the_visitors_language():
    text.use("zh")
    try:
        with pytest.raises(SimError) as refusal:
            traces.read(b"a,b\n1,2\n")
        assert "没有哪一列是 prompt 的 token 数；现有的列：a,b" in message(refusal.value)
    finally:
        text.use("en")


LENGTHS = [(100, 10), (200, 20), (300, 30)]


@pytest.mark.parametrize("header", [
    "timestamp,input_tokens,output_tokens", "created_at,prompt_tokens,completion_tokens", "request_time,PromptTokens,GenTokens",
    "time_s,n_prompt_tokens,n_generated_tokens", "Timestamp,Input,Output", "startTime,usage.prompt_tokens,usage.completion_tokens",
    "date,tokens_in,tokens_out", "ts,isl,osl", "timestamp,prefill_tokens,decode_tokens", "时间,输入长度,输出长度",
    '"Arrival Time","Prompt Length","Response Length"',
])
def test_columns_are_known_by_what_their_names_say(header):
    content = header + "".join(f"\n{t},{p},{o}" for t, (p, o) in zip((7, 8.5, 10), LENGTHS, strict=True))
    for encoding in ("utf-8", "utf-16", "gb18030"):
        requests, report = traces.read(f"# exported\n{content}".encode(encoding))
        assert requests.arrival.tolist() == [0, 1.5, 3] and not report.notes
        assert list(zip(requests.prompt.tolist(), requests.output.tolist(), strict=True)) == LENGTHS


@pytest.mark.parametrize("stamps, name", [
    ((1715299200, 1715299201.5, 1715299203), "timestamp"), ((1715299200000, 1715299201500, 1715299203000), "timestamp"),
    ((0, 1500, 3000), "timestamp_ms"), ((0, 1_500_000, 3_000_000), "timestamp_us"), ((0, 1500, 3000), "timestamp (ms)"),
    (("2024-05-10 00:00:00 UTC", "2024-05-10 00:00:01.5 UTC", "2024-05-10 00:00:03 UTC"), "timestamp"),
    (("2024/05/10 00:00:00", "2024/05/10 00:00:01.5", "2024/05/10 00:00:03"), "timestamp"),
    (("05/10/2024 10:00:00 AM", "05/10/2024 10:00:01.5 AM", "05/10/2024 10:00:03 AM"), "timestamp"),
    (("2024-05-10 00:00:00", "2024-05-10T00:00:01.5Z", "2024-05-10 02:00:03 +0200"), "timestamp"),
])
def test_times_are_known_however_they_are_written(stamps, name):
    rows = [(t, *both) for t, both in zip(stamps, LENGTHS, strict=True)]
    as_csv = f"{name},prompt_tokens,output_tokens" + "".join(f"\n{t},{p},{o}" for t, p, o in rows)
    as_json = "\n".join(json.dumps({name: t, "prompt_tokens": p, "output_tokens": o}) for t, p, o in rows)
    for content in (as_csv, as_csv + "\ninf,5,5\nnobody knows,5,5", as_json):
        assert read(content)[0].arrival.tolist() == [0, 1.5, 3]


def test_rows_of_json_inside_of_something():
    rows = [{"timestamp": t, "usage": {"prompt_tokens": p, "completion_tokens": o}}
            for t, (p, o) in zip((0.0, 1.5, 3.0), LENGTHS, strict=True)]
    columns = {"timestamp": [0.0, 1.5, 3.0], "input_length": [100, 200, 300], "output_length": [10, 20, 30]}
    for content in ("\n".join(map(json.dumps, rows)), json.dumps({"requests": rows}), json.dumps(columns, indent=1)):
        requests, _ = read(content)
        assert requests.arrival.tolist() == [0, 1.5, 3] and requests.prompt.tolist() == [100, 200, 300]


def test_a_result_cannot_ask_for_more_requests_than_a_trace_may_hold():
    requests, report = read(json.dumps(BENCH | {"completed": 10**12}))
    assert len(requests) == traces.LIMIT and "over_limit" in codes(report)


def test_a_missing_file_and_an_empty_window_are_refused():
    with pytest.raises(SimError, match="cannot open"):
        traces.read("/nowhere/trace.csv")
    with pytest.raises(SimError, match="the trace holds 1 s"):
        read(AZURE, start_s=100.0)
    for wrong in ({"start_s": -1.0}, {"duration_s": 0.0}, {"rate_scale": float("nan")}, {"sample": 0.0}, {"limit": 0}):
        with pytest.raises(SimError) as refusal:
            read(AZURE, **wrong)
        assert refusal.value.code == "bad_window"


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode)
       | st.lists(st.text(max_size=30), max_size=8).map(lambda rows: (AZURE + "\n" + "\n".join(rows)).encode())
       | st.recursive(st.none() | st.integers() | st.floats() | st.text(max_size=5), lambda x: st.lists(x, max_size=4)
                      | st.dictionaries(st.sampled_from([*BENCH, "timestamp", "input_length", "output_length", "hash_ids",
                                                         "load_summary", "successes", "benchmarks", "requests"]), x,
                                        max_size=5), max_leaves=15).map(lambda x: json.dumps(x).encode()))
@settings(max_examples=400, deadline=None)
def test_whatever_the_bytes_it_reads_or_refuses(content):
    try:
        requests, report = traces.read(content)
    except SimError:
        return
    assert len(requests) == report.used > 0
    assert report.rows == report.used + sum(report.dropped.values())


def test_every_shipped_trace_is_whole_and_credited():
    credit = (traces.DATA / "ATTRIBUTION.md").read_text()
    for name, file in traces.SHIPPED.items():
        requests, report = traces.replay(name)
        assert len(requests) == report.rows and file in credit
    assert len(traces.replay("azure2023_conv")[0]) == 19_366 and len(traces.replay("azure2023_code")[0]) == 8_819


def test_a_long_file_is_not_read_beyond_the_window(tmp_path):
    class Watched(io.BytesIO):
        pass

    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{i * 0.01:.2f},10,3\n" for i in range(300_000))
    source = Watched(text.encode())
    requests, report = traces.read(source, duration_s=100.0)
    assert len(requests) == 10_000 and "stopped" in codes(report) and report.rows < 50_000
    assert source.tell() < len(text) / 4


ROWS = [(0, 100, 10), (1.5, 200, 20), (3, 300, 30)]
AS_DICTS = [{"time": t, "prompt_tokens": p, "completion_tokens": o} for t, p, o in ROWS]
UNIX_NS = 1_700_000_000_000_000_000


def of_rows(make):
    return "\n".join(json.dumps(make(*row)) for row in ROWS)


def table(header, line="{},{},{}", factor=1.0):
    return header + "".join("\n" + line.format(t * factor, p, o) for t, p, o in ROWS)


WAYS = {
    "a title before it": table("Export of May 2024\n\ntime,prompt_tokens,output_tokens"),
    "a remark before it": "// exported\n" + "\n".join(map(json.dumps, AS_DICTS)),
    "an object of something else before it": '{"version": 1}\n' + "\n".join(map(json.dumps, AS_DICTS)),
    "what is no JSON before it": "{oops\n" + "\n".join(map(json.dumps, AS_DICTS)),
    "inside of objects": of_rows(lambda t, p, o: {"ts": t, "response": {"body": {"usage": {"prompt_tokens": p, "completion_tokens": o}}}}),
    "aiperf": of_rows(lambda t, p, o: {
        "metadata": {"request_start_ns": UNIX_NS + int(t * 1e9)},
        "metrics": {"input_sequence_length": {"value": p, "unit": "tokens"}, "output_sequence_length": {"value": o, "unit": "tokens"}}}),
    "Mooncake with quotes": of_rows(lambda t, p, o: {"timestamp": str(int(t * 1000)), "input_length": str(p), "output_length": o, "hash_ids": [p]}),
    "details beside": of_rows(lambda t, p, o: {
        "created": t + 1.7e9, "usage": {"completion_tokens_details": {"reasoning_tokens": 7}, "prompt_tokens_details": {"cached_tokens": 7},
                                        "prompt_tokens": p, "completion_tokens": o}}),
    "pandas": json.dumps({k: {str(i): row[k] for i, row in enumerate(AS_DICTS)} for k in AS_DICTS[0]}),
    "pandas, split": json.dumps({"columns": list(AS_DICTS[0]), "index": [0, 1, 2], "data": ROWS}),
    "arrays": json.dumps([list(AS_DICTS[0]), *ROWS]),
    "indented, one object": json.dumps({"meta": {"model": "m"}, "results": {"requests": AS_DICTS}}, indent=1),
    "guidellm 0.4": json.dumps({"benchmarks": [{"requests": {"successful": [
        {"request_latency": 9.0, "time_to_first_token_ms": 50.0, "prompt_tokens": p, "output_tokens": o,
         "info": {"timings": {"request_start": 1.7e9 + t, "request_end": 1.7e9}}} for t, p, o in ROWS]}}]}),
    "Splitwise": table("request_id,arrival_timestamp,prompt_size,token_size", "7,{},{},{}"),
    "Langfuse": table("timestamp,inputUsage,outputUsage"), "short": table("ts,in_tokens,out_tokens"),
    "ours": table("ts,reqTokens,respTokens"), "questions": table("time,question_tokens,answer_tokens"),
    "millis": table("timestamp_millis,input_len,output_len", factor=1e3), "msec": table("Arrival [msec],isl,osl", factor=1e3),
    "micros": table("arrival_micros,input_len,output_len", factor=1e6), "nanos": table("start_nanoseconds,isl,osl", factor=1e9),
    "a broken clock": table("time,prompt_tokens,output_tokens") + "\n1e300,5,5\n1700000000,6,6",
}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_traffic_in_every_way(way):
    requests, report = read(WAYS[way])
    assert requests.arrival == pytest.approx([0, 1.5, 3], abs=1e-3)
    assert requests.prompt.tolist() == [100, 200, 300] and requests.output.tolist() == [10, 20, 30]
    assert report.rows == report.used + sum(report.dropped.values())


@pytest.mark.parametrize("name, seconds", [("input_length", 0.004), ("Request tokens", 4.0)])
def test_whole_numbers_are_ms_where_the_names_are_mooncakes_and_else_s(name, seconds):
    as_csv = f"timestamp,{name},output_length\n" + "".join(f"{t},5,5\n" for t in (0, 1, 4))
    as_json = "\n".join(json.dumps({"timestamp": t, name: 5, "output_length": 5}) for t in (0, 1, 4))
    for content in (as_csv, as_json):
        assert read(content)[0].arrival[-1] == pytest.approx(seconds)


def test_an_array_of_results_is_results():
    requests, report = read(json.dumps([BENCH, BENCH]))
    assert len(requests) == 4 and "several_results" in codes(report)


@pytest.mark.parametrize("first, second", [
    ("12/11/2023 23:59:59", "13/11/2023 00:00:01"), ("05.10.2024 23:59:59", "06.10.2024 00:00:01"),
    ("11/12/2023 23:59:59", "11/13/2023 00:00:01"), ("Nov 12 2023 23:59:59", "Nov 13 2023 00:00:01"),
])
def test_days_and_months_are_told_apart(first, second):
    assert read(f"time,prompt_tokens,output_tokens\n{first},5,5\n{second},5,5")[0].arrival.tolist() == [0, 2]


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
@pytest.mark.parametrize("first", ["arrival", "created_ms", "id"])
def test_columns_are_told_apart_whatever_stands_between_them(first, delimiter):
    lines = [[first, "prompt_tokens", "output_tokens"], ["1", "100", "50"], ["2", "300", "70"]]
    requests, _ = read("\n".join(map(delimiter.join, lines)))
    assert requests.prompt.tolist() == [100, 300] and requests.output.tolist() == [50, 70]


def test_a_time_without_its_hour_is_not_guessed_and_the_row_is_shown():
    with pytest.raises(SimError, match=r'2 that cannot be read\): \["17:03.0", "5", "6"\]'):
        read("time,prompt_tokens,output_tokens\n17:03.0,5,6\n17:04.5,5,6")
    _, report = read(table("time,prompt_tokens,output_tokens") + "\nnever,5,6")
    assert '["never", "5", "6"]' in str(report)


@pytest.mark.parametrize("piece", [b"\0", b" ", b"\n", b"a", b"[", b"x,y,z\n"])
def test_a_small_file_that_unpacks_to_a_huge_one_is_not_unpacked_whole(piece):
    part = gzip.compress(piece * 1_000_000)

    def cost(parts):
        begin = time.process_time()
        with pytest.raises(SimError):
            traces.read(gzip.compress(b"time,prompt_tokens,output_tokens\n" if b"," in piece else b"") + part * parts)
        return time.process_time() - begin

    assert cost(600) < 4 * min(cost(60), cost(60))
