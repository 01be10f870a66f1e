"""A server of the app on a free port, and pages of a real Chromium looking at it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

ROOT = Path(__file__).parent.parent.parent
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a running app, without a slash at its end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "streamlit", "run", "app.py", f"--server.port={port}", "--server.headless=true",
             "--server.fileWatcherType=none"], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT,
        )
        try:
            _healthy(address, process, log)
            yield address
        finally:
            process.terminate()
            process.wait(10)


def _healthy(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/_stcore/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    pytest.fail(f"the app did not start:\n{log.read_text()}")


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
