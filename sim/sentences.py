"""What the simulator says in words: English sentences by code (sentences.toml). Pages say the same codes in other languages."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TEXT: dict[str, str] = {
    f"{table}.{key}": words
    for table, texts in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
    for key, words in texts.items()
}
"""`advice.<key>` (of `sim.advice`) and `note.<code>` (of `sim.vllm`) -> English, with the names of its parameters in it."""


class Blanks(dict[str, Any]):
    """Format parameters, where what is missing or None reads as a question mark."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__({k: v for k, v in params.items() if v is not None})

    def __missing__(self, key: str) -> _Mark:
        return _Mark()


class _Mark:
    def __format__(self, spec: str) -> str:
        return "?"


def say(key: str, params: Mapping[str, Any]) -> str:
    """The English sentence of this key. Raises KeyError if there is none."""
    return TEXT[key].format_map(Blanks(params))


class Note(str):
    """Something worth saying of what was read: the English sentence, which knows its code and what fills it."""

    code: str
    params: Mapping[str, Any]

    def __new__(cls, code: str, **params: Any) -> Note:
        """The sentence `note.<code>` with these parameters."""
        made = super().__new__(cls, say(f"note.{code}", params))
        made.code, made.params = code, params
        return made
