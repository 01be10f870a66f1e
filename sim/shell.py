"""python -m sim run and replay: one scenario, or one trace, and its figures."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any

from sim import link, presets, traces
from sim.engine import simulate
from sim.requests import Requests
from sim.results import Run, Summary
from sim.scenario import SETTINGS, Scenario, Setting, SimError
from sim.vllm.flags import KINDS, human_int

_FIGURES = (
    ("Throughput", (("qps", "req/s"), ("output_tok_s", "tok/s"), ("goodput_qps", "req/s"))),
    ("GPU", (("gpu_compute", "%"), ("gpu_bandwidth", "%"), ("gpu_busy", "%"))),
    ("Queue", (("waiting_mean", ""), ("waiting_max", ""), ("running_mean", ""), ("running_max", ""))),
    ("KV cache", (("kv_mean", "%"), ("kv_max", "%"), ("num_gpu_blocks", "blocks"), ("prefix_hit_rate", "%"))),
    ("Preemption", (("preemptions", ""), ("preempted_requests", ""), ("recomputed_tokens", "tokens"),
                    ("swapped_blocks", "blocks"))),
    ("Requests", (("finished", ""), ("refused", ""), ("unfinished", ""))),
    ("Run", (("duration_s", "s"), ("ticks", ""), ("littles_law", ""))),
)
_LATENCIES = ("ttft", "queue", "itl", "tpot", "e2e")


def command(subparsers: Any) -> None:
    """Adds `run` and `replay`."""
    run = subparsers.add_parser("run", help="simulate one scenario", description="Simulate one scenario.")
    add_scenario(run)
    run.add_argument("--json", action="store_true", help="print figures and scenario as JSON")
    run.set_defaults(run=_run)
    about = f"Replay a trace: a file, or one of {', '.join(traces.SHIPPED)}."
    replay = subparsers.add_parser("replay", help="replay a trace file", description=about)
    replay.add_argument("trace", metavar="TRACE", help="a file (CSV, JSON lines, a result; plain or gzip), or a name")
    replay.add_argument("--window", type=float, metavar="S", help="replay S seconds of the trace (default: all of it)")
    replay.add_argument("--start", type=float, default=0.0, metavar="S", help="begin S seconds into the trace")
    replay.add_argument("--rate-scale", type=float, default=1.0, metavar="X", help="2 replays it twice as fast")
    replay.add_argument("--sample", type=float, default=1.0, metavar="P", help="keep this share of the rows, at random")
    replay.add_argument("--rate", type=float, metavar="R", help="req/s for a file that has lengths but no times")
    add_scenario(replay)
    replay.add_argument("--json", action="store_true", help="print figures, report and scenario as JSON")
    replay.set_defaults(run=_replay)


def add_scenario(parser: argparse.ArgumentParser) -> None:
    """The options that describe a scenario: --preset, --link, --set."""
    parser.add_argument("--preset", metavar="NAME", help=f"begin from one of {', '.join(presets.presets())}")
    parser.add_argument("--link", metavar="URL", help="begin from a shared link, or its query string")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="change a setting, by its name or its flag of vllm serve; may be repeated")


def scenario_of(args: argparse.Namespace) -> Scenario:
    """The scenario these options describe; what is odd about a link is said on stderr. Raises SimError."""
    if args.preset and args.link:
        raise SimError("two_beginnings", "--preset and --link both say where to begin: give one of them")
    base = Scenario()
    if args.preset:
        base = presets.preset(args.preset).scenario
    elif args.link is not None:
        given = link.parse(args.link)
        if not any(setting.key in given for setting in SETTINGS.values()):
            raise SimError("empty_link", f"{args.link!r} says no setting: give a page's whole address, or what follows its `?`")
        base, notices = link.decode(given)
        for notice in notices:
            print(f"note: {notice}", file=sys.stderr)
    return base.but(**dict(assignment(text) for text in args.set))


def assignment(text: str) -> tuple[str, Any]:
    """"max_num_seqs=64" -> ("max_num_seqs", 64). Raises SimError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise SimError("bad_assignment", f"{text!r} must read KEY=VALUE, such as max_num_seqs=64", value=text)
    setting = setting_of(name)
    return setting.name, value_of(setting, value)


def setting_of(name: str) -> Setting:
    """A setting by its name, or by vLLM's flag with or without dashes. Raises SimError("unknown_setting")."""
    plain = name.strip().lstrip("-").replace("-", "_")
    for setting in SETTINGS.values():
        if plain in (setting.name, setting.flag.lstrip("-").replace("-", "_")):
            return setting
    near = _nearest(plain)
    hint = f": did you mean {near}?" if near else ""
    raise SimError("unknown_setting", f"there is no setting {name.strip()!r}{hint}", value=name, near=near)


def value_of(setting: Setting, text: str) -> Any:
    """A setting's value from text. Raises SimError; whether it is in range, the Scenario checks."""
    text = text.strip()
    if setting.kind is bool:
        if text.lower() in ("1", "true", "on", "yes"):
            return True
        if text.lower() in ("0", "false", "off", "no"):
            return False
    elif setting.kind is str:
        return text
    else:
        try:
            human = KINDS.get(setting.name) == "human" and text[-1:] in "kKmM"
            number = float(human_int(text) if human else text.replace("_", ""))
            if setting.kind is float:
                return number
            if number.is_integer():
                return int(number)
        except (ValueError, OverflowError):
            pass
    kind = {bool: "true or false", int: "a whole number", float: "a number"}[setting.kind]
    raise SimError("wrong_type", f"{setting.name} must be {kind}, not {text!r}",
                   field=setting.name, value=text, kind=kind)


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, SETTINGS, 1)), "")


def _run(args: argparse.Namespace) -> int:
    scenario = scenario_of(args)
    run = simulate(scenario)
    _show(run, args.json, {"scenario": scenario.as_dict(), "link": link.query(scenario)})
    return 0


def _replay(args: argparse.Namespace) -> int:
    scenario = scenario_of(args)
    source = traces.shipped(args.trace) if args.trace in traces.SHIPPED else args.trace
    requests, report = traces.read(
        source, start_s=args.start, duration_s=args.window, rate_scale=args.rate_scale, sample=args.sample,
        rate=args.rate, seed=scenario.seed,
    )
    scenario = scenario.but(arrival="trace", trace="upload", duration_s=_lasting(requests))
    run = simulate(scenario, requests)
    about = {"format": report.format, "rows": report.rows, "used": report.used, "dropped": report.dropped,
             "notes": [str(note) for note in report.notes], "span_s": report.span_s}
    if not args.json:
        print(f"{report}\n")
    _show(run, args.json, {"trace": about, "scenario": scenario.as_dict()})
    return 0


def _lasting(requests: Requests) -> float:
    """A duration that holds all arrivals. Raises SimError("trace_too_long")."""
    last, high = math.ceil(float(requests.arrival[-1]) + 1.0), SETTINGS["duration_s"].high or math.inf
    if last > high:
        raise SimError("trace_too_long", f"the trace lasts {last:,} s, a run {high:,g} s: replay a --window, or faster (--rate-scale)")
    return last


def _show(run: Run, as_json: bool, more: dict[str, Any]) -> None:
    summary = run.summary()
    if as_json:
        figures = {k: v if math.isfinite(v) else None for k, v in summary.as_dict().items()}
        refusals = {str(i): str(error) for i, error in run.refusals.items()}
        print(json.dumps({"summary": figures, "stopped": run.stopped, "refusals": refusals, **more}, indent=1))
        return
    print(table(summary))
    if run.refusals:
        first = next(iter(run.refusals.values()))
        print(f"\n{len(run.refusals):,} requests were refused, the first because {first}")
    if run.stopped:
        print(f"\nThe run was stopped: {run.stopped}")


def table(summary: Summary) -> str:
    """The figures of a run for reading."""
    figures = summary.as_dict()
    lines = [f"{'':12}{'p50':>10}{'p90':>10}{'p99':>10}{'mean':>10}"]
    for name in _LATENCIES:
        cells = [seconds(figures[f"{name}_{at}"]) for at in ("p50", "p90", "p99", "mean")]
        lines.append(f"{'E2E' if name == 'e2e' else name if name == 'queue' else name.upper():12}"
                     + "".join(f"{cell:>10}" for cell in cells))
    lines.append("")
    for title, names in _FIGURES:
        cells = [f"{name} {figure(figures[name], unit)}" for name, unit in names]
        lines.append(f"{title:12}" + " · ".join(cells))
    if not summary.drained:
        lines.append("It did not drain: latencies are those of the requests that finished.")
    return "\n".join(lines)


def seconds(value: float) -> str:
    """A time: ms below one second."""
    if math.isnan(value):
        return "-"
    return f"{value * 1e3:.3g} ms" if value < 0.9995 else f"{value:.2f} s" if value < 100 else f"{value:,.0f} s"


def figure(value: float, unit: str) -> str:
    """A figure with its unit."""
    if math.isnan(value):
        return "-"
    if unit == "%":
        return f"{value * 100:.1f} %"
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"
    return f"{text} {unit}".strip()
