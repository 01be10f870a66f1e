"""Every page, run alone as well as from the app."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("path", [ROOT / "app.py", *sorted((ROOT / "pages").glob("*.py"))], ids=lambda path: path.stem)
def test_a_page_opens_when_it_is_run_alone(path: Path) -> None:
    page = AppTest.from_file(str(path), default_timeout=60).run()
    assert not page.exception
    assert page.title[0].value


ODD = [
    ("8_playground", "le=fixed&pt=8192&ml=4096"), ("8_playground", "pt=1000000&ml=4096"), ("8_playground", "rr=0.01&du=0.1"),
    ("8_playground", "ar=bursty&bc=12&rr=1&du=10&sd=10"), ("8_playground", "gm=0.05"), ("8_playground", "u=foo&l=bar"), ("8_playground", "a.gm=0.05"),
    ("2_two_budgets", "p=queue.reveal&gm=0.05"), ("2_two_budgets", "p=queue.reveal&mo=Llama-3.1-70B"), ("2_two_budgets", "rr=0.01&du=0.1"),
    ("2_two_budgets", "p=tokens.reveal&ms=4096&mt=4096"), ("2_two_budgets", "p=tokens.reveal&cp=0&mt=131072&ml=32768"),
    ("3_kv_pool", "p=mode.reveal&ms=1&mt=1&du=5"), ("3_kv_pool", "p=mode.reveal&nb=0&gm=0.05"), ("3_kv_pool", "p=blocks.reveal&k=99999"), ("3_kv_pool", "p=blocks.reveal&nb=0"),
    ("4_experts", "mo=Llama-3.1-8B"), ("5_parallelism", "gm=0.05"), ("app", "p=few.reveal&gm=0.05"), ("app", "p=eight.reveal&nr=5"),
    ("app", "p=stream.reveal&rr=0.01&du=0.1"), ("6_sweet_spot", "p=first.reveal&gm=0.05"), ("6_sweet_spot", "p=search.ask&gpus=abc"),
    ("6_sweet_spot", "p=map.reveal&across=max_num_seqs&up=max_num_seqs&cells=4"), ("6_sweet_spot", "p=map.reveal&across=foo&up=foo&cells=3"),
    ("6_sweet_spot", "p=climb.reveal&cp=0&mt=131072&ml=32768"), ("6_sweet_spot", "p=climb.reveal&ms=1&mt=1"),
    ("6_sweet_spot", "p=climb.reveal&pt=1000000"), ("6_sweet_spot", "p=map.reveal&cp=0&mt=131072&ml=32768"),
    ("6_sweet_spot", "p=knee.reveal&gm=0.05"), ("6_sweet_spot", "p=knee.reveal&a.gm=0.05"), ("6_sweet_spot", "p=knee.reveal&ba=static&ms=256&mt=128"),
    ("6_sweet_spot", "p=knee.reveal&nr=1&nc=1"), ("6_sweet_spot", "p=map.reveal&across=data_parallel_size&up=max_num_seqs&cells=4"),
    ("6_sweet_spot", "p=map.reveal&across=max_num_seqs&up=tensor_parallel_size&ms=128&mt=256&cells=4"), ("6_sweet_spot", "p=search.reveal&cp=0&gpus=4"),
    ("5_parallelism", "p=layout.ask&a.tp=16"), ("4_experts", "p=skew.reveal&pt=1000000"), ("2_two_budgets", "p=queue.ask&a.gm=0.05"),
    ("7_diagnose", "case=none&n=0&cause=x&act=y"), ("1_be_the_scheduler", "p=x.y&v=2&ms=nan"),
]


@pytest.mark.parametrize(("name", "query"), ODD)
def test_an_address_that_cannot_be_shown_is_explained_and_leads_on(name: str, query: str) -> None:
    page = AppTest.from_file(str(next(ROOT.glob(f"**/{name}.py"))), default_timeout=60)
    page.query_params.update(dict(pair.split("=") for pair in f"v=1&lang=en&{query}".split("&")))
    page.run()
    assert not page.exception
    for anew in [button for button in page.button if button.key == "begin_anew"]:
        assert not anew.click().run().exception and not page.warning


def test_a_baseline_that_cannot_run_is_named_and_mended_alone() -> None:
    page = AppTest.from_file(str(ROOT / "pages/8_playground.py"), default_timeout=60)
    page.query_params.update({"v": "1", "lang": "en", "ms": "128", "a.gm": "0.05"})
    page.run()
    assert page.warning[0].value.startswith("The baseline A:")
    next(button for button in page.button if "gpu_memory_utilization" in button.label).click().run()
    assert not page.exception and not page.warning
    assert page.query_params["ms"] in ("128", ["128"]) and "a.gm" not in page.query_params


def test_a_page_that_cannot_run_may_refuse_a_change_as_well() -> None:
    page = AppTest.from_file(str(ROOT / "pages/8_playground.py"), default_timeout=60)
    page.query_params.update({"v": "1", "lang": "en", "mo": "Llama-3.1-70B", "ms": "512", "mt": "512"})
    page.run()
    assert len(page.warning) == 1
    page.select_slider(key="w_playground_max_num_seqs").set_value(1024).run()
    assert not page.exception and len(page.warning) == 2
