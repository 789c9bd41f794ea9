"""Make src/anchorwatch/studies/running_text.jsonl: how held-out stories begin, for studies.

    python recipes/running_text.py

The stories are those of recipes/stories.jsonl that no training reads (`file` rows hold one in ten
out). Each is cut after a whole word, so that what follows is the middle of a text.
"""

import json
from pathlib import Path

from anchorwatch.trace.atomic_io import replace_file
from anchorwatch.training.data import read_texts

HERE = Path(__file__).parent
STORIES = HERE / "stories.jsonl"
TARGET = HERE.parent / "src/anchorwatch/studies/running_text.jsonl"
COUNT = 256
CHARACTERS = 200
"""Of an opening, at most: about 50 tokens of a large vocabulary, 80 of the lab's."""


def make_openings() -> list[str]:
    """The first words of held-out stories, each longer than its opening."""
    stories = read_texts(STORIES).take_split("held-out").pieces
    whole = [story.strip() for story in stories if len(story.strip()) > 2 * CHARACTERS]
    openings = [story[: story.rindex(" ", 0, CHARACTERS)].rstrip() for story in whole]
    return list(dict.fromkeys(openings))[:COUNT]


def main() -> None:
    lines = [json.dumps({"prompt": opening}, ensure_ascii=False) for opening in make_openings()]
    replace_file(TARGET, ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
