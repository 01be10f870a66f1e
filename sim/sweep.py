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
from itertools import combinations, islice, product
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
_PATIENCE_S = 10.0  # for a cluster's scheduler to answer
_TRIES = 3  # a task whose process is killed is given out this often in all, the last time alone


# --- runs


def sweep(
    scenarios: Iterable[Scenario | SimError], executor: Executor | None = None, spent: Callable[[float], None] | None = None,
    most_ticks: float = math.inf,
) -> Iterator[tuple[int, Result]]:
    """Run scenarios and yield (index, result) in their order.

    Without an executor in this process, one at a time as they are asked for. With one (threads, processes, a
    cluster's), some hundred ahead; closing the iterator cancels them. A scenario that cannot run yields its SimError,
    and so does a SimError that stands in the place of a scenario (see `grid`). Scenarios of one traffic share the
    drawing of it. What a killed process of `Workers` or of a cluster had not given back is run again.
    most_ticks: as `simulate` takes it, of each run.
    spent: called with the seconds that each task took where it ran; what remains of the time is overhead.
    """
    together, ahead = (1, 1) if executor is None else (_TOGETHER, _AHEAD // _TOGETHER)
    source, index = iter(scenarios), 0
    waiting: deque[_Given] = deque()
    try:
        while True:
            while len(waiting) < ahead and (group := list(islice(source, together))):
                waiting.append(_Given(group, executor, most_ticks))
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


def _task(scenarios: list[Scenario | _Failure], most_ticks: float) -> tuple[list[Summary | _Failure], float]:
    begun = perf_counter()
    return [_run(s, most_ticks) if isinstance(s, Scenario) else s for s in scenarios], perf_counter() - begun


def _run(scenario: Scenario, most_ticks: float) -> Summary | _Failure:
    try:
        return simulate(scenario, most_ticks=most_ticks).summary()
    except SimError as error:
        return _failure(error)


def _failure(error: SimError) -> _Failure:
    return _Failure(error.code, str(error), error.params)


class _Given:
    """Scenarios given to an executor together, and given again if the process that has them dies."""

    def __init__(self, group: list[Scenario | SimError], executor: Executor | None, most_ticks: float) -> None:
        self.group: list[Scenario | _Failure] = [_failure(s) if isinstance(s, SimError) else s for s in group]
        self.executor, self.most_ticks = executor, most_ticks
        self.future: Future[tuple[list[Summary | _Failure], float]]
        self.give()

    def give(self) -> None:
        if self.executor:
            self.future = self.executor.submit(_task, self.group, self.most_ticks)
        else:
            self.future = Future()
            self.future.set_result(_task(self.group, self.most_ticks))

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


Ranges = Mapping[str, Sequence[Any]]
"""Field -> its values. Fields that change together go by any name, with a mapping {field: value} for each value."""


def splits(gpus: int) -> list[dict[str, int]]:
    """Every way to make engines of so many GPUs, as values that go together."""
    return [{"tensor_parallel_size": n, "data_parallel_size": gpus // n} for n in range(1, gpus + 1) if gpus % n == 0]


def every(vary: Ranges) -> Iterator[dict[str, Any]]:
    """Every combination of the values as changes of a scenario, the last field changing fastest."""
    for values in product(*vary.values()):
        yield _changes(vary, values)


def _changes(names: Iterable[str], values: Iterable[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        found |= value if isinstance(value, Mapping) else {name: value}
    return found


def grid(base: Scenario, vary: Ranges) -> Iterator[Scenario | SimError]:
    """Every combination of the values; SimError where settings contradict."""
    return (changed(base, changes) for changes in every(vary))


def changed(base: Scenario, changes: Mapping[str, Any]) -> Scenario | SimError:
    """The scenario with these changes, or why there is none."""
    try:
        return base.but(**changes)
    except SimError as error:
        return error


# --- the sweet spot

Point = tuple[int, ...]  # a place in each field's list of values


@dataclass(frozen=True, slots=True)
class Tried:
    """One run and its changes. `excess` is how far it breaks its limits (0: it keeps them; 0.5: one is missed by half)."""

    changes: dict[str, Any]
    result: Result
    excess: float
    value: float  # of what is maximised, nan if it did not run

    @property
    def rank(self) -> tuple[float, float, float]:
        """The better of two runs has the higher one."""
        if isinstance(self.result, SimError) or math.isnan(self.value):
            return (-math.inf, -math.inf, -math.inf)
        # Equal within half a percent: on a scale of logarithms, the same step of 0.5 %.
        rounded = round(math.log(max(self.value, 1e-12)) / math.log(1.005))
        latency = self.result.e2e_p99
        return (-self.excess, rounded, -math.inf if math.isnan(latency) else -latency)


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
    base: Scenario, ranges: Ranges, limits: Mapping[str, float] | None = None, *, maximise: str = "output_tok_s",
    executor: Executor | None = None, watch: Callable[[Tried], None] | None = None, made: Iterable[Tried] = (),
    most_ticks: float = math.inf,
) -> Answer:
    """The combination of values with the highest figure that keeps the limits: coarse to fine, every run made once.

    ranges    field -> its possible values in order
    limits    figure of a Summary -> the most it may be, such as {"ttft_p99": 1.0, "preemptions": 0}
    maximise  figure of a Summary
    watch     called with every run as it is made
    made      runs of a search like this one that was broken off: they are not made again
    most_ticks  as `simulate` takes it, of each run
    Begins at the corners and the middle, walks from the best points of three values of the first field to better ones
    with a stride that halves, and ends where no neighbour (a step in one field, or in two at once) is better. So put
    first what has no order, such as a split of GPUs. Figures in the same step of half a percent count as equal:
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
    kept = {tuple(tried.changes.items()): tried for tried in made}
    seen: dict[Point, Tried] = {}

    def try_all(points: Iterable[Point]) -> None:
        asked = {p: _changes(names, (options[i] for options, i in zip(values, p, strict=True))) for p in points if p not in seen}
        seen.update({p: kept[key] for p, changes in asked.items() if (key := tuple(changes.items())) in kept})
        new = [p for p in asked if p not in seen]
        for index, result in sweep([changed(base, asked[p]) for p in new], executor, most_ticks=most_ticks):
            tried = seen[new[index]] = judge(asked[new[index]], result, bounds, maximise)
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
        for fields in (1, 2):  # two at once are many: only where no single step leads on
            try_all(point for leader in leaders for point in _around(leader, stride, tops, fields))
            if _leaders(seen) != leaders:
                break
        else:
            if stride == 1:
                break
            stride = max(stride // 2, 1)
    best = leaders[0]
    found = seen[best]
    scenario = changed(base, found.changes)
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
    """The best points with the three best values of the first field: one alone may stand on a hill that is not the highest."""
    best: dict[int, Point] = {}
    for point in sorted(seen, key=lambda point: seen[point].rank, reverse=True):
        best.setdefault(point[0], point)
    return list(best.values())[:3]


def _around(point: Point, stride: int, tops: list[int], fields: int) -> Iterator[Point]:
    """Steps in so many fields at once: budgets often pay only together."""
    for chosen in combinations(range(len(point)), fields):
        for ways in product((-stride, stride), repeat=fields):
            step = dict(zip(chosen, ways, strict=True))
            moved = tuple(min(max(place + step.get(f, 0), 0), tops[f]) for f, place in enumerate(point))
            if moved != point:
                yield moved


def judge(changes: dict[str, Any], result: Result, limits: Mapping[str, float], maximise: str) -> Tried:
    """A run as a search sees it."""
    if isinstance(result, SimError):
        return Tried(changes, result, math.inf, math.nan)
    excess = 0.0 if result.drained else math.inf  # what a run that was broken off would have come to is not known
    for name, limit in limits.items():
        measured = float(getattr(result, name))
        if math.isnan(measured):
            excess = math.inf  # nothing finished
        elif measured > limit:
            excess = max(excess, (measured - limit) / (abs(limit) or 1.0))
    return Tried(changes, result, excess, float(getattr(result, maximise)))


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
    parser.add_argument("--gpus", type=int, default=0, metavar="N",
                        help="split N GPUs in every way into tensor_parallel_size x data_parallel_size")
    where, to = parser.add_mutually_exclusive_group(), parser.add_mutually_exclusive_group()
    where.add_argument("--workers", type=int, default=0, metavar="N", help="use N processes")
    where.add_argument("--dask", metavar="ADDRESS", help="use a running Dask cluster, such as tcp://10.0.0.5:8786")
    to.add_argument("--csv", metavar="FILE", help="write all figures of every run as CSV (- for standard output)")
    to.add_argument("--parquet", metavar="FILE", help="write all figures of every run as Parquet (needs pyarrow)")
    parser.add_argument("--search", action="store_true", help="search the best combination instead of running them all")
    parser.add_argument("--limit", action="append", default=[], metavar="FIGURE=MOST",
                        help="search: what a figure may be at most, such as ttft_p99=1")
    parser.add_argument("--maximise", metavar="FIGURE", help="search: default output_tok_s")
    parser.set_defaults(run=_command)


def _command(args: argparse.Namespace) -> int:
    base = shell.scenario_of(args)
    vary = dict(_values(text) for text in args.vary)
    if args.gpus:
        if args.gpus < 1 or vary.keys() & {"tensor_parallel_size", "data_parallel_size"}:
            raise SimError("bad_split", "--gpus N splits 1 GPU or more in every way: vary neither parallel size beside it")
        vary = {"split": splits(args.gpus), **vary}
    if not vary:
        raise SimError("nothing_varies", "nothing to sweep: give --vary KEY=A,B,C, such as --vary max_num_seqs=64,128")
    if not args.search and (args.limit or args.maximise):
        raise SimError("needs_search", "--limit and --maximise say what to search: give --search as well")
    columns = [*next(every(vary)), *Summary.__dataclass_fields__, "error"]
    with _executor(args.workers, args.dask) as executor:
        if args.search:
            return _search(args, base, vary, columns, executor)
        with _writer(args, columns) as write:
            begun, runs, busy = perf_counter(), 0, 0.0

            def spent(seconds: float) -> None:
                nonlocal busy
                busy += seconds

            for (index, result), changes in zip(sweep(grid(base, vary), executor, spent), every(vary), strict=True):
                runs = index + 1
                write(changes, result)
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
            client = cluster.Client(dask, timeout=_PATIENCE_S)
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


_Write = Callable[[Mapping[str, Any], Result], None]


@contextlib.contextmanager
def _writer(args: argparse.Namespace, columns: list[str]) -> Iterator[_Write]:
    """Where runs go: a table on standard output, a CSV or a Parquet file; row by row, never all in memory."""
    with (_parquet(args.parquet, columns) if args.parquet else _csv(args.csv, columns) if args.csv else _table(columns)) as row:

        def write(changes: Mapping[str, Any], result: Result) -> None:
            if isinstance(result, SimError):
                row([*changes.values(), *[None] * len(Summary.__dataclass_fields__), str(result)])
            else:
                row([*changes.values(), *result.as_dict().values(), ""])

        yield write


@contextlib.contextmanager
def _table(columns: list[str]) -> Iterator[Callable[[list[Any]], object]]:
    vary = len(columns) - len(Summary.__dataclass_fields__) - 1
    widths = {i: max(len(columns[i]), 9) + 2 for i in (*range(vary), *map(columns.index, _SHOWN))}
    print("".join(f"{columns[i]:>{width}}" for i, width in widths.items()))

    def write(row: list[Any]) -> None:
        shown = [f"{_cell(row[i]):>{width}}" for i, width in widths.items()]
        print("".join([*shown[:vary], f"  {row[-1]}"] if row[-1] else shown), flush=True)

    yield write


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@contextlib.contextmanager
def _csv(path: str, columns: list[str]) -> Iterator[Callable[[list[Any]], object]]:
    with contextlib.nullcontext(sys.stdout) if path == "-" else open(path, "w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(columns)
        yield rows.writerow


@contextlib.contextmanager
def _parquet(path: str, columns: list[str]) -> Iterator[Callable[[list[Any]], object]]:
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

    try:
        with pq.ParquetWriter(part, schema) as writer:
            yield write
            flush()
        os.replace(part, path)
    finally:
        with contextlib.suppress(OSError):
            os.remove(part)


def _search(
    args: argparse.Namespace, base: Scenario, vary: dict[str, list[Any]], columns: list[str], executor: Executor | None
) -> int:
    ranges = {name: values if name == "split" else sorted(set(values)) for name, values in vary.items()}
    limits = dict(_limit(text) for text in args.limit)
    with _writer(args, columns) if args.csv or args.parquet else contextlib.nullcontext() as write:
        answer = search(
            base, ranges, limits, maximise=args.maximise or "output_tok_s", executor=executor,
            watch=(lambda tried: write(tried.changes, tried.result)) if write else None,
        )
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
