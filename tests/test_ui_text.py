"""Texts: both languages say the same things, with the same numbers in them."""

from __future__ import annotations

import dataclasses
import re
import string

import pytest

from sim.results import Summary
from sim.scenario import SETTINGS
from ui import text


def fields(words: str) -> set[str]:
    """Names of the numbers that a text takes."""
    return {name.partition(".")[0].partition("[")[0] for _, name, _, _ in string.Formatter().parse(words) if name}


def test_both_languages_have_the_same_texts() -> None:
    assert set(text.texts("en")) == set(text.texts("zh"))


def test_both_languages_take_the_same_numbers() -> None:
    zh = text.texts("zh")
    assert {key for key, words in text.texts("en").items() if fields(words) != fields(zh[key])} == set()


def test_no_text_is_empty() -> None:
    assert [key for lang in text.LANGUAGES for key, words in text.texts(lang).items() if not words.strip()] == []


def test_every_setting_is_named_and_explained() -> None:
    wanted = {f"settings.{name}.{what}" for name in SETTINGS for what in ("label", "help")}
    assert wanted - set(text.texts("en")) == set()


def test_every_figure_is_named_and_explained() -> None:
    names = {f.name for f in dataclasses.fields(Summary)} - {"drained"}
    for language in text.LANGUAGES:
        text.use(language)
        assert all(all(text.figure(name)) for name in names)
    text.use("en")
    assert text.figure("ttft_p99")[0] == "TTFT P99"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "0 s"), (2.5e-5, "25 µs"), (0.0035, "3.5 ms"), (0.25, "250 ms"), (1.234, "1.23 s"), (45.6, "45.6 s"), (1234, "1,234 s")],
)
def test_times_are_in_ms_below_a_second_and_in_s_above(seconds: float, words: str) -> None:
    assert text.seconds(seconds).replace(text.BLANK, " ") == words


def test_no_line_breaks_between_a_number_and_its_unit() -> None:
    assert " " not in text.seconds(0.25) + text.value(3.0, "req/s") + text.t("frame.points", value="5")
    assert [key for lang in text.LANGUAGES for key, words in text.texts(lang).items()
            if re.search(r"[\d}] (?:ms|s|GiB|GB/s|req/s)(?![\w/])", words)] == []


def test_a_change_has_a_sign_and_none_is_said_to_be_none() -> None:
    assert [text.change(b, 100.0) for b in (131.0, 94.3, 100.2)] == ["+31%", "−5.7%", "no difference"]


def test_what_is_not_known_is_a_dash() -> None:
    assert [f(float("nan")) for f in (text.seconds, text.percent, text.count)] == ["–"] * 3
