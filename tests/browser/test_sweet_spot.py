"""The map of page 6 in a real browser: Stop keeps what was made, and a click on a cell takes its settings."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, expect

from sim.link import encode
from sim.scenario import Scenario

CASE = Scenario(
    arrival="closed", num_clients=512, num_requests=3000, duration_s=3600.0, lengths="fixed", prompt_tokens=64, output_tokens=128,
    gpu="A100-80GB", max_model_len=4096, num_gpu_blocks_override=4300, max_num_batched_tokens=2048, enable_prefix_caching=False,
)
pytestmark = pytest.mark.browser


def test_stop_keeps_the_runs_that_were_made(server: str, page: Page) -> None:
    # 20 times the requests of the page's own case: on a fast machine, too, there is time to press Stop.
    page.goto(f"{server}/sweet_spot?{urlencode(encode(CASE.but(num_requests=60_000)))}&p=map.reveal&cells=16&lang=en")
    page.get_by_text(re.compile(r"[1-9]\d* of 256 cells, .* left")).wait_for()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Go on", exact=True)).to_be_enabled()
    made = int(re.search(r"(\d+) of 256 cells", page.locator(".st-key-job").inner_text())[1])  # type: ignore[index]
    assert 0 < made < 256
    expect(page.locator(".stException")).to_have_count(0)
    expect(page.locator(".js-plotly-plot")).to_have_count(2)


def test_a_click_on_a_cell_takes_its_settings(server: str, page: Page) -> None:
    page.goto(f"{server}/sweet_spot?v=1&p=map.reveal&cells=4&lang=en")
    expect(page.locator(".st-key-told")).to_be_visible()
    expect(page.locator(".st-key-job")).to_have_count(0, timeout=60_000)  # all are made
    expect(page.locator(".stApp")).to_have_attribute("data-test-script-state", "notRunning")
    picture = page.locator(".js-plotly-plot").first
    expect(picture.locator(".scatterlayer .js-line").first).to_be_attached()  # the outline of what keeps the limits
    expect(picture.locator(".scatterlayer .points path").first).to_be_attached()
    area = picture.locator(".nsewdrag").first.bounding_box()
    assert area
    before = page.url
    page.mouse.click(area["x"] + area["width"] * 0.125, area["y"] + area["height"] * 0.875)  # the smallest of both
    page.wait_for_function("before => location.href !== before", arg=before)
    assert re.search(r"[?&]ms=16(&|$)", page.url) and re.search(r"[?&]mt=512(&|$)", page.url)
    expect(page.locator(".st-key-told")).to_contain_text("max_num_seqs 16")


def test_the_curves_of_a_and_b_of_the_playground_stand_beside_static_batching(server: str, page: Page) -> None:
    case = Scenario(duration_s=20.0, output_tokens=64, max_num_seqs=16)
    page.goto(f"{server}/playground?{urlencode(encode(case.but(max_num_seqs=64)))}&a.ms=16&lang=en")
    page.get_by_role("link", name="Latency against load, A and B").click()
    page.wait_for_url(re.compile("sweet_spot.*p=knee.reveal"))
    expect(page.locator(".st-key-told")).to_contain_text("max_num_seqs 16 → 64 moves the knee from", timeout=60_000)
    picture = page.locator(".js-plotly-plot").first
    expect(picture.locator(".scatterlayer .js-line")).to_have_count(3)
    for word in ("static ", "A ", "B "):
        expect(picture).to_contain_text(word)
