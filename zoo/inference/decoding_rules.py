"""States that change the logits of another: stop strings, and the rules of generation of a published model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError
from zoo.inference.find_run import ORIGIN
from zoo.io import atomic_files
from zoo.models.decoding_state import State


class Watching:
    """A decoding state that knows each row's prompt and what was generated since; a subclass changes the logits.

    ``scores`` says that these are log-probabilities from then on, whatever their sum.
    """

    def __init__(self, state: State, prompts: Sequence[Sequence[int]]) -> None:
        self.state, self.prompts = state, [list(prompt) for prompt in prompts]
        self.scores: bool = getattr(state, "scores", False)
        self.generated: list[list[int]] | None = None

    def step(self, tokens: Tensor) -> Tensor:
        """Logits (B, V) after tokens (B, T), changed."""
        logits = self.state.step(tokens)
        if self.generated is None:  # the prompt
            self.generated = [[] for _ in tokens]
        else:
            for row, token in zip(self.generated, tokens[:, -1].tolist(), strict=True):
                row.append(token)
        return self.change(logits, self.generated)

    def change(self, logits: Tensor, generated: list[list[int]]) -> Tensor:
        """Logits (B, V) after what was generated."""
        raise NotImplementedError

    def select(self, rows: Tensor) -> None:
        """Keep the sequences ``rows`` (B,), in this order."""
        places = rows.tolist()
        self.prompts = [self.prompts[row] for row in places]
        if self.generated is not None:
            self.generated = [list(self.generated[row]) for row in places]
        self.state.select(rows)


class Stopping(Watching):
    """A decoding state in which a sequence that contains a stop string can only continue with ``end``.

    ``end`` may be the vocabulary size, a token that the model itself never generates. ``read`` gives the text that
    tokens add to a prompt.
    """

    def __init__(
        self,
        state: State,
        prompts: Sequence[Sequence[int]],
        read: Callable[[Sequence[int], Sequence[int]], str],
        stops: Sequence[str],
        end: int,
    ) -> None:
        super().__init__(state, prompts)
        self.read, self.stops, self.end = read, stops, end

    def change(self, logits: Tensor, generated: list[list[int]]) -> Tensor:
        """The logits, or (B, V + 1) if ``end`` is V."""
        if self.end == logits.size(-1):
            logits = F.pad(logits, (0, 1), value=float("-inf"))
        texts = (self.read(prompt, row) for prompt, row in zip(self.prompts, generated, strict=True))
        mask = torch.tensor([any(stop in text for stop in self.stops) for text in texts], device=logits.device)
        only = torch.full_like(logits, float("-inf"))
        only[:, self.end] = 0.0
        return torch.where(mask[:, None], only, logits)


@dataclass(frozen=True)
class GenerationRules:
    """What the files of a published model say about every text that it writes, by their names in transformers.

    Numbers of tokens; lengths count tokens, those of the prompt too in ``min_length``.
    """

    eos_token_id: Any = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: Any = None
    suppress_tokens: Sequence[int] = ()
    begin_suppress_tokens: Sequence[int] = ()
    bad_words_ids: Sequence[Sequence[int]] = ()
    min_length: int = 0
    min_new_tokens: int = 0
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    renormalize_logits: bool = False

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> GenerationRules | None:
        """The rules in the configuration of an import, or of a run that began with it; None elsewhere."""
        content = config.get("generation")
        return None if content is None else cls(**{key: content[key] for key in cls.__annotations__ if key in content})

    @property
    def ends(self) -> list[int]:
        """All end tokens."""
        return _numbers(self.eos_token_id)

    @property
    def forces_end(self) -> bool:
        """Whether a text that does not end by itself gets an end token as its last."""
        return bool(_numbers(self.forced_eos_token_id))

    @property
    def change_logits(self) -> bool:
        """Whether a rule changes which tokens are chosen."""
        return self != GenerationRules(self.eos_token_id)


NONE = GenerationRules()


def keep_origin(origin: Mapping[str, Any], folder: Path) -> None:
    """Write what an import from which a run starts says into the run's folder; what ended its texts in training ends
    them too.
    """
    if "generation" in origin:
        tokenizers = [path for path in (folder / "target-tokenizer.json", folder / "tokenizer.json") if path.is_file()]
        ends = _numbers(origin["generation"].get("eos_token_id"))
        ends += [end for path in tokenizers[:1] if (end := Tokenizer.load(path).eos) is not None and end not in ends]
        origin = {**origin, "generation": {**origin["generation"], "eos_token_id": ends}}
    if origin:
        atomic_files.write_json(folder / ORIGIN, origin)


class Ruled(Watching):
    """A decoding state whose logits obey the rules, as transformers' logits processors do, in their order; in a search
    with several ``beams`` log-probabilities obey them, and what a rule takes away is divided among the others only
    where they ``renormalize_logits``.

    ``lengths`` are the numbers of tokens that each row may generate.
    """

    def __init__(
        self, state: State, prompts: Sequence[Sequence[int]], rules: GenerationRules, lengths: Sequence[int], beams: int
    ) -> None:
        super().__init__(state, prompts)
        self.rules, self.lengths, self.scores = rules, list(lengths), beams > 1

    def select(self, rows: Tensor) -> None:
        """Keep the sequences ``rows`` (B,), in this order."""
        self.lengths = [self.lengths[row] for row in rows.tolist()]
        super().select(rows)

    def change(self, logits: Tensor, generated: list[list[int]]) -> Tensor:
        """Logits or log-probabilities (B, V) in float32, where forbidden tokens have -inf."""
        logits = logits.float().log_softmax(-1) if self.scores else logits.float().clone()
        for row, (prompt, new, length) in enumerate(zip(self.prompts, generated, self.lengths, strict=True)):
            possible = not bool(logits[row].isneginf().all())
            self._change_row(logits[row], [*prompt, *new], len(new), length)
            if possible and bool(logits[row].isneginf().all()):
                names = ", ".join(key for key in vars(self.rules) if getattr(self.rules, key) != getattr(NONE, key))
                raise UsageError(
                    f"the rules of generation leave no token after {len(new)} generated ones. They contradict each "
                    f"other, in config.json (generation) or {ORIGIN}: {names}."
                )
        if not self.rules.renormalize_logits:
            return logits
        return logits.log_softmax(-1).nan_to_num(float("-inf"), neginf=float("-inf"))  # a row that has ended: nan

    def _change_row(self, row: Tensor, tokens: list[int], new: int, length: int) -> None:
        rules, infinity = self.rules, float("inf")
        if rules.repetition_penalty != 1.0:
            present = torch.tensor(sorted(set(tokens)), device=row.device)
            value = row[present]
            row[present] = torch.where(value < 0, value * rules.repetition_penalty, value / rules.repetition_penalty)
        if size := rules.no_repeat_ngram_size:
            tail = tokens[len(tokens) - size + 1 :]
            starts = range(len(tokens) - size + 1)
            row[[tokens[at + size - 1] for at in starts if tokens[at : at + size - 1] == tail]] = -infinity
        for word in rules.bad_words_ids:
            before = list(word[:-1])
            if tokens[len(tokens) - len(before) :] == before and list(word) not in [[end] for end in rules.ends]:
                row[word[-1]] = -infinity
        if len(tokens) < rules.min_length or new < rules.min_new_tokens:
            row[rules.ends] = -infinity
        if rules.forced_bos_token_id is not None and len(tokens) == 1:
            _force(row, [rules.forced_bos_token_id])
        if new == length - 1 and (last := _numbers(rules.forced_eos_token_id)):
            _force(row, last)
        row[list(rules.suppress_tokens)] = -infinity
        begin = 1 if rules.forced_bos_token_id is not None and len(tokens) - new == 1 else 0
        if new == begin:
            row[list(rules.begin_suppress_tokens)] = -infinity


def _force(row: Tensor, tokens: list[int]) -> None:
    """Leave nothing but these tokens possible, all alike."""
    row.fill_(float("-inf"))
    row[tokens] = 0.0


def _numbers(value: Any) -> list[int]:
    """One number, several or none as a list."""
    return [] if value is None else [value] if isinstance(value, int) else list(value)


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string."""
    places = [text.find(stop) for stop in stops if stop in text]
    return text[: min(places)] if places else text
