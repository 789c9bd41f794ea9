"""Training runs by so many gloo processes: `python shared.py FOLDER PROCESSES`.

`accelerate launch --cpu --num_processes 2` starts one process only, and says nothing: so they are
spawned here, and each run writes how many there were.
"""

import json
import os
import socket
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from toy_texts import Texts, fields, tokenizer

SPECS = {
    "diffusion": fields(updates=6, objective={"answer_only": 0.3}, checkpoints={"updates": 2}),
    "next_token": fields(updates=6, objective={"name": "next_token"}, accumulation=2),
    "sink": fields(
        updates=4,
        accumulation=2,
        variant=[
            {"name": "sink_token", "n": 2, "position": "end", "value": "zero"},
            {"name": "kv_bias", "layers": [1]},
            {"name": "gate", "form": "headwise"},
        ],
    ),
    "register": fields(updates=4, variant=["register", {"name": "sink_logit", "logit": 0.0}]),
}


def work(rank, port, world, folder):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"ACCELERATE_USE_CPU": "true"}
    torch.set_num_threads(1)
    from anchorwatch.training import fit

    for kind, spec in SPECS.items():
        out = Path(folder) / kind
        done = fit(spec, out, corpus=Texts(), tokenizer=tokenizer())
        said = done.as_dict() | {"rank": rank, "losses": [line.loss for line in done.lines]}
        out.with_name(f"{kind}.rank{rank}.json").write_text(json.dumps(said))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    folder, world = sys.argv[1:]
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    torch.multiprocessing.spawn(work, (port, int(world), folder), nprocs=int(world))
