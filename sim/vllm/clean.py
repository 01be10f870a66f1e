"""What every reader of a paste needs first: text out of bytes, without colour codes, wrappers and secrets."""

from __future__ import annotations

import html
import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from sim.sentences import Note

MAX_CHARS = 1_200_000
"""Longer pastes are cut here (from the middle), so that an answer stays within a second."""

_ANSI = re.compile(r"(?:\x1b|\^\[|#033|␛|\\u001b|\\x1b)\[[0-9;?]{0,12}[A-Za-z]|\x1b\][^\x07]{0,200}\x07")
_BARE_COLOUR = re.compile(r"\[[0-9]{1,2}(?:;[0-9]{1,3}){0,4}m")
_ENTITY = re.compile(r"&(?:quot|amp|lt|gt|nbsp|#x?\w{1,6});|<br ?/?>")
_BREAK = re.compile(r"<br ?/?>\n?")
_EPOCH = re.compile(r"(?<![\d.])(1[5-9]\d{8}(?:\d{3}|\.\d+)?)(?![\d.])")  # s, or ms
_CLOCK = re.compile(
    r"(?:(?:(?<!\d)(\d{4})[-/])?(?<!\d)(\d\d)[-/](\d\d)[T ]+)?(?<![\d:])([012]?\d):([0-5]\d):([0-5]\d(?:[.,]\d{1,9})?)(?!\d)"
)
_MARGIN = re.compile(r"(?m)^(?:> ?|[ \t]*\d{1,7}:(?!\d\d[:.]) ?)")
_JSON_TEXT_KEYS = ("log", "message", "msg", "line", "textPayload", "MESSAGE", "body", "content")

_SECRET_NAME = re.compile(
    r"TOKEN$|^TOKEN|_TOKEN_|API_?KEY|ACCESS_?KEY|SECRET|PASSW|CREDENTIAL|PRIVATE_?KEY|AUTHORIZATION|BEARER|(?:^|_)KEY$",
    re.I,
)
_NOT_SECRET = re.compile(
    r"TOKENS$|TOKEN_(?:THRESHOLD|LATENCY|BUDGET|USAGE)|PER_TOKEN|PER_OUTPUT_TOKEN|FIRST_TOKEN|TOKENIZER|TOKEN_ID|CUDA|NUM_",
    re.I,
)
_SECRET_VALUE = re.compile(
    r"\bhf_(?:[A-Za-z0-9]{24,}|(?=[a-z]{0,40}[A-Z0-9])[A-Za-z0-9]{8,})|\bsk-[A-Za-z0-9_\-]{8,}|\bnvapi-[A-Za-z0-9_\-]{8,}|\bgh[pousr]_[A-Za-z0-9]{16,}"
    r"|\bgithub_pat_\w{16,}|\bAKIA[0-9A-Z]{12,}|\bAIza[0-9A-Za-z_\-]{20,}|\bxox[abprs]-[A-Za-z0-9\-]{8,}"
    r"|\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{4,}(?:\.[A-Za-z0-9_\-]*)?|(?<=[Bb]earer )\S+"
    r"|(?<=://)[^/\s:@]{1,80}:[^/\s@]{1,200}(?=@)"
)
HIDDEN = "<secret>"


@dataclass(slots=True)
class Reading:
    """What was read of a paste: `parse` in the desk's terms (None: nothing), what was repaired, what could not be known.

    ignored: what was passed over; redact: names of the secrets that were hidden; removed: flags of older versions, with
    their values; format: the wrapping that was taken off; engine: whose it is.
    """

    parse: dict[str, Any] | None
    warnings: list[Note] = field(default_factory=list)
    errors: list[Note] = field(default_factory=list)
    unknown: list[Note] = field(default_factory=list)
    ignored: list[Note] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    image: str | None = None
    redact: list[str] = field(default_factory=list)
    removed: dict[str, Any] = field(default_factory=dict)
    format: str = ""
    engine: str = "vllm"


def note(code: str, **params: Any) -> Note:
    """A Note (sim.sentences) without secrets in it."""
    return Note(code, **{name: scrub(value) for name, value in params.items()})


def once(notes: list[Note]) -> list[Note]:
    """The notes, each said once."""
    return list(dict.fromkeys(notes))


def decode(data: bytes | str) -> tuple[str, list[Note], str]:
    """The text of a paste, notes on what was done to it, and what it is if it is not text ("" or "binary")."""
    notes: list[Note] = []
    if isinstance(data, bytes):
        start = data[:65536]
        if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
            text = data[: 2 * MAX_CHARS].decode("utf-16", "replace")
        elif b"\0" in start:
            return "", notes, "binary"
        else:
            text = data.decode("utf-8-sig", "replace")
    else:
        text = data
    head_text = text[:65536]
    odd = sum(c == "�" or (c < " " and c not in "\t\n\r\x1b\x0c\x07\x08") for c in head_text)
    if "\0" in head_text or odd > 0.1 * len(head_text) + 2:
        return "", notes, "binary"
    if len(text) > MAX_CHARS:
        notes.append(note("cut", characters=len(text), half=MAX_CHARS // 2))
        half = MAX_CHARS // 2
        head, tail = text[:half], text[-half:]
        text = (head.rpartition("\n")[0] or head) + "\n" + (tail.partition("\n")[2] or tail)
    if _ENTITY.search(text):
        text = html.unescape(_BREAK.sub("\n", text))
    if text.lstrip()[:1] == '"':
        with suppress(ValueError):
            text = str(json.loads(text))
    if "\n" not in text.strip() and text.count("\\n") > 1 and not text.startswith("{"):  # a string of a program
        text = text.replace("\\n", "\n").replace('\\"', '"')
    for strange, usual in (("\r\n", "\n"), ("\r", "\n"), ("\ufeff", ""), ("\u200b", ""), ("\u00a0", " "), ("\u3000", " ")):
        text = text.replace(strange, usual)
    return text, notes, ""


def clock(line: str) -> float | None:
    """The last time in a line, as seconds on some clock; None if there is none. A date without a year is fine."""
    epoch = _EPOCH.search(line)
    if epoch:
        return float(epoch[1]) / (1000 if len(epoch[1].partition(".")[0]) == 13 else 1)
    found = list(_CLOCK.finditer(line))
    if not found:
        return None
    year, month, day, hours, minutes, seconds = found[-1].groups()
    try:
        days = (date(int(year or 2000), int(month), int(day)) - date(2000, 1, 1)).days if month else 0
    except ValueError:
        days = 0
    return days * 86400 + int(hours) * 3600 + int(minutes) * 60 + float(seconds.replace(",", "."))


def strip_colour(text: str) -> str:
    """Without terminal colour codes, also where a logger spelled the escape character out."""
    if "[" not in text:
        return text
    return _BARE_COLOUR.sub("", _ANSI.sub("", text))


def strip_margin(text: str) -> str:
    """Without what stands before every line: the mark of a quotation, the numbers of `grep -n` or of an editor."""
    lines = [line for line in text.split("\n") if line.strip()]
    return _MARGIN.sub("", text) if all(map(_MARGIN.match, lines)) else text


def unwrap_json_lines(text: str) -> tuple[str, bool]:
    """Log lines out of Docker's JSON file format or a structured logger's; and whether there were any."""
    if '{"' not in text and '{ "' not in text:
        return text, False
    lines, found = [], False
    for line in text.split("\n"):
        bare = line.strip()
        start = bare.find("{")
        if start >= 0 and bare.endswith("}") and len(bare) < 65536 and (start == 0 or bare[start : start + 2] == '{"'):
            try:
                entry = json.loads(bare[start:])
            except ValueError:
                entry = None
            if isinstance(entry, dict):
                inner = next((entry[k] for k in _JSON_TEXT_KEYS if isinstance(entry.get(k), str)), None)
                if inner is not None:
                    found = True
                    lines.extend(inner.rstrip("\n").split("\n"))
                    continue
        lines.append(line)
    return "\n".join(lines), found


def is_secret_name(name: str) -> bool:
    """Whether an environment variable or flag of this name holds something that must not be shown."""
    bare = name.lstrip("-").replace("-", "_")
    return bool(_SECRET_NAME.search(bare)) and not _NOT_SECRET.search(bare)


def scrub(value: Any) -> Any:
    """The same data with everything that looks like a key, token or password replaced."""
    if isinstance(value, str):
        return _SECRET_VALUE.sub(HIDDEN, value)
    if isinstance(value, dict):
        return {
            scrub(k): HIDDEN if isinstance(v, str) and v and is_secret_name(str(k)) else scrub(v)
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [scrub(v) for v in value]
    return value
