"""What `make test-machines` promises of itself."""

from itertools import product
from pathlib import Path

from machines import ATEN, MACHINES, MKL, ONEDNN, ROOT, THREADS, Effect, counted, lacks


def test_a_variable_without_effect_is_a_failure():
    effect = Effect({ATEN: "avx512", THREADS: "2", MKL: "auto"})
    assert effect.wrong({ATEN: "avx512", THREADS: "2"}) == []
    assert effect.wrong({ATEN: "default", MKL: "COMPATIBLE"}) == [
        "ATEN_CPU_CAPABILITY=default had no effect: avx512",
        "MKL_CBWR=COMPATIBLE had no effect: auto",
    ]
    assert effect.wrong({ONEDNN: "AVX2"}) == ["ONEDNN_MAX_CPU_ISA=AVX2 had no effect: nothing"]


def test_every_width_is_tried_with_one_and_two_threads():
    tried = {(m.variables.get(ATEN), m.variables[THREADS]) for m in MACHINES}
    assert tried >= set(product(("default", "avx2", "avx512"), ("1", "2")))
    for machine in MACHINES:
        assert all(Path(ROOT, test).exists() for test in machine.tests)


def test_what_make_test_ran_is_not_repeated():
    skipped = [m.variables for m in MACHINES if "make test" in lacks(m, "avx2")]
    assert skipped == [{ATEN: "avx2", THREADS: "1"}]


def test_results_are_counted_from_the_last_line():
    text = "F..\n1 passed in a title\n=== short ===\n2 failed, 1204 passed in 3.1s\n"
    assert (counted(text, "passed"), counted(text, "failed")) == (1204, 2)
    assert counted("1204 passed in 3.1s\n", "failed") == 0
