"""What a visitor waits for in a real browser: the first picture, and the repaint after a slider.

    python tools/measure_browser.py [--rounds 5]

Prints medians in s: from opening app.py to its Gantt chart, on a server that has served nobody yet (cold: a server of its
own each time) and on one that has (warm: a browser without a cache each time); the same of every other page, warm, to its
first picture; on the playground, from the key press on a slider to the picture with the new numbers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from measuring import ROOT, chromium, serving, wait_idle
from playwright.sync_api import Browser, sync_playwright

PAGES = [path.stem.split("_", 1)[1] for path in sorted((ROOT / "pages").glob("*.py"))]
SLIDER = "max_num_seqs"
PAINTED = """() => new Promise(done => {
  const alts = () => [...document.querySelectorAll('.stPlotlyChart [aria-label], .stPlotlyChart[aria-label]')]
    .map(e => e.ariaLabel).join()
  const before = alts()
  document.addEventListener('keydown', () => {
    const pressed = performance.now()
    const look = () => alts() !== before && document.querySelectorAll('.js-plotly-plot .main-svg').length >= 4
      ? requestAnimationFrame(() => { window.repainted = performance.now() - pressed })
      : requestAnimationFrame(look)
    look()
  }, { capture: true, once: true })
  window.repainted = 0
  done()
})"""


PICTURE = """() => {
  const drawn = (root) => [...root.querySelectorAll('canvas, .js-plotly-plot .main-svg, .g')].some((e) => e.getBoundingClientRect().height > 30)
    || [...root.querySelectorAll('*')].some((e) => e.shadowRoot && drawn(e.shadowRoot))
  return drawn(document)
}"""


def first_picture(browser: Browser, base: str, name: str = "") -> float:
    """Open a page with an empty cache; s until a picture of it has a size: a canvas, a chart, or page 1's block grid."""
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    page = context.new_page()
    begun = time.monotonic()
    page.goto(f"{base}/{name}")
    page.wait_for_function(PICTURE, timeout=30_000)
    took = time.monotonic() - begun
    context.close()
    return took


def repaints(browser: Browser, base: str, changes: int) -> list[float]:
    """s from a key press on a slider to the changed pictures, each change to a value that no cache knows."""
    page: Any = browser.new_page(viewport={"width": 1280, "height": 720})
    page.goto(f"{base}/playground?v=1&rr=60&ms=8")  # at this rate more seats always change the pictures
    page.wait_for_selector(".js-plotly-plot .main-svg", timeout=30_000)
    page.wait_for_timeout(1500)
    took = []
    for _ in range(changes):
        page.locator(".stSlider", has_text=SLIDER).get_by_role("slider").focus()
        page.evaluate(PAINTED)
        page.keyboard.press("ArrowRight")
        page.wait_for_function("window.repainted > 0", timeout=15_000)
        took.append(page.evaluate("window.repainted") / 1000)
        wait_idle(page)
        page.wait_for_timeout(400)
    page.close()
    return took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cold: list[float] = []
    with sync_playwright() as playwright:
        browser = chromium(playwright)
        for _ in range(options.rounds):
            with serving() as (base, _):
                cold.append(first_picture(browser, base))
        with serving() as (base, _):
            first_picture(browser, base)
            warm = [first_picture(browser, base) for _ in range(options.rounds)]
            pages = {name: [first_picture(browser, base, name) for _ in range(options.rounds)] for name in PAGES}
            repaint = repaints(browser, base, options.rounds + 3)
        browser.close()
    for name, found in (("first picture, cold server", cold), ("first picture, warm server", warm), *pages.items(), ("slider to repaint", repaint)):
        print(f"{name:28} median {statistics.median(found):5.2f} s   max {max(found):5.2f} s")


if __name__ == "__main__":
    main()
