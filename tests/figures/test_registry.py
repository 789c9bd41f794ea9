"""Every figure of the catalogue is drawn from tiny models, as the gallery draws it."""

import importlib.util
from pathlib import Path

import pytest

from anchorwatch.errors import SpecError
from anchorwatch.figures import FIGURES, draw

GALLERY = Path(__file__).parents[2] / "docs" / "gallery.py"


@pytest.fixture(scope="module")
def gallery():
    spec = importlib.util.spec_from_file_location("gallery", GALLERY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def traces(gallery):
    return gallery.runs(gallery.TINY)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_and_knows_its_traces(name, gallery, traces):
    chosen = gallery.choose(name, traces)
    figure = draw(name, chosen, gallery.OPTIONS.get(name))
    assert len(figure.data)
    assert len(figure.whence["traces"]) == len(chosen)
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert shown and all(ax.get_xlabel() or ax.get_ylabel() or ax.texts or ax.get_title("left")
                         or ax.collections or ax.patches for ax in shown)  # fmt: skip
    assert (GALLERY.parent / "figures" / f"{name}.svg").exists()


def test_options_go_to_the_metric_or_the_figure_and_others_are_refused(traces):
    assert draw("set-jaccard", traces, {"lags": [1, 3]}).data["lag"].max() == 3
    with pytest.raises(SpecError, match="survival has no layer: it takes rule, group, by"):
        draw("survival", traces, {"layer": 1})
    with pytest.raises(SpecError, match="sink-map is of one trace: 18 were given"):
        draw("sink-map", traces)
    with pytest.raises(SpecError, match=r"called 'sinkmap': expected one of .*sink-map"):
        draw("sinkmap", traces)


def test_a_figure_is_one_function_of_a_table(traces, monkeypatch):
    from anchorwatch.figures import registry
    from anchorwatch.figures.figure import Figure
    from anchorwatch.figures.style import COLUMN, sheet

    for name in ("FIGURES", "FUNCTIONS"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))

    @registry.figure(registry.Plot("dots", metric="concentration", by=("head",)))
    def dots(table, *, size: float = 2.0):
        """Gini by head."""
        drawn, (ax,) = sheet(COLUMN, 2.0)
        ax.plot(table["head"], table["value"], "o", markersize=size)
        return Figure.of_table(drawn, table, "dots", {"size": size})

    figure = draw("dots", traces, {"size": 3.0, "group": "all"})
    assert "head" in figure.data and figure.whence["settings"]["size"] == 3.0
    with pytest.raises(SpecError, match="there is a figure 'sinks' already"):
        registry.figure(registry.Plot("sinks", metric="sinks"))(dots)
