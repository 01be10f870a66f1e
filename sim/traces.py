"""Real traffic: reads the trace files people have into Requests, and says what it made of them.

Read by the names of the columns, whatever their order, in blocks of rows, so that a file of 200 MB is never in memory
as a whole. What is odd is handled and reported: rows that failed (0 tokens), rows that cannot be read, clocks that tick
only every few seconds, rows out of order, files cut off in the middle.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import math
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from sim.requests import Floats, Ints, Prefix, Requests
from sim.scenario import SimError
from sim.sentences import Note, say

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
_HEADER = 10_000  # characters of a line that names columns
_MAX_JSON = 30_000_000  # characters of JSON that is not a row a line, and so is held as a whole
_DEFAULT_RATE = 10.0  # req/s for files without times
csv.field_size_limit(_MAX_JSON)  # a column may hold the prompt itself

_NO_TIME = r"(?!.*(?:elapsed|duration|latency|endtime|ended|finish|token))"
_NO_LENGTH = r"(?!.*(?:latency|time|throughput|rate|cost|price|max|total|cach|detail))"
_SIZE = r".*(?:tok|len|size|usage|长度).*"
_TIME = (
    r"(?:timestamp|time|ts|arriv.*|sendtime|.*starttime)(?:s|ms|us|ns)?",
    _NO_TIME + r".*(?:time|stamp|date|created|时间|到达).*",
    _NO_TIME + r".*start.*",
)
_PROMPT = (
    r"(?:num|n)?(?:context|request|input|prompt|prefill)(?:tokens|toks|len|length)",
    rf"{_NO_LENGTH}(?:prompt|input|isl|tokensin|(?:in|req|question|query)tok.*|.*(?:prompt|input|prefill|输入){_SIZE})",
)
_OUTPUT = (
    r"(?:num|n)?(?:generated|response|output|completion|decode)(?:tokens|toks|len|length)",
    rf"{_NO_LENGTH}(?:output|osl|tokensout|tokensize|(?:out|resp|answer|reply)tok.*"
    rf"|.*(?:output|gen|completion|response|candidate|decode|输出|生成){_SIZE})",
)
"""Names of columns, in small letters without blanks and signs: what the datasets call them, then what reads like it."""
_UNITS = (
    ("(?:ns|nanos|nanosec.*)", 1e-9), ("(?:[uµμ]s|[uµμ]secs?|micros|microsec.*)", 1e-6), ("(?:ms|msecs?|millis|millisec.*)", 1e-3),
    (r"(?:(?<=[^a-z])s|secs?|seconds?)", 1.0),
)
"""How the name of a column ends -> its unit in s."""
_MAX_SPAN_S = 3e8  # a row ten years from the others has a broken clock
_HEAD, _HEAD_CHARS = 20, 1_000_000  # lines, and characters, among which the names of the columns are looked for


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
    example: str = ""  # time, prompt and output of the first row that cannot be read
    notes: list[Note] = field(default_factory=list)
    span_s: float = 0.0


def _select(
    rows: _Rows, start_s: float, end_s: float, rate_scale: float, limit: int, seed: int
) -> tuple[Requests, Report]:
    time, dropped, notes = rows.time, rows.dropped.copy(), list(rows.notes)
    empty = SimError(
        "empty_window", f"nothing arrives {'' if math.isinf(end_s) else f'in the {end_s - start_s:g} s '}from {start_s:g} s on: "
        f"the trace holds {rows.span_s:,.0f} s",
        field="trace_start_s", value=start_s, span_s=rows.span_s,
    )
    if not len(time):
        if dropped["outside_window"]:
            raise empty
        lost = ", ".join(f"{count:,} {_REASONS[why]}" for why, count in dropped.items() if count)
        raise SimError(
            "no_rows", f"{rows.format}: no row is left to replay ({lost or 'the file has a header only'}){rows.example}",
            rows=rows.read, failed=dropped["failed"], unreadable=dropped["unreadable"], example=rows.example,
        )
    if rows.tick:
        time = _spread(time, rows.tick, seed)
    first, last = (int(i) for i in np.searchsorted(time, [start_s, end_s]))
    if first == last:
        raise empty
    dropped["outside_window"] += len(time) - (last - first)
    if last - first > limit:
        dropped["over_limit"] += last - first - limit
        last = first + limit
        notes.append(Note("over_limit", limit=limit))
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
    try:
        with _open(source) as text:
            lines = _lines(text)
            first: list[str] = []
            while len(first) < _HEAD and sum(map(len, first)) < _HEAD_CHARS and (line := next(lines, "")):
                first.append(line)
            if not first:
                raise _unreadable("empty")
            head = first[0].lstrip()[:1000]
            if "\x00" in head or sum(c == "\ufffd" or not (c.isprintable() or c.isspace()) for c in head) > 0.05 * len(head):
                raise _unreadable("not_text")
            if any(line.lstrip().startswith(("{", "[")) for line in first[:2]):
                return _load_json(first, lines, wanted)
            if head.lower().startswith(("<!doctype", "<html")):
                raise _unreadable("web_page")
            return _load_csv(first, lines, wanted)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _unreadable("gzip", error=str(error)) from None
    except RecursionError:
        raise _unreadable("deep") from None


def _unreadable(why: str, **params: Any) -> SimError:
    """The error that says `trace.<why>` and which kinds of files work. For a page: why, params."""
    text = f"this trace cannot be read: {say(f'trace.{why}', params)}. {say('trace.works', {})}"
    return SimError("unreadable_trace", text, why=why, **params)


_BINARY = {b"PAR1": "Parquet", b"PK\x03\x04": "zip / Excel", b"\xd0\xcf\x11\xe0": "Excel", b"\x28\xb5\x2f\xfd": "zstd",
           b"BZh": "bzip2", b"\xfd7zX": "xz"}


@contextmanager
def _open(source: Source) -> Iterator[IO[str]]:
    """The text of a source, which is closed afterwards if it was opened here, and else left open."""
    raw: Any = source
    if isinstance(source, str | Path):
        try:
            raw = Path(source).open("rb")  # noqa: SIM115 - closed below
        except (OSError, ValueError) as error:
            raise _unreadable("no_file", file=str(source), error=getattr(error, "strerror", None) or str(error)) from None
    elif isinstance(source, bytes | bytearray | memoryview):
        raw = io.BytesIO(source)
    elif raw.seekable():
        raw.seek(0)
    if isinstance(raw.read(0), str):
        yield raw
        return
    buffered: Any = raw if hasattr(raw, "peek") else io.BufferedReader(raw)
    plain, text = buffered, None
    try:
        kind = next((kind for magic, kind in _BINARY.items() if buffered.peek(4).startswith(magic)), "")
        if kind:
            raise _unreadable("binary", kind=kind)
        while plain.peek(2).startswith(b"\x1f\x8b"):
            plain = io.BufferedReader(cast(Any, gzip.GzipFile(fileobj=plain, mode="rb")))
        text = io.TextIOWrapper(plain, encoding=_encoding(plain.peek(4096)), errors="replace", newline=None)
        yield text
    finally:
        if text:
            text.detach()
        if raw is not source:
            raw.close()
        elif buffered is not raw:
            buffered.detach()


def _encoding(head: bytes) -> str:
    """How a file's first bytes are to be read: UTF-8, UTF-16 by its mark, or as Excel saves CSV in China or elsewhere."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    for encoding in ("utf-8-sig", "gb18030"):
        with suppress(UnicodeDecodeError):
            codecs.getincrementaldecoder(encoding)().decode(head)
            return encoding
    return "latin-1"


def _lines(text: IO[str]) -> Iterator[str]:
    """Lines that are not blank, none longer than JSON may be. A file that is blank for long ends there."""
    blank = 0
    for line in iter(lambda: text.readline(_MAX_JSON), ""):
        if line.strip().strip("\ufeff\x00").strip():  # strip() knows every kind of blank
            blank = 0
            yield line.lstrip("\ufeff")
        else:
            blank += len(line)
            if blank > _HEAD_CHARS:
                return


def _columns(names: Iterable[str]) -> tuple[int | None, int | None, int | None, float | None]:
    """Which columns hold the times, the prompts and the outputs, and the unit (s) that the first one's name says."""
    whole = [name.lower() for name in names]  # with a path before it, where it is inside of others
    paths = [["".join(filter(str.isalnum, name)) for name in end] for end in ([n.rpartition(".")[2] for n in whole], whole)]

    def pick(patterns: tuple[str, ...]) -> int | None:
        return next((i for p in patterns for plain in paths for i, name in enumerate(plain) if re.fullmatch(p, name)), None)

    time, prompt, output = pick(_TIME), pick(_PROMPT), pick(_OUTPUT)
    unit = None if time is None else next((unit for end, unit in _UNITS if re.search(rf"{end}\W*$", whole[time])), None)
    return time, prompt, output, unit


def _load_csv(first: list[str], lines: Iterator[str], wanted: _Wanted) -> _Rows:
    for at, header in enumerate(line.strip()[:_HEADER] for line in first):  # a title may stand before it
        for delimiter in (",", "\t", ";", "|", " "):
            names = next(csv.reader([header], delimiter=delimiter))
            time, prompt, output, unit = _columns(names)
            if prompt is not None and output is not None and len({time, prompt, output}) == 3:  # cut at all
                break
        else:
            continue
        lines = chain(first[at + 1 :], lines)
        break
    else:
        header = next((line.strip()[:_HEADER] for line in first if not line.startswith(("#", "sep="))), "")
        _, prompt, _, _ = _columns(re.split(r"[,;|\t]", header))
        if header[:1].isdigit():
            raise _unreadable("no_header", line=header[:60])
        if header.startswith("version https://git-lfs"):
            raise _unreadable("lfs")
        raise _unreadable("no_prompt_column" if prompt is None else "no_output_column", columns=header[:200])
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
                raise _unreadable("not_csv", line=reader.line_num + 1, error=str(error)) from None
            if not rows and not bad:
                return
            stamps = None if time is None else [row[time] for row in rows]
            if stamps and delimiter == ";":  # where the comma marks decimals
                stamps = [stamp.replace(",", ".") for stamp in stamps]
            yield stamps, [row[prompt] for row in rows], [row[output] for row in rows], None, bad

    if time is None:
        return _gather_lengths("lengths", blocks(), wanted)
    label = {"ContextTokens": "Azure", "Request tokens": "BurstGPT"}.get(names[prompt].strip(), "CSV")
    return _gather(label, blocks(), wanted, unit=unit, whole=_whole(names[prompt]), block=0)


def _whole(prompt: str) -> float:
    """The unit (s) of whole numbers beside a column of this name: ms where it is Mooncake's."""
    return 1e-3 if prompt.strip() == "input_length" else 1.0


def _load_json(first: list[str], lines: Iterator[str], wanted: _Wanted) -> _Rows:
    rows = list(map(_row, first))
    if 2 * sum(isinstance(row, dict) for row in rows) >= len(rows):  # an object a line
        for at, row in enumerate(rows):
            if isinstance(row, dict) and _is_request(row):
                return _load_records(chain([row], rows[:at], rows[at + 1 :], map(_row, lines)), wanted)
    return _load_documents(chain(first, lines), wanted)


def _row(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _load_records(records: Iterator[Any], wanted: _Wanted) -> _Rows:
    """JSON objects, each a row with the keys of the first one."""
    record = next(records)
    keys = list(_flat(record))
    time, prompt, output, unit = _columns(keys)
    if prompt is None or output is None:
        raise _unreadable("no_prompt_column" if prompt is None else "no_output_column", columns=", ".join(keys)[:200])
    p, o, t = keys[prompt], keys[output], None if time is None else keys[time]
    hashed, bailian = isinstance(record.get("hash_ids"), list), "chat_id" in record
    block = _hash_block(_flat(record), p, 16 if bailian else 512) if hashed else 0

    def blocks() -> Iterator[tuple[list[Any] | None, list[Any], list[Any], list[tuple[int | str, ...]] | None, int]]:
        everything = chain([record], records)
        while chunk := list(islice(everything, _BLOCK)):
            stamps: list[Any] = []
            prompts: list[Any] = []
            outputs: list[Any] = []
            hashes: list[tuple[int | str, ...]] = []
            bad = 0
            for row in chunk:
                try:
                    row = _flat(row)
                    values = row[p], row[o], row[t] if t else 0
                    ids = tuple(row.get("hash_ids") or ()) if hashed else ()
                    hash(ids)
                except (TypeError, KeyError, AttributeError):
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
    rows = _gather(label, blocks(), wanted, unit=unit, whole=1.0 if bailian else _whole(p), block=block)
    if hashed:
        rows.notes.append(Note("shared_blocks", block=block))
    return rows


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row with what its objects hold (such as "usage") beside the rest, by its path."""
    if not any(isinstance(value, dict) for value in row.values()):
        return row
    flat: dict[str, Any] = {}
    for key, value in row.items():
        flat |= {f"{key}.{k}": v for k, v in _flat(value).items()} if isinstance(value, dict) else {key: value}
    return flat


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


def _gather(
    label: str, blocks: Iterable[Any], wanted: _Wanted, *, unit: float | None, block: int, whole: float = 1.0
) -> _Rows:
    """Reads until the window is past, keeps what the window may need. unit, whole: as _Clock's.

    A first look decides whether the file is in order of time; if not, all its rows are kept (as numbers) to the end.
    """
    random = np.random.Generator(np.random.PCG64(wanted.seed))
    kept: list[tuple[Floats, Ints, Ints]] = []
    hashes: list[tuple[int | str, ...]] = []
    rows = _Rows(label, np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64), block=block)
    origin, last, usual, orderly, stopped, count = math.inf, -math.inf, math.nan, True, False, 0
    clock = _Clock(unit, whole)
    for stamps, prompts, outputs, ids, bad in blocks:
        rows.read += len(prompts) + bad
        prompt, output = _numbers(prompts), _numbers(outputs)
        time = clock.seconds(stamps)
        if math.isnan(usual) and np.isfinite(time).any():
            usual = float(np.median(time[np.isfinite(time)]))
        good = (np.abs(time - usual) < _MAX_SPAN_S) & np.isfinite(prompt) & np.isfinite(output)
        good &= (prompt >= 0) & (output >= 0) & (prompt <= _MAX_TOKENS) & (output <= _MAX_TOKENS)
        answered = good & (prompt >= 1) & (output >= 1)
        rows.dropped["unreadable"] += bad + int((~good).sum())
        rows.dropped["failed"] += int((good & ~answered).sum())
        if not good.all() and not rows.example:
            at = int(np.argmin(good))
            rows.example = ": " + json.dumps([str(column[at])[:60] for column in (stamps, prompts, outputs)], ensure_ascii=False)
        if not answered.any():
            if not kept and rows.dropped["unreadable"] >= 2 * _BLOCK:  # no trace
                break
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
            rows.notes.append(Note("sorted", rows=moved))
        rows.span_s = last - origin
    if rows.tick:
        rows.notes.append(Note("ticks", tick_s=rows.tick))
    if clock.whole_numbers and not block:
        rows.notes.append(Note("milliseconds"))
    if rows.example and kept:
        rows.notes.append(Note("unreadable_row", example=rows.example))
    if stopped:
        rows.notes.append(Note("stopped", rows=rows.read))
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
    rows.notes.append(Note("no_times", rate=wanted.rate))
    return rows


def _numbers(values: list[Any]) -> Floats:
    try:
        numbers = np.array(list(map(float, values)))
    except (TypeError, ValueError, OverflowError):
        numbers = np.array([_number(value) for value in values])
    return np.where(numbers == np.rint(numbers), numbers, np.nan)


def _number(value: Any) -> float:
    try:
        return float(value.replace(",", "") if isinstance(value, str) else value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CUT = re.compile(r"^\d+:\d+[.,]\d+$")  # how Excel saves a time with fractions: the hour is lost
_DAY_FIRST = r"(?:1[3-9]|2\d|3[01])[/-]\d|\d\d?\.\d\d?\.\d"
_US = timedelta(microseconds=1)


class _Clock:
    """Turns the time stamps of one file into seconds: numbers in the file's unit, or dates.

    unit: in s; None: found out from the first numbers. whole: the unit of whole numbers too small for a date.
    """

    def __init__(self, unit: float | None, whole: float) -> None:
        self.unit, self.whole, self.whole_numbers = unit, whole, False

    def seconds(self, stamps: list[Any]) -> Floats:
        try:
            numbers = np.array(list(map(float, stamps)))
        except (TypeError, ValueError, OverflowError):
            try:
                return np.array([(_date(stamp) - _EPOCH) / _US for stamp in stamps]) / 1e6
            except (TypeError, ValueError):
                return self._mixed(stamps)
        return self._scale(numbers, all(str(stamp).isdigit() for stamp in stamps))

    def _mixed(self, stamps: list[Any]) -> Floats:
        """Some numbers, some dates, in whatever way they are written; nan where it is neither."""
        import pandas as pd

        seconds = self._scale(np.array([_number(stamp) for stamp in stamps]))
        odd = np.isnan(seconds)
        words = pd.Series([_CUT.sub("", str(stamp)) for stamp, is_odd in zip(stamps, odd, strict=True) if is_odd], dtype=object)
        with warnings.catch_warnings(action="ignore"):  # of dates that may be read in two ways
            how: Any = {"utc": True, "errors": "coerce", "dayfirst": bool(words.str.match(_DAY_FIRST).any())}
            dates = pd.to_datetime(words, **how)  # in the format of the first one, which is fast
            dates = dates.fillna(pd.to_datetime(words[dates.isna()], format="mixed", **how))
        seconds[odd] = (dates - pd.Timestamp(_EPOCH)) / pd.Timedelta(seconds=1)
        return seconds

    def _scale(self, numbers: Floats, whole: bool = False) -> Floats:
        if self.unit is None and np.isfinite(numbers).any():
            size = float(np.median(np.abs(numbers[np.isfinite(numbers)])))
            self.whole_numbers = whole and size < 1e9 and self.whole != 1.0
            # Unix time in s is about 2e9: anything far beyond it is in ms, us or ns.
            self.unit = 1.0 if size < 1e11 else 1e-3 if size < 1e14 else 1e-6 if size < 1e17 else 1e-9
            self.unit = self.whole if self.whole_numbers else self.unit
        return numbers * (self.unit or 1.0)


def _date(stamp: Any) -> datetime:
    date = datetime.fromisoformat(str(stamp).strip())
    return date if date.tzinfo else date.replace(tzinfo=UTC)


# --- results of benchmarks, which hold their traffic too


def _is_result(record: dict[str, Any]) -> bool:
    return any(key in record for key in ("total_input_tokens", "load_summary", "benchmarks", "input_lens"))


def _is_request(record: dict[str, Any]) -> bool:
    """Whether this is one row, and no result and no table of rows."""
    flat = list(_flat(record).items())
    _, prompt, output, _ = _columns(key for key, _ in flat)
    if prompt is None or output is None or _is_result(record):
        return False
    key, value = flat[prompt]
    return not isinstance(value, list) and not key.rpartition(".")[2].isdigit()


def _records(document: Any) -> Iterator[dict[str, Any]]:
    """The rows in an array of objects or of arrays, in the longest array of objects inside, or in an object of columns."""
    if isinstance(document, dict) and isinstance(document.get("columns"), list):  # pandas, orient="split"
        document = [document["columns"], *document.get("data", [])]
    elif isinstance(document, dict) and "conversations" not in document:
        lists = {key: value for key, value in _flat(document).items() if isinstance(value, list) and value}
        tables = [value for value in lists.values() if isinstance(value[0], dict)]
        lists = lists or {key: list(value.values()) for key, value in document.items() if isinstance(value, dict)}
        columns = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=False)]
        document = max(tables, key=len) if tables else columns or document
    if isinstance(document, list) and document and isinstance(document[0], list):
        document = [dict(zip(map(str, document[0]), row, strict=False)) for row in document[1:] if isinstance(row, list)]
    records = [row for row in (document if isinstance(document, list) else [document]) if isinstance(row, dict)]
    if not records:
        raise _unreadable("no_objects")
    if "conversations" in records[0]:
        raise _unreadable("sharegpt")
    return iter(records)


def _load_documents(lines: Iterable[str], wanted: _Wanted) -> _Rows:
    """JSON that is not a row a line: one object, several after each other, or an array."""
    text, documents, at = "", [], 0
    for part in lines:
        text += part
        if len(text) > _MAX_JSON:
            raise _unreadable("large_json", megabytes=_MAX_JSON // 1_000_000)
    decoder = json.JSONDecoder()
    while at < len(text):
        try:
            document, at = decoder.raw_decode(text, at)
        except ValueError as error:
            raise _unreadable("broken_json", error=str(error)) from None
        documents.append(document)
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
    first = documents[0]
    if isinstance(first, list) and first and all(isinstance(row, dict) and _is_result(row) for row in first):
        documents = first
    document = documents[-1]
    if not isinstance(document, dict) or not _is_result(document):
        rows = _load_records(_records(document), wanted)
    elif "load_summary" in document:
        rows = _from_stage(document, wanted)
    else:
        rows = (_from_guidellm if "benchmarks" in document else _from_bench)(document, wanted)
    if len(documents) > 1:
        rows.notes.append(Note("several_results", results=len(documents)))
    return rows


def _from_bench(result: dict[str, Any], wanted: _Wanted) -> _Rows:
    """A result of `vllm bench serve`: its own requests if saved with --save-detailed, else as many of mean length."""
    label = "vllm bench result"
    try:
        if result.get("input_lens") and result.get("output_lens"):
            prompts, outputs = list(result["input_lens"]), list(result["output_lens"])
            notes = [Note("result_detailed")]
        else:
            count = min(int(result["completed"]), wanted.limit + 1)
            if count < 1:
                raise _unreadable("no_requests")
            prompts, outputs = (
                [max(round(result[f"total_{which}_tokens"] / result["completed"]), 1)] * count for which in ("input", "output")
            )
            notes = [Note("result_means", requests=count)]
        stamps = result.get("start_times")
        if not stamps or len(stamps) != len(prompts):
            rate = result.get("request_rate")
            stamps = _offered(len(prompts), "inf" if rate is None else rate, result.get("burstiness"), wanted, notes)
        if len(outputs) != len(prompts):
            raise ValueError("input_lens and output_lens differ in length")
        if result.get("max_concurrency"):
            notes.append(Note("max_concurrency", max_concurrency=result["max_concurrency"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, SimError):
            raise
        raise _unreadable("broken_result", kind="vllm bench", error=repr(error)) from None
    rows = _gather(label, [(list(stamps), prompts, outputs, None, 0)], wanted, unit=1.0, block=0)
    rows.tick = 0.0
    rows.notes = notes + [note for note in rows.notes if note.code == "sorted"]
    return rows


def _from_stage(report: dict[str, Any], wanted: _Wanted) -> _Rows:
    """A stage report of inference-perf: a result; its length percentiles and its rate make traffic like it."""
    try:
        load, good = report["load_summary"], report["successes"]
        count = min(int(good["count"]), wanted.limit + 1)
        if count < 1:
            raise _unreadable("no_requests")
        random = np.random.Generator(np.random.PCG64(wanted.seed))
        prompts, outputs = (_from_percentiles(good[name], count, random) for name in ("prompt_len", "output_len"))
        notes = [Note("result_stage", requests=count)]
        rate = load.get("achieved_rate") or load.get("requested_rate") or "inf"
        stamps = _offered(count, rate, 1.0, wanted, notes)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, SimError):
            raise
        raise _unreadable("broken_result", kind="inference-perf", error=repr(error)) from None
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
    if not isinstance(done, list) or not done or not all(isinstance(row, dict) for row in done):
        raise _unreadable("guidellm")
    rows = _load_records(iter(done), wanted)
    rows.format = "guidellm report"
    rows.notes.insert(0, Note("result_guidellm"))
    return rows


def _offered(count: int, rate: Any, burstiness: Any, wanted: _Wanted, notes: list[Note]) -> list[float]:
    """Arrivals as `vllm bench serve` makes them: gamma gaps of shape `burstiness` at `rate`; all at once for "inf"."""
    rate, burstiness = float(rate), float(burstiness or 1.0)
    if not rate > 0.0 or not burstiness > 0.0:
        raise ValueError(f"a rate of {rate:g} req/s")
    if math.isinf(rate):
        notes.append(Note("all_at_once"))
        return [0.0] * count
    notes.append(Note("drawn_arrivals", rate=rate))
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence(wanted.seed, spawn_key=(2,))))
    return [float(t) for t in np.cumsum(random.standard_gamma(burstiness, count) / (rate * burstiness))]
