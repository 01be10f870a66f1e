"""Real traffic: reads the trace files people have into Requests, and says what it made of them.

Read by the names of the columns, whatever their order, in blocks of rows, so that a file of 200 MB is never in memory
as a whole. What is odd is handled and reported: rows that failed (0 tokens), rows that cannot be read, clocks that tick
only every few seconds, rows out of order, files cut off in the middle.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from sim.requests import Floats, Ints, Prefix, Requests
from sim.scenario import SimError

DATA = Path(__file__).parent / "data"
SHIPPED = {
    "azure2023_conv": "azure2023_conv.csv.gz",
    "azure2023_code": "azure2023_code.csv.gz",
    "azure2023_code_burst": "azure2023_code_burst.csv.gz",
    "mooncake_conversation": "mooncake_conversation.jsonl.gz",
}
"""Traces that come with the simulator, by name; sim/data/ATTRIBUTION.md has their sources and licences."""

LIMIT = 200_000
"""At most this many requests come out of one trace."""

_BLOCK = 20_000  # rows held as text at a time
_SLACK_S = 60.0  # how far out of order a row may stand in a file that is sorted otherwise
_MAX_TOKENS = 10_000_000  # a row with more is garbage
_DEFAULT_RATE = 10.0  # req/s for files without times

_TIME = (
    "timestamp", "time", "arrival", "arrivaltime", "arrivedat", "arrivaltimestamp", "arrivals", "starttime",
    "requeststarttime", "sendtime", "ts", "timestampms", "timems", "arrivaltimems",
)
_PROMPT = (
    "contexttokens", "requesttokens", "inputlength", "inputtokens", "prompttokens", "promptlen", "promptlength",
    "numprefilltokens", "inputlen", "numprompttokens", "numinputtokens", "inputtoks", "prompt",
)
_OUTPUT = (
    "generatedtokens", "responsetokens", "outputlength", "outputtokens", "completiontokens", "numdecodetokens",
    "outputlen", "numoutputtokens", "numgeneratedtokens", "generatedlen", "outputtoks", "output",
)
_KNOWN = (
    "Azure (TIMESTAMP,ContextTokens,GeneratedTokens), BurstGPT (Timestamp,...,Request tokens,Response tokens), "
    "Mooncake and Qwen-Bailian JSON lines (timestamp, input_length, output_length), "
    "lengths (num_prefill_tokens,num_decode_tokens), results of `vllm bench serve --save-result`"
)


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth knowing about a trace. `code` names it, `params` fill it, str() says it in English."""

    code: str
    text: str
    params: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Report:
    """What a reader made of a file. rows = used + sum(dropped.values()) of what was read."""

    format: str
    rows: int
    used: int
    dropped: dict[str, int]  # failed, unreadable, outside_window, not_sampled, over_limit -> rows
    notes: tuple[Note, ...]
    span_s: float  # from the first to the last row read, in the time of the trace

    def __str__(self) -> str:
        lost = ", ".join(f"{count:,} {_REASONS[why]}" for why, count in self.dropped.items() if count)
        head = f"{self.format}: {self.rows:,} rows read, {self.used:,} used" + (f"; dropped {lost}" if lost else "")
        return "\n".join([head, *(f"- {note}" for note in self.notes)])


_REASONS = {
    "failed": "that failed (0 tokens)", "unreadable": "that cannot be read", "outside_window": "outside the window",
    "not_sampled": "left out by sampling", "over_limit": "beyond the limit",
}

Source = str | Path | bytes | IO[bytes] | IO[str]


def shipped(name: str) -> Path:
    """The file of a trace that comes with the simulator. Raises SimError("unknown_trace")."""
    if name not in SHIPPED:
        names = ", ".join(SHIPPED)
        raise SimError("unknown_trace", f"no trace is called {name!r}; there are {names}", field="trace", value=name,
                       choices=names)
    return DATA / SHIPPED[name]


def read(
    source: Source, *, start_s: float = 0.0, duration_s: float | None = None, rate_scale: float = 1.0,
    sample: float = 1.0, limit: int = LIMIT, rate: float | None = None, seed: int = 7,
) -> tuple[Requests, Report]:
    """Requests of a trace file, and a report.

    source       path, bytes or open file; plain or gzip
    start_s, duration_s   the window in the time of the trace, counted from its first row; None: to the end
    rate_scale   2 replays it twice as fast
    sample       the share of rows kept, at random (seeded)
    limit        at most so many requests
    rate         req/s for a file that has lengths but no times
    Arrivals count from the beginning of the window.
    Raises SimError: unreadable_trace, no_rows, empty_window, bad_window.
    """
    _check_window(start_s, duration_s, rate_scale, sample, limit, rate)
    end_s = math.inf if duration_s is None else start_s + duration_s
    rows = _load(source, _Wanted(start_s, end_s, sample, limit, rate or _DEFAULT_RATE, seed))
    return _select(rows, start_s, end_s, rate_scale, limit, seed)


def replay(
    name: str, *, start_s: float = 0.0, duration_s: float | None = None, rate_scale: float = 1.0, limit: int = LIMIT,
) -> tuple[Requests, Report]:
    """`read` of a shipped trace, which is kept in memory once read."""
    _check_window(start_s, duration_s, rate_scale, 1.0, limit, None)
    end_s = math.inf if duration_s is None else start_s + duration_s
    return _select(_shipped(name), start_s, end_s, rate_scale, limit, 7)


@lru_cache(maxsize=len(SHIPPED))
def _shipped(name: str) -> _Rows:
    return _load(shipped(name), _Wanted())


def _check_window(
    start_s: float, duration_s: float | None, rate_scale: float, sample: float, limit: int, rate: float | None
) -> None:
    def require(right: bool, name: str, what: str) -> None:
        if not right:
            raise SimError("bad_window", f"{name} must be {what}", field=name, what=what)

    require(math.isfinite(start_s) and start_s >= 0.0, "start_s", "0 s or later")
    require(duration_s is None or (math.isfinite(duration_s) and duration_s > 0.0), "duration_s", "longer than 0 s")
    require(math.isfinite(rate_scale) and rate_scale > 0.0, "rate_scale", "above 0")
    require(0.0 < sample <= 1.0, "sample", "above 0 and at most 1")
    require(limit >= 1, "limit", "at least 1")
    require(rate is None or (math.isfinite(rate) and rate > 0.0), "rate", "above 0 req/s")


# --- from rows to requests


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the caller will look at, so that the rest need not be kept."""

    start_s: float = 0.0
    end_s: float = math.inf
    sample: float = 1.0
    limit: int = LIMIT
    rate: float = _DEFAULT_RATE
    seed: int = 7


@dataclass(slots=True)
class _Rows:
    """The rows kept of a file, sorted by time (s, from the first row on)."""

    format: str
    time: Floats
    prompt: Ints
    output: Ints
    hashes: list[tuple[int | str, ...]] | None = None
    block: int = 0  # tokens a hash stands for
    tick: float = 0.0  # the clock's step, where several rows share a time; 0: none
    read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    notes: list[Note] = field(default_factory=list)
    span_s: float = 0.0


def _select(
    rows: _Rows, start_s: float, end_s: float, rate_scale: float, limit: int, seed: int
) -> tuple[Requests, Report]:
    time, dropped, notes = rows.time, rows.dropped.copy(), list(rows.notes)
    empty = SimError(
        "empty_window", f"nothing arrives between {start_s:g} s and {end_s:g} s: the trace holds {rows.span_s:,.0f} s",
        field="trace_start_s", value=start_s, span_s=rows.span_s,
    )
    if not len(time):
        if dropped["outside_window"]:
            raise empty
        lost = ", ".join(f"{count:,} {_REASONS[why]}" for why, count in dropped.items() if count)
        raise SimError("no_rows", f"{rows.format}: no row is left to replay ({lost or 'the file has a header only'})",
                       rows=rows.read)
    if rows.tick:
        time = _spread(time, rows.tick, seed)
    first, last = (int(i) for i in np.searchsorted(time, [start_s, end_s]))
    if first == last:
        raise empty
    dropped["outside_window"] += len(time) - (last - first)
    if last - first > limit:
        dropped["over_limit"] += last - first - limit
        last = first + limit
        text = f"only the first {limit:,} requests are replayed: take a shorter window, or sample"
        notes.append(Note("over_limit", text, {"limit": limit}))
    arrival = np.rint((time[first:last] - start_s) / rate_scale * 1e6) / 1e6
    prompt, output = rows.prompt[first:last].copy(), rows.output[first:last].copy()
    prefix = None if rows.hashes is None else _segments(rows.hashes[first:last], rows.block, prompt)
    requests = Requests.of(arrival, prompt, output, prefix=prefix)
    return requests, Report(rows.format, rows.read, len(requests), dict(+dropped), tuple(notes), rows.span_s)


def _spread(time: Floats, tick: float, seed: int) -> Floats:
    """Rows that share a tick of the clock, spread at random inside it (as Poisson arrivals would stand)."""
    stamps, which = np.unique(time, return_inverse=True)
    room = np.minimum(np.diff(stamps, append=stamps[-1] + tick), tick)
    spread = time + np.random.Generator(np.random.PCG64(seed)).random(len(time)) * room[which]
    spread.sort()
    return spread


def _segments(hashes: list[tuple[int | str, ...]], block: int, prompt: Ints) -> tuple[Prefix, ...]:
    """Prompts as shared blocks; a last block may be partial, and what the hashes do not cover is the request's own."""
    full: dict[int | str, tuple[tuple[str, int | str], int]] = {}
    prefix: list[Prefix] = []
    for i, (ids, length) in enumerate(zip(hashes, prompt.tolist(), strict=True)):
        whole = min(len(ids), length // block)
        parts = [full.get(h) or full.setdefault(h, (("b", h), block)) for h in ids[:whole]]
        left = length - whole * block
        if left:
            parts.append((("b", ids[whole]), left) if whole < len(ids) and left < block else (("u", i), left))
        prefix.append(tuple(cast(Any, parts)))
    return tuple(prefix)


# --- from a file to rows


def _load(source: Source, wanted: _Wanted) -> _Rows:
    text, close = _open(source)
    try:
        lines = _nonblank(text)
        first = next(lines, None)
        if first is None:
            raise _unreadable("the file is empty")
        head = first.lstrip()
        if "\x00" in head or "\ufffd" in head:
            raise _unreadable("this is not text: CSV or JSON lines work, plain or gzip")
        if head.startswith(("{", "[")):
            return _load_json(first, lines, wanted)
        if head.lower().startswith(("<!doctype", "<html")):
            raise _unreadable("this is a web page, not the file it shows: download the raw file")
        return _load_csv(first, lines, wanted)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _unreadable(f"the gzip file is damaged or cut off ({error})") from None
    except RecursionError:
        raise _unreadable("its JSON is nested too deep") from None
    finally:
        close()


def _unreadable(what: str) -> SimError:
    return SimError("unreadable_trace", f"this trace cannot be read: {what}. What works: {_KNOWN}.", what=what)


def _open(source: Source) -> tuple[Iterable[str], Callable[[], None]]:
    """Lines of text, and how to leave the source: closed if it was opened here, else as it was."""
    raw: Any = source
    if isinstance(source, str | Path):
        try:
            raw = Path(source).open("rb")  # noqa: SIM115 - closed by leave()
        except OSError as error:
            what = f"cannot open {source}: {error.strerror or error}"
            raise SimError("unreadable_trace", what, what=what) from None
    elif isinstance(source, bytes | bytearray | memoryview):
        raw = io.BytesIO(source)
    elif raw.seekable():
        raw.seek(0)
    if isinstance(raw.read(0), str):
        return raw, lambda: None
    ours = raw is not source
    buffered: Any = raw if hasattr(raw, "peek") else io.BufferedReader(raw)
    magic = buffered.peek(4)[:4]
    plain: Any = buffered
    if magic.startswith(b"\x1f\x8b"):
        plain = io.BufferedReader(cast(Any, gzip.GzipFile(fileobj=buffered)))
    encoding = "utf-16" if magic[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    text = io.TextIOWrapper(plain, encoding=encoding, errors="replace", newline=None)

    def leave() -> None:
        text.detach()
        if ours:
            raw.close()
        elif buffered is not raw:
            buffered.detach()

    binary = {b"PAR1": "Parquet", b"PK\x03\x04": "a zip archive or an Excel workbook", b"\x28\xb5\x2f\xfd": "zstd"}
    if magic in binary:
        leave()
        raise _unreadable(f"this is {binary[magic]}: save it as CSV or JSON lines")
    return text, leave


def _nonblank(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if line.strip().strip("\ufeff\x00").strip():  # strip() knows every kind of blank
            yield line.lstrip("\ufeff")


def _name(column: str) -> str:
    return "".join(c for c in column.lower() if c.isalnum())


def _pick(names: list[str], known: tuple[str, ...]) -> int | None:
    return next((names.index(name) for name in known if name in names), None)


def _load_csv(first: str, lines: Iterator[str], wanted: _Wanted) -> _Rows:
    header = first.strip()
    names, delimiter = [], ","
    for delimiter in (",", "\t", ";", "|"):
        names = [_name(column) for column in next(csv.reader([header], delimiter=delimiter))]
        if _pick(names, _PROMPT) is not None:
            break
    time, prompt, output = (_pick(names, known) for known in (_TIME, _PROMPT, _OUTPUT))
    if prompt is None or output is None:
        if header[:1].isdigit():
            raise _unreadable(
                f"its first line is {header[:60]!r}, which names no column: put the header back, such as "
                "TIMESTAMP,ContextTokens,GeneratedTokens"
            )
        missing = "prompt tokens" if prompt is None else "generated tokens"
        raise _unreadable(f"no column holds the {missing}; the columns are {header[:200]}")
    width = max(i for i in (time, prompt, output) if i is not None)
    reader = csv.reader(lines, delimiter=delimiter)

    def blocks() -> Iterator[tuple[list[Any] | None, list[Any], list[Any], None, int]]:
        while True:
            rows, bad = [], 0
            try:
                for row in islice(reader, _BLOCK):
                    if len(row) > width:
                        rows.append(row)
                    elif any(map(str.strip, row)):
                        bad += 1
            except csv.Error as error:
                raise _unreadable(f"line {reader.line_num + 1} is not CSV ({error})") from None
            if not rows and not bad:
                return
            stamps = None if time is None else [row[time] for row in rows]
            yield stamps, [row[prompt] for row in rows], [row[output] for row in rows], None, bad

    if time is None:
        return _gather_lengths("lengths", blocks(), wanted)
    label = "CSV"
    if "contexttokens" in names:
        label = "Azure"
    elif "requesttokens" in names:
        label = "BurstGPT"
    unit = 1e-3 if names[time].endswith("ms") else None
    return _gather(label, blocks(), wanted, unit=unit, block=0)


def _load_json(first: str, lines: Iterator[str], wanted: _Wanted) -> _Rows:
    try:
        record = json.loads(first)
    except ValueError:
        record = None
    if isinstance(record, dict) and "hash_ids" not in record and _is_result(record):
        return _load_documents(chain([first], lines), wanted)
    if not isinstance(record, dict):
        return _load_documents(chain([first], lines), wanted)
    keys = list(record)
    names = [_name(key) for key in keys]
    time, prompt, output = (_pick(names, known) for known in (_TIME, _PROMPT, _OUTPUT))
    if prompt is None or output is None:
        raise _unreadable(f"no key holds the {'prompt' if prompt is None else 'generated'} tokens; the keys are "
                          f"{', '.join(keys)[:200]}")
    p, o, t = keys[prompt], keys[output], None if time is None else keys[time]
    hashed, bailian = isinstance(record.get("hash_ids"), list), "chat_id" in record
    block = _hash_block(record, p, 16 if bailian else 512) if hashed else 0

    def blocks() -> Iterator[tuple[list[Any] | None, list[Any], list[Any], list[tuple[int | str, ...]] | None, int]]:
        everything = chain([first], lines)
        while chunk := list(islice(everything, _BLOCK)):
            stamps: list[Any] = []
            prompts: list[Any] = []
            outputs: list[Any] = []
            hashes: list[tuple[int | str, ...]] = []
            bad = 0
            for line in chunk:
                try:
                    row = json.loads(line)
                    values = row[p], row[o], row[t] if t else 0
                    ids = tuple(row.get("hash_ids") or ()) if hashed else ()
                    hash(ids)
                except (ValueError, TypeError, KeyError, AttributeError):
                    bad += 1
                    continue
                prompts.append(values[0])
                outputs.append(values[1])
                stamps.append(values[2])
                hashes.append(ids)
            yield stamps if t else None, prompts, outputs, hashes if hashed else None, bad

    label = "Qwen-Bailian" if bailian else "Mooncake" if hashed else "JSON lines"
    if t is None:
        return _gather_lengths(label, blocks(), wanted)
    stamp = record[t]
    milliseconds = names[cast(int, time)].endswith("ms") or (isinstance(stamp, int) and not bailian)
    rows = _gather(label, blocks(), wanted, unit=1e-3 if milliseconds else None, block=block)
    if milliseconds and not hashed:
        rows.notes.append(Note("milliseconds", "its times are whole numbers, taken for milliseconds"))
    if hashed:
        text = f"prompts share blocks of {block} tokens, as their hash_ids say"
        rows.notes.append(Note("shared_blocks", text, {"block": block}))
    return rows


def _hash_block(record: dict[str, Any], prompt: str, usual: int) -> int:
    """How many tokens a hash stands for: the size that makes its first row come out."""
    try:
        length, count = int(record[prompt]), len(record["hash_ids"])
    except (TypeError, ValueError):
        return usual
    fits = [size for size in (usual, 512, 16, 256, 128, 64, 32, 1024) if -(-length // size) == count]
    return fits[0] if fits else usual


# --- blocks of rows, one after the other

_Block = tuple[list[Any] | None, list[Any], list[Any], list[tuple[int | str, ...]] | None, int]


def _gather(label: str, blocks: Iterable[Any], wanted: _Wanted, *, unit: float | None, block: int) -> _Rows:
    """Reads until the window is past, keeps what the window may need.

    A first look decides whether the file is in order of time; if not, all its rows are kept (as numbers) to the end.
    """
    random = np.random.Generator(np.random.PCG64(wanted.seed))
    kept: list[tuple[Floats, Ints, Ints]] = []
    hashes: list[tuple[int | str, ...]] = []
    rows = _Rows(label, np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64), block=block)
    origin, last, orderly, stopped, count = math.inf, -math.inf, True, False, 0
    clock = _Clock(unit)
    for stamps, prompts, outputs, ids, bad in blocks:
        rows.read += len(prompts) + bad
        prompt, output = _numbers(prompts), _numbers(outputs)
        time = clock.seconds(stamps)
        good = np.isfinite(time) & np.isfinite(prompt) & np.isfinite(output)
        good &= (prompt >= 0) & (output >= 0) & (prompt <= _MAX_TOKENS) & (output <= _MAX_TOKENS)
        answered = good & (prompt >= 1) & (output >= 1)
        rows.dropped["unreadable"] += bad + int((~good).sum())
        rows.dropped["failed"] += int((good & ~answered).sum())
        if not answered.any():
            continue
        times = time[answered]
        if math.isinf(origin):
            backwards = int((np.diff(times) < 0.0).sum())
            orderly = backwards <= 0.05 * len(times) or len(prompts) + bad < _BLOCK
            rows.tick = _tick(times)
        origin, last = min(origin, float(times.min())), max(last, float(times.max()))
        keep = answered
        if wanted.sample < 1.0:
            keep = answered & (random.random(len(time)) < wanted.sample)
            rows.dropped["not_sampled"] += int(answered.sum() - keep.sum())
        if orderly:
            early, late = origin + wanted.start_s - _SLACK_S, origin + wanted.end_s + _SLACK_S
            inside = keep & (time >= early) & (time <= late)
            rows.dropped["outside_window"] += int(keep.sum() - inside.sum())
            keep = inside
        kept.append((time[keep], prompt[keep].astype(np.int64), output[keep].astype(np.int64)))
        if ids is not None:
            hashes += [ids[i] for i in np.flatnonzero(keep).tolist()]
        count += int((time[keep] >= origin + wanted.start_s).sum())
        if orderly and (float(times.min()) > origin + wanted.end_s + _SLACK_S or count > wanted.limit + _BLOCK):
            stopped = True
            break
    if kept:
        time, prompts_, outputs_ = (np.concatenate([part[i] for part in kept]) for i in range(3))
        order = np.argsort(time, kind="stable")
        moved = int((np.diff(time) < 0.0).sum())
        rows.time, rows.prompt, rows.output = time[order] - origin, prompts_[order], outputs_[order]
        if hashes:
            rows.hashes = [hashes[i] for i in order.tolist()]
        if moved:
            text = f"{moved:,} rows stood before an earlier one and were put in order"
            rows.notes.append(Note("sorted", text, {"rows": moved}))
        rows.span_s = last - origin
    if rows.tick:
        text = (f"its clock ticks every {rows.tick:g} s and several requests share a tick: they are spread at random "
                "inside it")
        rows.notes.append(Note("ticks", text, {"tick_s": rows.tick}))
    if stopped:
        text = f"reading stopped after {rows.read:,} rows, where the window was full"
        rows.notes.append(Note("stopped", text, {"rows": rows.read}))
    return rows


def _tick(time: Floats) -> float:
    """The step of a clock too coarse for its traffic in s; 0 if it is fine."""
    stamps = np.unique(time)
    if len(stamps) == len(time) or len(time) < 2:
        return 0.0
    if len(stamps) < 0.7 * len(time):
        return round(float(np.median(np.diff(stamps))), 3) if len(stamps) > 1 else 1.0
    return 1.0 if bool((stamps == np.rint(stamps)).all()) else 0.0


def _gather_lengths(label: str, blocks: Iterable[Any], wanted: _Wanted) -> _Rows:
    """Lengths without times: Poisson arrivals at wanted.rate."""
    end_s = wanted.end_s
    most = wanted.limit if math.isinf(end_s) else int(wanted.rate * end_s * 1.5 / wanted.sample) + 1000

    def stamped() -> Iterator[Any]:
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence(wanted.seed, spawn_key=(1,))))
        now, passed = 0.0, 0
        for _, prompts, outputs, ids, bad in blocks:
            gaps = random.standard_exponential(len(prompts)) / (wanted.rate / wanted.sample)
            times = now + np.cumsum(gaps)
            now, passed = float(times[-1]) if len(times) else now, passed + len(prompts)
            yield times.tolist(), prompts, outputs, ids, bad
            if passed > most + _BLOCK:
                return

    rows = _gather(label, stamped(), wanted, unit=1.0, block=0)
    rows.notes.append(Note("no_times", f"it holds lengths but no times: arrivals are drawn at {wanted.rate:g} req/s",
                           {"rate": wanted.rate}))
    return rows


def _numbers(values: list[Any]) -> Floats:
    try:
        numbers = np.array(list(map(float, values)))
    except (TypeError, ValueError, OverflowError):
        numbers = np.array([_number(value) for value in values])
    return np.where(numbers == np.rint(numbers), numbers, np.nan)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


class _Clock:
    """Turns the time stamps of one file into seconds: numbers in the file's unit, or dates."""

    def __init__(self, unit: float | None) -> None:
        self.unit = unit  # s; None: found out from the first number

    def seconds(self, stamps: list[Any]) -> Floats:
        try:
            numbers = np.array(list(map(float, stamps)))
        except (TypeError, ValueError, OverflowError):
            try:
                return np.array([(_date(stamp) - _EPOCH) / _US for stamp in stamps]) / 1e6
            except (TypeError, ValueError):
                return np.array([self._one(stamp) for stamp in stamps])
        return self._scale(numbers)

    def _one(self, stamp: Any) -> float:
        number = _number(stamp)
        if math.isfinite(number):
            return float(self._scale(np.array([number]))[0])
        try:
            return (_date(stamp) - _EPOCH) / _US / 1e6
        except (TypeError, ValueError):
            return math.nan

    def _scale(self, numbers: Floats) -> Floats:
        if self.unit is None:
            size = float(np.nanmax(np.abs(numbers), initial=0.0))
            # Unix time in s is about 2e9: anything far beyond it is in ms, us or ns.
            self.unit = 1.0 if size < 1e11 else 1e-3 if size < 1e14 else 1e-6 if size < 1e17 else 1e-9
        return numbers * self.unit


def _date(stamp: Any) -> datetime:
    date = datetime.fromisoformat(str(stamp).strip())
    return date if date.tzinfo else date.replace(tzinfo=UTC)


# --- results of benchmarks, which hold their traffic too


def _is_result(record: dict[str, Any]) -> bool:
    return any(key in record for key in ("total_input_tokens", "load_summary", "benchmarks", "input_lens"))


def _load_documents(lines: Iterable[str], wanted: _Wanted) -> _Rows:
    """JSON that is not a row a line: one object, several after each other, or an array."""
    text, documents, at = "".join(lines).strip(), [], 0
    decoder = json.JSONDecoder()
    while at < len(text):
        try:
            document, at = decoder.raw_decode(text, at)
        except ValueError as error:
            raise _unreadable(f"its JSON breaks off or is malformed ({error})") from None
        documents.append(document)
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
    document = documents[-1]
    if isinstance(document, list):
        if document and isinstance(document[0], dict) and "conversations" in document[0]:
            raise _unreadable("it holds texts (ShareGPT), not lengths: count its tokens first, into a CSV with the "
                              "columns num_prefill_tokens,num_decode_tokens")
        records = [json.dumps(row) for row in document if isinstance(row, dict)]
        if not records:
            raise _unreadable("its JSON array holds no objects")
        return _load_json(records[0], iter(records[1:]), wanted)
    if not isinstance(document, dict):
        raise _unreadable("its JSON is neither an object nor a list of them")
    if "load_summary" in document:
        rows = _from_stage(document, wanted)
    elif "benchmarks" in document:
        rows = _from_guidellm(document, wanted)
    elif _is_result(document):
        rows = _from_bench(document, wanted)
    else:
        raise _unreadable(f"its keys say nothing of lengths: {', '.join(document)[:200]}")
    if len(documents) > 1:
        rows.notes.append(Note("several_results", f"it holds {len(documents)} results: the last one is taken",
                               {"results": len(documents)}))
    return rows


def _from_bench(result: dict[str, Any], wanted: _Wanted) -> _Rows:
    """A result of `vllm bench serve`: its own requests if saved with --save-detailed, else as many of mean length."""
    label = "vllm bench result"
    try:
        if result.get("input_lens") and result.get("output_lens"):
            prompts, outputs = list(result["input_lens"]), list(result["output_lens"])
            notes = [Note("result_detailed", "a benchmark's result: the lengths of its requests are replayed")]
        else:
            count = int(result["completed"])
            if count < 1:
                raise _unreadable("the benchmark completed no request")
            prompts = [max(round(result["total_input_tokens"] / count), 1)] * count
            outputs = [max(round(result["total_output_tokens"] / count), 1)] * count
            text = ("a benchmark's result without its single requests (saved without --save-detailed): "
                    f"{count:,} requests of mean length are replayed")
            notes = [Note("result_means", text, {"requests": count})]
        stamps = result.get("start_times")
        if not stamps or len(stamps) != len(prompts):
            rate, burstiness = result.get("request_rate", "inf"), result.get("burstiness", 1.0)
            stamps = _offered(len(prompts), rate, burstiness, wanted, notes)
        if len(outputs) != len(prompts):
            raise _unreadable("input_lens and output_lens differ in length")
        if result.get("max_concurrency"):
            most = result["max_concurrency"]
            text = f"it was held to {most} requests at a time; the replay is not"
            notes.append(Note("max_concurrency", text, {"max_concurrency": most}))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, SimError):
            raise
        raise _unreadable(f"it looks like a result of vllm bench, but is not whole ({error})") from None
    rows = _gather(label, [(list(stamps), prompts, outputs, None, 0)], wanted, unit=1.0, block=0)
    rows.tick = 0.0
    rows.notes = notes + [note for note in rows.notes if note.code == "sorted"]
    return rows


def _from_stage(report: dict[str, Any], wanted: _Wanted) -> _Rows:
    """A stage report of inference-perf: a result; its length percentiles and its rate make traffic like it."""
    try:
        load, good = report["load_summary"], report["successes"]
        count = int(good["count"])
        if count < 1:
            raise _unreadable("no request of this stage succeeded")
        random = np.random.Generator(np.random.PCG64(wanted.seed))
        prompts, outputs = (_from_percentiles(good[name], count, random) for name in ("prompt_len", "output_len"))
        text = (f"a stage report of inference-perf is a result, not a trace: {count:,} requests are drawn from its "
                "length percentiles")
        notes = [Note("result_stage", text, {"requests": count})]
        rate = load.get("achieved_rate") or load.get("requested_rate") or "inf"
        stamps = _offered(count, rate, 1.0, wanted, notes)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, SimError):
            raise
        raise _unreadable(f"it looks like a stage report of inference-perf, but is not whole ({error!r})") from None
    rows = _gather("inference-perf stage report", [(stamps, prompts, outputs, None, 0)], wanted, unit=1.0, block=0)
    rows.tick, rows.notes = 0.0, notes
    return rows


def _from_percentiles(table: dict[str, Any], count: int, random: np.random.Generator) -> list[float]:
    points = {"min": 0.0, "median": 50.0, "max": 100.0} | {key: float(key[1:]) for key in table if key[:1] == "p"}
    known = sorted((points[key], float(value)) for key, value in table.items() if key in points)
    share, value = zip(*known, strict=True)
    return [max(x, 1.0) for x in np.rint(np.interp(random.random(count) * 100.0, share, value)).tolist()]


def _from_guidellm(report: dict[str, Any], wanted: _Wanted) -> _Rows:
    """A guidellm report: the successful requests of its last benchmark."""
    try:
        benchmark = report["benchmarks"][-1]
        done = benchmark["requests"]
        done = done["successful"] if isinstance(done, dict) else done
    except (KeyError, TypeError, IndexError):
        done = None
    if not done or not all(isinstance(row, dict) for row in done):
        raise _unreadable("this guidellm report lists no successful requests: save it with its requests")
    rows = _load_json(json.dumps(done[0]), (json.dumps(row) for row in done[1:]), wanted)
    rows.format = "guidellm report"
    rows.notes.insert(0, Note("result_guidellm", "a guidellm report: the requests of its last benchmark are replayed"))
    return rows


def _offered(count: int, rate: Any, burstiness: Any, wanted: _Wanted, notes: list[Note]) -> list[float]:
    """Arrivals as `vllm bench serve` makes them: gamma gaps of shape `burstiness` at `rate`; all at once for "inf"."""
    rate, burstiness = float(rate), float(burstiness or 1.0)
    if not rate > 0.0 or not burstiness > 0.0:
        raise ValueError(f"a rate of {rate:g} req/s")
    if math.isinf(rate):
        notes.append(Note("all_at_once", "its rate is inf: all requests arrive at once"))
        return [0.0] * count
    notes.append(Note("drawn_arrivals", f"it does not say when requests came: arrivals are drawn at {rate:.4g} req/s",
                      {"rate": rate}))
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence(wanted.seed, spawn_key=(2,))))
    return [float(t) for t in np.cumsum(random.standard_gamma(burstiness, count) / (rate * burstiness))]
