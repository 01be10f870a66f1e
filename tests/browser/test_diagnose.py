"""Page 7 in a real Chromium: what somebody pastes at night, what the page says of it, and what comes of the advice."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_lessons import flaws, press_page_down, settle, switch_projector_on, watch

pytestmark = pytest.mark.browser

SCRAPE = "".join(
    f'vllm:{name}{{engine="0",model_name="m"}} {value}\n'
    for name, value in (("num_requests_running", 64), ("num_requests_waiting", 200), ("kv_cache_usage_perc", 0.31),
                        ("num_preemptions_total", 0), ("generation_tokens_total", 90_000), ("request_success_total", 400),
                        ("prompt_tokens_total", 120_000))
)
COMMAND = "vllm serve Qwen/Qwen3-8B --max-num-seqs 64 --max_num_batched_tokens 8k --swap-space 4\n"
LOG = (
    "INFO 06-01 10:00:01 [loggers.py:116] Engine 000: Avg prompt throughput: 100.0 tokens/s, Avg generation throughput: 2000.0 "
    "tokens/s, Running: 36 reqs, Waiting: 90 reqs, GPU KV cache usage: 99.1%, Prefix cache hit rate: 12.5%\n"
)


def diagnose(page: Page, text: str) -> None:
    """Put the text into the box and ask."""
    page.get_by_role("textbox").fill(text)
    page.get_by_role("textbox").press("Control+Enter")
    settle(page)


def not_ours(page: Page, words: str) -> None:
    """What is no paste of a server is said plainly, and nothing is diagnosed."""
    diagnose(page, "<!doctype html><html><body>404 Not Found</body></html>")
    expect(page.get_by_test_id("stAlert")).to_contain_text(words)
    expect(page.locator(".dd-verdict")).to_have_count(0)


def test_a_queue_at_the_cap_is_seen_and_the_action_tried(page: Page, server: str) -> None:
    errors = watch(page)
    page.goto(f"{server}/diagnose?part=paste&lang=en")
    settle(page)
    not_ours(page, "An HTML page, not metrics")
    diagnose(page, COMMAND + SCRAPE)
    expect(page.locator(".dd-verdict")).to_have_attribute("data-code", "BUDGET_SMALL")
    page.get_by_role("button", name="Run this in the simulator").click()
    expect(page.locator(".if-note")).to_contain_text(re.compile(r"max_num_seqs 64 → \d+"))
    expect(page.get_by_test_id("stPlotlyChart")).to_have_count(6)
    assert not flaws(page) and not errors


def test_a_log_beside_its_command_is_told_in_the_visitors_language(page: Page, server: str) -> None:
    page.goto(f"{server}/diagnose?part=paste&lang=zh")
    settle(page)
    not_ours(page, "HTML 页面")
    diagnose(page, LOG)
    expect(page.locator(".dd-verdict")).to_have_attribute("data-code", "KV_FULL_WITH_QUEUE")
    expect(page.get_by_text("这个版本的日志不记")).to_be_visible()
    diagnose(page, COMMAND)
    expect(page.get_by_text("--swap-space：已移除（只有 V0 有）")).to_be_visible()
    diagnose(page, "vllm serve m --max-num-seqs 1k")
    expect(page.get_by_text("不是整数")).to_be_visible()
    assert not flaws(page)


@pytest.mark.parametrize("query", ["case=thrash&cause=PAST_SWEET_SPOT&act=seats_down", "case=ranks&cause=DP_IMBALANCE&act=budget_up"])
def test_on_a_projector_of_1280x720_the_verdict_and_the_two_pictures_that_decide_need_no_scrolling(page: Page, server: str, query: str) -> None:
    page.goto(f"{server}/diagnose?lang=en&{query}")
    settle(page)
    switch_projector_on(page)
    pictures = page.get_by_test_id("stPlotlyChart")
    expect(pictures).to_have_count(6)
    for shown in (page.locator(".st-key-told"), page.locator(".st-key-next"), pictures.nth(0), pictures.nth(1)):
        box = shown.bounding_box()
        assert box and box["y"] + box["height"] <= 720
    assert not flaws(page)


def test_after_the_last_patient_comes_the_card_and_page_down_goes_on_to_the_playground(page: Page, server: str) -> None:
    page.goto(f"{server}/diagnose?lang=zh&case=fine&cause=HEALTHY&act=nothing")
    settle(page)
    press_page_down(page)
    expect(page.get_by_text("14 个病例都看完了")).to_be_visible()
    expect(page.locator(".dd-card")).to_be_visible()
    assert not flaws(page)
    page.keyboard.press("PageDown")
    page.wait_for_url("**/playground*")
