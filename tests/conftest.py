"""Settings shared by all tests."""

import os

import hypothesis
import torch

hypothesis.settings.register_profile("desk", max_examples=25, deadline=None, print_blob=True)
hypothesis.settings.register_profile(
    "ci", max_examples=60, deadline=None, print_blob=True, derandomize=True
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "desk")

# pytest runs one worker for each core; `make test-machines` tries two threads too
torch.set_num_threads(int(os.environ.get("ANCHORWATCH_TEST_THREADS", "1")))
