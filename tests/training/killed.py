"""Training runs that kill themselves at a named moment, each in a child of one process.

That process only imports, which takes seconds; it reads `OUT|MOMENT|NUMBER` lines, forks a child
for each, and writes how it ended.
"""

import os
import signal
import sys
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from anchorwatch.trace import atomic_io as commits
from anchorwatch.training import checkpoints, loop
from toy_texts import Texts, fields, tokenizer

torch.set_num_threads(1)
SPEC = fields(
    updates=11,
    accumulation=2,
    objective={"answer_only": 0.3, "random_lengths": 0.2},
    checkpoints={"updates": 3},
    log={"every": 2},
)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def dying(function, number, *, after=False):
    """The function, until its call of that number: it dies before or after doing its work."""
    calls = 0

    def wrapped(*args, **options):
        nonlocal calls
        calls += 1
        if calls == number and not after:
            die()
        made = function(*args, **options)
        if calls == number:
            die()
        return made

    return wrapped


MOMENTS = {
    "before a small file has its name": (commits, "put_file", True),
    "in an update": (loop.Trainer, "_train_update", False),
    "after an update": (loop.Trainer, "_train_update", True),
    "after a log line": (loop.Trainer, "_flush", True),
    "while tensors are written": (checkpoints, "save_file", True),
    "before the record": (checkpoints, "commit", False),
    "before the rename": (checkpoints, "publish", False),
    "after the rename": (checkpoints, "publish", True),
    "before the old one goes": (checkpoints.shutil, "rmtree", False),
    "before the model": (checkpoints, "save_model", False),
    "after the model": (checkpoints, "save_model", True),
}
OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir")


def run(out, moment, number):
    if moment == "before a file operation":
        left = iter(range(int(number) - 1, -1, -1))

        def watch(event, given):
            if event in OPERATIONS and str(given[0]).startswith(out) and next(left) == 0:
                die()

        sys.addaudithook(watch)
    elif moment != "never":
        owner, name, after = MOMENTS[moment]
        setattr(owner, name, dying(getattr(owner, name), int(number), after=after))
    loop.fit(SPEC, out, corpus=Texts(), tokenizer=tokenizer())


def serve():
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                run(*line.rstrip("\n").split("|"))
                os._exit(0)
            except Exception:  # noqa: BLE001 - said, and the parent is told
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
