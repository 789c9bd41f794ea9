"""lm-eval's tasks on our models: diffusion and autoregression, edited, or trained with a sink.

    lm_eval.simple_evaluate(model=aw.evaluation.Harness("tiny/llada"), tasks=["arc_easy"])
    anchorwatch lm-eval --model_args pretrained=tiny/llada,passes=64 --tasks arc_easy

The harness's own command finds no models but its own, so `lm_eval_command` registers this one and
hands over. This module imports lm_eval, which the extra `eval` brings.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import pandas as pd
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import model_registry
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from anchorwatch.edits.spec import Edit
from anchorwatch.errors import AnchorwatchWarning, PromptError, SpecError
from anchorwatch.evaluation.likelihood import Likelihood, Scoring, score
from anchorwatch.evaluation.prompt_templates import until_end
from anchorwatch.generation.decoding import Decoding, LeftToRight, LowConfidence
from anchorwatch.generation.parse import as_decoding, as_edits
from anchorwatch.generation.run import run_many, steps
from anchorwatch.models.load import find
from anchorwatch.models.load_options import DEFAULT_LOADING, LoadOptions
from anchorwatch.models.model import Model
from anchorwatch.trace.escape import one_line

NAME = "anchorwatch"
"""What --model calls us."""

_Pair = tuple[list[int], list[int]]
"""Context and continuation."""
_DEFAULT_BATCH = 8
"""Prompts that are written together where the batch size is left to us."""
_RUNS_AT_ONCE = 64
"""Prompts whose runs are held at once."""


class Harness(TemplateLM):  # type: ignore[misc]
    """One of our models as lm-eval's; every argument can be said in --model_args."""

    backend = "causal"

    def __init__(  # noqa: PLR0913 - one word of --model_args each
        self,
        pretrained: str | Model,
        *,
        decoding: str | Mapping[str, Any] | Decoding | None = None,
        edits: str | Sequence[Any] | Edit | None = None,
        method: str | None = None,
        passes: int = 128,
        guidance: float = 0.0,
        seed: int = 0,
        max_gen_toks: int = 256,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        revision: str | None = None,
        mask_id: int | None = None,
        family: str | None = None,
        device_map: str | None = None,
    ) -> None:
        """
        Args:
            pretrained: a folder, a hub id, tiny/llada, or a model that is loaded.
            decoding: how answers are written: `low-confidence:steps=32:block=8`; without a length
                it writes as many positions as the task asks. Given, it also decides temperature.
            edits: what to change inside attention, `hide-sinks:1:detect=same_shadow`; several with
                / between them.
            method: of `loglikelihood`, as are passes, guidance and seed.
            max_gen_toks: positions to write where a task does not say.
            batch_size: rows of a forward pass; no answer depends on it. "auto" leaves it to us.
            max_batch_size: taken, since the harness gives it, and not needed.
        """
        super().__init__()
        self._decoding, self.edits = as_decoding(decoding), as_edits(edits)
        self.scoring = Scoring(method, passes, float(guidance), seed, self.edits)
        self.max_gen_toks, self.batch_size = max_gen_toks, _parse_batch(batch_size)
        if isinstance(pretrained, Model):
            if any(option is not None for option in (dtype, revision, mask_id, family)):
                raise SpecError(
                    "a loaded model has its dtype, revision, mask_id and family: leave them out"
                )
            self.model = pretrained
        else:
            target = None if device == "auto" else device
            self.model = LoadOptions(
                revision=revision,
                dtype=dtype,
                device=target,
                device_map=device_map,
                mask_id=mask_id,
                family=family,
            ).load(pretrained)
        if self.model.tokenizer is None:
            raise SpecError(f"{self.model.source} has no tokenizer, and tasks are text")
        self.tokenizer = self.model.tokenizer
        self._closing = _num_closing_tokens(self.tokenizer)
        self.seen: Counter[str] = Counter()
        """Requests scored, written, cut to fit, and decisions by a margin under 1e-5."""
        self._squares = 0.0

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> Harness:
        """As the harness makes it; an argument we do not know is named."""
        more = {k: v for k, v in (additional_config or {}).items() if v is not None}
        return cls(**cls.check_arguments(dict(arg_dict) | more))

    @classmethod
    def check_arguments(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Words of --model_args, decoding and edits as values; refuses before anything loads."""
        known = list(inspect.signature(cls).parameters)
        if wrong := sorted(set(given) - set(known)):
            raise SpecError(f"--model_args has no {', '.join(wrong)}: it takes {', '.join(known)}")
        if "pretrained" not in given:
            raise SpecError("--model_args names no model: say pretrained=tiny/llada, or a folder")
        how = {
            "decoding": as_decoding(given.get("decoding")),
            "edits": as_edits(given.get("edits")),
        }
        named = ("method", "passes", "guidance", "seed")
        Scoring(**{name: given[name] for name in named if name in given})
        if isinstance(given["pretrained"], str):
            find(given["pretrained"], given.get("revision"))
        return dict(given) | how

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: Mapping[str, Any] | None = None
    ) -> Harness:
        """The same from `key=value,key=value`."""
        from lm_eval.utils import simple_parse_args_string

        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @property
    def eot_token_id(self) -> int:
        return next(iter(self.model.specials.eos_ids), self.prefix_token_id)

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that has nothing before it."""
        specials = self.model.specials
        if specials.bos_id is None and not specials.eos_ids:
            raise SpecError(f"{self.model.source} names no start or end token to begin a text with")
        return specials.eos_ids[0] if specials.bos_id is None else specials.bos_id

    @property
    def max_length(self) -> int:
        """Tokens after the first that a pass can score; autoregression never reads the last."""
        return self.model.num_positions - (self.model.family.kind == "mdm")

    @property
    def tokenizer_name(self) -> str:
        return self.model.source.replace("/", "__")

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Messages as text; what it begins with is not put there a second time by `tok_encode`."""
        if not self.tokenizer.chat_template:
            raise PromptError(
                f"{self.model.source} has no chat template: leave --apply_chat_template out"
            )
        text = self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        return str(text)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None) -> list[int]:
        """Ids of a text: a start token once, and nothing after the last word."""
        start = self.tokenizer.bos_token
        if add_special_tokens is None:
            add_special_tokens = not (start and string.startswith(start))
        ids = self.tokenizer(string, add_special_tokens=add_special_tokens)["input_ids"]
        return list(ids[: len(ids) - self._closing] if add_special_tokens else ids)

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Whole texts, in windows where they are longer than the model."""
        windows, owners = [], []
        for index, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            if tokens[:1] == [self.prefix_token_id]:  # the window brings it
                tokens = tokens[1:]
            for window in get_rolling_token_windows(
                tokens, self.prefix_token_id, self.max_length, context_len=1
            ):
                windows.append(make_disjoint_window(window))
                owners.append(index)
        totals = [0.0] * len(requests)
        for index, likelihood in zip(
            owners, self._score_pairs(self._cut_to_fit(windows)), strict=True
        ):
            totals[index] += likelihood.value
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers up to the first stop string, in the order of the requests."""
        parsed = [self._parse_request(*request.args) for request in requests]
        times: Counter[tuple[int, ...]] = Counter()
        seeds = []
        for ids, _, _ in parsed:  # a prompt that is asked again is answered by other chances
            seeds.append(request_seed(self.scoring.seed, ids, times[tuple(ids)]))
            times[tuple(ids)] += 1
        written: dict[int, str] = {}
        for decoding in dict.fromkeys(how for _, how, _ in parsed):
            mine = [i for i, (_, how, _) in enumerate(parsed) if how == decoding]
            mine.sort(key=lambda i: -len(parsed[i][0]))
            for start in range(0, len(mine), _RUNS_AT_ONCE):
                group = mine[start : start + _RUNS_AT_ONCE]
                prompts, chances = [parsed[i][0] for i in group], [seeds[i] for i in group]
                texts = self._write_answers(prompts, decoding, chances)
                written |= dict(zip(group, texts, strict=True))
        answers = [cut_at_stops(written[i], stops) for i, (_, _, stops) in enumerate(parsed)]
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, answer)
        return answers

    def get_model_info(self) -> dict[str, Any]:
        """What the harness keeps beside its results."""
        decoding = None if self._decoding is None else self._decoding.as_dict()
        return {
            "anchorwatch_model": self.model.describe(),
            "anchorwatch_scoring": {
                name: getattr(self.scoring, name)
                for name in ("method", "passes", "guidance", "seed")
            },
            "anchorwatch_decoding": decoding,
            "anchorwatch_edits": [edit.as_dict() for edit in self.edits],
            "anchorwatch_seen": dict(self.seen),
            "anchorwatch_standard_error": (self._squares / max(self.seen["scored"], 1)) ** 0.5,
        }

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
    ) -> list[tuple[float, bool]]:
        """(log-likelihood, whether the model would write it) of each continuation."""
        pairs = self._cut_to_fit((context, continuation) for _, context, continuation in requests)
        answers = []
        for request, pair, likelihood in zip(
            requests, pairs, self._score_pairs(pairs), strict=True
        ):
            answer = likelihood.value, self._is_greedy(pair, likelihood)
            answers.append(answer)
            self.cache_hook.add_partial("loglikelihood", request[0], answer)
        return answers

    def _cut_to_fit(self, pairs: Iterable[_Pair]) -> list[_Pair]:
        """What is too long loses its beginning, which is counted and said; one token stays before.

        So a continuation that is longer than the model loses its own beginning too.
        """
        room, kept, cut = self.max_length + 1, [], 0
        for context, continuation in pairs:
            over = max(0, len(context) + len(continuation) - room)
            cut += over > 0
            kept.append((context[min(over, len(context) - 1) :], continuation[1 - room :]))
        self._warn_cut(cut, len(kept))
        return kept

    def _score_pairs(self, pairs: Sequence[_Pair]) -> list[Likelihood]:
        """Likelihoods of what fits."""
        self.seen["scored"] += len(pairs)
        likelihoods = score(self.model, pairs, self.scoring, self.batch_size)
        self._squares += sum(likelihood.standard_error**2 for likelihood in likelihoods)
        return likelihoods

    def _is_greedy(self, pair: _Pair, likelihood: Likelihood) -> bool:
        """Whether greedy writing, the surest position first, gives this very answer.

        Where the model writes in blocks they are whole: what stands after the answer is not asked.
        """
        if likelihood.greedy is not None:
            return likelihood.greedy
        context, answer = pair
        block = self.model.block or len(answer)
        how = self._default_decoding(-(-len(answer) // block) * block)
        context = context[max(0, len(context) + int(how.length or 0) - self.model.num_positions) :]
        wanted = dict(enumerate(answer, start=len(context)))
        for step in steps(self.model, context, how, edits=self.edits, seed=self.scoring.seed):
            for position, token in zip(step.positions.tolist(), step.tokens.tolist(), strict=True):
                if wanted.pop(position, token) != token:
                    return False
            if not wanted:
                break
        return not wanted

    def _parse_request(
        self, context: str, given: Mapping[str, Any]
    ) -> tuple[list[int], Decoding, tuple[str, ...]]:
        """A request as prompt ids, decoding and stop strings."""
        fields = dict(normalize_gen_kwargs(dict(given), self.max_gen_toks))
        stops, length = fields.pop("until"), fields.pop("max_gen_toks")
        decoding = choose_decoding(self._decoding, self._default_decoding(length), fields)
        length = int(decoding.length or length)
        ids = self.tok_encode(context) if context else [self.prefix_token_id]
        room = self.model.num_positions - length
        if room < 1:
            raise SpecError(
                f"the task writes {length} positions and {self.model.source} was made for "
                f"{self.model.num_positions}: say --gen_kwargs max_gen_toks=64, or "
                "decoding=...:length=64"
            )
        self._warn_cut(int(len(ids) > room), 1)
        return ids[-room:], decoding, tuple(stop for stop in stops if stop)

    def _default_decoding(self, length: int) -> Decoding:
        """What the model writes by where it was not told."""
        if self.model.family.kind == "arm":
            return LeftToRight(length)
        return LowConfidence(length, block=self.model.block, guidance=self.scoring.guidance)

    def _write_answers(
        self, prompts: list[list[int]], decoding: Decoding, seeds: list[int]
    ) -> list[str]:
        """Answers as text, each up to its first end token."""
        arm = self.model.family.kind == "arm"
        ends = self.model.specials.eos_ids if arm else self.model.specials.end_ids
        size, edits = self.batch_size or _DEFAULT_BATCH, self.edits
        traces = run_many(
            self.model, prompts, decoding, probes=(), edits=edits, seed=seeds, batch=size
        )
        texts = []
        for prompt, trace in zip(prompts, traces, strict=True):
            ids = until_end(trace.canvas[-1][len(prompt) :].tolist(), ends, mask_id=None)
            texts.append(self.model.decode(ids))
            self.seen["narrow"] += int(trace["narrow"].sum())
        self.seen["written"] += len(texts)
        return texts

    def _warn_cut(self, cut: int, of: int) -> None:
        if not cut:
            return
        self.seen["cut"] += cut
        warnings.warn(
            f"{cut} of {of} requests lost their beginning: {self.model.source} was made for "
            f"{self.model.num_positions} positions",
            AnchorwatchWarning,
            stacklevel=3,
        )


def register() -> None:
    """Make `anchorwatch` a model of the harness in this process. Idempotent."""
    import lm_eval.models  # noqa: F401 - it fills the registry, and only where that is empty

    model_registry.register(NAME, target=Harness)


def lm_eval_command(words: Sequence[str], loading: LoadOptions = DEFAULT_LOADING) -> None:
    """lm-eval's own command, told of our model; all words are its own.

    `loading` goes into its --model_args and --device. Without `--model`, `--batch_size` and
    `--device` these are ours: it would take hf, 1 and cuda:0.
    """
    from lm_eval._cli import HarnessCLI
    from lm_eval.utils import setup_logging

    register()
    words = _add_load_options(list(words), loading)
    if words[:1] not in (["ls"], ["validate"]):
        words = words[1:] if words[:1] == ["run"] else words
        own = {("--model", "-M"): NAME, ("--batch_size", "-b"): "auto", ("--device",): "auto"}
        for spelled, value in own.items():
            if not any(word.partition("=")[0] in spelled for word in words):
                words += [spelled[0], value]
        words = ["run", *words]
    before, sys.argv = sys.argv, ["lm-eval", *words]  # the harness reads nothing else
    try:
        setup_logging()
        harness = HarnessCLI()
        read = harness.parse_args()
        ours = getattr(read, "model", None) == NAME
        if ours and (read.model_args or not getattr(read, "config", None)):
            Harness.check_arguments(read.model_args or {})
        harness.execute(read)
    finally:
        sys.argv = before


def _add_load_options(words: list[str], loading: LoadOptions) -> list[str]:
    """The harness's words with --device, and all else that is said of loading in --model_args."""
    given = {name: str(value) for name, value in loading.as_keywords().items()}
    device = given.pop("device", None)
    more = [] if device is None else ["--device", device]
    if not given:
        return words + more
    spelled = [f"{name}={value}" for name, value in given.items()]
    for index, word in enumerate(words):
        option, equals, _ = word.partition("=")
        if option in ("--model_args", "-a") and equals:
            words[index] = ",".join([word, *spelled])
        elif option in ("--model_args", "-a"):  # it takes several words
            words[index + 1 : index + 1] = spelled
        else:
            continue
        return words + more
    return [*words, "--model_args", *spelled, *more]


def harness_rows(
    lm: Harness,
    tasks: Sequence[str],
    *,
    folder: str | None = None,
    limit: int | None = None,
    run_code: bool = False,
) -> pd.DataFrame:
    """Run tasks of lm-eval, and give the value of every item: task, metric, item, value.

    A metric of a task with several filters is named with them (`exact_match,flexible-extract`).
    `folder` has tasks of your own, as the harness's --include_path. `run_code` lets tasks such as
    HumanEval run the code that the model wrote, in a process of its own with a time limit, which is
    no sandbox: do that in a container only. The metric asks for HF_ALLOW_CODE_EVAL=1 as well.
    """
    import lm_eval

    try:
        found = lm_eval.simple_evaluate(
            model=lm,
            tasks=list(tasks),
            task_manager=_find_manager(folder, tuple(tasks)),
            limit=limit,
            log_samples=True,
            bootstrap_iters=0,
            confirm_run_unsafe_code=run_code,
        )
    except (ConnectionError, FileNotFoundError) as error:
        raise SpecError(
            f"lm-eval cannot read the data of {', '.join(tasks)} ({one_line(str(error))[:120]}): "
            "run it once where the hub can be reached, or name a folder of tasks with local data"
        ) from None
    except ValueError as error:
        if not any(word in str(error) for word in _UNSAFE):
            raise
        raise SpecError(
            f"{', '.join(tasks)}: a task runs code that the model wrote. Where that is safe, in a "
            "container, say --run-code (run_code=True) and set HF_ALLOW_CODE_EVAL=1"
        ) from None
    rows = []
    for task, samples in found["samples"].items():
        several = len({sample.get("filter", "none") for sample in samples}) > 1
        for sample in samples:
            for metric in sample["metrics"]:
                name = f"{metric},{sample['filter']}" if several else metric
                rows.append((task, name, str(sample["doc_id"]), float(sample[metric])))
    return pd.DataFrame(rows, columns=["task", "metric", "item", "value"])


_UNSAFE = ("marked as unsafe", "HF_ALLOW_CODE_EVAL")
"""What the harness and the metric of HumanEval say where code may not be run."""


@cache
def _find_manager(folder: str | None, tasks: tuple[str, ...]) -> Any:
    """Where the harness finds tasks: the folder alone where it has them all.

    Reading the harness's own 14,000 task files takes half a minute, so it is done once.
    """
    from lm_eval.tasks import TaskManager

    if folder is not None:
        own = TaskManager(include_path=folder, include_defaults=False)
        if set(tasks) <= set(own.all_tasks):
            return own
    return TaskManager(include_path=folder)


def _parse_batch(size: int | str | None) -> int | None:
    """Rows of a pass; None leaves it to us."""
    if size is None or str(size).startswith("auto"):
        return None
    if not str(size).isdigit() or int(size) < 1:
        raise SpecError(f"batch_size={size!r} is not a whole number of at least 1, or auto")
    return int(size)


def _num_closing_tokens(tokenizer: Any) -> int:
    """Special tokens that a tokenizer puts after a text."""
    whole, plain = (list(tokenizer("a", add_special_tokens=s)["input_ids"]) for s in (True, False))
    return next(
        len(whole) - start - len(plain)
        for start in range(len(whole))
        if whole[start : start + len(plain)] == plain
    )


_SAMPLING = ("temperature", "top_p", "top_k")
_NEUTRAL = {"num_beams": 1, "repetition_penalty": 1.0, "num_return_sequences": 1}
"""What tasks say that changes nothing, by the value that does not."""


def choose_decoding(
    given: Decoding | None, own: Decoding, wanted_fields: Mapping[str, Any]
) -> Decoding:
    """How to answer a task that asks for some generation settings.

    A decoding that was given decides all but a length it leaves open; else it is the model's own,
    with the task's temperature and its kin where the task wants samples.
    """
    fields = dict(wanted_fields)
    sampled = fields.pop("do_sample", False)
    wanted = {name: fields.pop(name) for name in _SAMPLING if name in fields}
    odd = {k: v for k, v in fields.items() if v is not None and _NEUTRAL.get(k) != v}
    if odd:
        words = ", ".join(f"{name}={value!r}" for name, value in odd.items())
        raise SpecError(f"the task asks for {words}, which no decoding has: leave it out")
    if given is not None:
        length = own.length if given.length is None else given.length
        return dataclasses.replace(given, length=length)
    chance = {k: v for k, v in wanted.items() if sampled and v is not None}
    if lacks := sorted(set(chance) - {field.name for field in dataclasses.fields(own)}):
        raise SpecError(
            f"the task asks for {', '.join(lacks)}, which {type(own).__name__} has not: "
            "say decoding=dream:temperature=0.2:top_p=0.9, or --gen_kwargs do_sample=False"
        )
    return dataclasses.replace(own, **chance)


def request_seed(seed: int, ids: Sequence[int], time: int) -> int:
    """A seed of its own for each prompt and each time it is asked, wherever it stands."""
    digest = hashlib.sha256(repr((seed, list(ids), time)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def cut_at_stops(text: str, stops: Iterable[str]) -> str:
    """The text before the first of the stops."""
    for stop in stops:
        text = text.partition(stop)[0]
    return text
