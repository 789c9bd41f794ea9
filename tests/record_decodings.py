"""The decoding that does what a recorded run of an author's sampler did, from the record's arguments."""

from dataclasses import replace

import anchorwatch as aw


def decoding_of(run, name):
    """The decoding of one run of a generation.json; `name` is the record's folder."""
    args = run["args"]
    if name == "llada_moe":
        return aw.decoding.LowConfidence(
            args["gen_length"], args["steps"], block=args["block_length"]
        )
    if name == "rnd1":
        length = sum(token == args["mask_token_id"] for token in run["states"][0])
        return aw.decoding.EntropyOrder(
            length, args["num_steps"], entropy_bound=args.get("eb_gamma")
        )
    if name == "sdar":
        stop_ids = args.get("stopping_criteria_idx")
        written = args["choice"] == "as written"  # a draw of one token is no draw
        return aw.decoding.BlockDiffusion(
            args["gen_length"],
            args["denoising_steps"],
            block=args["block_length"],
            order=args["remasking_strategy"].removeprefix("low_confidence_"),
            threshold=args.get("confidence_threshold", 0.85),
            temperature=1.0 if written else 0.0,
            top_k=args.get("top_k"),
            stop="never" if stop_ids is None else "block",
            stop_ids=stop_ids,
        )
    common = {"block": args["block_length"], "threshold": args["threshold"]}
    common["stop_ids"] = (args["eos_id"],)
    early = args.get("eos_early_stop", False)
    if run["sampler"] == "llada2":
        stop = "token" if early else "block"
        return aw.decoding.BlockDiffusion(args["gen_length"], args["steps"], stop=stop, **common)
    return aw.decoding.TokenEditing(
        args["gen_length"],
        editing_threshold=args["editing_threshold"],
        max_post_steps=args["max_post_steps"],
        least=args.get("num_to_transfer", 1),
        stop="block" if early else "never",
        **common,
    )


def run_record(model, run, name, **options):
    """The trace of our run of a record: of its prompt, or of the canvas that it began with."""
    decoding = decoding_of(run, name)
    if options.pop("cache", False):
        decoding = replace(decoding, cache=True)
    if name == "rnd1":
        return aw.run(model, canvas=run["states"][0], decoding=decoding, **options)
    return aw.run(model, run["prompt"], decoding, **options)
