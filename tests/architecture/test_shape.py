"""The shape of the project: what is public, and what imports what."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "anchorwatch"


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_everything_public_is_there_and_nothing_else():
    import anchorwatch as aw

    assert dir(aw) == sorted(aw.__all__)
    for name in aw.__all__:
        assert getattr(aw, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = aw.nothing


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers", "accelerate", "safetensors", "tokenizers"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])
sys.meta_path.insert(0, Block())
"""


def test_reading_and_showing_a_trace_needs_no_torch(tmp_path):
    import anchorwatch as aw

    trace = aw.run(aw.load("tiny/llada"), "the anchor", aw.decoding.LowConfidence(4))
    trace.write(tmp_path / "a.trace")
    code = (
        f"{BLOCKED}\nimport anchorwatch as aw\nfrom anchorwatch.trace.render_terminal import show\n"
    )
    code += f"trace = aw.read({str(tmp_path / 'a.trace')!r})\nprint(trace)\nshow(trace)\n"
    code += "assert trace.decoding == aw.decoding.LowConfidence(4), trace.decoding\n"
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert trace.digest()[:12] in done.stdout


def test_the_block_can_fail():
    assert "No module named" in python(f"{BLOCKED}\nimport torch").stderr


def test_running_without_torch_says_what_to_install():
    done = python(f"{BLOCKED}\nimport anchorwatch as aw\naw.load")
    assert "pip install 'anchorwatch[run]'" in done.stderr


def test_the_family_table_needs_no_torch():
    assert python(f"{BLOCKED}\nfrom anchorwatch.models.families import FAMILIES").returncode == 0


def test_importing_prints_nothing_and_loads_nothing_heavy():
    code = "import sys, anchorwatch\nprint([m for m in ('torch', 'xarray', 'zarr') if m in sys.modules])"
    done = python(code)
    assert done.stdout == "[]\n"
    assert done.stderr == ""


def modules():
    return sorted(SOURCE.rglob("*.py"))


FORWARDS = {
    ("cli/options.py", "call"),  # a command takes what its signature says
    ("models/attention.py", "attend"),  # transformers decides the signature of its attention plug
    ("metrics/registry.py", "__call__"),  # a decorator's function takes what the metric takes
    ("metrics/registry.py", "plan"),
    ("metrics/registry.py", "measure"),
    ("trace/trace.py", "make_trace"),  # arrays by the names of the schema
}


def test_no_function_takes_keywords_it_does_not_name():
    taking = {
        (path.relative_to(SOURCE).as_posix(), node.name)
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.args.kwarg is not None
    }
    assert taking <= FORWARDS


def test_every_module_says_what_it_is_for():
    for path in modules():
        assert ast.get_docstring(ast.parse(path.read_text())), path
