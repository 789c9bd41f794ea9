"""Settings shared by all tests."""

import os
import shutil

import hypothesis
import pytest
import torch

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
"""Of a browser that is to talk to nobody."""

hypothesis.settings.register_profile("desk", max_examples=25, deadline=None, print_blob=True)
hypothesis.settings.register_profile(
    "ci", max_examples=60, deadline=None, print_blob=True, derandomize=True
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "desk")

torch.set_num_threads(1)  # pytest runs one worker for each core


@pytest.fixture(scope="session")
def browser():
    """The machine's own Chromium; without one the tests that need it fail."""
    from playwright.sync_api import sync_playwright

    place = shutil.which("chromium") or shutil.which("chromium-browser")
    assert place, "the browser tests need Chromium: make setup-browser"
    with sync_playwright() as playwright:
        held = playwright.chromium.launch(executable_path=place, args=list(FLAGS))
        yield held
        held.close()
