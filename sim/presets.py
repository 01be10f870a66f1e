"""Ready-made scenarios: sim/presets.toml, where each says what it changes and why one would look at it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sim.scenario import Scenario, SimError


@dataclass(frozen=True, slots=True)
class Preset:
    """A scenario with a title and a sentence in both languages."""

    name: str
    scenario: Scenario
    title_en: str
    title_zh: str
    about_en: str
    about_zh: str


@cache
def presets() -> Mapping[str, Preset]:
    """Every preset by name, in order. An entry may begin from another one: `like = "name"`."""
    with (Path(__file__).parent / "presets.toml").open("rb") as file:
        entries: dict[str, Any] = tomllib.load(file)
    found: dict[str, Preset] = {}
    for name, entry in entries.items():
        base = found[entry["like"]].scenario if "like" in entry else Scenario()
        words = [entry[key] for key in ("title_en", "title_zh", "about_en", "about_zh")]
        found[name] = Preset(name, base.but(**entry.get("set", {})), *words)
    return MappingProxyType(found)


def preset(name: str) -> Preset:
    """A preset by name. Raises SimError("unknown_preset")."""
    if name not in presets():
        names = ", ".join(presets())
        raise SimError("unknown_preset", f"no preset is called {name!r}; there are {names}", value=name, choices=names)
    return presets()[name]
