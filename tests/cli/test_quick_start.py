"""What a command imports, counted: seconds differ from machine to machine, modules do not."""

import builtins
import subprocess
import sys
from fractions import Fraction

import torch

from anchorwatch.cli.quick_start import DEFERRED, Deferred, defer_imports
from command import ENV

RUN = """
import sys
from anchorwatch.cli.app import main
try:
    main()
finally:
    sys.stderr.write("\\n" + " ".join(sys.modules))
"""
OWN_IMPORTS = """
import sys
import anchorwatch as aw
aw.load("tiny/llada")
import transformers.masking_utils, transformers.loss.loss_for_object_detection as losses
print(type(losses.linear_sum_assignment).__module__)
"""


def test_a_run_imports_neither_compiler_nor_sharding():
    """Without what is deferred a run imports about 2,350 modules; with it 3,770."""
    words = ["run", "tiny/llada", "the anchor", "--length", "4"]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words], capture_output=True, text=True, env=ENV, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    modules = done.stderr.splitlines()[-1].split()
    imported = {name for name in DEFERRED if name in modules}
    assert imported == set()
    assert not {"sympy", "boto3", "matplotlib", "sklearn"} & set(modules)
    assert len(modules) < 2800


def test_in_python_imports_are_left_as_they_are():
    done = subprocess.run(
        [sys.executable, "-c", OWN_IMPORTS], capture_output=True, text=True, env=ENV, check=True
    )
    assert "quick_start" not in done.stdout


def test_a_stand_in_is_the_value_when_it_is_used():
    stand_in = Deferred("fractions.Fraction", lambda: Fraction, "fractions")
    assert stand_in(1, 2) == Fraction(1, 2)
    assert isinstance(Fraction(1), stand_in) and not isinstance("text", stand_in)
    assert stand_in.from_float(0.5) == Fraction(1, 2)

    class Half(stand_in):
        pass

    assert issubclass(Half, Fraction)
    nowhere = Deferred("absent.Name", lambda: 1 / 0, "absent")
    assert not isinstance(3, nowhere)  # a class that was never imported has no instances
    assert (nowhere | None) is (None | nowhere)


def test_imports_are_as_before_after_deferring():
    before = builtins.__import__, torch.compiler.disable, torch.compiler.allow_in_graph
    with defer_imports(["absent_package"]):
        outside = {"__name__": "transformers.example"}
        module = builtins.__import__("absent_package.part", outside, {}, ("name",), 0)
        assert isinstance(module.name, Deferred)
        assert "absent_package.part.name" in repr(module.name(3))
    assert before == (builtins.__import__, torch.compiler.disable, torch.compiler.allow_in_graph)
