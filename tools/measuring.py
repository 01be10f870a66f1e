"""What the measuring tools and the browser tests share: a server of their own, its CPU time, a browser."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync"]


@contextmanager
def serving() -> Iterator[tuple[str, int]]:
    """The app on a free port of this machine: (its address, its process id). RuntimeError with its log if it does not start."""
    for left in (2, 1, 0):  # another process may take the port before the app does
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with tempfile.TemporaryFile() as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "streamlit", "run", "app.py", f"--server.port={port}", "--server.headless=true",
                 "--server.fileWatcherType=none"], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
            )
            try:
                if _healthy(f"http://127.0.0.1:{port}", server):
                    yield f"http://127.0.0.1:{port}", server.pid
                    return
            finally:
                server.terminate()
                server.wait(10)
            log.seek(0)
            if not left:
                raise RuntimeError(f"the app did not start:\n{log.read().decode(errors='replace')}")


def _healthy(address: str, server: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/_stcore/health", timeout=2).close()
            return True
        except OSError:
            time.sleep(0.05)
    return False


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, all its threads, in s (Linux: the clock of another process)."""
    return time.clock_gettime(~pid << 3 | 2)


def chromium(playwright: Any) -> Any:
    """The system's Chromium without a window."""
    return playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)


def wait_idle(page: Any) -> None:
    """Until the app says that its script has run."""
    page.wait_for_function("document.querySelector('.stApp')?.dataset.testScriptState === 'notRunning'")
