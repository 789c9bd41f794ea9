"""What a command imports, counted by module: seconds differ from machine to machine."""

import subprocess
import sys

from command import ENV

RUN = """
import sys
from anchorwatch.cli.app import main
try:
    main()
finally:
    sys.stderr.write("\\n" + " ".join(sys.modules))
"""


def test_a_run_imports_nothing_that_draws_trains_or_serves():
    words = ["run", "tiny/llada", "the anchor", "--length", "4"]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words], capture_output=True, text=True, env=ENV, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    modules = set(done.stderr.splitlines()[-1].split())
    assert not {"matplotlib", "sklearn", "ray", "lm_eval", "peft", "starlette"} & modules


def modules_after(code, *words):
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env=ENV, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return set(done.stderr.splitlines()[-1].split())


FLOOR = """
import sys
from transformers import AutoTokenizer, LlamaForCausalLM
import rich, typer, xarray, zarr
app = typer.Typer()
app.command()(lambda: None)
app([], standalone_mode=False)
sys.stderr.write("\\n" + " ".join(sys.modules))
"""


def test_a_run_imports_little_beside_what_a_stock_class_and_a_trace_take():
    """A stock class of transformers is four fifths of a run's start: the rest is counted here."""
    run = modules_after(RUN, "run", "tiny/llada", "the anchor", "--length", "4")
    more = run - modules_after(FLOOR)
    ours = {name for name in more if name.split(".")[0] == "anchorwatch"}
    assert len(ours) <= 100, len(ours)
    assert len(more - ours) <= 20, sorted(more - ours)
