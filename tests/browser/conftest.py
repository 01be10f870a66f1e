"""A server of the app on a free port, and pages of a real Chromium looking at it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tools.measuring import FLAGS, serving

expect.set_options(timeout=30_000)  # a page may have to be computed first, on a machine that is busy


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Address of a running app, without a slash at its end."""
    with serving() as (address, _):
        yield address


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A fresh visitor with an English browser."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 720}, locale="en-US", permissions=["clipboard-read", "clipboard-write"]
    )
    context.set_default_timeout(30_000)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """An empty tab of that visitor."""
    return context.new_page()
