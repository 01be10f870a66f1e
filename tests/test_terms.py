"""Terms on demand: every page of the lesson explains its words, with names that vLLM has."""

import re
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from sim.engine import simulate
from sim.scenario import SETTINGS, Scenario
from sim.vllm.export import metrics_text
from ui.text import texts

ROOT = Path(__file__).parent.parent
OLD = {"vllm:gpu_cache_usage_perc"}  # told as the old name it is


PAGES = ["app.py", *sorted(f"pages/{p.name}" for p in (ROOT / "pages").glob("[1-8]_*.py"))]  # 9 is about the model itself
TRADE = ("fcfs", "MLA", "QPS", "SLO", "TPOT", "TTFT", "ITL", "P99", "all-reduce", "skew", "TP", "DP", "EP", "prefill", "swap")


def explained(path, language):
    """What the page's button "Terms" opens."""
    page = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    if path != "app.py":
        page.switch_page(path)
    page.query_params["lang"] = language
    page.run()
    assert not page.exception
    return next(m.value for m in page.markdown if re.search(r"\*\*.+\*\*  \n", m.value))


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_page_explains_its_terms_with_the_flag_and_the_metric(path, language):
    terms = explained(path, language)
    assert re.search(r"`--[a-z-]+`", terms) and re.search(r"`vllm:\w+`", terms)


@pytest.mark.parametrize("path", PAGES)
def test_a_word_of_the_trade_is_explained_where_it_is_read(path):
    room = Path(path).stem.partition("_")[2] or "start"
    read = "\n".join(words for key, words in texts("en").items() if key.startswith(f"{room}."))
    words = {word for word in TRADE if re.search(rf"\b{word}(?=\b|\d)", read)}
    terms = explained(path, "en")
    assert {word for word in words if not re.search(rf"\b{word}\b", terms, re.I)} == set()


def test_every_metric_named_in_a_definition_is_one_that_vllm_exports():
    exported = metrics_text(simulate(Scenario(duration_s=2.0)))
    for language in ("en", "zh"):
        words = "\n".join(v for k, v in texts(language).items() if k.startswith(("terms.", "settings.metric.")))
        named = set(re.findall(r"vllm:\w+", words)) - OLD
        assert len(named) >= 9
        assert {name for name in named if name not in exported} == set()


def test_every_flag_named_in_a_definition_of_a_setting_is_its_own():
    flags = {s.flag for s in SETTINGS.values() if s.flag}
    gone = {"--swap-space", "--preemption-mode"}
    other = {"--kv-offloading-size", "--enable-eplb", "--enforce-eager", "--goodput"}
    for language in ("en", "zh"):
        words = "\n".join(v for k, v in texts(language).items() if k.startswith("terms."))
        assert set(re.findall(r"--[a-z][\w-]*", words)) <= flags | gone | other
