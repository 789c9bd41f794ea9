"""Small files in the formats that question answering data comes in, as they are released."""

import gzip
import json

KILT = [
    {
        "id": "-4469503464110108318",
        "input": "who wrote the lighthouse log",
        "output": [
            {"answer": "Lena Berg", "provenance": [{"wikipedia_id": "12", "title": "Log"}]},
            {"answer": "L. Berg"},
            {"provenance": [{"wikipedia_id": "13"}]},
        ],
        "meta": {"left_context": ""},
        "passage": [
            {"docid": "a#0", "title": "Logs", "segment": "Many logs were kept.", "score": 3.1},
            {"docid": "a#1", "title": "Log", "segment": "It was written by Lena Berg in 1901."},
            {"docid": "a#2", "title": "Berg", "segment": "A berg is ice."},
        ],
    },
    {
        "id": "2",
        "input": "where is the reef",
        "output": [{"answer": "south"}],
        "passage": [{"title": "", "segment": "The reef lies north."}],
    },
]

LOST = [
    {
        "question": "who got the first prize",
        "answers": ["Wilhelm Röntgen"],
        "ctxs": [
            {
                "id": str(number),
                "title": "List of prizes",
                "text": f"Prize {number} went to somebody.",
                "score": "1.05",
                "hasanswer": number == 2,
                "original_retrieval_index": number,
                "isgold": number == 1,
            }
            for number in range(4)
        ],
        "nq_annotated_gold": {
            "title": "Prize",
            "long_answer": "...",
            "chunked_long_answer": "...",
            "short_answers": ["Wilhelm Röntgen"],
        },
    }
]

SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Harbor",
            "paragraphs": [
                {
                    "context": "The harbor was built in 1820 by the crew.",
                    "qas": [
                        {
                            "id": "56be",
                            "question": "When was the harbor built?",
                            "is_impossible": False,
                            "answers": [
                                {"text": "1820", "answer_start": 24},
                                {"text": "in 1820", "answer_start": 21},
                                {"text": "1820", "answer_start": 24},
                            ],
                        },
                        {
                            "id": "56bf",
                            "question": "Who tore it down?",
                            "is_impossible": True,
                            "answers": [],
                            "plausible_answers": [{"text": "the crew", "answer_start": 32}],
                        },
                    ],
                },
                {"context": "It has two piers.", "qas": []},
            ],
        }
    ],
}

HOTPOT = [
    {
        "_id": "5a8b57f2",
        "question": "Where was the captain of the Aurora born?",
        "answer": "Oslo",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": [["Lena Berg", 0], ["Aurora", 1]],
        "context": [
            ["Reef", ["A reef is shallow.", " It is long."]],
            ["Aurora", ["Aurora is a ship.", " Its captain was Lena Berg."]],
            ["Lena Berg", ["Lena Berg was born in Oslo."]],
        ],
    },
    {
        "_id": "8813f87c",
        "question": "Are both ships?",
        "answer": "yes",
        "type": "comparison",
        "supporting_facts": [["Aurora", 0], ["Boreas", 0]],
        "context": [["Boreas", ["Boreas is a ship."]], ["Aurora", ["Aurora is a ship."]]],
        "evidences": [["Aurora", "instance of", "ship"]],
        "evidences_id": [],
        "answer_id": "Q1",
    },
]

PLAIN = [
    {
        "question": "Where is the anchor?",
        "answers": ["bay"],
        "passages": [{"text": "In the bay.", "gold": True}, "On deck."],
    },
    {"question": "Who keeps watch?", "answer": "Lena"},
    {"question": "How deep?", "answer": 12, "context": "It is twelve fathoms."},
]


def lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def packed(path, rows):
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def whole(path, value, indent=None):
    path.write_text(json.dumps(value, indent=indent))
    return path
