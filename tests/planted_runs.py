"""Folders of runs made without a model: cells around a small trace."""

from itertools import islice

from anchorwatch.sweeps.spec import digest_of, make_keys, read_axes, spec_from, sweep_record
from anchorwatch.trace.atomic_io import put_file, seal
from anchorwatch.trace.cells import RECORD, TRACE, open_cells
from synthetic_traces import small_trace

FIELDS = {
    "models": ["lab/one"],
    "prompts": ["the anchor", "</script><b>ship</b>"],
    "decodings": {"short": "low-confidence:length=4"},
    "edits": {"none": "", "sinks": "hide-sinks:1"},
    "seeds": [0, 1],
}


def plan(fields=FIELDS, files=("f",)):
    axes = read_axes(spec_from(fields))
    return axes, make_keys(axes, list(files), {"anchorwatch": "1"})


def labels_of(axes, cell):
    return {
        "model": axes.models[cell.model],
        "prompt": axes.prompts[cell.prompt].label,
        "context": "",
        "decoding": axes.decodings[cell.decoding].label,
        "edit": axes.edits[cell.edit].label,
        "seed": axes.seeds[cell.seed],
    }


def record_of(axes, cell, answer="anchors"):
    numbers = {"steps": 4, "positions": 9, "left_masked": 0, "bytes": 1000}
    prompt = str(axes.prompts[cell.prompt].prompt)
    return (
        {"cell": cell.name, "labels": labels_of(axes, cell), "deciding": {}}
        | numbers
        | {
            "answer": f"{answer} {prompt}",
            "trace": "0" * 64,
        }
    )


def commit_cell(folder, axes, cell, trace=None, answer="anchors"):
    with folder.stage() as staged:
        if trace is not None:
            trace.write(staged / TRACE)
        put_file(staged / RECORD, seal(record_of(axes, cell, answer)))
        folder.commit(cell.name, staged)


def make_runs(path, fields=FIELDS, count=None, traces=True):
    """A folder with the first cells of a sweep."""
    axes, keys = plan(fields)
    folder = open_cells(path, create=True)
    record = sweep_record(axes, keys, ["f"])
    folder.put_sweep(record, digest_of(record)[:32])
    trace = small_trace() if traces else None
    for cell in islice(keys.cells(), count):
        commit_cell(folder, axes, cell, trace)
    return folder
