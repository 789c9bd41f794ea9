"""Bad inputs for every command: words that no command may answer with a traceback, and their files.

`lay_out(folder)` writes the files; in the words of a `BadInput`, {bad} stands for that folder. An
input ends with code 1 or 2 and says what was wrong on stderr; `verify` says it on stdout.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DEEP = 100_000
"""Brackets inside brackets: more than any parser that calls itself follows."""
DIGITS = "1" * 5_000
"""More digits than Python turns into a number."""
LONG = "a" * 5_000
"""More letters than the name of a file may have."""
RAW = "\udcff"
"""The byte 0xff in an argument, as Python spells what is no UTF-8."""
TRACE = "{bad}/good.trace"
"""A sound trace that `lay_out` does not write: commands that read one are given bad options."""


@dataclass(frozen=True)
class BadInput:
    """Words of a command line, and what stands on stdin."""

    words: tuple[str, ...]
    stdin: bytes = b""

    @property
    def name(self) -> str:
        """A short name for a test."""
        short = [word if len(word) < 24 else f"{word[:20]}..{len(word)}" for word in self.words]
        return ascii(" ".join(short))

    def typed(self, folder: Path) -> list[str]:
        """The words, with the folder that `lay_out` wrote to."""
        return [word.replace("{bad}", str(folder)) for word in self.words]


def lay_out(folder: Path) -> None:
    """Write every file that the words name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in _files().items():
        (folder / name).write_bytes(content)
    (folder / "folder").mkdir()
    for suffix in (".jsonl", ".toml", ".csv", ".json", ".png", ".html", ".parquet"):
        (folder / f"folder{suffix}").mkdir()
    (folder / "loop").symlink_to("loop")
    closed = folder / "closed.txt"
    closed.write_text("the\n")
    closed.chmod(0)  # root reads it all the same, and then it is good


def _files() -> dict[str, bytes]:
    deep = "[" * DEEP + "]" * DEEP
    tables = "{a=" * 2_000 + "1" + "}" * 2_000
    files: dict[str, bytes] = {
        "nested.toml": f"length = {deep}\n".encode(),
        "nested-tables.toml": f"model = {tables}\n".encode(),
        "nested-keys.toml": ("model" + ".a" * 50_000 + " = 1\n").encode(),
        "nested-corpus.toml": _spec(f"a = {'[' * 400}{']' * 400}"),
        "digits.toml": f"length = {DIGITS}\n".encode(),
        "digits-float.toml": f"[optimizer]\nlr = {DIGITS}.0\n".encode(),
        "nul-path.toml": _spec('name = "file"\npath = "a\\u0000b"'),
        "long-path.toml": _spec(f'name = "file"\npath = "{LONG}"'),
        "folder-path.toml": _spec('name = "file"\npath = "/"'),
        "wide.toml": b"length = 8\nbatch = 1\nupdates = 1\n[model]\nlayers = 100000000\nwidth = 8\nheads = 1\n",
        "date.toml": b"length = 1979-05-27T07:32:00Z\n",
        "list.toml": b"model = [1, 2]\n",
        "surrogate.toml": b'length = "\\ud800"\n',
        "bytes.png": bytes(range(256)),
        "bytes.pdf": b"%PDF-1.7\n" + bytes(range(256)),
        "bytes.svg": b"<svg>" + bytes(range(256)),
        "cut.parquet": b"PAR1" + bytes(64),
        "cut.gz": b"\x1f\x8b\x08\x00cut",
        "many-columns.csv": b",".join([b"a"] * 10_000) + b"\n",
    }
    texts = {
        "empty": b"",
        "blank": b"\n \n\t\n",
        "nul": b"a\0b\n",
        "not-utf8": b"caf\xe9 \xff\xfe\n",
        "utf16": "prompt".encode("utf-16"),
        "bracket": b"[" * DEEP,
    }
    for suffix in ("txt", "jsonl", "json", "toml", "csv", "tsv", "parquet", "png", "svg", "pdf"):
        files |= {f"{name}.{suffix}": content for name, content in texts.items()}
    records = {
        "nested": f'{{"prompt": {deep}, "question": {deep}, "rows": {deep}}}',
        "digits": f'{{"prompt": [{DIGITS}], "question": {DIGITS}, "rows": [{DIGITS}]}}',
        "surrogate": '{"prompt": "\\ud800", "question": "\\ud800", "answer": "\\ud800"}',
        "other": '{"prompt": {"a": 1}, "question": {"a": 1}}',
        "wrong-ids": '{"prompt": [1e400, -1, 99999999999999999999999]}',
        "wrong-chat": '{"prompt": [{"role": 5, "content": [1]}]}',
        "number": "5",
        "null": "null",
        "half": '{"prompt": "the',
    }
    for suffix in ("jsonl", "json"):
        files |= {f"{name}.{suffix}": (text + "\n").encode() for name, text in records.items()}
    rows = [{"metric": "x", "trace": "\ud800", "value": 10**400}]
    files["wide.json"] = json.dumps({"rows": rows}).encode()
    return files


def _spec(corpus: str) -> bytes:
    """A spec whose corpus is wrong."""
    head = "length = 8\nbatch = 1\nupdates = 1\n[model]\nlayers = 1\nwidth = 8\nheads = 1\n"
    return f"{head}[corpus]\n{corpus}\n".encode()


WHOLE = ("", "x", "-1", "1e5", "nan", "1" + "0" * 30, "9" * 19, DIGITS, RAW)
"""No whole number that any option takes, or far more than there can be."""
NUMBER = ("", "x", "-1", "nan", "inf", "1e999", RAW)
WORD = ("", "x", ":", ",", "=", "a=b=c", "/", "-", LONG, RAW, "x:" + DIGITS, "x\ny")
PATHS = (
    *("", "/", ".", LONG, RAW, "a\nb", "{bad}/loop", "{bad}/loop/a", "{bad}/folder"),
    *("{bad}/empty.txt/a", "/proc/a", "{bad}/nowhere/a", "/dev/null", "/dev/full"),
)
OUTS = tuple(path for path in PATHS if path not in (RAW, "a\nb"))
"""Places that nothing can be written to; a file system takes strange names."""
TEXTS = ("empty", "blank", "nul", "not-utf8", "utf16", "bracket")
RECORDS = ("nested", "digits", "surrogate", "other", "wrong-ids", "wrong-chat")
LINES = (*RECORDS, "number", "null", "half")

RUN = ("run", "tiny/llada", "the", "--length", "2", "--probes", "none")
EFFECT = ("effect", "tiny/llada", "--prompt", "the", "--length", "2")
EVAL = ("eval", "tiny/llada", "--task", "synthetic/one-hop", "--contexts", "closed", "--limit", "1")


def _inputs() -> Iterator[BadInput]:
    for group in (_run(), _effect(), _eval(), _reading(), _showing(), _others()):
        seen = set()
        for words in group:
            if words not in seen:
                seen.add(words)
                yield words if isinstance(words, BadInput) else BadInput(tuple(words))


def _each(base: tuple[str, ...], options: tuple[str, ...], values: tuple[str, ...]) -> Iterator:
    """Every value of every option; an option that the base has is given once."""
    for option in options:
        plain = list(base)
        if option in plain:
            at = plain.index(option)
            del plain[at : at + 2]
        for value in values:
            yield (
                (*plain, f"{option}={value}")
                if option.startswith("--")
                else (
                    *plain,
                    option,
                    value,
                )
            )


def _run() -> Iterator:
    yield from _each(RUN, ("--length", "--steps", "--block", "--mask-id"), WHOLE)
    yield from _each((*RUN, "--decoding", "dream"), ("--top-k",), ("", "x", "-1", DIGITS, RAW))
    yield from _each(RUN, ("--seed",), (*WHOLE[:-1], str(2**63), RAW))
    yield from _each(RUN, ("--temperature", "--guidance"), NUMBER)
    for option in ("--eps", "--top-p", "--algorithm-temperature"):
        yield from _each((*RUN, "--decoding", "dream"), (option,), NUMBER)
    yield from _each((*RUN, "--decoding", "threshold"), ("--threshold",), NUMBER)
    yield from _each((*RUN, "--decoding", "dream"), ("--algorithm",), WORD)
    yield from _each(RUN, ("--decoding", "--probes", "--region", "--edit", "--dtype"), WORD)
    for edit in (
        *("hide-keys", "hide-keys:", "hide-keys:0-", "hide-keys:9-1", f"hide-keys:{DIGITS}"),
        *("hide-keys:0-999999999999", "hide-keys:0+x", "hide-keys:-1", "hide-keys:0,form=x"),
        *("hide-keys:0,layers=0-99999999999", "hide-keys:0,steps=0-99999999999"),
        *("hide-sinks:x", f"hide-sinks:{DIGITS}", "hide-sinks:1,rule=rulli:nan", "hide-sinks:0"),
        *("hide-sinks:999999999999", "hide-sinks:1,unedited=/", "hide-sinks:1,unedited={bad}/loop"),
        *("knock-out:1", "knock-out:1.2.3", "knock-out:.", "knock-out:0.0-999999999"),
        *("hide-keys:0,progress=1+0", "hide-keys:0,progress=nan+nan", "no-op:1", "no-op,no-op"),
        *('{"name": "hide_keys"}', '{"name":' + "[" * DEEP, "[" * DEEP, "/" * DEEP),
    ):
        yield (*RUN, f"--edit={edit}")
    for word in (
        *(f"low-confidence:steps={DIGITS}", f"low-confidence:length={'9' * 40}", "dream:eps=nan"),
        *("dream:top_k=1.5", "dream:algorithm=None", "threshold:threshold=none", "random:1,2,3,4"),
        *("left-to-right", "left-to-right:cache=maybe", "low-confidence:steps=1-2", "dream:x=1"),
    ):
        yield (*RUN[:3], f"--decoding={word}")
    yield from _each(RUN, ("-o",), OUTS)
    for model in (
        *("", ".", "/", LONG, RAW, "a\nb", "{bad}/loop", "{bad}/folder", "{bad}/empty.json"),
        *("{bad}/empty.txt/a", "tiny/", "tiny/x", "lab/x", "lab/", "{bad}/nul.txt", "/dev/null"),
        *("a/b/c/d", "../..", "~nobody/x", "-", "{bad}/bytes.png", "hub//", "a" * 200 + "/b"),
    ):
        yield ("run", model, "the")
    yield ("run", "tiny/llada", "")
    yield ("run", "tiny/llada", RAW)
    yield ("run", "tiny/llada", "the " * 30_000)
    yield ("run", "tiny/llada", "the", "--infill")
    yield (*RUN, "--chat", "--region", "a=nowhere")
    yield (*RUN, "--revision", RAW, "--decoding", "x")
    for name in ("--length", "--edit", "-o", "--nothing", "--prob"):
        yield ("run", "tiny/llada", "the", name)
    for raw in (b"", b"\xff\xfe", b"\xed\xa0\x80"):
        yield BadInput(("run", "tiny/llada", "-", "--length", "2"), raw)
    yield ("run",)
    yield ("run", "tiny/llada")
    yield ("resume", "tiny/llada")
    for path in (*PATHS, "{bad}/nul.txt", "{bad}/not-utf8.json"):
        yield ("resume", "tiny/llada", path)


def _effect() -> Iterator:
    edited = (*EFFECT, "--edit", "hide-keys:0")
    yield from _each(edited, ("--length", "--steps", "--block", "--seed", "--limit"), WHOLE[:5])
    yield from _each(edited, ("--length", "--steps", "--block", "--seed"), WHOLE[5:])
    yield from _each(edited, ("--repeats",), WHOLE)
    yield from _each(edited, ("--batch",), ("", "x", "-1", "0", "1e5", DIGITS, RAW))
    yield from _each(edited, ("--temperature",), NUMBER)
    yield from _each(edited, ("--table", "--rule", "--control"), WORD)
    for doses in ("", "x", ",", "1", "1,1", "0,-1", DIGITS, "1," + "9" * 30, "1,2," * 25_000, RAW):
        yield (*EFFECT, "--edit", "hide-sinks:1", f"--doses={doses}")
    yield (*edited, "--doses", "1,2")
    yield from _each(EFFECT, ("--edit",), WORD)
    yield from _each(edited, ("-o", "--plot"), OUTS)
    yield from _each(
        edited, ("-o", "--plot"), tuple(f"{{bad}}/nowhere/a.{s}" for s in ("csv", "png"))
    )
    yield from _each(edited, ("-o", "--plot"), ("{bad}/folder.csv", "{bad}/folder.png", "a.xyz"))
    asked = ("--edit", "hide-keys:0", "--length", "2")
    for name in (*PATHS, *(f"{{bad}}/{one}.jsonl" for one in (*TEXTS, *LINES))):
        yield ("effect", "tiny/llada", name, *asked)
    for name in ("empty", "blank", "not-utf8", "utf16"):
        yield ("effect", "tiny/llada", f"{{bad}}/{name}.txt", *asked)
    for raw in (b"", b"\n\n", b"\xff", b"\0\xff"):
        yield BadInput(("effect", "tiny/llada", "-", *asked), raw)
    yield ("effect", "tiny/llada", "--prompt", "", *asked)
    yield ("effect", "tiny/llada", "--prompt", RAW, *asked)
    yield ("effect", "tiny/llada", "{bad}/empty.txt", "--prompt", "the", *asked)


def _eval() -> Iterator:
    yield from _each(EVAL, ("--length", "--steps", "--seed", "--limit", "--batch"), WHOLE[:5])
    yield from _each(EVAL, ("--length", "--steps", "--seed"), WHOLE[5:])
    yield from _each(EVAL, ("--limit", "--batch"), (DIGITS, RAW))
    for option in ("--contexts", "--edit", "--decoding", "--template", "--probes", "--format"):
        yield from _each(EVAL, (option,), WORD)
    yield from _each(EVAL, ("--bad", "--score", "--table"), WORD)
    for context in (
        *("gold+" + "9" * 30, "gold+" + DIGITS, "open" + DIGITS, "gold@9/5", "gold@0/0", "gold~x"),
        *("gold~masks" + "9" * 30, "gold~typos999", "far+-1", "closed,closed", "gold@1/" + DIGITS),
    ):
        yield from _each(EVAL, ("--contexts",), (context,))
    names = [f"{{bad}}/{name}.{kind}" for name in (*TEXTS, *LINES) for kind in ("jsonl", "json")]
    names += [f"{{bad}}/{name}.{kind}" for name in TEXTS for kind in ("csv", "tsv", "parquet")]
    names += ["{bad}/cut.parquet", "{bad}/cut.gz", "{bad}/many-columns.csv", "{bad}/closed.txt"]
    for name in (*PATHS, *names, "synthetic/", "synthetic/x", "{bad}/folder.jsonl"):
        yield from _each(EVAL, ("--task",), (name,))
    for out in ("/dev/null", "{bad}/empty.txt", "{bad}/empty.txt/a", LONG, "{bad}/loop", "/proc/a"):
        yield (*EVAL, "-o", out)
    for model in ("", LONG, RAW, "{bad}/loop", "{bad}/folder"):
        yield ("eval", model, *EVAL[2:])
    yield ("eval", "tiny/llada")
    yield ("eval", "tiny/llada", "--stress", "--task", "x")
    harness = ("lm-eval", "--tasks", "arc_easy", "--model_args")
    for said in (
        *("", "x", "=", "pretrained=", "pretrained=tiny/llada,x=1", f"pretrained={LONG}"),
        *("pretrained=tiny/llada,passes=0", f"pretrained=tiny/llada,passes={DIGITS}"),
        *("pretrained=tiny/llada,seed=-1", "pretrained=tiny/llada,edits=x", "pretrained=/"),
        *("pretrained=tiny/llada,decoding=x", "pretrained=tiny/llada,guidance=nan", RAW),
        "pretrained=tiny/llada,method=x",
    ):
        yield (*harness, said)


def _reading() -> Iterator:
    for command in (("show",), ("verify",), ("measure", "sinks"), ("plot", "sink-map")):
        end = ("-o", "{bad}/out.png") if command[0] == "plot" else ()
        for path in (*PATHS, "{bad}/not-utf8.json", "{bad}/cut.parquet"):
            yield (*command, path, *end)
        if command != ("verify",):
            yield command
    yield from _each(("show", TRACE), ("--step",), tuple(n for n in WHOLE if n != "-1"))
    yield ("show", TRACE, "--all", "--step", "1")
    yield from _each(("measure", "sinks", TRACE), ("--rule", "--group", "--set"), WORD)
    yield from _each(("measure", "sinks", TRACE), ("--by",), WORD[1:3] + WORD[4:])
    yield from _each(("measure", "sinks", TRACE), ("-o",), OUTS)
    yield from _each(("measure", "all", TRACE), ("-o",), (LONG, "{bad}/loop", "{bad}/empty.txt"))
    for rule in (
        "rulli:" + DIGITS,
        "rulli:nan",
        "gu:2",
        "topk:0",
        "topk:-1",
        "zscore:inf",
        "topk:x",
    ):
        yield ("measure", "sinks", TRACE, f"--rule={rule}")
    for name in (*WORD, "nothing"):
        yield ("measure", name, TRACE)
        yield ("plot", name, TRACE, "-o", "{bad}/out.png")
    figure = ("plot", "sink-map", TRACE, "-o", "{bad}/out.png")
    yield from _each(figure, ("--layer", "--head", "--step"), WHOLE)
    yield from _each(figure, ("--rule", "--group", "--set"), WORD)
    yield from _each(figure, ("-o",), (*OUTS, "{bad}/folder.png", "{bad}/nowhere/a.png", "a.xyz"))
    for kind in ("png", "svg", "pdf", "json", "parquet", "csv"):
        for name in TEXTS:
            yield ("whence", f"{{bad}}/{name}.{kind}")
    for name in (
        *PATHS,
        "{bad}/bytes.png",
        "{bad}/bytes.svg",
        "{bad}/bytes.pdf",
        "{bad}/wide.json",
    ):
        yield ("whence", name)
    for name in LINES:
        yield ("whence", f"{{bad}}/{name}.json")
    yield ("whence", "{bad}/cut.parquet")
    yield ("whence", "{bad}/folder.json")


def _showing() -> Iterator:
    for path in PATHS:
        if path not in ("", "/", ".", "{bad}/folder"):  # shown as runs of which nothing is left
            yield ("view", path, "--no-open")
        yield ("export", path, "-o", "{bad}/page.html")
    for at in ("x", "step", "step=", "step=x", f"step={DIGITS}", "step=-1", "x=1", RAW, LONG):
        yield ("view", TRACE, "--no-open", f"--at={at}")
    for port in ("-1", "65536", "x", DIGITS, RAW):
        yield ("view", TRACE, "--no-open", f"--port={port}")
    tables = [f"{{bad}}/{name}.{kind}" for name in TEXTS for kind in ("json", "csv", "parquet")]
    tables += [f"{{bad}}/{name}.json" for name in LINES]
    for table in (*tables, *PATHS, "{bad}/wide.json", "{bad}/folder.csv", "{bad}/many-columns.csv"):
        yield ("export", TRACE, "-o", "{bad}/page.html", f"--table={table}")
    for layers in ("", "x", ",", "-1", "99", DIGITS, "9" * 30, RAW):
        yield ("export", TRACE, "-o", "{bad}/page.html", f"--layers={layers}")
    yield from _each(("export", TRACE), ("-o",), (*OUTS, "{bad}/folder.html", "{bad}/nowhere/a"))
    yield from _each(("export", TRACE, "-o", "{bad}/page.html"), ("--rule",), WORD)
    yield ("view",)
    yield ("export", TRACE)


def _others() -> Iterator:
    tomls = [f"{{bad}}/{name}.toml" for name in (*TEXTS, "nested", "digits", "surrogate", "list")]
    tomls += ["{bad}/nested-tables.toml", "{bad}/nested-keys.toml", "{bad}/digits-float.toml"]
    tomls += ["{bad}/nul-path.toml", "{bad}/long-path.toml", "{bad}/folder-path.toml"]
    tomls += ["{bad}/date.toml", "{bad}/nested-corpus.toml", "{bad}/folder.toml"]
    for spec in (*tomls, *PATHS):
        yield ("train", spec, "-o", "{bad}/trained")
    settings = ("x", "=", "a=", ".=1", "a..b=1", f"length={DIGITS}", f"length={'[' * DEEP}", RAW)
    settings += ("length=-1", "length=nan", "model=1", "model.layers=x", "a" + ".a" * 50_000 + "=1")
    for setting in (
        *settings,
        f"model={'{a=' * 2000}1{'}' * 2000}",
        "seed=" + "9" * 30,
        "length=1\nx",
    ):
        yield ("train", "{bad}/folder-path.toml", "-o", "{bad}/trained", f"--set={setting}")
    for out in ("", "/dev/null", "{bad}/empty.txt", "{bad}/empty.txt/a", LONG, "{bad}/loop"):
        yield ("train", "{bad}/folder-path.toml", "-o", out)
    study = ("study", "sinks/H1", "--plan", "-o", "{bad}/study")
    for kind in ("csv", "json", "parquet", "txt"):
        for name in TEXTS:
            yield (*study, f"--variants={{bad}}/{name}.{kind}")
    for name in (*PATHS, "{bad}/cut.parquet", "{bad}/many-columns.csv", "{bad}/folder.csv"):
        yield (*study, f"--variants={name}")
    yield from _each(study, ("--budget",), WORD)
    for name in WORD[1:]:
        yield ("study", name, "--plan", "-o", "{bad}/study")
    for option in ("--model", "--against", "--sink", "--gate"):
        for model in ("", LONG, RAW, "{bad}/loop", "{bad}/folder", "tiny/x"):
            yield ("study", "sinks/H1", f"{option}={model}", "-o", "{bad}/study")
    for out in ("/dev/null", "{bad}/empty.txt", "{bad}/empty.txt/a", LONG, "{bad}/loop", "/proc/a"):
        yield ("study", "sinks/H1", "-o", out)
    for source in PATHS:
        yield ("convert", source, "{bad}/converted")
    for out in OUTS:
        yield ("convert", "{bad}/folder", out)
    yield ("convert",)
    yield ("models", "x")
    yield ("doctor", "--x")
    for word in ("x", "", RAW, LONG, "--x", "-", "--"):
        yield (word,)


_ASKED = ("--edit", "hide-keys:0", "--length", "2")
_TASK = ("eval", "tiny/llada", "--contexts", "closed", "--limit", "1")
BROKE: tuple[BadInput, ...] = tuple(
    BadInput(words)
    for words in (
        ("run", "tiny/llada", "the", "--probes", "none", "--length", "1" + "0" * 30),
        ("run", "tiny/llada", "the", "--probes", "none", "--length", "9" * 18),
        ("run", "tiny/llada", "the", "--length", "2", "--steps", "9" * 18),
        ("run", "tiny/llada", "the", "--length", "4", "--steps", "1000000000"),
        ("run", "tiny/llada", "the", "--length", "1" + "0" * 30, "--block", "7"),
        ("run", "tiny/llada", "the", "--edit", "hide-keys:0-999999999999"),
        ("run", "tiny/llada", "the", "--edit", "hide-keys:0,steps=0-99999999999"),
        ("effect", "tiny/llada", "--prompt", "the", "--length", "9" * 18, *_ASKED[:2]),
        ("effect", "tiny/llada", "--prompt", "the", *_ASKED, "--repeats", "1" + "0" * 30),
        ("effect", "tiny/llada", "--prompt", "the", *_ASKED, "--repeats", "1000000000000"),
        ("effect", "tiny/llada", "{bad}/bracket.jsonl", *_ASKED),
        ("effect", "tiny/llada", "{bad}/nested.jsonl", *_ASKED),
        ("effect", "tiny/llada", "/dev/full", *_ASKED),
        (*EVAL[:4], "--contexts", "gold+" + "9" * 30, "--limit", "1"),
        (*EVAL[:4], "--contexts", "gold+" + DIGITS, "--limit", "1"),
        (*EVAL[:4], "--contexts", "closed", "--limit", "1000000000000"),
        (*_TASK, "--task", "{bad}/surrogate.jsonl"),
        ("lm-eval", "--tasks", "arc_easy", "--model_args", "pretrained=tiny/llada,passes=0"),
        ("measure", "all", TRACE, "-o", "{bad}/loop"),
        ("study", "sinks/H1", "--plan", "-o", "{bad}/study", "--variants", "{bad}/empty.csv"),
        ("train", "{bad}/nested.toml", "-o", "{bad}/trained"),
        ("train", "{bad}/wide.toml", "-o", "{bad}/trained"),
        ("train", "{bad}/folder-path.toml", "--set", "length=" + "[" * DEEP),
    )
)
"""What a traceback, a kill or no answer at all was once the answer to."""

BAD_INPUTS: tuple[BadInput, ...] = tuple(_inputs())
"""Every bad input that is made of a command, an option and a value."""
