"""The walls of the house: who may import whom."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = {"sim": set(), "ui": {"sim"}, "pages": {"sim", "ui"}, "app.py": {"sim", "ui"}}
SCREENS = {"streamlit", "plotly"}


def imported(file: Path) -> set[str]:
    """The top names of all modules that a file imports, at its head or later."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("room", LAYERS)
def test_a_room_imports_what_lies_below_it_only(room: str) -> None:
    files = [ROOT / room] if room.endswith(".py") else sorted((ROOT / room).rglob("*.py"))
    assert files
    others = {name.removesuffix(".py") for name in (*LAYERS, "tests", "tools")} - LAYERS[room] - {room}
    for file in files:
        assert not imported(file) & (others | (SCREENS if room == "sim" else set())), file
