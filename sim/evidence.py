"""How true the simulator is, as measured: sim/evidence.json, written by the commands that compare and read by page 9.

    python -m sim conformance tests/data/oracle/*.json.gz --json sim/evidence.json
    python -m sim validate steps.csv --runs DIR... --served served_latency.csv --json sim/evidence.json
    python -m sim headlines --json sim/evidence.json
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

from sim.scenario import SimError

FILE = Path(__file__).parent / "evidence.json"


@lru_cache(maxsize=1)
def evidence() -> dict[str, Any]:
    """What was found: "steps", "runs", "curves", "served", "headlines", "conformance", each with its date and results."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def held(path: Path) -> dict[str, Any]:
    """What a file of evidence holds, nothing if there is none yet. Raises SimError if it is something else.

    To be asked before hours of work are to be added to it.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise SimError("not_evidence", f"{path} is no JSON file that could be added to: {error}") from None
    if not isinstance(found, dict):
        raise SimError("not_evidence", f"{path} holds no JSON object that could be added to")
    return found


def record(path: Path | None, found: Mapping[str, Any]) -> None:
    """Add results by kind to a file of evidence, with today's date; what it held of other kinds stays. No path: nothing."""
    if path:
        dated = {kind: {"date": date.today().isoformat(), "results": _plain(results)} for kind, results in found.items()}
        path.write_text(json.dumps(held(path) | dated, separators=(",", ":"), allow_nan=False), encoding="utf-8")


def _plain(value: Any) -> Any:
    """Results for JSON, which knows neither nan nor our classes: what could not be computed is null."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
