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
