"""Many runs: lazily, in bounded memory, on any concurrent.futures.Executor; and the search for the sweet spot."""

from __future__ import annotations

import argparse
import contextlib
import csv
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice, product
from multiprocessing import get_context
from time import perf_counter
from typing import Any

from sim import shell
from sim.engine import simulate
from sim.results import Summary
from sim.scenario import SETTINGS, Scenario, SimError
from sim.vllm import export

Result = Summary | SimError
"""What a run came to: its figures, or why it could not be made."""

_AHEAD = 256  # scenarios given to an executor before their results are asked for: bounds memory
_TOGETHER = 4  # scenarios a task holds: a cluster's overhead is paid once for them, and neighbours share their traffic
_TRIES = 3  # a task whose process is killed is given out this often in all, the last time alone


# --- runs


def sweep(
    scenarios: Iterable[Scenario | SimError], executor: Executor | None = None, spent: Callable[[float], None] | None = None
) -> Iterator[tuple[int, Result]]:
    """Run scenarios and yield (index, result) in their order.

    Without an executor in this process, one at a time as they are asked for. With one (threads, processes, a
    cluster's), some hundred ahead; closing the iterator cancels them. A scenario that cannot run yields its SimError,
    and so does a SimError that stands in the place of a scenario (see `grid`). Scenarios of one traffic share the
    drawing of it. What a killed process of `Workers` or of a cluster had not given back is run again.
    spent: called with the seconds that each task took where it ran; what remains of the time is overhead.
    """
    together, ahead = (1, 1) if executor is None else (_TOGETHER, _AHEAD // _TOGETHER)
    source, index = iter(scenarios), 0
    waiting: deque[_Given] = deque()
    try:
        while True:
            while len(waiting) < ahead and (group := list(islice(source, together))):
                waiting.append(_Given(group, executor))
            if not waiting:
                return
            given = waiting.popleft()
            results, seconds = given.results(waiting)
            if spent:
                spent(seconds)
            for result in results:
                yield index, SimError(result.code, result.message, **result.params) if isinstance(result, _Failure) else result
                index += 1
    finally:
        for given in waiting:
            given.future.cancel()


@dataclass(frozen=True, slots=True)
class _Failure:
    """A SimError on its way between processes, which pickle exceptions by their message alone."""

    code: str
    message: str
    params: dict[str, Any]


def _task(scenarios: list[Scenario | _Failure]) -> tuple[list[Summary | _Failure], float]:
    begun = perf_counter()
    return [_run(s) if isinstance(s, Scenario) else s for s in scenarios], perf_counter() - begun


def _run(scenario: Scenario) -> Summary | _Failure:
    try:
        return simulate(scenario).summary()
    except SimError as error:
        return _failure(error)


def _failure(error: SimError) -> _Failure:
    return _Failure(error.code, str(error), error.params)


class _Given:
    """Scenarios given to an executor together, and given again if the process that has them dies."""

    def __init__(self, group: list[Scenario | SimError], executor: Executor | None) -> None:
        self.group: list[Scenario | _Failure] = [_failure(s) if isinstance(s, SimError) else s for s in group]
        self.executor = executor
        self.future: Future[tuple[list[Summary | _Failure], float]]
        self.give()

    def give(self) -> None:
        if self.executor:
            self.future = self.executor.submit(_task, self.group)
        else:
            self.future = Future()
            self.future.set_result(_task(self.group))

    def lost(self) -> bool:
        return self.future.done() and not self.future.cancelled() and isinstance(self.future.exception(), BrokenExecutor)

    def results(self, others: Iterable[_Given]) -> tuple[list[Summary | _Failure], float]:
        for left in reversed(range(_TRIES)):
            try:
                return self.future.result()
            except BrokenExecutor:
                for given in (self, *others) if left > 1 else (self,) if left else ():
                    if given.lost():
                        given.give()
        failure = _Failure("worker_lost", f"{_TRIES} processes died with this scenario or one beside it", {})
        return [failure] * len(self.group), 0.0


class Workers(Executor):
    """N processes that are replaced when one of them is killed, by the system that runs out of memory, say.

    They are spawned, on every system and Python alike: a fork of a process with threads may never wake up.
    """

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._pool = self._new()

    def _new(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self._processes, get_context("spawn"))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As every executor's; what was given to processes that died fails with BrokenExecutor."""
        try:
            return self._pool.submit(fn, *args, **kwargs)
        except BrokenExecutor:
            self._pool.shutdown(wait=False)
            self._pool = self._new()
            return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the processes go."""
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


def grid(base: Scenario, vary: Mapping[str, Sequence[Any]]) -> Iterator[Scenario | SimError]:
    """Every combination of the values, the last field changing fastest; SimError where settings contradict."""
    for values in product(*vary.values()):
        yield _but(base, dict(zip(vary, values, strict=True)))


def _but(base: Scenario, changes: dict[str, Any]) -> Scenario | SimError:
    try:
        return base.but(**changes)
    except SimError as error:
        return error


# --- the sweet spot

Point = tuple[int, ...]  # a place in each field's list of values


@dataclass(frozen=True, slots=True)
class Tried:
    """One run of a search. `excess` is how far it breaks its limits (0: it keeps them; 0.5: one is missed by half)."""

    changes: dict[str, Any]
    result: Result
    excess: float
    value: float  # of what is maximised, nan if it did not run


@dataclass(frozen=True, slots=True)
class Answer:
    """What a search found. `neighbours[field]`: the runs one value lower and one higher, None at an end of the list."""

    best: Tried
    scenario: Scenario
    neighbours: dict[str, tuple[Tried | None, Tried | None]]
    runs: tuple[Tried, ...]  # all, in the order they were made
    maximise: str
    limits: dict[str, float] = field(default_factory=dict)

    @property
    def feasible(self) -> bool:
        """Whether the best keeps all limits; if not, it is the one that comes nearest."""
        return self.best.excess == 0.0


def search(
    base: Scenario, ranges: Mapping[str, Sequence[Any]], limits: Mapping[str, float] | None = None, *,
    maximise: str = "output_tok_s", executor: Executor | None = None, watch: Callable[[Tried], None] | None = None,
) -> Answer:
    """The combination of values with the highest figure that keeps the limits: coarse to fine, every run made once.

    ranges    field -> its possible values in ascending order
    limits    figure of a Summary -> the most it may be, such as {"ttft_p99": 1.0, "preemptions": 0}
    maximise  figure of a Summary
    watch     called with every run as it is made
    Begins at the corners and the middle, walks to better points with a stride that halves, and ends where no neighbour
    (a step in one field, or in two at once) is better. Figures that differ by less than half a percent count as equal:
    then the lower P99 end-to-end latency decides. Raises SimError if there is nothing to search or nothing that runs.
    """
    names = list(ranges)
    values = [list(ranges[name]) for name in names]
    if not names or not all(values):
        raise SimError("empty_search", "a search needs at least one field with at least one value")
    for figure in (maximise, *(limits or {})):
        if figure not in Summary.__dataclass_fields__:
            known = ", ".join(Summary.__dataclass_fields__)
            raise SimError("unknown_figure", f"there is no figure {figure!r}; there are {known}", value=figure)
    bounds = dict(limits or {})
    seen: dict[Point, Tried] = {}

    def try_all(points: Iterable[Point]) -> None:
        new = [p for p in dict.fromkeys(points) if p not in seen]
        changes = [{name: options[i] for name, options, i in zip(names, values, p, strict=True)} for p in new]
        for index, result in sweep([_but(base, change) for change in changes], executor):
            tried = _judge(changes[index], result, bounds, maximise)
            seen[new[index]] = tried
            if watch:
                watch(tried)

    tops = [len(options) - 1 for options in values]
    coarse = [sorted({0, top // 2, top}) for top in tops]
    if len(names) <= 2:
        try_all(product(*coarse))
    else:  # 3 values in each of many fields are too many: the middle, and each field's ends around it
        middle = tuple(top // 2 for top in tops)
        try_all([middle, *((*middle[:f], i, *middle[f + 1:]) for f, places in enumerate(coarse) for i in places)])
    stride = max(max(tops) // 4, 1)
    while True:
        leaders = _leaders(seen)
        try_all(point for leader in leaders for point in _around(leader, stride, tops))
        if _leaders(seen) != leaders:
            continue
        if stride == 1:
            break
        stride = max(stride // 2, 1)
    best = leaders[0]
    found = seen[best]
    scenario = _but(base, found.changes)
    if isinstance(scenario, SimError):
        raise scenario
    if isinstance(found.result, SimError):
        raise found.result
    neighbours = {}
    for f, name in enumerate(names):
        below, above = ((*best[:f], best[f] + step, *best[f + 1:]) for step in (-1, 1))
        neighbours[name] = (seen.get(below), seen.get(above))
    return Answer(found, scenario, neighbours, tuple(seen.values()), maximise, bounds)


def _leaders(seen: dict[Point, Tried]) -> list[Point]:
    """The best points so far: one alone may stand on a hill that is not the highest."""
    return sorted(seen, key=lambda point: _rank(seen[point]), reverse=True)[:2]


def _around(point: Point, stride: int, tops: list[int]) -> Iterator[Point]:
    """Steps in one field, and in two at once: budgets often pay only together."""
    n = len(point)
    steps = [{f: d} for f in range(n) for d in (-stride, stride)]
    steps += [{f: d, g: e} for f in range(n) for g in range(f) for d in (-stride, stride) for e in (-stride, stride)]
    for step in steps:
        moved = tuple(min(max(place + step.get(f, 0), 0), tops[f]) for f, place in enumerate(point))
        if moved != point:
            yield moved


def _judge(changes: dict[str, Any], result: Result, limits: dict[str, float], maximise: str) -> Tried:
    if isinstance(result, SimError):
        return Tried(changes, result, math.inf, math.nan)
    excess = 0.0
    for name, limit in limits.items():
        measured = float(getattr(result, name))
        if math.isnan(measured):
            excess = math.inf  # nothing finished
        elif measured > limit:
            excess = max(excess, (measured - limit) / (abs(limit) or 1.0))
    return Tried(changes, result, excess, float(getattr(result, maximise)))


def _rank(tried: Tried) -> tuple[float, float, float]:
    if isinstance(tried.result, SimError) or math.isnan(tried.value):
        return (-math.inf, -math.inf, -math.inf)
    # Equal within half a percent: on a scale of logarithms, the same step of 0.5 %.
    rounded = round(math.log(max(tried.value, 1e-12)) / math.log(1.005))
    latency = tried.result.e2e_p99
    return (-tried.excess, rounded, -math.inf if math.isnan(latency) else -latency)


# --- the shell

_SHOWN = (
    "qps", "output_tok_s", "goodput_qps", "gpu_compute", "waiting_mean", "kv_max", "ttft_p99", "itl_p99", "e2e_p99",
    "preemptions",
)


def command(subparsers: Any) -> None:
    """Adds `sweep`."""
    parser = subparsers.add_parser("sweep", help="run every combination of some settings, or search the best",
                                   description="Run every combination of some settings, or search the best one.")
    shell.add_scenario(parser)
    parser.add_argument("--vary", action="append", default=[], metavar="KEY=A,B,C",
                        help="values of a setting; repeat for more")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="use N processes")
    parser.add_argument("--dask", metavar="ADDRESS", help="use a running Dask cluster, such as tcp://10.0.0.5:8786")
    parser.add_argument("--csv", metavar="FILE", help="write all figures as CSV (- for standard output)")
    parser.add_argument("--parquet", metavar="FILE", help="write all figures as Parquet (needs pyarrow)")
    parser.add_argument("--search", action="store_true", help="search the best combination instead of running them all")
    parser.add_argument("--limit", action="append", default=[], metavar="FIGURE=MOST",
                        help="search: what a figure may be at most, such as ttft_p99=1")
    parser.add_argument("--maximise", default="output_tok_s", metavar="FIGURE", help="search: default output_tok_s")
    parser.set_defaults(run=_command)


def _command(args: argparse.Namespace) -> int:
    base = shell.scenario_of(args)
    vary = dict(_values(text) for text in args.vary)
    if not vary:
        raise SimError("nothing_varies", "nothing to sweep: give --vary KEY=A,B,C, such as --vary max_num_seqs=64,128")
    with _executor(args.workers, args.dask) as executor:
        if args.search:
            return _search(base, vary, dict(_limit(text) for text in args.limit), args.maximise, executor)
        names = list(Summary.__dataclass_fields__)
        with _writer(args, [*vary, *names, "error"]) as write:
            begun, runs, busy = perf_counter(), 0, 0.0

            def spent(seconds: float) -> None:
                nonlocal busy
                busy += seconds

            for (index, result), values in zip(sweep(grid(base, vary), executor, spent), product(*vary.values()), strict=True):
                runs = index + 1
                if isinstance(result, SimError):
                    write([*values, *[None] * len(names), str(result)])
                else:
                    write([*values, *result.as_dict().values(), ""])
        took, at_once = perf_counter() - begun, max(args.workers, 1)
        overhead = "" if args.dask else f", of which {max(took * at_once - busy, 0.0) / runs * 1e3:.2f} ms not simulating"
        print(f"{runs:,} runs in {took:.1f} s: {took * at_once / runs * 1e3:.2f} ms each{overhead}", file=sys.stderr)
    return 0


def _values(text: str) -> tuple[str, list[Any]]:
    name, equals, values = text.partition("=")
    setting = shell.setting_of(name)
    if not equals or not values.strip(", "):
        raise SimError("bad_assignment", f"{text!r} must read KEY=A,B,C, such as max_num_seqs=64,128,256", value=text)
    return setting.name, [shell.value_of(setting, value) for value in values.split(",") if value.strip()]


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        raise SimError("bad_assignment", f"{text!r} must read FIGURE=MOST, such as ttft_p99=1", value=text) from None


@contextlib.contextmanager
def _executor(workers: int, dask: str | None) -> Iterator[Executor | None]:
    if dask:
        try:
            cluster: Any = import_module("dask.distributed")
        except ImportError:
            raise SimError("needs_package", "--dask needs a package: pip install -r requirements-dask.txt") from None
        try:
            client = cluster.Client(dask, timeout=10)
        except (OSError, ValueError) as error:
            raise SimError("no_cluster", f"no Dask scheduler answers at {dask}: {error}", value=dask) from None
        with client, client.get_executor() as executor:
            yield executor
    elif workers > 0:
        with Workers(workers) as executor:
            yield executor
    elif workers < 0:
        raise SimError("out_of_range", "--workers must be 0 (in this process) or more", value=workers)
    else:
        yield None


@contextlib.contextmanager
def _writer(args: argparse.Namespace, columns: list[str]) -> Iterator[Callable[[list[Any]], None]]:
    """Where rows go: a table on standard output, a CSV or a Parquet file; row by row, never all in memory."""
    if args.parquet:
        with _parquet(args.parquet, columns) as to_parquet:
            yield to_parquet
        return
    if args.csv:
        with contextlib.ExitStack() as stack:
            try:
                file = sys.stdout if args.csv == "-" else stack.enter_context(open(args.csv, "w", newline=""))
            except OSError as error:
                raise SimError("unwritable", f"cannot write {args.csv}: {error.strerror}", value=args.csv) from None
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(columns)
            yield rows.writerow
        return
    vary = len(columns) - len(Summary.__dataclass_fields__) - 1
    places = [*range(vary), *(columns.index(name) for name in _SHOWN)]
    print("".join(f"{columns[i][-15:]:>16}" for i in places))

    def write(row: list[Any]) -> None:
        shown = places if row[-1] == "" else places[:vary]
        print("".join(f"{_cell(row[i]):>16}" for i in shown) + (f"  {row[-1]}" if row[-1] else ""), flush=True)

    yield write


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@contextlib.contextmanager
def _parquet(path: str, columns: list[str]) -> Iterator[Callable[[list[Any]], None]]:
    try:
        pa: Any = import_module("pyarrow")
        pq: Any = import_module("pyarrow.parquet")
    except ImportError:
        raise SimError("needs_package", "--parquet needs a package: pip install pyarrow") from None
    kinds: dict[type, Any] = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
    types: dict[str, Any] = {name: kinds[setting.kind] for name, setting in SETTINGS.items()}
    types |= {name: {"int": pa.int64(), "bool": pa.bool_()}.get(str(f.type), pa.float64())
              for name, f in Summary.__dataclass_fields__.items()}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in columns])
    rows: list[list[Any]] = []
    # Written beside its place and moved there when whole: a Parquet file without its end cannot be read.
    part = f"{path}.part"
    try:
        writer = pq.ParquetWriter(part, schema)
    except OSError as error:
        raise SimError("unwritable", f"cannot write {path}: {error}", value=path) from None

    def flush() -> None:
        if rows:
            cells = zip(*rows, strict=True)
            arrays = [pa.array(list(column), kind.type) for column, kind in zip(cells, schema, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            rows.clear()

    def write(row: list[Any]) -> None:
        rows.append(row)
        if len(rows) >= 1000:
            flush()

    with writer:
        yield write
        flush()
    os.replace(part, path)


def _search(
    base: Scenario, vary: dict[str, list[Any]], limits: dict[str, float], maximise: str, executor: Executor | None
) -> int:
    ranges = {name: sorted(set(values)) for name, values in vary.items()}
    answer = search(base, ranges, limits, maximise=maximise, executor=executor)
    kept = "keeps all limits" if answer.feasible else "NONE KEEPS ALL LIMITS; this comes nearest"
    print(f"best of {len(answer.runs)} runs ({math.prod(map(len, ranges.values()))} combinations), {kept}:")
    print(f"  {_said(answer.best, answer)}")
    for name, sides in answer.neighbours.items():
        for side, tried in zip(("lower", "higher"), sides, strict=True):
            print(f"  {name} {side}: {_said(tried, answer) if tried else 'the end of its values'}")
    print(f"\n{export.command_line(answer.scenario)}")
    return 0 if answer.feasible else 1


def _said(tried: Tried, answer: Answer) -> str:
    what = ", ".join(f"{name}={value}" for name, value in tried.changes.items())
    if isinstance(tried.result, SimError):
        return f"{what}: {tried.result}"
    figures = dict.fromkeys([answer.maximise, *answer.limits, "e2e_p99", "preemptions"])
    return f"{what}: " + ", ".join(f"{name} {_cell(getattr(tried.result, name))}" for name in figures)
