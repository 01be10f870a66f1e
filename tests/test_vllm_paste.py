"""The 31 pastes that broke parsers, and what is no paste of ours at all."""

import json
from pathlib import Path

import pytest

from sim.vllm.paste import diagnose

CASES = sorted(Path(__file__).parent.glob("data/pastes/*.txt"))


def contains(actual, expected, path="parse"):
    """Where `actual` differs from what is expected of it; more keys than expected are welcome."""
    if isinstance(expected, dict):
        if not isinstance(actual, dict):
            return [f"{path}: {actual!r} instead of {expected!r}"]
        return [d for k, v in expected.items() for d in contains(actual.get(k, "missing"), v, f"{path}.{k}")]
    same = actual == expected and isinstance(actual, bool) == isinstance(expected, bool)
    return [] if same else [f"{path}: {actual!r} instead of {expected!r}"]


@pytest.mark.parametrize("case", CASES, ids=lambda p: p.stem)
def test_a_real_looking_paste_is_read_and_diagnosed_as_its_keeper_says(case):
    expected = json.loads(case.with_suffix(".expected.json").read_text())
    got = json.loads(json.dumps(diagnose(case.read_bytes()).as_dict()))
    assert got["kind"] == expected["kind"]
    for key in ("parse", "env", "image", "redact", "warnings", "errors", "error"):
        if key in expected:
            assert contains(got.get(key), expected[key], key) == []
    wanted = expected.get("diagnosis")
    assert (got["diagnosis"] or {}).get("code") == (wanted or {}).get("code")
