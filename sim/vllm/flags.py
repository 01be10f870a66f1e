"""The arguments of `vllm serve` (and of SGLang's launch_server) -> settings: argparse over the table in flags.toml.

As vLLM does itself, words are put into one spelling first (underscores, short names, dotted values); what argparse would
end the reading for (a value missing, a number that is none) is noted, and the reading goes on.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import yaml

from .clean import Reading, is_secret_name, note, scrub

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_MANY = set(_TABLE["takes"].pop("many").split())
_TAKES: dict[str, str] = {flag: kind for kind, flags in _TABLE["takes"].items() for flag in flags.split()}
_GONE: dict[str, str] = _TABLE["gone"]
_SGLANG = {flag: entry.partition(" ")[::2] for flag, entry in _TABLE["sglang"].items()}  # -> kind, vLLM's flag or ""
KINDS = {flag.replace("-", "_"): kind for flag, kind in _TAKES.items()}
"""Settings of vLLM's server and what they take: int, human, float, bool, text, json, secret."""

_FLAG = re.compile(r"(--?)([A-Za-z][\w-]*)((?:\.[\w.+-]+)?)(?:=(.*))?", re.S)
_PACKED = re.compile(r"-(?:(tp|pp|dp|dcp|pcp)|(O))(\d+)")  # -tp4, -O3
_GONE_SWITCH = re.compile(r"(?:^|-)(?:use|enable|disable|log|stream)-")
_SUFFIX = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def is_flag(word: str) -> bool:
    """Whether a word is a flag and no value."""
    return bool(re.match(r"--?[A-Za-z]", word))


def is_known(word: str) -> bool:
    """Whether a word is a flag that vLLM's server has."""
    return is_flag(word) and re.split("[=.]", word.lstrip("-"), maxsplit=1)[0].replace("-", "_") in KINDS


def read_args(words: list[str], positional_model: bool, reading: Reading) -> dict[str, Any]:
    """Settings by today's names; what is odd goes into `reading`. positional_model: the first bare word is the model."""
    sglang = reading.engine == "sglang"
    parse: dict[str, Any] = {}
    space = argparse.Namespace(parse=parse, reading=reading)
    _, rest = _parser(sglang).parse_known_args(_one_spelling(words, sglang, reading), space)
    for word in rest[1:] if rest[:1] == ["serve"] else rest:  # `serve`: where only what follows `vllm` was given
        if is_flag(word):
            reading.warnings.append(note("flag_unknown", flag=word.partition("=")[0]))
        elif positional_model and "model" not in parse and not sglang and word[0] not in "[<":
            parse["model"] = scrub(word)
        elif len(reading.ignored) < 20:
            reading.ignored.append(note("word", word=str(scrub(word))[:80]))
    return parse


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


@cache
def _parser(sglang: bool) -> argparse.ArgumentParser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    kinds = {flag: kind for flag, (kind, _) in _SGLANG.items()} if sglang else dict.fromkeys(_GONE, "gone")
    for flag, kind in {**_TAKES, **kinds}.items():
        names = [f"--{flag}", f"--no-{flag}"] if kind == "bool" else [f"--{flag}"]
        switch = kind == "bool" or (kind == "gone" and _GONE[flag].startswith("removed") and _GONE_SWITCH.search(flag))
        ours = _SGLANG[flag][1] if sglang and flag in _SGLANG else ""
        parser.add_argument(
            *names, dest=flag.replace("-", "_"), action=_Take, default=argparse.SUPPRESS, kind=kind,
            ours=ours.replace("-", "_"), nargs=0 if switch else "*" if flag in _MANY else "?",
        )
    return parser


class _Take(argparse.Action):
    """Puts what a flag was given into the settings. kind: of flags.toml; ours: vLLM's name where SGLang's differs."""

    def __init__(self, kind: str = "", ours: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.kind, self.ours = kind, ours

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Called by argparse for each flag, in order."""
        reading, flag = namespace.reading, str(option_string)
        given = values if isinstance(values, list) else [] if values is None else [values]
        if self.kind == "gone":
            self._gone(reading, flag, given)
        elif self.kind == "secret":
            reading.redact.append(flag)
        elif self.kind == "bool":
            truth = not flag.startswith("--no-")
            self._put(namespace, flag, truth, truth != (self.dest == "disable_radix_cache"))
        elif not given:
            reading.errors.append(note("expects_value", flag=flag))
        elif len(given) > 1:
            self._put(namespace, flag, [_plain_value(v) if self.kind == "json" else v for v in given])
        else:
            value = _convert(self.dest, self.kind, given[0], flag, reading)
            self._put(namespace, flag, value, value)
            if self.ours == "gpu_memory_utilization":
                reading.warnings.append(note("sglang_share", flag=flag))

    def _put(self, namespace: Any, flag: str, value: Any, ours: Any = None) -> None:
        for name, new in ((self.dest, value), (self.ours, ours)):
            if new is None or not name:
                continue
            parse, old = namespace.parse, namespace.parse.get(name)
            if isinstance(old, dict) and isinstance(new, dict):
                _merge(old, new)
                continue
            if old is not None and old != new and not isinstance(new, dict):
                namespace.reading.warnings.append(note("given_twice", flag=flag))
            parse[name] = scrub(new)

    def _gone(self, reading: Reading, flag: str, given: list[str]) -> None:
        code, _, other = _GONE[flag.removeprefix("--")].partition(" ")
        (reading.errors if code.startswith("elsewhere") else reading.warnings).append(note(code, flag=flag, other=other))
        if code.startswith("removed") and not is_secret_name(self.dest):
            reading.removed[self.dest] = scrub(given[0]) if given else True


# --- one spelling ---------------------------------------------------------------------------------------------------


def _one_spelling(words: list[str], sglang: bool, reading: Reading) -> list[str]:
    """Long names with dashes, a value behind its =, switches without one, dotted values as JSON; bare words stay."""
    known = {**_TAKES, **(dict.fromkeys(_SGLANG, "") if sglang else _GONE)}
    out: list[str] = []
    queue = [w for w in words if w not in ("-", "--", "\\", "^", "")][::-1]
    while queue:
        word = queue.pop()
        packed = _PACKED.fullmatch(word)
        match = _FLAG.fullmatch(f"-{packed[1] or packed[2]}={packed[3]}" if packed else word)
        if not match:
            out.append(word)
            continue
        name, path, value = match[2].replace("_", "-"), match[3].lstrip(".").replace("-", "_"), match[4]
        name = name if sglang else _TABLE["alias"].get(name, name)
        if name == "optimization-level" and path:
            name = "compilation-config"
        base = name[3:] if name.startswith("no-") and _TAKES.get(name[3:]) == "bool" else name
        if base not in known:
            beginnings = [flag for flag in _TAKES if flag.startswith(name)] if len(name) > 4 and not sglang else []
            if len(beginnings) != 1:
                bare = value is None and queue and not is_flag(queue[-1])
                out.append(f"{word}={queue.pop()}" if bare else word)
                continue
            reading.warnings.append(note("beginning", flag=match[1] + match[2], whole=f"--{beginnings[0]}"))
            name = base = beginnings[0]
        kind = _SGLANG[base][0] if sglang and base in _SGLANG else _TAKES.get(base, "gone")
        if path and kind in ("json", "text"):
            if value is None and queue and not is_flag(queue[-1]):
                value = queue.pop()
            tree: Any = True if value is None else _plain_value(value)
            for part in reversed(path.split(".")):
                tree = {part.rstrip("+"): [tree] if part.endswith("+") else tree}
            out.append(f"--{name}={json.dumps(tree)}")
        elif kind == "bool":
            if value is None and queue and queue[-1].lower() in ("true", "false"):
                value = queue.pop()
                if not sglang:
                    reading.warnings.append(note("switch_value", flag=match[1] + match[2], value=value))
            on = (value is None or value.strip().lower() not in ("false", "0", "no", "off")) == (base == name)
            out.append(f"--{base}" if on else f"--no-{base}")
        elif kind == "gone" and _GONE_SWITCH.search(name):
            out.append(f"--{name}")
        else:
            out.append(f"--{name}" if value is None else f"--{name}={value}")
    return out


def _merge(target: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        old = target.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            _merge(old, value)
        else:
            target[key] = [*old, *value] if isinstance(old, list) and isinstance(value, list) else scrub(value)


# --- values ---------------------------------------------------------------------------------------------------------


def human_int(text: str) -> int:
    """vLLM's own reading of a count: 8k is 8000, 8K is 8192, 25.6k is 25600. Raises ValueError."""
    match = _SUFFIX.fullmatch(text.strip())
    if not match:
        return int(text)
    number, unit = match.groups()
    if unit in _DECIMAL:
        return round(float(number) * _DECIMAL[unit])
    return int(number) * _BINARY[unit]  # a fraction with a binary suffix is refused, as vLLM does


_NUMBERS: dict[str, Callable[[str], float]] = {"int": int, "human": human_int, "float": float}


def _plain_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(text, text)


def _convert(name: str, kind: str, raw: str, flag: str, reading: Reading) -> Any:
    """The value in its type; None, and an error noted, if it is none of that type."""
    if re.search(r"\$\{?[A-Za-z_]", raw):
        return None  # said already: unknown
    try:
        if name == "max_model_len" and raw.lower() in ("auto", "-1"):
            return "auto" if raw.lower() == "auto" else -1
        if kind in _NUMBERS:
            return _NUMBERS[kind](raw)
    except ValueError:
        code = "not_a_number" if kind == "float" else "no_suffix" if kind == "int" and _SUFFIX.fullmatch(raw) else "not_an_integer"
        reading.errors.append(note(code, flag=flag, value=repr(str(scrub(raw))[:60])))
        return None
    return _json(raw, flag, reading) if kind == "json" else raw


def _json(raw: str, flag: str, reading: Reading) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        if not raw.lstrip().startswith(("{", "[")):
            return _plain_value(raw)
    try:  # quotes lost to a shell or single ones: YAML reads both
        loaded = yaml.load(raw, Loader=LOADER) if len(raw) < 10_000 else None
    except (yaml.YAMLError, RecursionError, ValueError):
        loaded = None
    known = isinstance(loaded, (dict, list))
    (reading.warnings if known else reading.errors).append(note("json_repaired" if known else "not_json", flag=flag))
    return loaded if known else None
