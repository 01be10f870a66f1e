"""Whatever somebody pastes -> what it is, what it says, and what to do: `diagnose`.

python -m sim diagnose FILE        (or - for standard input) prints the report; --json: for a program
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from sim import traces
from sim.advice import Advice, Figures, advise
from sim.catalog import model_from_config
from sim.scenario import SimError
from sim.sentences import Note

from . import logs, metrics, serve
from .clean import MAX_CHARS, Reading, decode, note, once, scrub, strip_colour, strip_margin, unwrap_json_lines

_BENCHMARK = re.compile(
    r"(?:time to first token|inter.token latency|(?:request|token) throughput|benchmark duration|(?:mean|median|p\d\d) (?:ttft|tpot|itl|e2el))"
    r"[^\n\d]{0,60}\d", re.I,
)
_PART = 4 * MAX_CHARS  # bytes of either end of a file; what is between them is not looked at


@dataclass(slots=True, kw_only=True)
class Report(Reading):
    """What was recognised in a paste.

    kind: metrics | log | serve_cmd | model_config | unknown. parse: what was read, None if nothing. what: the paste in
    one word ("html", "binary", "prose", "empty", ...). advice: the most pressing first, empty where nothing can be said.
    """

    kind: str
    what: str
    error: str = ""
    settings: dict[str, Any] = field(default_factory=dict)  # of a command line found beside metrics or logs
    advice: list[Advice] = field(default_factory=list)

    @classmethod
    def of(cls, reading: Reading, kind: str, what: str, **more: Any) -> Report:
        """The report on something that was read."""
        report = cls(parse=None, kind=kind, what=what, **more)
        for part in fields(Reading):
            setattr(report, part.name, getattr(reading, part.name))
        report.parse = scrub(reading.parse)
        return report

    def as_dict(self) -> dict[str, Any]:
        """For JSON, in English. Holds no secret: what looks like one is replaced."""
        data: dict[str, Any] = {"kind": self.kind, "what": self.what, "parse": self.parse}
        data["warnings"] = self.warnings
        for name in ("error", "format", "image", "errors", "env", "redact", "ignored", "unknown", "notes", "settings"):
            if getattr(self, name):
                data[name] = getattr(self, name)
        data["diagnosis"] = self.advice[0].as_dict() if self.advice else None
        if len(self.advice) > 1:
            data["also"] = [a.as_dict() for a in self.advice[1:]]
        clean: dict[str, Any] = scrub(data)
        return clean


    def __str__(self) -> str:
        data = self.as_dict()
        also = [data.pop("diagnosis", None), *data.pop("also", [])]
        if self.kind == "serve_cmd":
            data.pop("settings", None)  # the same as what was read
        lines = [f"{self.kind}: {self.what}", "", yaml.safe_dump(_plain(data), sort_keys=False, allow_unicode=True, width=120)]
        lines += [f"{a['code']} ({a['confidence']} confidence): {a['why']}\n  {a['action']}" for a in also if a]
        return "\n".join(lines).rstrip()


def _plain(value: Any) -> Any:
    """What is said, as plain data for YAML; without what is empty."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items() if k not in ("kind", "what") and v not in ("", [], {})}
    return [_plain(v) for v in value] if isinstance(value, list) else str(value) if isinstance(value, str) else value


def _no(kind: str, what: str, error: str, *notes: Note) -> Report:
    """The report on something of which nothing could be read."""
    return Report(parse=None, kind=kind, what=what, error=error, notes=list(notes))


def diagnose(data: bytes | str) -> Report:
    """The report on a paste. Never raises; answers within a second whatever it is given."""
    text, notes, what = decode(data)
    if what:
        return _no("unknown", what, "not text: paste the text of /metrics, a log, a command or config.json")
    if not text.strip():
        return _no("unknown", "empty", "nothing in the paste")
    try:
        report = _recognise(text)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, OverflowError) as error:
        report = _no("unknown", "text", f"could not be read ({type(error).__name__})")
    report.notes = notes + report.notes
    return report


def _recognise(text: str) -> Report:
    text = strip_margin(strip_colour(text))
    brace = re.search(r"^\s*[{\[]", text[:400_000], re.M)
    special = _json(text[brace.end() - 1 :]) if brace else None
    if special:
        return special
    flat, _ = unwrap_json_lines(text)
    flat = metrics.from_csv(flat) or flat
    if metrics.looks_like_metrics(flat):
        return _metrics(flat)
    log, command = logs.looks_like_log(flat), serve.looks_like_serve(flat)
    if log:
        report = _log(text)
        if report:
            return report
    if command:
        report = _serve(flat)
        if report:
            return report
    return _nothing(text)


def _json(text: str) -> Report | None:
    documents: list[Any] = []
    at = 0
    with suppress(ValueError, RecursionError):
        while at < len(text) and len(documents) < 1000:
            data, at = json.JSONDecoder().raw_decode(text, at)
            documents.append(data)
            at += len(text[at : at + 100]) - len(text[at : at + 100].lstrip(" \t\n,"))
    if not documents:
        return None
    data = documents[0]
    samples = metrics.from_json(documents if len(documents) > 1 else data)
    if samples:
        return _metrics(samples)
    said = "\n".join(_strings(documents))
    if logs.looks_like_log(said):
        return _log(said)
    if not isinstance(data, dict):
        return None
    if "num_hidden_layers" in data or "architectures" in data or isinstance(data.get("text_config"), dict):
        keep = {
            k: v
            for k, v in data.items()
            if isinstance(v, (str, int, float, bool)) or k in ("architectures", "text_config")
        }
        report = Report(parse=keep, kind="model_config", what="config.json of a model")
        try:
            report.settings = {"model": model_from_config(json.dumps(data))}
        except (SimError, ValueError, KeyError, TypeError) as error:
            name = getattr(error, "params", {}).get("name", "")
            report.errors.append(note("config_field", name=name, words=str(error)))
        return report
    return None


def _strings(node: Any) -> Iterator[str]:
    """What a log store put into JSON: all strings that are more than a word."""
    if isinstance(node, str):
        if " " in node:
            yield node
    elif isinstance(node, (dict, list)):
        for part in node.values() if isinstance(node, dict) else node:
            yield from _strings(part)


def _settings_beside(text: str) -> dict[str, Any]:
    """Settings of a command line or of start-up arguments pasted together with metrics or a log."""
    if not serve.looks_like_serve(text[:200_000]):
        return {}
    lines = [x for x in text[:200_000].split("\n") if not x.lstrip().startswith(("#", "vllm:", "sglang:"))][:400]
    return serve.read("\n".join(lines)).parse or {}


def _metrics(text: str) -> Report:
    report = _finish_metrics(metrics.read(text))
    settings = _settings_beside(text)
    if settings and report.parse:
        report.settings = settings
        report.advice = advise(Figures.of_paste(report.parse, settings))
    return report


def _finish_metrics(reading: Reading) -> Report:
    if reading.parse is None:
        return _no("metrics", "text", "no samples")
    reading.unknown = once(reading.unknown)
    report = Report.of(reading, "metrics", f"/metrics of {reading.parse['engine_family']}")
    report.advice = advise(Figures.of_paste(report.parse or {}))
    return report


def _log(text: str) -> Report | None:
    reading = logs.read(text)
    if reading.parse is None:
        return None
    reading.warnings, reading.unknown = once(reading.warnings), once(reading.unknown)
    report = Report.of(reading, "log", f"log of {reading.parse['engine_family']}", settings=_settings_beside(text))
    parse = report.parse or {}
    if parse.get("samples") or parse.get("error"):
        report.advice = advise(Figures.of_paste(parse, report.settings))
    return report


def _serve(text: str) -> Report | None:
    reading = serve.read(text)
    if reading.parse is None and not reading.errors:
        return None
    reading.redact = list(dict.fromkeys(reading.redact))
    report = Report.of(reading, "serve_cmd", f"command line of {reading.engine}", settings=dict(reading.parse or {}))
    report.error = "" if reading.parse is not None else "no server command"
    return report


def _nothing(text: str) -> Report:
    """What a paste is that says nothing of a server."""
    head = text[:4000].lstrip().lower()
    if re.match(r"<!doctype|<html|<head|<body|<\?xml|<svg", head) or "</html>" in text[-4000:].lower():
        return _no("metrics", "html", "no samples", note("html"))
    if re.search(r"(?m)^(?:# (?:HELP|TYPE) |(?:[\w:]+\{[^}\n]{0,2000}\}|[a-z_:][\w:]*) [\d.+\-eEInfNa]{1,30}$)", text[:200_000]):
        return _no("metrics", "metrics", "no samples", note("other_metrics"))
    if re.search(r"curl: \(\d+\)|connection refused|404 page not found|502 bad gateway|not found", head):
        return _no("metrics", "error", "no samples", note("curl_error"))
    if re.search(r"Traceback \(most recent call last\)|^\s*\w*(?:Error|Exception):", text[:200_000], re.M):
        return _no("log", "traceback", "no line of an inference server that this page knows", note("traceback"))
    with suppress(SimError):
        found = traces.read(text.encode("utf-8", "replace"), limit=1000)[1]
        return _no("unknown", "trace", "requests, and nothing of a server", note("is_trace", format=found.format))
    if len(_BENCHMARK.findall(text[:200_000])) > 1:
        return _no("unknown", "benchmark", "a client's figures, and nothing of a server", note("is_benchmark"))
    what = "prose" if len(text) > 200 and text[:20_000].count(" ") > 0.1 * min(len(text), 20_000) else "text"
    return _no("unknown", what, "neither /metrics, nor log lines, nor a serve command, nor config.json")


# ------------------------------------------------------------------------------------------------------------- from a shell


def command(subparsers: Any) -> None:
    """Adds `diagnose` to `python -m sim`."""
    parser = subparsers.add_parser("diagnose", help="what a pasted /metrics page, log or serve command says")
    parser.add_argument("file", help="a file, or - for standard input")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=_main)


def _main(arguments: argparse.Namespace) -> int:
    with nullcontext(sys.stdin.buffer) if arguments.file == "-" else Path(arguments.file).open("rb") as file:
        data = file.read(_PART)
        if file.seekable():
            file.seek(max(len(data), file.seek(0, os.SEEK_END) - _PART))
        data += file.read(_PART)
    report = diagnose(data)
    print(json.dumps(report.as_dict(), indent=1, ensure_ascii=False) if arguments.json else report)
    return 0 if report.parse is not None and not report.errors else 1
