"""Real traffic: reads trace files of the kinds people have into Requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sim.requests import Requests
from sim.scenario import SimError


def shipped(name: str) -> Path:
    raise SimError("unknown_trace", f"no trace named {name}", field="trace", value=name)


def read(source: Any, **how: Any) -> tuple[Requests, Any]:
    raise NotImplementedError
