"""Small local tasks of every kind that lm-eval has, as it reads them: YAML beside JSON lines."""

import json

ROWS = [
    ("Lena was born in", "Oslo", ["Oslo", "the sea", "a lighthouse on the coast"]),
    ("The ship lay at", "anchor", ["anchor", "the wharf by the river", "rain"]),
    ("The captain saw a", "storm in the north", ["storm in the north", "lamp", "dinghy"]),
    ("Where is the mate?", "on deck", ["on deck", "below", "in the galley"]),
    ("ebb and", "flood", ["flood", "tide", "sand"]),
]
ASK = "doc_to_text: 'Question: {{question}}\\nAnswer:'"
KINDS = {
    "aw_choice": f"""
output_type: multiple_choice
{ASK}
doc_to_target: label
doc_to_choice: '{{{{choices}}}}'
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
""",
    "aw_word": """
output_type: loglikelihood
doc_to_text: '{{question}}'
doc_to_target: ' {{answer}}'
metric_list: [{metric: perplexity}, {metric: acc}]
""",
    "aw_rolling": """
output_type: loglikelihood_rolling
doc_to_text: ''
doc_to_target: '{{text}}'
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
""",
    "aw_write": f"""
output_type: generate_until
{ASK}
doc_to_target: '{{{{answer}}}}'
generation_kwargs: {{until: ['the', "\\n"], max_gen_toks: 12, do_sample: false}}
metric_list: [{{metric: exact_match}}]
""",
}


def write(folder):
    """A folder for --include_path with one task of each kind; the last text is a long one."""
    data = folder / "data.jsonl"
    with data.open("w") as out:
        for place, (question, answer, choices) in enumerate(ROWS):
            text = f"{question} {answer}. The watch was long and the wind was low."
            if place == len(ROWS) - 1:
                text = " ".join([text] * 40)
            row = {"question": question, "answer": answer, "choices": choices, "text": text}
            out.write(json.dumps(row | {"label": 0}) + "\n")
    for name, body in KINDS.items():
        head = f"task: {name}\ndataset_path: json\ntest_split: train\nnum_fewshot: 0\n"
        files = f"dataset_kwargs: {{data_files: '{data}', cache_dir: '{folder / 'cache'}'}}\n"
        (folder / f"{name}.yaml").write_text(f"{head}{files}{body}metadata: {{version: 1}}\n")
    return folder
