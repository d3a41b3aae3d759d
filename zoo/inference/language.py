"""A trained language model: generates texts and scores them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor

from zoo.data.conversation import Conversation, Turn, chat_tokens, has_chat_template
from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError
from zoo.inference.decoding_rules import GenerationRules, Ruled, Stopping, cut_at_stop
from zoo.inference.find_run import ORIGIN, ModelLocation
from zoo.inference.rebuild_task import TaskNetwork
from zoo.inference.trained_model import Gap, GeneratedText, Score, Trained, as_list
from zoo.models.decoding_state import State
from zoo.models.generation import GenerationConfig, generate, independent_search
from zoo.models.speculation import Draft, DraftModel, PromptLookup, check_state, generate_speculatively

if TYPE_CHECKING:
    from zoo.tasks.task import Task

log = logging.getLogger(__name__)

Prompt = str | Gap | Conversation
LOOKUP = "lookup"
LENGTH = 128  # generated tokens by default
ANSWER = 64  # tokens of an answer by default
ROWS = 64  # prompts per batch
TAIL = 16  # tokens of a prompt
NUMBERS = 2**24  # logits per batch while scoring: 128 MB


class TrainedLanguageModel(Trained):
    """A language model with its tokenizer."""

    files = ("tokenizer.json",)
    explained_inputs = "zoo.explain.inside:language_inputs"
    warned_of_length = False  # a warning is said once
    draft: TrainedLanguageModel | str | None = None  # what guesses tokens in speculative decoding

    def __init__(self, task: Task | TaskNetwork, place: ModelLocation) -> None:
        super().__init__(task, place)
        self.tokenizer = Tokenizer.load(place.file("tokenizer.json"))
        self.check_entries("vocab_size", self.tokenizer.vocab_size, "tokenizer.json")
        self.rules = GenerationRules.of_config(place.config)
        own = [] if self.tokenizer.eos is None else [self.tokenizer.eos]
        self.ends = own if self.rules is None else self.rules.ends

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        length: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = 1,
        beams: int = 1,
        length_penalty: float = 1.0,
        n_best: int = 1,
        stop: str | Sequence[str] = (),
    ) -> list[GeneratedText]:
        """Continue prompts by at most ``length`` tokens; ``n_best`` texts for each, best first, without the prompt.

        ``length`` defaults to 128, or to what the model's positions allow. ``temperature`` defaults to 0.8, and to 0
        with beams; 0 is greedy. An empty prompt starts a new document, if the tokenizer has <eos>. A text ends before
        the first ``stop`` string, whose tokens count in the score. For a Gap a model of task FIM generates what stands
        between its prefix and its suffix. Raises UsageError for more tokens than the model has positions, for an empty
        prompt without <eos>, and for a Gap where the model cannot fill in.
        """
        texts = [prompts] if isinstance(prompts, (str, Gap, Conversation)) else list(prompts)
        default_temperature = 0.8 if beams == 1 else 0.0
        if length is None:
            room = (
                LENGTH
                if self.limit is None
                else self.limit + 1 - max((len(self.encode_prompt(text)) for text in texts), default=0)
            )
            length = max(1, min(LENGTH, room))
        search = GenerationConfig(
            max_length=length, temperature=default_temperature if temperature is None else temperature,
            top_k=top_k, top_p=top_p, seed=seed, beams=beams, length_penalty=length_penalty, n_best=n_best,
        )  # fmt: skip
        return [text for candidates in self.candidates(texts, search, as_list(stop)) for text in candidates]

    @property
    def abilities(self) -> list[str]:
        """Those of the class; ``chat`` where the tokenizer has a chat template."""
        return [ability for ability in super().abilities if ability != "chat" or has_chat_template(self.tokenizer)]

    def chat(
        self,
        turns: Sequence[Turn],
        *,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = 1,
    ) -> GeneratedText:
        """The assistant's answer of at most ``max_tokens`` tokens to the user's last turn.

        Turns that do not fit into the model's max_length together with the answer are left out, the oldest first.
        ``max_tokens`` defaults to 64, or half of max_length where that is less. Temperature 0 is greedy. Raises
        UsageError for a model that was not trained on dialogues, and where the last turn is not the user's or does not
        fit alone.
        """
        self.require_chat()
        recent = Conversation(turns)
        if not recent or recent[-1].role != "user":
            raise UsageError("the last turn must be the user's: the assistant answers it.")
        length = min(ANSWER, self.net.max_length // 2) if max_tokens is None else max_tokens
        while len(recent) > 1 and len(self.encode_prompt(recent)) + length - 1 > self.net.max_length:
            following = next(place for place, turn in enumerate(recent) if place and turn.role == "user")
            recent = Conversation(recent[following:])
        (answer,) = self.generate(recent, length=length, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        return answer

    def require_chat(self) -> None:
        """Raise UsageError for a model that was not trained on dialogues."""
        if not has_chat_template(self.tokenizer):
            raise UsageError(
                f"{self.place.folder} was not trained on dialogues: its tokenizer has no <user> and <assistant>.\n"
                "Train one that was: zoo fit dialogue-tiny"
            )

    def speculate(self, draft: TrainedLanguageModel | str | None) -> None:
        """Generate speculatively from now on: a draft guesses tokens, of which the model verifies several in one step.

        ``draft`` is a model with the same tokenizer, "lookup", which guesses that a text goes on as where its last
        tokens stood before, or None. Greedy texts and the distribution of samples are those without. Raises
        UsageError for a draft with another tokenizer and for a model that cannot be decoded so, as after ``quantise``.
        """
        if isinstance(draft, str) and draft != LOOKUP:
            raise UsageError(f"speculate={draft!r}: give {LOOKUP!r}, or a language model with the same tokenizer.")
        if draft is not None and self.rounded:
            raise UsageError(
                "speculation does not go with 8-bit matrices (--int8): they round tokens that are read together by one "
                "scale, so that texts would depend on the guesses."
            )
        if draft is not None and self.rules is not None and self.rules.change_logits:
            raise UsageError(
                f"{self.place.folder} has rules of generation (in config.json, or {ORIGIN}) that speculation does not "
                "obey: leave --speculate out, or delete the rules."
            )
        check_state(self.net.begin(1), f"the model of {self.place.folder}")
        if isinstance(draft, TrainedLanguageModel):
            check_state(draft.net.begin(1), f"the draft {draft.place.folder}")
            same = draft.tokenizer.to_json() == self.tokenizer.to_json()
            if not same or draft.net.vocab_size != self.net.vocab_size:
                raise UsageError(
                    f"the draft {draft.place.folder} has another tokenizer than {self.place.folder}: its tokens mean "
                    "something else. Use a draft trained on the same data."
                )
        elif draft is not None and draft != LOOKUP:
            raise UsageError(f"{type(draft).__name__} cannot be a draft: use a language model, or {LOOKUP!r}.")
        self.draft = draft

    def candidates(
        self, prompts: Sequence[Prompt], search: GenerationConfig, stops: Sequence[str] = ()
    ) -> list[list[GeneratedText]]:
        """The ``search.n_best`` texts of each prompt, best first. Raises UsageError as `generate` does."""
        if any(not stop for stop in stops):
            raise UsageError("a stop string is empty: it would end every text before it begins.")
        ids = [self.encode_prompt(prompt) for prompt in prompts]
        for tokens in ids:
            self._check_length(len(tokens), search.max_length)
        longest = max(map(len, ids), default=0)
        if longest > self.net.max_length and not self.warned_of_length:
            log.warning(
                "a prompt has %d tokens, and the model was trained with at most %d: what follows may be poor",
                longest, self.net.max_length,
            )  # fmt: skip
            self.warned_of_length = True
        if self.draft is not None:
            return [
                [self._generate_speculatively(tokens, independent_search(search, number), stops)]
                for number, tokens in enumerate(ids)
            ]
        candidates: list[list[GeneratedText]] = [[] for _ in ids]
        for number, rows in enumerate(self._batches([len(row) for row in ids])):
            own = independent_search(search, number)
            for row, texts in zip(rows, self._generate([ids[row] for row in rows], own, stops), strict=True):
                candidates[row] = texts
        return candidates

    @property
    def limit(self) -> int | None:
        """The number of tokens that the model can read; None if its positions are unlimited."""
        position = getattr(getattr(self.net, "stack", None), "position", None)
        return getattr(position, "limit", None)

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt in the template of its tokenizer; for an empty one what starts a document.

        Raises UsageError for a Gap.
        """
        if isinstance(prompt, Conversation):
            return chat_tokens(self.tokenizer, prompt)[0]
        if isinstance(prompt, Gap):
            name = self.task_name
            raise UsageError(
                f"{self.place.folder} is a {name}, which continues a text: it was not trained to fill in before a "
                "suffix, as --model FIM is."
            )
        ids = self.tokenizer.framed(self.tokenizer.encode(prompt)) or self.tokenizer.beginning()
        if not ids:
            raise UsageError("the prompt is empty, and this tokenizer has no <eos> to start from. Give a prompt.")
        return ids

    def _check_length(self, prompt: int, length: int) -> None:
        """Raise UsageError for more tokens than the model has positions; the last token is never an input."""
        limit = self.limit
        if limit is None or prompt + length - 1 <= limit:
            return
        room = limit + 1 - prompt
        hint = f"Generate at most {room} (length)" if room > 0 else f"Shorten the prompt to {limit} tokens"
        raise UsageError(
            f"the prompt has {prompt} tokens and {length} more are to be generated, but position "
            f"{type(self.net.stack.position).__name__} ends at max_length={limit}.\n"
            f"{hint}, or train with RoPE, ALiBi, T5 or Sinusoidal, or a larger max_length."
        )

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Rows that are generated together: of similar length, or equal length if an attention takes no padding."""
        stack = getattr(self.net, "stack", None)
        padded = stack is not None and not any(a.unsupported(frozenset({"valid"})) for a in stack.attentions())
        batch: list[int] = []
        for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
            if batch and (len(batch) == ROWS or not (padded or lengths[row] == lengths[batch[0]])):
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch

    @torch.no_grad()
    def _generate(
        self, ids: list[list[int]], search: GenerationConfig, stops: Sequence[str]
    ) -> list[list[GeneratedText]]:
        width = max(map(len, ids))
        prompt_ids = torch.tensor([[0] * (width - len(row)) + row for row in ids], device=self.device)
        valid: Tensor | None = None
        if min(map(len, ids)) < width:
            places, lengths = torch.arange(width), torch.tensor([len(row) for row in ids])
            valid = (places >= (width - lengths)[:, None]).to(self.device)
        state: State = self.net.begin(width + search.max_length, valid)
        ends = self.ends
        if self.rules is not None and self.rules.change_logits:
            state = Ruled(state, ids, self.rules, [search.max_length] * len(ids), search.beams)
        if stops:
            ends = ends or [self.net.vocab_size]
            state = Stopping(state, list(map(self._tail, ids)), self.tokenizer.continuation, stops, ends[0])
        hypotheses = generate(state, prompt_ids, ends, search)
        return [
            [self._text(prompt, *hypothesis, stops) for hypothesis in candidates]
            for prompt, candidates in zip(ids, hypotheses, strict=True)
        ]

    def _tail(self, prompt: list[int]) -> list[int]:
        """The end of a prompt, after which tokens are read as the same text as after the whole."""
        tail = prompt[-TAIL:]
        return tail if self.tokenizer.decode(tail) else prompt

    def _generate_speculatively(
        self, tokens: list[int], search: GenerationConfig, stops: Sequence[str]
    ) -> GeneratedText:
        capacity = len(tokens) + search.max_length
        draft: Draft = PromptLookup()
        if isinstance(self.draft, TrainedLanguageModel):
            draft = DraftModel(self.draft.net.begin(capacity), search, self.draft.limit)
        tail = self._tail(tokens)

        def is_stopped(generated: list[int]) -> bool:
            return bool(stops) and cut_at_stop(text := self.tokenizer.continuation(tail, generated), stops) != text

        state = self.net.begin(capacity)
        hypothesis = generate_speculatively(state, tokens, self.ends, search, draft, is_stopped)
        return self._text(tokens, *hypothesis, stops)

    def _text(
        self, prompt: list[int], tokens: list[int], score: float, ended: bool, stops: Sequence[str]
    ) -> GeneratedText:
        whole = self.tokenizer.continuation(prompt, tokens)
        text = cut_at_stop(whole, stops)
        return GeneratedText(text, score, ended or text != whole)

    @overload
    def score(self, text: str, context: str = "") -> Score: ...

    @overload
    def score(self, text: list[str], context: str = "") -> list[Score]: ...

    def score(self, text: str | list[str], context: str = "") -> Score | list[Score]:
        """The log-probability of a text, conditioned on ``context``.

        A document begins after the special tokens of a published tokenizer, or else after <eos> if the tokenizer has
        it; otherwise the first token is not scored. Texts longer than the model's max_length are read in windows of
        that length, as in evaluation. Context and text are tokenized together, and the tokens behind those of the
        context alone are scored, as lm-eval does; with a published tokenizer also the spaces that the context ends
        with. A text that merges with its context, so that no token is left, is tokenized alone. If tokenization of
        a + b is that of a and b, then score(a + b) = score(a) + score(b, context=a).
        """
        scores = self._score(as_list(text), context)
        return scores[0] if isinstance(text, str) else scores

    def _context_and_text(self, context: str, text: str) -> tuple[list[int], list[int]]:
        """The tokens that a text is conditioned on, and those that are scored."""
        tokenizer = self.tokenizer
        before, behind = tokenizer.template
        visible = context.rstrip() if tokenizer.published else context
        if not before and not (visible and tokenizer.published):
            before = tokenizer.beginning()
        ids = tokenizer.encode(visible)
        scored = tokenizer.encode(context + text)[len(ids) :] or tokenizer.encode_rest(text)
        return [*before, *ids], [*scored, *behind]

    @torch.no_grad()
    def _score(self, texts: list[str], context: str) -> list[Score]:
        long, sums = self.net.max_length, [[0.0, 0] for _ in texts]
        sizes = [len(text.encode()) for text in texts]
        windows: dict[int, list[tuple[int, Tensor, int]]] = {}
        for row, text in enumerate(texts):
            lead, scored = self._context_and_text(context, text)
            if not lead and scored:  # the first token is not scored
                sizes[row] -= int(self.tokenizer.byte_lengths()[scored[0]])
            ids = torch.tensor([*lead, *scored])
            for start in range(0, len(ids) - 1, long):
                window = ids[start : start + long + 1]
                skip = max(0, len(lead) - 1 - start)  # targets that belong to the context
                if skip < len(window) - 1:
                    windows.setdefault(len(window), []).append((row, window, skip))
        for size, members in windows.items():
            rows = max(1, NUMBERS // (size * self.net.vocab_size))
            for begin in range(0, len(members), rows):
                part = members[begin : begin + rows]
                tokens = torch.stack([window for _, window, _ in part])
                log_probs = self.log_probabilities(tokens)
                for (row, _, skip), gained in zip(part, log_probs, strict=True):
                    sums[row][0] += float(gained[skip:].sum())
                    sums[row][1] += len(gained) - skip
        return [Score(float(total), int(count), size) for (total, count), size in zip(sums, sizes, strict=True)]

    @torch.no_grad()
    def log_probabilities(self, tokens: Tensor) -> Tensor:
        """log p(t_i | t_1 … t_i-1) of tokens (B, T), without the first: (B, T - 1) in float64, on the CPU."""
        tokens = tokens.to(self.device)
        log_probs = self.require_finite(self.net(tokens[:, :-1]).double().log_softmax(-1))
        return log_probs.gather(2, tokens[:, 1:, None])[:, :, 0].cpu()
