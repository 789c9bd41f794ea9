"""Toy networks of the lab's recipe, trained once."""

import pytest

from lab_toys import RECIPE, TOY


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Finished runs of three arms, in a folder."""
    import make_models

    folder = tmp_path_factory.mktemp("lab-runs")
    for arm in ("toy-sink", "toy-gate", "toy-arm"):
        make_models.train_arm(RECIPE, arm, folder, TOY)
    return folder


@pytest.fixture(scope="session")
def models(runs, tmp_path_factory):
    """The same, exported."""
    import make_models

    folder = tmp_path_factory.mktemp("lab-models")
    for arm in ("toy-sink", "toy-gate", "toy-arm"):
        make_models.export_arm(arm, runs, folder, TOY)
    return folder
