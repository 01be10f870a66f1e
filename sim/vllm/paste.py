"""Whatever somebody pastes -> what it is, what it says, and what to do: `diagnose`.

python -m sim diagnose FILE        (or - for standard input) prints the report as JSON
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sim.advice import Advice, Figures, advise

from . import logs, metrics, serve
from .clean import MAX_CHARS, decode, scrub, strip_colour, unwrap_json_lines


@dataclass(slots=True)
class Report:
    """What was recognised in a paste.

    kind: metrics | log | serve_cmd | model_config | unknown. parse: what was read, None if nothing. what: the paste in
    one word ("html", "binary", "prose", "empty", ...). advice: the most pressing first, empty where nothing can be said.
    """

    kind: str
    what: str
    parse: dict[str, Any] | None = None
    error: str = ""
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    image: str | None = None
    redact: list[str] = field(default_factory=list)
    format: str = ""
    settings: dict[str, Any] = field(default_factory=dict)  # of a command line found beside metrics or logs
    advice: list[Advice] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON. Holds no secret: what looks like one is replaced."""
        data: dict[str, Any] = {"kind": self.kind, "what": self.what, "parse": self.parse}
        for name in ("error", "format", "image"):
            if getattr(self, name):
                data[name] = getattr(self, name)
        data["warnings"] = self.warnings
        for name in ("errors", "env", "redact", "ignored", "unknown", "notes", "settings"):
            if getattr(self, name):
                data[name] = getattr(self, name)
        data["diagnosis"] = self.advice[0].as_dict() if self.advice else None
        if len(self.advice) > 1:
            data["also"] = [a.as_dict() for a in self.advice[1:]]
        clean: dict[str, Any] = scrub(data)
        return clean


def diagnose(data: bytes | str) -> Report:
    """The report on a paste. Never raises; answers within a second whatever it is given."""
    text, notes, what = decode(data)
    if what:
        return Report("unknown", what, error="not text: paste the text of /metrics, a log, a command or config.json")
    if not text.strip():
        return Report("unknown", "empty", error="nothing in the paste")
    try:
        report = _recognise(text)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, OverflowError) as error:
        report = Report("unknown", "text", error=f"could not be read ({type(error).__name__})")
    report.notes = notes + report.notes
    return report


def _recognise(text: str) -> Report:
    text = strip_colour(text)
    stripped = text.lstrip()
    if stripped.startswith("{") and len(stripped) < 400_000:
        special = _json(stripped)
        if special:
            return special
    flat, _ = unwrap_json_lines(text)
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
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    found = metrics.from_query_result(data)
    if found:
        return _finish_metrics(metrics.read("", found))
    if "num_hidden_layers" in data or "architectures" in data or isinstance(data.get("text_config"), dict):
        keep = {
            k: v
            for k, v in data.items()
            if isinstance(v, (str, int, float, bool)) or k in ("architectures", "text_config")
        }
        report = Report("model_config", "config.json of a model", keep)
        try:
            from sim.catalog import model_from_config

            report.settings = {"model": model_from_config(text)}
        except ImportError:
            report.notes.append("this model cannot be simulated here")
        except (ValueError, KeyError, TypeError) as error:
            report.errors.append(str(error))
        return report
    return None


def _settings_beside(text: str) -> dict[str, Any]:
    """Settings of a command line or of start-up arguments pasted together with metrics or a log."""
    if not re.search(
        r"vllm\s+serve|vllm\.entrypoints|sglang\.launch_server|--max[-_]num[-_]seqs|vllm-openai", text[:200_000]
    ):
        return {}
    lines = [x for x in text[:200_000].split("\n") if not x.lstrip().startswith(("#", "vllm:", "sglang:"))][:400]
    reading = serve.read("\n".join(lines))
    return reading.parse or {}


def _metrics(text: str) -> Report:
    report = _finish_metrics(metrics.read(text))
    settings = _settings_beside(text)
    if settings and report.parse:
        report.settings = settings
        report.advice = advise(Figures.of_paste(report.parse, settings))
    return report


def _finish_metrics(reading: metrics.Reading) -> Report:
    if reading.parse is None:
        return Report("metrics", "text", error="no samples")
    ignored = [f"{name}* ({count} lines)" for name, count in reading.ignored.items()]
    parse: dict[str, Any] = scrub(reading.parse)
    return Report(
        "metrics",
        f"/metrics of {parse['engine_family']}",
        parse,
        warnings=reading.warnings,
        ignored=ignored,
        unknown=list(dict.fromkeys(reading.unknown)),
        advice=advise(Figures.of_paste(parse)),
    )


def _log(text: str) -> Report | None:
    reading = logs.read(text)
    if reading.parse is None:
        return None
    parse: dict[str, Any] = scrub(reading.parse)
    report = Report(
        "log",
        f"log of {parse['engine_family']}",
        parse,
        format=reading.format,
        warnings=list(dict.fromkeys(reading.warnings)),
        unknown=list(dict.fromkeys(reading.unknown)),
        ignored=[f"{k} ({v})" for k, v in reading.ignored.items()],
    )
    report.settings = _settings_beside(text)
    if parse.get("samples") or parse.get("error"):
        report.advice = advise(Figures.of_paste(parse, report.settings))
    return report


def _serve(text: str) -> Report | None:
    reading = serve.read(text)
    if reading.parse is None and not reading.errors:
        return None
    report = Report(
        "serve_cmd",
        f"command line of {reading.engine}",
        reading.parse,
        format=reading.format,
        warnings=reading.warnings,
        errors=reading.errors,
        env=reading.env,
        image=reading.image,
        redact=list(dict.fromkeys(reading.redact)),
        notes=reading.notes,
        ignored=reading.ignored,
        settings=dict(reading.parse or {}),
    )
    if reading.parse is None:
        report.error = "no server command"
    return report


def _nothing(text: str) -> Report:
    """What a paste is that says nothing of a server."""
    head = text[:4000].lstrip().lower()
    if re.match(r"<!doctype|<html|<head|<body|<\?xml|<svg", head) or "</html>" in text[-4000:].lower():
        return Report(
            "metrics",
            "html",
            error="no samples",
            notes=["an HTML page, not /metrics: check path, port and proxy (an error page of a web server?)"],
        )
    if re.search(
        r"(?m)^(?:# (?:HELP|TYPE) |[a-z_:][\w:]*(?:\{[^}\n]{0,2000}\})? [\d.+\-eEInfNa]{1,30}$)", text[:200_000]
    ):
        return Report(
            "metrics",
            "metrics",
            error="no samples",
            notes=["Prometheus text, but no series of an inference server (vllm:, sglang:, tgi_, NIM)"],
        )
    if re.search(r"curl: \(\d+\)|connection refused|404 page not found|502 bad gateway|not found", head):
        return Report(
            "metrics",
            "error",
            error="no samples",
            notes=["an error message, not /metrics: is the server up, on this port?"],
        )
    if re.search(r"Traceback \(most recent call last\)|^\s*\w*(?:Error|Exception):", text[:200_000], re.M):
        return Report(
            "log",
            "traceback",
            error="no line of an inference server that this page knows",
            notes=["a Python traceback; paste the lines above it too, from the first error"],
        )
    what = "prose" if len(text) > 200 and text[:20_000].count(" ") > 0.1 * min(len(text), 20_000) else "text"
    return Report("unknown", what, error="neither /metrics, nor log lines, nor a serve command, nor config.json")


# ------------------------------------------------------------------------------------------------------------- from a shell


def command(subparsers: Any) -> None:
    """Adds `diagnose` to `python -m sim`."""
    parser = subparsers.add_parser("diagnose", help="what a pasted /metrics page, log or serve command says")
    parser.add_argument("file", help="a file, or - for standard input")
    parser.set_defaults(run=_main, func=_main, handler=_main)


def _main(arguments: argparse.Namespace) -> int:
    try:
        data = sys.stdin.buffer.read(4 * MAX_CHARS + 1) if arguments.file == "-" else Path(arguments.file).read_bytes()
    except OSError as error:
        print(f"{arguments.file}: {error.strerror}", file=sys.stderr)
        return 2
    print(json.dumps(diagnose(data).as_dict(), indent=1, ensure_ascii=False))
    return 0
