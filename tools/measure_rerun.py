"""What a slider change on the playground costs: CPU of the server and bytes on the wire.

    python tools/measure_rerun.py [--changes 20] [--path /playground] [--label max_num_seqs]

Starts the app on a free port, opens it in Chromium, moves a slider with the arrow keys to values that no cache knows
yet, then over the same values again, and reports the median CPU time of the server process (user + system, all its
threads) and the websocket payload of each change.
"""

from __future__ import annotations

import argparse
import statistics
import time

from measuring import chromium, cpu_s, serving, wait_idle
from playwright.sync_api import Page, sync_playwright


def change(page: Page, label: str, key: str, received: list[int], pid: int) -> tuple[float, int]:
    """Move the slider one stop; CPU s and bytes until the server is quiet again."""
    thumb = page.locator(".stSlider", has_text=label).get_by_role("slider")
    thumb.focus()
    before, start = cpu_s(pid), sum(received)
    told = len(received)
    page.keyboard.press(key)
    deadline = time.monotonic() + 10
    while len(received) == told and time.monotonic() < deadline:
        page.wait_for_timeout(20)
    quiet = 0
    while quiet < 8 and time.monotonic() < deadline:
        told = len(received)
        page.wait_for_timeout(50)
        quiet = quiet + 1 if len(received) == told else 0
    wait_idle(page)
    return cpu_s(pid) - before, sum(received) - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=6, help="changes in each direction")
    parser.add_argument("--path", default="/playground")
    parser.add_argument("--label", default="max_num_seqs")
    parser.add_argument("--rates", default="28,30,31,32,33", help="request rates, each of which makes all values new")
    options = parser.parse_args()
    with serving() as (base, pid), sync_playwright() as playwright:
        browser = chromium(playwright)
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        received: list[int] = []
        page.on("websocket", lambda ws: ws.on("framereceived", lambda frame: received.append(len(frame))))
        fresh: list[tuple[float, int]] = []
        again: list[tuple[float, int]] = []
        for rate in options.rates.split(","):
            page.goto(f"{base}{options.path}?v=1&rr={rate}&ms=8")
            page.wait_for_selector(".js-plotly-plot .main-svg", timeout=30_000)
            page.wait_for_timeout(1500)
            fresh += [change(page, options.label, "ArrowRight", received, pid) for _ in range(options.changes)]
            again += [change(page, options.label, "ArrowLeft", received, pid) for _ in range(options.changes)]
        browser.close()
    for name, found in (("new values", fresh), ("seen values", again)):
        cpu = [1000 * c for c, _ in found]
        size = [b / 1000 for _, b in found]
        print(f"{name:12} {len(found):3} changes   CPU ms: mean {statistics.fmean(cpu):5.1f} median {statistics.median(cpu):5.1f} "
              f"max {max(cpu):5.1f}   payload kB: median {statistics.median(size):5.1f} max {max(size):5.1f}")


if __name__ == "__main__":
    main()
