"""A Scenario as the query string of a link, and back: `v=1&ar=poisson&rr=30&...`, a field by its key in SETTINGS.

A link is written out in full, so that it means the same when defaults change. Reading one never fails: what is out of
range is clamped, what is unknown is ignored, what contradicts itself is repaired, and each is said in a notice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from sim import catalog, traces
from sim.scenario import SETTINGS, Scenario, Setting, SimError

VERSION = "1"
_BY_KEY = {setting.key: setting for setting in SETTINGS.values()}


def encode(scenario: Scenario) -> dict[str, str]:
    """The query parameters of a scenario: the version first, then every field in order."""
    return {"v": VERSION} | {s.key: _written(getattr(scenario, s.name)) for s in SETTINGS.values()}


def decode(mapping: Mapping[str, str]) -> tuple[Scenario, list[SimError]]:
    """The scenario that query parameters describe, and what was odd about them.

    Fields that are not given have their default. The notices are SimErrors, to be shown and not raised: link_version,
    link_unknown (key), link_unreadable, link_clamped, link_repaired (field, given, value).
    """
    notices: list[SimError] = []
    version = str(mapping.get("v", VERSION))
    if version != VERSION:
        text = f"this link is of version {version[:20]!r}, which is not known here: what can be read of it is shown"
        notices.append(SimError("link_version", text, value=version[:20]))
    values: dict[str, Any] = {}
    unknown = []
    for key, given in mapping.items():
        setting = _BY_KEY.get(key)
        if setting:
            values[setting.name] = _value(setting, str(given).strip(), notices)
        elif key != "v":
            unknown.append(str(key)[:40])
    if unknown:
        keys = ", ".join(unknown[:10])
        text = f"this link says things that are not known here, and are left out: {keys}"
        notices.append(SimError("link_unknown", text, key=keys))
    return _repaired(values, notices), notices


def parse(link: str) -> dict[str, str]:
    """The query parameters of a whole link, or of a query string, that describe the scenario shown.

    The compared scenario (keys "a.*") and the language are left out.
    """
    text = link.strip()
    query = urlsplit(text).query if "?" in text else text
    return {k: v for k, v in parse_qsl(query, keep_blank_values=True) if k != "lang" and not k.startswith("a.")}


def query(scenario: Scenario) -> str:
    """The query string of a scenario."""
    return urlencode(encode(scenario))


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)


def _value(setting: Setting, given: str, notices: list[SimError]) -> Any:
    value = _read(setting, given)
    if value is None:
        default = _written(setting.default)
        notices.append(SimError(
            "link_unreadable", f"{setting.name} cannot be {given[:60]!r}: {default} instead",
            field=setting.name, given=given[:60], value=default,
        ))
        return setting.default
    if setting.low is not None and setting.high is not None and not setting.low <= value <= setting.high:
        near = setting.kind(min(max(value, setting.low), setting.high))
        notices.append(SimError(
            "link_clamped",
            f"{setting.name} must lie between {setting.low:g} and {setting.high:g}: {given[:60]} became "
            f"{_written(near)}",
            field=setting.name, given=given[:60], value=near, low=setting.low, high=setting.high,
        ))
        return near
    return setting.kind(value)


def _read(setting: Setting, given: str) -> Any:
    """The value a text stands for, None if it stands for nothing this field can be."""
    if setting.kind is bool:
        return {"0": False, "1": True, "false": False, "true": True}.get(given.lower())
    if setting.kind is str:
        known = given in setting.choices if setting.choices else _names(setting.name, given)
        return given if known else None
    try:
        number = float(given)
    except ValueError:
        return None
    if math.isnan(number) or (setting.kind is int and not math.isinf(number) and not number.is_integer()):
        return None
    return number


def _names(field: str, name: str) -> bool:
    try:
        if field == "model":
            catalog.model(name)
        elif field == "gpu":
            catalog.gpu(name)
        elif field == "trace":
            return name == "upload" or name in traces.SHIPPED
    except SimError:
        return False
    return True


def _repaired(values: dict[str, Any], notices: list[SimError]) -> Scenario:
    def repair(field: str, value: Any, why: SimError) -> Scenario:
        given = values.get(field, SETTINGS[field].default)
        notices.append(SimError(
            "link_repaired", f"{field} became {_written(value)}: {why}",
            field=field, given=given, value=value, why=str(why),
        ))
        return _repaired(values | {field: value}, notices)

    try:
        return Scenario(**values)
    except SimError as error:
        low = error.params.get("low", 0)
        most = SETTINGS["max_num_batched_tokens"].high or 0
        if error.code == "budget_below_seqs" or (error.code == "budget_below_model_len" and low <= most):
            return repair("max_num_batched_tokens", low, error)
        if error.code == "budget_below_model_len":
            return repair("enable_chunked_prefill", True, error)
        notices.append(error)
        return Scenario()
