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
