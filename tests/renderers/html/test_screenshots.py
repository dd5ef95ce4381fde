"""The README's pictures: there for every shot of the script, and small enough for a page."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_every_shot_has_its_picture() -> None:
    pytest.importorskip("playwright")
    spec = importlib.util.spec_from_file_location("make_screenshots", ROOT / "docs/make_screenshots.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    files = {path.stem: path.read_bytes() for path in script.IMAGES.glob("report-*.png")}
    assert set(files) == {shot.name for shot in script.SHOTS}
    for data in files.values():
        assert data.startswith(b"\x89PNG") and len(data) < 400_000
