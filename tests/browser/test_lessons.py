"""Every page in a real Chromium: both languages, both themes, wide and narrow; and the lessons by PageDown alone."""

from __future__ import annotations

import itertools
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

ROOT = Path(__file__).parent.parent.parent
ARTIFACTS = ROOT / "artifacts"
PAGES = ["", *sorted(p.stem.split("_", 1)[1] for p in (ROOT / "pages").glob("*.py"))]
LESSONS = {"": (3, ""), "be_the_scheduler": (1, "return"), "two_budgets": (1, "starve"), "kv_pool": (1, "thrash")}  # scenes walked
NO_LESSON = ("playground", "under_the_hood")
LOOKS = [("en", "light", 1280, 720), ("zh", "dark", 1280, 720), ("zh", "light", 390, 844), ("en", "dark", 390, 844)]

pytestmark = pytest.mark.browser


def settle(page: Page) -> None:
    """Until the script has run and everything is drawn."""
    page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]', timeout=60_000)
    page.wait_for_function("!document.querySelector('[data-testid=stSkeleton]')", timeout=30_000)


def watch(page: Page) -> list[str]:
    """What goes wrong on this page from now on. Streamlit probes for its server below a deep link first: not an error."""
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("console", lambda message: found.append(message.text) if message.type == "error"
            and "Failed to load resource" not in message.text else None)
    page.on("response", lambda answer: found.append(f"{answer.status} {answer.url}")
            if answer.status >= 400 and "/_stcore/" not in answer.url else None)
    return found


def flaws(page: Page) -> list[str]:
    """What must not be on any page."""
    return page.evaluate("""() => {
      const found = [], main = document.querySelector('[data-testid=stMain]')
      if (main.scrollWidth > main.clientWidth + 1) found.push('overflow ' + main.scrollWidth + ' > ' + main.clientWidth)
      if (document.querySelector('[data-testid=stException]')) found.push('exception on the page')
      for (const chart of document.querySelectorAll('[data-testid=stPlotlyChart]')) {
        const named = chart.matches('[aria-label]') ? chart : chart.querySelector('[aria-label]')
        if (!named || !named.getAttribute('aria-label').trim()) found.push('chart without alt')
      }
      for (const plot of document.querySelectorAll('.js-plotly-plot')) {
        const frame = plot.getBoundingClientRect(), title = plot.querySelector('.gtitle')?.textContent
        const words = [...plot.querySelectorAll('text')].filter((e) => e.textContent.trim() && !e.closest('.hoverlayer') &&
          getComputedStyle(e).visibility !== 'hidden' && +getComputedStyle(e).opacity > 0)
          .map((e) => [e.textContent, e.getBoundingClientRect()]).filter(([, r]) => r.width && r.height)
        for (const [word, r] of words)
          if (r.left < frame.left - 1 || r.right > frame.right + 1) found.push(`cut in "${title}": ${word}`)
        words.forEach(([word, r], i) => words.slice(i + 1).forEach(([other, q]) => {
          if (Math.min(r.right, q.right) - Math.max(r.left, q.left) > 1 && Math.min(r.bottom, q.bottom) - Math.max(r.top, q.top) > 4)
            found.push(`"${word}" runs into "${other}" in "${title}"`)
        }))
      }
      const canvases = (root) => [...root.querySelectorAll('*')].flatMap((e) =>
        [...(e.matches('canvas[role=img]') ? [e] : []), ...(e.shadowRoot ? canvases(e.shadowRoot) : [])])
      for (const c of canvases(document)) if (!c.getAttribute('aria-label')) found.push('canvas without alt')
      return found
    }""")


def press_page_down(page: Page) -> str:
    """Press it, wait until the address has changed, and return where the lesson is."""
    before = page.url
    page.keyboard.press("PageDown")
    page.wait_for_function("before => location.href !== before", arg=before, timeout=60_000)
    settle(page)
    return parse_qs(urlsplit(page.url).query).get("p", [""])[0]


@pytest.mark.parametrize(("language", "scheme", "width", "height"), LOOKS)
def test_every_page_opens_whole_and_is_walked_by_keyboard(
    browser: Browser, server: str, language: str, scheme: str, width: int, height: int
) -> None:
    """Predict, lock, reveal, next: the first scene of every lesson, by PageDown alone."""
    ARTIFACTS.mkdir(exist_ok=True)
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    wrong = {}
    for name in PAGES:
        page = context.new_page()
        errors = watch(page)
        page.goto(f"{server}/{name}?lang={language}")
        settle(page)
        for step in ("", "lock", "reveal", "next") if name not in NO_LESSON else ("",):
            if step:
                press_page_down(page)
            page.screenshot(path=str(ARTIFACTS / f"{'-'.join(filter(None, (name or 'start', step)))}-{language}-{scheme}-{width}.png"))
            if found := errors + flaws(page):
                wrong[f"{name or 'start'} {step}"] = found
        page.close()
    context.close()
    assert not wrong


@pytest.mark.parametrize("name", list(LESSONS))
def test_page_down_alone_walks_a_lesson_and_on_to_the_next_page(browser: Browser, server: str, name: str) -> None:
    """The first page from its beginning, the others through their last scene."""
    scenes, last = LESSONS[name]
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    page = context.new_page()
    errors = watch(page)
    page.goto(f"{server}/{name}?lang=en" + (f"&p={last}.ask" if last else ""))
    settle(page)
    for scene, step in itertools.product(range(scenes), ("lock", "reveal", "next", "on")):
        before = page.url
        page.keyboard.press("PageDown")
        page.wait_for_function("before => location.href !== before", arg=before, timeout=30_000)
        settle(page)
        if step == "reveal":
            page.screenshot(path=str(ARTIFACTS / f"{name or 'start'}-reveal{scene + 1}.png"))
        if step != "on":
            assert f".{step}" in page.url
        assert not flaws(page)
    following = [*LESSONS, "experts"][list(LESSONS).index(name) + 1]
    assert f"/{following}" in page.url
    context.close()
    assert not errors


def switch_projector_on(page: Page) -> None:
    """As a teacher does: a click, after which the switch has the focus."""
    page.locator(".st-key-projector label").click()
    page.wait_for_function("getComputedStyle(document.documentElement).fontSize === '21px'")
    settle(page)


def test_a_clicker_goes_on_from_the_projector_switch_and_from_the_guess(page: Page, server: str) -> None:
    errors = watch(page)
    page.goto(f"{server}/?lang=en")
    settle(page)
    switch_projector_on(page)
    assert press_page_down(page) == "eight.lock"
    page.goto(f"{server}/?lang=en&p=eight.ask")
    settle(page)
    guess = page.get_by_role("slider").first
    guess.press("ArrowRight")
    guess.press("ArrowRight")
    expect(page.get_by_role("button", name="Lock it in")).to_be_visible()
    guess.focus()
    assert press_page_down(page) == "eight.lock"
    expect(page.get_by_text("You said: 1 s")).to_be_visible()  # PageDown did not move the slider
    assert not errors


@pytest.mark.parametrize("name", ["", "be_the_scheduler", "two_budgets", "kv_pool", "experts", "parallelism"])
def test_on_a_projector_of_1280x720_button_and_first_picture_need_no_scrolling(page: Page, server: str, name: str) -> None:
    page.goto(f"{server}/{name}?lang=en")
    settle(page)
    switch_projector_on(page)
    picture = page.locator(".stMain").locator("[data-testid=stPlotlyChart], .player > canvas, .g").first
    for _ in range(4):
        for shown in (page.locator(".st-key-lesson_primary"), picture):
            box = shown.bounding_box()
            assert box and box["y"] + box["height"] <= 720, page.url
        assert not flaws(page)
        press_page_down(page)


def test_page_down_reveals_an_incident_and_goes_on_to_the_next(page: Page, server: str) -> None:
    errors = watch(page)
    page.goto(f"{server}/diagnose?lang=en")
    settle(page)
    for shown in ("And what do you do about it?", "Applied:", "One dashboard, no names"):
        press_page_down(page)
        expect(page.locator(".stMain").get_by_text(shown).first).to_be_visible()
        assert not flaws(page)
    assert "case=both_full" in page.url
    assert not errors


def test_the_timeline_plays_steps_and_scrubs_by_keyboard(browser: Browser, server: str) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 720}, reduced_motion="reduce")
    page = context.new_page()
    page.goto(f"{server}/?lang=en&p=eight.reveal")
    settle(page)
    player, clock = page.locator(".player"), page.locator(".clock")
    expect(clock).not_to_be_empty()
    end = clock.inner_text()
    player.focus()
    page.keyboard.press("Home")
    assert clock.inner_text().startswith("0")
    page.keyboard.press("ArrowRight")
    page.keyboard.press(" ")
    expect(clock).not_to_have_text("0.0 s")
    page.keyboard.press("End")
    assert clock.inner_text() == end
    context.close()
