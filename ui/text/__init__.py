"""Every word a visitor reads: ui/text/{en,zh}/*.toml, one file a page or room.

`t("budgets.question", wait=3.2)` is the text `question` of budgets.toml in the visitor's language, with `{wait:.1f}`
filled in. Tables nest: `[max_num_seqs]` / `label = ...` in settings.toml is `settings.max_num_seqs.label`.
The fields of a Summary are named by `figure`. Numbers are put into words by `seconds`, `percent`, `count`, `value`, `change`:
ms below 1 s, s above. No line breaks between a number and its unit: the blank there is U+00A0.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from sim import sentences

LANGUAGES = {"en": "English", "zh": "中文"}
BLANK = "\u00a0"
"""Between a number and its unit."""
_UNIT = re.compile(r"(?<=[\d}]) (?=(?:µs|ms|s|[KMG]iB|[MG]B|(?:GB|req|token|tok)/s|tokens?|pp)(?![\w/]))")
_current: ContextVar[str] = ContextVar("language", default="en")


def use(language: str) -> None:
    """Speak this language from here to the end of this script run (the frame calls it)."""
    _current.set(language if language in LANGUAGES else "en")


def language() -> str:
    """The visitor's language: "en" or "zh"."""
    return _current.get()


def t(key: str, /, **numbers: Any) -> str:
    """The text of this key in the visitor's language. Raises KeyError if there is none: texts are complete or wrong."""
    text = texts(_current.get())[key]
    return text.format(**numbers) if numbers else text


def joined(sentences: Iterable[str]) -> str:
    """Sentences in a row, which Chinese writes without blanks between them; empty ones are left out."""
    return ("" if language() == "zh" else " ").join(filter(None, sentences))


def has(key: str) -> bool:
    """Whether there is such a text."""
    return key in texts("en")


def figure(name: str) -> tuple[str, str]:
    """A field of a Summary: its name and what it is. A latency's share stands behind its name: "TTFT P99"."""
    if has(f"settings.metric.{name}.label"):
        return t(f"settings.metric.{name}.label"), t(f"settings.metric.{name}.help")
    base, _, share = name.rpartition("_")
    behind = f"settings.metric.share.{share}"
    label, share = t(f"settings.metric.{base}.label"), t(behind) if has(behind) else share.upper()
    blank = "" if label[-1] > "\u2e80" < share[0] else " "  # none between Chinese words
    return f"{label}{blank}{share}", t(f"settings.metric.{base}.help")


@cache
def texts(language: str) -> dict[str, str]:
    """All texts of a language by key; what the simulator itself says in English is its own."""
    found: dict[str, str] = dict(sentences.TEXT) if language == "en" else {}
    for path in sorted((Path(__file__).parent / language).glob("*.toml")):
        found.update(_flat(path.stem, tomllib.loads(path.read_text(encoding="utf-8"))))
    return {key: _UNIT.sub(BLANK, words) for key, words in found.items()}


def _flat(prefix: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, entry in table.items():
        if isinstance(entry, Mapping):
            yield from _flat(f"{prefix}.{name}", entry)
        else:
            yield f"{prefix}.{name}", str(entry)


def seconds(value: float) -> str:
    """A time in s, in words: "850 µs", "35 ms", "2.4 s"."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if size == 0:
        return f"0{BLANK}s"
    if size < 0.9995e-3:
        return f"{value * 1e6:.0f}{BLANK}µs"
    if size < 0.9995:
        return f"{value * 1e3:.{1 if size < 0.00995 else 0}f}{BLANK}ms"
    if size < 99.95:
        return f"{value:.{2 if size < 9.995 else 1}f}{BLANK}s"
    return f"{value:,.0f}{BLANK}s"


def percent(value: float) -> str:
    """A share (0..1), in words."""
    if not math.isfinite(value):
        return "–"
    return f"{value * 100:.{1 if 0 < abs(value) < 0.0995 else 0}f}%"


def count(value: float) -> str:
    """A number of things, or a rate: three digits that matter, thousands parted."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if float(value).is_integer() or size >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.{1 if size >= 9.995 else 2}f}"


def change(b: float, a: float) -> str:
    """How far b is from a, in percent: "+12%", "−5.7%", or that there is no difference."""
    if not a > 0 or not math.isfinite(b / a):
        return "–"
    ratio = b / a - 1
    if abs(ratio) < 0.005:
        return t("narration.no_difference")
    return f"{ratio * 100:+.{1 if abs(ratio) < 0.0995 else 0}f}%".replace("-", "−")


FORMATS = {"s": seconds, "%": percent, "": count}


def value(number: float, unit: str = "") -> str:
    """A number with its unit, in words: unit "s", "%" (of a share) or anything else, which is put behind."""
    known = FORMATS.get(unit)
    return known(number) if known else f"{count(number)}{BLANK}{unit}"
