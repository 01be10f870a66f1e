"""Where in a paste a server is started, and with which arguments: shell, docker, systemd, compose, Kubernetes, config files.

The arguments themselves are read by `flags`. What `export.command_line` writes comes back through here.
"""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from dataclasses import fields
from typing import Any

import yaml

from .clean import HIDDEN, Reading, is_secret_name, note, once, scrub
from .flags import KINDS, LOADER, is_flag, is_known, read_args

MAX_COMMAND = 40_000
"""Characters of a command or manifest that are read."""

_RUNNER = re.compile(r"^(?:\S*/)?(?:docker|podman|nerdctl)$")
_IMAGE = re.compile(
    r"(?:^|/)(?:[\w.\-]*vllm[\w.\-]*|[\w.\-]*sglang[\w.\-]*)(?::[\w.\-]+)?(?:@sha256:[0-9a-f]+)?$", re.I
)
_VLLM_MODULE = re.compile(
    r"^vllm\.entrypoints\.(?:openai\.)?(?:api_server|run_server)$|^vllm\.entrypoints\.api_server$|api_server\.py$"
)
_ENV = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=(.*)$", re.S)
_REDIRECT = re.compile(r"(?<=\s)(?:[012]|&)?>{1,2}\s*(?:&\d|[^\s;&|<>'\"]+)|(?<=\s)<\s*[^\s;&|<>'\"]+|(?<=\s)\d>&\d")
_DASHES = "–—―−‐‑‒﹣－"
_QUOTES = str.maketrans("“”„«»‘’‚＂＇＝", "\"\"\"\"\"'''\"'=")
_LOOKS = re.compile(
    r"\bvllm[\"',\s]+serve\b|vllm\.entrypoints|\bsglang[. ](?:launch_server|serve)|lmsysorg/sglang|api_server\.py|vllm-openai|vllmConfig"
    r"|max[-_]?num[-_]?seqs|max[-_]?model[-_]?len|max[-_]?num[-_]?batched[-_]?tokens|gpu[-_]?memory[-_]?utilization"
    r"|tensor[-_]?parallel[-_]?size",
    re.I,
)
_LIST = re.compile(r"""\[((?:[\s,\\]|#[^\n]*\n|"[^"\n]*"|'[^'\n]*'){1,400})\]""")
_ITEMS = re.compile(r"(?m)(?:^[ \t]*-[ \t]+\S[^\n]*(?:\n|$))+")
_WORD = re.compile(r""""([^"\n]*)"|'([^'\n]*)'""")
_ARRAY = re.compile(r"(?m)^(\s*(?:export\s+|declare\s+-a\s+|local\s+)?\w+)=\(([^()]*)\)")
_LOGGED = {"max_seq_len": "max_model_len", "chunked_prefill_enabled": "enable_chunked_prefill", "model_tag": "model"}
"""Settings that the engine's own log line calls otherwise."""
_KEYWORD = re.compile(
    rf"""(?<![\w.$\-])['"]?({'|'.join((KINDS.keys() | _LOGGED) - {'config'})})['"]?\s*[=:]\s*"""
    r"""('[^'\n]*'|"[^"\n]*"|\{[^{}\n]*\}|-?[\w.+/\-]+)"""
)


def looks_like_serve(text: str) -> bool:
    """Whether the text holds a command or a manifest that starts a server."""
    head = text[:300_000]
    return bool(_LOOKS.search(head) or re.search(rf"[{_DASHES}]\s?(?:enable|max|gpu|tensor)[-_{_DASHES}]", head[:20_000]))


# --- text -> tokens ---------------------------------------------------------------------------------------------


def _repair(text: str, reading: Reading) -> str:
    def dashes(match: re.Match[str]) -> str:
        run = match[0]
        return "-" if run == "-" else "--" if any(c in _DASHES for c in run) or len(run) > 2 else run

    fixed = re.sub(rf"(?<![\w\-{_DASHES}])[\-{_DASHES}]{{1,4}}(?=[A-Za-z])", dashes, text)
    fixed = re.sub(rf"(?<=[a-z])[{_DASHES}](?=[a-z])", "-", fixed)
    fixed = fixed.translate(_QUOTES)
    if fixed != text:
        reading.warnings.append(note("typography"))
    return re.sub(r"`([^`\n]+)`", r"\n\1\n", fixed)  # code in the middle of a sentence


def _tokens(text: str, parts: tuple[str, ...] = ("\n\n", "\n")) -> list[str]:
    """The words of a piece of shell, with ; & | and ends of lines as words of their own.

    Where a quote never ends (an apostrophe in a sentence), each part is read by itself: paragraphs, then lines.
    """
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        return list(lexer)
    except ValueError:
        if not parts:
            return text.replace('"', " ").replace("'", " ").split()
        return [word for part in text.split(parts[0]) for word in [*_tokens(part, parts[1:]), "\n"]]


def _commands(text: str) -> list[list[str]]:
    """Simple commands in a piece of shell, as words."""
    text = re.sub(r"[\\^`]\s*\n\s*", " ", text)
    text = re.sub(r"(?m)(?:^|\s)#(?!\S*\")[^\n]*$", "", text)
    # a flag at the start of a line goes on with the command before it: backslashes are lost when people copy
    text = re.sub(r"\n\s*(?=--?[A-Za-z])", " ", text)
    text = _REDIRECT.sub(" ", text)
    commands: list[list[str]] = [[]]
    for word in _tokens(text):
        if word and set(word) <= set(";&|\n"):
            commands.append([])
        else:
            commands[-1].append(word)
    return [c for c in commands if c]


def _expand(words: list[str], env: dict[str, str], reading: Reading) -> list[str]:
    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], match[2]
        if name in env:
            return env[name]
        if default is not None:
            return default
        reading.warnings.append(note("not_set", name=name[:60]))
        return match[0][:200]

    pattern = re.compile(r"\$\{(\w+)(?:\[[@*]\])?(?::?-([^}$]{0,200}))?\}|\$([A-Za-z_]\w*)")
    out: list[str] = []
    for word in words:
        full = pattern.sub(value, word) if "$" in word else word
        out += _tokens(full) if full != word and full.startswith("-") and pattern.fullmatch(word) else [full]
    return out


def _take_env(word: str, env: dict[str, str], reading: Reading) -> bool:
    match = _ENV.match(word)
    if not match:
        return False
    name, value = match.groups()
    if is_secret_name(name):
        if name not in reading.redact:
            reading.redact.append(name)
        env[name] = HIDDEN
    else:
        env[name] = str(scrub(value))
        reading.env[name] = env[name]
    return True


def _find_args(
    words: list[str], reading: Reading, env: dict[str, str], depth: int = 0
) -> tuple[list[str], bool] | None:
    """The server's own arguments in one command, and whether a first bare word is the model; None: no server here."""
    docker = -1
    for i, word in enumerate(words):
        if _RUNNER.match(word) and "run" in words[i + 1 : i + 4]:
            docker = i
        if (
            docker >= 0
            and i > docker
            and _IMAGE.search(word)
            and not word.startswith("-")
            and "=" not in word
            and (
                not words[i - 1].startswith("-")
                or words[i - 1] in ("-d", "-it", "-i", "-t", "--rm", "--init", "--privileged", "--detach")
                or "=" in words[i - 1]
            )
            and ":/" not in word
        ):
            reading.image = word
            reading.format = reading.format or "docker run"
            _docker_env(words[docker + 1 : i], env, reading)
            if "sglang" in word:
                reading.engine = "sglang"
            entry = [b for a, b in zip(words[docker:i], words[docker + 1 : i], strict=False) if a == "--entrypoint"]
            inner = entry[:1] + words[i + 1 :]
            found = _find_args(inner, reading, env, depth + 1) if depth < 4 else None
            return found if found is not None else (inner, True)
        if word in ("vllm", "vllm.exe") or word.endswith("/vllm"):
            rest = words[i + 1 :]
            if rest[:1] == ["serve"]:
                reading.format = reading.format or "plain"
                _prefix_env(words[:i], env, reading)
                return rest[1:], True
            if rest[:2] == ["bench", "serve"] or rest[:1] == ["bench"]:
                reading.errors.append(note("bench_client"))
                return None
        if word == "-m" and i + 1 < len(words):
            module = words[i + 1]
            after = i + 2
            if (
                module in ("vllm.entrypoints.openai", "vllm.entrypoints")
                and words[after : after + 1]
                and words[after].startswith(("api_server", "openai"))
            ):
                reading.warnings.append(note("module_space"))
                module += "." + words[after]
                after += 1
            if module.startswith("vllm.entrypoints") and "api_server" in module:
                reading.format = reading.format or "python -m"
                _prefix_env(words[:i], env, reading)
                return words[after:], False
            if module == "vllm.entrypoints.cli.main" and words[after : after + 1] == ["serve"]:
                _prefix_env(words[:i], env, reading)
                return words[after + 1 :], True
            if module.startswith("sglang") and "launch_server" in module:
                reading.engine, reading.format = "sglang", reading.format or "python -m"
                _prefix_env(words[:i], env, reading)
                return words[after:], False
        if word == "sglang" and words[i + 1 : i + 2] == ["serve"]:
            reading.engine = "sglang"
            return words[i + 2 :], False
        if _VLLM_MODULE.search(word) and not word.startswith("-"):
            _prefix_env(words[:i], env, reading)
            return words[i + 1 :], False
        if " " in word and depth < 4 and re.search(r"vllm\s+serve|vllm\.entrypoints|sglang\.launch_server", word):
            _prefix_env(words[:i], env, reading)
            for command in _commands(word):
                found = _find_args(_expand(command, env, reading), reading, env, depth + 1)
                if found:
                    return found
    return None


def _prefix_env(words: list[str], env: dict[str, str], reading: Reading) -> None:
    for word in words:
        _take_env(word, env, reading)


def _docker_env(words: list[str], env: dict[str, str], reading: Reading) -> None:
    for i, word in enumerate(words):
        if word in ("-e", "--env") and i + 1 < len(words):
            _take_env(words[i + 1], env, reading)
        elif word.startswith("--env="):
            _take_env(word.removeprefix("--env="), env, reading)
        elif word.startswith("-e") and "=" in word and not word.startswith("--"):
            _take_env(word[2:].lstrip("="), env, reading)


# --- the whole ----------------------------------------------------------------------------------------------------


def _check(parse: dict[str, Any], reading: Reading) -> None:
    """What `vllm serve` itself would refuse or do otherwise than written."""

    def number(name: str) -> int | None:
        value = parse.get(name)
        return value if isinstance(value, int) else None

    share = parse.get("gpu_memory_utilization")
    if isinstance(share, float) and not 0 < share <= 1:
        reading.errors.append(note("share_percent" if 1 < share <= 100 else "share_range", value=share, meant=share / 100))
    for name in ("max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size", "data_parallel_size", "block_size"):
        value = number(name)
        if value is not None and value < 1 and not (reading.engine == "sglang" and value == -1):
            reading.errors.append(note("below_one", flag=f"--{name.replace('_', '-')}", value=value))
    seqs, budget, length = (number(n) for n in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"))
    if reading.engine == "vllm" and budget:
        if seqs and 0 < budget < seqs:
            reading.errors.append(note("budget_below_seqs", budget=budget, seqs=seqs))
        if parse.get("enable_chunked_prefill") is False and length and 0 < budget < length:
            reading.errors.append(note("budget_below_length", budget=budget, length=length))
    visible = reading.env.get("CUDA_VISIBLE_DEVICES", "")
    tp, pp, dp = (number(f"{n}_parallel_size") or 1 for n in ("tensor", "pipeline", "data"))
    if re.fullmatch(r"\d+(,\d+)*", visible) and tp * pp * dp > len(visible.split(",")):
        reading.errors.append(note("too_few_gpus", wanted=tp * pp * dp, visible=len(visible.split(","))))


# --- YAML ---------------------------------------------------------------------------------------------------------

def _load_yaml(text: str) -> list[Any]:
    if len(text) > 200_000 or ("&" in text and text.count("*") > 200):
        return []
    for attempt in (textwrap.dedent(text), re.sub(r"(?m)^\s*(?:```\w*|[$>] .*)$", "", text)):
        try:
            docs = [d for d in yaml.load_all(attempt.replace("\t", "  "), Loader=LOADER) if d is not None]
        except (yaml.YAMLError, RecursionError, ValueError, TypeError, AttributeError):
            continue
        if any(isinstance(d, (dict, list)) for d in docs):
            return docs
    return []


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [
            v
            if isinstance(v, str)
            else json.dumps(v)
            if isinstance(v, (dict, list))
            else ("true" if v else "false")
            if isinstance(v, bool)
            else str(v)
            for v in value
            if v is not None
        ]
    return []


def _yaml_env(value: Any, env: dict[str, str], reading: Reading) -> None:
    if isinstance(value, dict):
        for k, v in value.items():
            if isinstance(v, (str, int, float, bool)):
                _take_env(f"{k}={v}", env, reading)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, str):
                _take_env(item, env, reading)
            elif isinstance(item, dict) and isinstance(item.get("value"), (str, int, float, bool)):
                _take_env(f"{item.get('name')}={item['value']}", env, reading)


def _containers(node: Any, budget: list[int], out: list[dict[str, Any]]) -> None:
    budget[0] -= 1
    if budget[0] < 0 or len(out) > 50:
        return
    if isinstance(node, dict):
        if any(k in node for k in ("args", "command", "entrypoint", "Cmd", "Args", "Entrypoint", "vllmConfig")):
            out.append(node)
        for v in node.values():
            _containers(v, budget, out)
    elif isinstance(node, list):
        for v in node:
            _containers(v, budget, out)


def _list_words(items: list[str], reading: Reading) -> list[str]:
    words: list[str] = []
    for item in items:
        if item.startswith("-") and re.match(r"^--?[\w\-.]+\s+\S", item) and not re.match(r"^--?[\w\-.]+=", item):
            reading.warnings.append(note("one_item", flag=item.split()[0]))
            words.extend(_tokens(item))
        else:
            words.append(item)
    return words


def _from_yaml(text: str, reading: Reading) -> dict[str, Any] | None:
    docs = _load_yaml(text)
    for doc in docs:
        if isinstance(doc, list) and doc and all(isinstance(x, (str, int, float, bool)) for x in doc):
            words = _list_words(_strings(doc), reading)
            if any(is_flag(w) for w in words):
                reading.format = "list of arguments"
                env: dict[str, str] = {}
                found = _find_args(_expand(words, env, reading), reading, env)
                args, positional = found if found else (words, True)
                return read_args(args, positional, reading)
        found_nodes: list[dict[str, Any]] = []
        try:
            _containers(doc, [20_000], found_nodes)
        except RecursionError:
            return None
        for node in found_nodes:
            env = {}
            trial = Reading({}, list(reading.warnings), image=str(node["image"]) if isinstance(node.get("image"), str) else None)
            for key in ("env", "environment", "Env"):
                _yaml_env(node.get(key), env, trial)
            words = []
            for key in ("entrypoint", "Entrypoint", "command", "args", "Args", "Cmd"):
                value = node.get(key)
                if isinstance(value, str):
                    commands = _commands(value)
                    words += (
                        [w for c in commands for w in [*c, ";"]][:-1]
                        if len(commands) > 1
                        else (commands[0] if commands else [])
                    )
                else:
                    words += _list_words(_strings(value), trial)
            chart = node.get("vllmConfig")
            if isinstance(chart, dict):  # of the production stack's Helm chart
                named = {"model": node.get("modelURL"), **{re.sub(r"(?=[A-Z])", "_", k).lower(): v for k, v in chart.items()}}
                words += _config_words({k: v for k, v in named.items() if k in KINDS})
                words += _list_words(_strings(chart.get("extraArgs")), trial)
                trial.image = trial.image or f"{node.get('repository', 'vllm/vllm-openai')}:{node.get('tag', 'latest')}"
            if not words:
                continue
            words = _expand(words, env, trial)
            if trial.image and "sglang" in trial.image:
                trial.engine = "sglang"
            found = _find_args(words, trial, env)
            if found is None and not (
                (trial.image and re.search("vllm|sglang", trial.image))
                or any(is_known(w) for w in words)
            ):
                continue
            args, positional = found if found else ([w for w in words if w not in ("python3", "python", "-m")], True)
            if ";" in args:
                args = args[: args.index(";")]
            trial.format = (
                "compose" if "environment" in node or isinstance(node.get("command"), str) else "kubernetes args list"
            )
            result = read_args(args, positional, trial)
            for part in fields(Reading):
                setattr(reading, part.name, getattr(trial, part.name))
            return result
        if isinstance(doc, dict):
            keys = {str(k).replace("-", "_"): v for k, v in doc.items()}
            if sum(k in KINDS for k in keys) >= max(1, len(keys) // 2) and not any(
                isinstance(v, dict) and k not in KINDS for k, v in keys.items()
            ):
                reading.format = "vLLM config file"
                return read_args(_config_words(keys), False, reading)
    return None


def _config_words(settings: dict[str, Any]) -> list[str]:
    """Settings of a file as words of a command line."""
    return [
        f"--{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in settings.items() if v is not None
    ]


def read(text: str) -> Reading:
    """Everything a pasted command or manifest says. `parse` is None if it starts no server."""
    reading = Reading({})
    text = _repair(text[:MAX_COMMAND], reading)
    text = re.sub(r"(?m)^\s*```[\w\-]*\s*$", "", text)
    manifest = re.search(r"(?m)^\s*(?:-\s|[\[{]|[\"']?[\w.\-]+[\"']?\s*:)", text)
    parse = _from_yaml(text, reading) if manifest else None
    if parse is None:
        parse = _from_shell(text, reading)
    if parse is None:
        reading.parse = None
        return reading
    _check(parse, reading)
    version = re.search(r":v?(\d+)\.(\d+)", reading.image or "")
    if version and reading.engine == "vllm" and (int(version[1]), int(version[2])) < (0, 8):
        reading.notes.append(note("v0_image", image=reading.image))
    reading.warnings = sorted(once(reading.warnings), key=lambda w: w.code == "module_space")
    reading.errors = once(reading.errors)
    reading.image = scrub(reading.image)
    reading.parse = parse
    return reading


def _from_shell(text: str, reading: Reading) -> dict[str, Any] | None:
    text = re.sub(r"(?m)^\s*(?:\([\w.\-]+\)\s*)?(?:[\w.\-]+@[\w.\-]+:?[^\n$#]{0,80}[$#]|\$|>)\s+", "", text)
    text = re.sub(r"(?m)^\s*(?:CMD|ENTRYPOINT|ExecStart\s*=|RUN)\s*", "", text)
    env: dict[str, str] = {}
    text = re.sub(r"\$env:(\w+)(\s*=\s*)?", lambda m: f"{m[1]}=" if m[2] else f"${m[1]}", text)  # PowerShell
    text = re.sub(r"%([A-Za-z_]\w*)%", r"${\1}", text)  # cmd.exe
    text = _LIST.sub(_listed, _ITEMS.sub(_listed_below, text))
    text = _ARRAY.sub(lambda m: m[1] + "=" + shlex.quote(" ".join(re.sub(r"(?m)#.*$", "", m[2]).split())), text)
    commands = _commands(text)
    for words in commands:
        if words[0].startswith("Environment="):
            for word in [words[0].removeprefix("Environment="), *words[1:]]:
                _take_env(word, env, reading)
            continue
        if words[0] in ("export", "set", "setenv") or all(_ENV.match(w) for w in words):
            for word in _expand(words, env, Reading({})):
                _take_env(word, env, reading)
            continue
        words = _expand(words, env, reading)
        found = _find_args(words, reading, env)
        if found is not None:
            if (
                any("_" in re.split("[=.]", w, maxsplit=1)[0] for w in found[0] if w.startswith("--"))
                and reading.format
            ):
                reading.format += ", underscores"
            return read_args(found[0], found[1], reading)
    for words in commands:  # arguments alone, without a command
        if any(is_known(w) for w in words):
            reading.format = reading.format or "arguments only"
            start = next(i for i, w in enumerate(words) if is_flag(w) or w == "serve")
            return read_args(_expand(words[start:], env, reading), words[start] == "serve", reading)
    words = [
        f"--{_LOGGED.get(name, name)}={value.strip(chr(34) + chr(39)).removeprefix('torch.')}"
        for name, value in _KEYWORD.findall(text)
        if value not in ("None", "null")
    ]
    if len(words) > 1 and any("_" in word for word in words):  # of a program, of the log's own list
        reading.format = "keywords"
        return read_args(list(dict.fromkeys(words)), False, reading)
    return None


def _listed_below(match: re.Match[str]) -> str:
    """A flag or a value a line, behind hyphens -> one line; other items as they are."""
    items = [item.strip().removeprefix("-").strip() for item in match[0].split("\n")]
    return " ".join(items) + "\n" if any(is_flag(item.lstrip("\"'")) for item in items) else match[0]


def _listed(match: re.Match[str]) -> str:
    """["vllm", "serve"] -> vllm serve; other lists as they are."""
    words = [double or single for double, single in _WORD.findall(match[1])]
    if not any(is_flag(w) or w == "vllm" for w in words):
        return match[0]
    return " ".join(shlex.quote(w) for w in words)
