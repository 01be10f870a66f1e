"""The playground in a real browser: the journey of someone who tries something and passes it on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.browser
ARTIFACTS = Path(__file__).parent.parent.parent / "artifacts"


def ready(page: Page) -> None:
    """Wait until the pictures are drawn and the script rests."""
    page.locator(".js-plotly-plot .main-svg").first.wait_for()
    expect(page.locator(".js-plotly-plot")).to_have_count(6)
    expect(page.locator(".stApp")).to_have_attribute("data-test-script-state", "notRunning")


def figures(page: Page) -> dict[str, str]:
    """Metric -> what its tile says."""
    read = "tiles => Object.fromEntries(tiles.map(t => [t.dataset.metric, t.innerText]))"
    return page.locator(".if-tile").evaluate_all(read)


def slider(page: Page, label: str):
    return page.locator(".stSlider", has_text=label).get_by_role("slider")


def move(page: Page, label: str, key: str = "ArrowRight") -> dict[str, str]:
    """Move a slider by a stop with the keyboard; the figures once they have changed."""
    before = figures(page)
    slider(page, label).focus()
    page.keyboard.press(key)
    return changed(page, before)


def changed(page: Page, before: dict[str, str]) -> dict[str, str]:
    """The figures, once they differ from these."""
    page.wait_for_function(
        "before => JSON.stringify(Object.fromEntries([...document.querySelectorAll('.if-tile')]"
        ".map(t => [t.dataset.metric, t.innerText]))) !== JSON.stringify(before)", arg=before,
    )
    ready(page)
    return figures(page)


def test_drag_a_slider_copy_the_link_and_a_stranger_sees_the_same(server: str, page: Page, browser: Browser) -> None:
    page.goto(f"{server}/playground")
    ready(page)
    before = figures(page)
    thumb = slider(page, "max_num_seqs").bounding_box()
    assert thumb
    page.mouse.move(thumb["x"] + thumb["width"] / 2, thumb["y"] + thumb["height"] / 2)
    page.mouse.down()
    page.mouse.move(thumb["x"] + 90, thumb["y"] + thumb["height"] / 2, steps=5)
    page.mouse.up()
    after = changed(page, before)
    assert after["ttft_p99"] != before["ttft_p99"]
    expect(page.locator(".if-note")).to_contain_text("max_num_seqs 64 → ")
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    stranger = browser.new_context(viewport={"width": 1280, "height": 720}, locale="zh-CN")
    try:
        other = stranger.new_page()
        other.goto(link)
        ready(other)
        assert figures(other) == after
    finally:
        stranger.close()


def test_real_traffic_replays_and_seats_clear_its_queue(server: str, page: Page) -> None:
    page.goto(f"{server}/playground?v=1&ar=trace&tr=azure2023_conv&du=600&rs=4&ms=128")
    ready(page)
    for stop in (192, 256):
        move(page, "max_num_seqs")
        expect(page.locator(".if-note")).to_contain_text(f"max_num_seqs 128 → {stop}: throughput rose")
    assert "▼" in figures(page)["waiting_mean"]
    page.mouse.move(5, 700)
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / "playground.png")  # the README's picture, docs/playground.png


def test_a_preset_is_where_one_begins_and_what_is_moved_stays_moved(server: str, page: Page) -> None:
    page.goto(f"{server}/playground")
    ready(page)
    before = figures(page)
    page.get_by_role("combobox", name="Start from").click()
    page.get_by_role("option", name="One user at a time").click()
    changed(page, before)
    move(page, "tensor_parallel_size")
    move(page, "Output length", "ArrowLeft")
    expect(page.locator(".if-note")).to_contain_text(re.compile("Output length.*tensor_parallel_size 1 → 2|tensor_parallel_size 1 → 2.*Output length"))
    page.get_by_role("button", name="Pin as A").click()
    expect(page.locator(".if-note")).to_have_count(0)
    expect(slider(page, "tensor_parallel_size")).to_have_attribute("aria-valuetext", "2")


def test_a_model_that_does_not_fit_is_made_to_fit_and_the_page_goes_on(server: str, page: Page) -> None:
    page.goto(f"{server}/playground?v=1&mo=Qwen3-235B-A22B&le=fixed&pt=200&ot=20")
    page.get_by_role("button", name="Set tensor_parallel_size = 8").click()
    ready(page)
    move(page, "max_num_seqs", "ArrowLeft")
    expect(page.locator(".stException")).to_have_count(0)


def test_back_and_forward_undo_and_redo(server: str, page: Page) -> None:
    page.goto(f"{server}/playground")
    ready(page)
    first = figures(page)
    second = move(page, "max_num_seqs")
    third = move(page, "max_num_batched_tokens", "ArrowLeft")
    page.go_back()
    assert changed(page, third) == second
    page.go_back()
    assert changed(page, second) == first
    page.go_forward()
    assert changed(page, first) == second


def test_a_link_with_values_that_cannot_be_is_shown_and_explained(server: str, page: Page) -> None:
    page.goto(f"{server}/playground?v=1&ms=99999&mt=8192&zz=1")
    ready(page)
    notices = page.locator(".stAlert")
    expect(notices.filter(has_text="max_num_seqs").first).to_be_visible()
    expect(notices.filter(has_text="zz")).to_be_visible()


def test_a_refused_change_is_explained_and_repaired_with_one_click(server: str, page: Page) -> None:
    page.goto(f"{server}/playground?v=1&ms=512&mt=512")
    ready(page)
    slider(page, "max_num_seqs").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_role("button", name="Set max_num_batched_tokens").click()
    expect(page.locator(".stAlert")).to_have_count(0)
    expect(page.locator(".if-note")).to_contain_text("max_num_batched_tokens")


def test_the_other_language_and_a_phone(server: str, browser: Browser) -> None:
    phone = browser.new_context(viewport={"width": 390, "height": 844}, locale="zh-CN", color_scheme="dark")
    try:
        page = phone.new_page()
        page.goto(f"{server}/playground")
        ready(page)
        expect(page.get_by_role("heading", name="实验台")).to_be_visible()
        assert page.evaluate("document.documentElement.lang") == "zh-CN"
        assert page.evaluate("document.querySelector('.stMain').scrollWidth <= innerWidth")
    finally:
        phone.close()


def test_the_picture_is_seen_without_scrolling(server: str, page: Page) -> None:
    page.goto(f"{server}/playground")
    ready(page)
    box = page.locator(".js-plotly-plot").first.bounding_box()
    assert box and box["y"] + box["height"] < 720
