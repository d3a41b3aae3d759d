"""A trained translation model: translates texts and streams of lines, and scores translations."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, overload

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from zoo.data.tokenizer import Tokenizer
from zoo.data.tokenizer_file import FORCED
from zoo.errors import UsageError
from zoo.inference.decoding_rules import GenerationRules, Ruled
from zoo.inference.find_run import ModelLocation
from zoo.inference.rebuild_task import TaskNetwork
from zoo.inference.trained_model import GeneratedText, Score, Trained, as_list
from zoo.models.decoding_state import State
from zoo.models.generation import GenerationConfig, generate
from zoo.registry import suggest

if TYPE_CHECKING:
    from zoo.tasks.task import Task

log = logging.getLogger(__name__)
TooLong: TypeAlias = Literal["error", "skip", "truncate"]
WAYS = ("error", "skip", "truncate")
WINDOW = 4096  # lines that are read ahead and sorted by length
TOKENS = 4096  # padded source tokens per batch, counted once per beam
FACTOR, MORE = 2, 10  # a poorly trained model may never end: twice the source's tokens and 10, unless told otherwise
EMPTY = GeneratedText("", 0.0, True)


class TrainedTranslation(Trained):
    """An encoder-decoder model of any kind with its two tokenizers."""

    files = ("source-tokenizer.json", "target-tokenizer.json")
    explained_inputs = "zoo.explain.inside:translation_inputs"

    def __init__(self, task: Task | TaskNetwork, place: ModelLocation) -> None:
        super().__init__(task, place)
        self.source_tokenizer, self.target_tokenizer = (Tokenizer.load(place.file(name)) for name in self.files)
        for side, file in zip(("source", "target"), self.files, strict=True):
            self.check_entries(f"{side}_vocab_size", getattr(self, f"{side}_tokenizer").vocab_size, file)
        ends = [self.source_tokenizer.eos, self.target_tokenizer.bos, self.target_tokenizer.eos]
        if None in ends:
            raise UsageError(f"the tokenizers in {place.folder} lack <bos> or <eos>, which a translation needs.")
        self.source_end, self.start, self.end = (int(end) for end in ends if end is not None)
        forced = self.target_tokenizer.special(FORCED)
        self.languages, self.language = self.source_tokenizer.languages(), list[int]()
        self.forced = [] if forced is None else [forced]
        self.rules = GenerationRules.of_config(place.config)
        self.ends = [self.end] if self.rules is None else self.rules.ends

    def source_ids(self, ids: Sequence[int]) -> list[int]:
        """The tokens of a source as the model reads it: the language and <eos>, or the template of a published one."""
        if self.source_tokenizer.published:
            return self.source_tokenizer.framed([*self.language, *ids])
        return [*self.language, *ids, self.source_end]

    def target_ids(self, text: str) -> list[int]:
        """The tokens of a translation from the start token to the end."""
        tokenizer, ids = self.target_tokenizer, self.target_tokenizer.encode(text)
        return [self.start, *(tokenizer.framed(ids) if tokenizer.published else [*ids, self.end])]

    def set_language(self, locale: str) -> None:
        """Translate into this language from now on, with a model of several. Raises UsageError for one it lacks."""
        if locale not in self.languages:
            names = f"translates into {', '.join(self.languages)}" if self.languages else "has one target language"
            raise UsageError(f"{self.place.folder} {names}, and not into {locale!r}.{suggest(locale, self.languages)}")
        self.language = [self.languages[locale]]

    def translate(
        self,
        texts: str | Sequence[str],
        *,
        beams: int = 1,
        length_penalty: float = 1.0,
        n_best: int = 1,
        max_length: int | None = None,
        batch_tokens: int = TOKENS,
        too_long: TooLong = "error",
    ) -> list[GeneratedText]:
        """Translations in the order of the texts, ``n_best`` of each, best first; empty for an empty text.

        A text longer than the model's max_length raises UsageError, or is skipped (its translation is empty) or
        truncated with a warning, as ``too_long`` says.
        """
        search = self.search(beams, length_penalty, n_best, max_length)
        hypotheses = self.stream(as_list(texts), search, batch_tokens, too_long)
        return [translation for candidates in hypotheses for translation in candidates]

    def translate_stream(
        self,
        lines: Iterable[str],
        *,
        beams: int = 1,
        length_penalty: float = 1.0,
        max_length: int | None = None,
        batch_tokens: int = TOKENS,
        too_long: TooLong = "error",
        window: int = WINDOW,
    ) -> Iterator[str]:
        """The best translation of each line, for any number of lines in constant memory. Raises as `translate`."""
        search = self.search(beams, length_penalty, 1, max_length)
        for best, *_ in self.stream(lines, search, batch_tokens, too_long, window):
            yield best.text

    def search(self, beams: int, length_penalty: float, n_best: int, max_length: int | None) -> GenerationConfig:
        """The generation settings. Raises UsageError for a max_length above the model's."""
        most = self.net.max_length
        if max_length is not None and max_length > most:
            raise UsageError(f"max_length={max_length} is more than the model's own max_length={most}.")
        return GenerationConfig(
            max_length=max_length or most, beams=beams, length_penalty=length_penalty, n_best=n_best,
            bounded_by_source=max_length is None,
        )  # fmt: skip

    def stream(
        self,
        lines: Iterable[str],
        search: GenerationConfig,
        batch_tokens: int = TOKENS,
        too_long: TooLong = "error",
        window: int = WINDOW,
        tell: Callable[[int], object] = lambda _: None,
    ) -> Iterator[list[GeneratedText]]:
        """The best translations of each line; ``window`` lines at a time are sorted by length.

        ``tell`` is called with the number of newly translated lines, before they are yielded in order. Raises
        UsageError as `translate` does.
        """
        if too_long not in WAYS:
            raise UsageError(f"too_long must be one of {', '.join(WAYS)}, got {too_long!r}.")
        waiting, count, endless = iter(lines), 0, 0
        for start_line in itertools.count(1, window):
            texts = list(itertools.islice(waiting, window))
            if not texts:
                if endless > 1:
                    log.warning("%d of %d translations were cut off", endless, count)
                return
            count += len(texts)
            results = [[EMPTY] * search.n_best for _ in texts]
            sources = self._sources(texts, start_line, too_long)
            tell(len(texts) - len(sources))
            order = sorted(sources, key=lambda row: len(sources[row]))
            for rows in buckets(order, [len(sources[row]) for row in order], batch_tokens // search.beams):
                for row, best in zip(rows, self._translate([sources[row] for row in rows], search), strict=True):
                    results[row] = best
                    if search.bounded_by_source and not best[0].ended:  # at a length that nobody asked for
                        self._tell_of_cut(row + start_line, endless)
                        endless += 1
                tell(len(rows))
            yield from results

    def _tell_of_cut(self, line: int, before: int) -> None:
        """Warn of the first translation that did not end."""
        if not before:
            log.warning(
                "line %d: the translation did not end and is cut off at %d times its source's tokens + %d, or at the "
                "model's longest. Allow up to --max-length %d", line, FACTOR, MORE, self.net.max_length,
            )  # fmt: skip

    def _sources(self, texts: list[str], start_line: int, too_long: TooLong) -> dict[int, list[int]]:
        """The tokens of the texts to translate, by index."""
        full = [row for row, text in enumerate(texts) if text.strip()]
        encoded = self.source_tokenizer.encode_batch([texts[row] for row in full])
        ids = {row: self._fit(row + start_line, tokens, too_long) for row, tokens in zip(full, encoded, strict=True)}
        return {row: tokens for row, tokens in ids.items() if tokens is not None}

    def _fit(self, line: int, ids: list[int], too_long: TooLong) -> list[int] | None:
        """The tokens of a source with all that belongs around it; None to skip it."""
        if self.languages and not self.language:
            names = ", ".join(self.languages)
            raise UsageError(f"{self.place.folder} translates into {names}: name one with --to, or set_language().")
        whole, most = self.source_ids(ids), self.net.max_length
        if len(whole) <= most:
            return whole
        sentence = f"line {line} has {len(whole)} tokens, more than max_length={most} of the model"
        if too_long == "error":
            raise UsageError(
                f"{sentence}. Split it, or go on without it or with its beginning: "
                "--too-long skip or --too-long truncate."
            )
        log.warning("%s: %s", sentence, "its translation is left empty" if too_long == "skip" else "its end is cut off")
        return None if too_long == "skip" else self.source_ids(ids[: len(ids) - (len(whole) - most)])

    @torch.no_grad()
    def _translate(self, ids: list[list[int]], search: GenerationConfig) -> list[list[GeneratedText]]:
        source, valid = self._padded(ids)
        forced = len(self.forced)
        limit = max(1, search.max_length - forced)
        longest = torch.full((len(ids),), limit, device=self.device)
        if search.bounded_by_source:
            longest = (FACTOR * valid.sum(1) + MORE).clamp(max=limit)
        state: State = self.net.begin(source, valid, int(longest.max()) + forced)
        prefix = source.new_tensor([self.start, *self.forced]).expand(len(ids), -1)
        if self.rules is not None and self.rules.change_logits:
            state = Ruled(state, prefix.tolist(), self.rules, longest.tolist(), search.beams)
        hypotheses = generate(state, prefix, self.ends, search, longest)
        decode, forced_end = self.target_tokenizer.decode, bool(self.rules and self.rules.forces_end)
        translations = []
        for most, candidates in zip(longest.tolist(), hypotheses, strict=True):
            translations.append(
                [
                    GeneratedText(decode(tokens), score, ended and not (forced_end and len(tokens) + 1 >= most))
                    for tokens, score, ended in candidates
                ]
            )
        return translations

    def _padded(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Tokens (B, T) padded on the right, and a mask (B, T) that is True for real tokens."""
        tokens = pad_sequence([torch.tensor(row) for row in ids], batch_first=True)
        lengths = torch.tensor([len(row) for row in ids])
        return tokens.to(self.device), (torch.arange(tokens.size(1)) < lengths[:, None]).to(self.device)

    @overload
    def score(self, source: str, target: str) -> Score: ...

    @overload
    def score(self, source: list[str], target: list[str]) -> list[Score]: ...

    def score(self, source: str | list[str], target: str | list[str]) -> Score | list[Score]:
        """The log-probability of a translation given its source, including the end token. Raises UsageError."""
        sources, targets = as_list(source), as_list(target)
        if len(sources) != len(targets):
            raise UsageError(f"{len(sources)} sources and {len(targets)} targets: they must be as many.")
        scores = self._score(sources, targets)
        return scores[0] if isinstance(source, str) else scores

    def _score(self, sources: list[str], targets: list[str]) -> list[Score]:
        encoded_sources = [
            self._fit(line, self.source_tokenizer.encode(text), "error") for line, text in enumerate(sources, 1)
        ]
        encoded_targets = [self.target_ids(text) for text in targets]
        for line, tokens in enumerate(encoded_targets, 1):
            if len(tokens) - 1 > self.net.max_length:
                sentence = f"target {line} has {len(tokens) - 1} tokens"
                raise UsageError(f"{sentence}, more than max_length={self.net.max_length} of the model.")
        sizes = [max(len(a or ()), len(b)) for a, b in zip(encoded_sources, encoded_targets, strict=True)]
        order = sorted(range(len(sizes)), key=sizes.__getitem__)
        bytes_of = torch.from_numpy(self.target_tokenizer.byte_lengths())
        scores = [Score(0.0, 0, 0)] * len(sizes)
        for rows in buckets(order, sorted(sizes), TOKENS):
            log_probs = self.log_probabilities(
                [encoded_sources[row] or [] for row in rows], [encoded_targets[row] for row in rows]
            )
            for row, gained in zip(rows, log_probs, strict=True):
                size = int(bytes_of[torch.tensor(encoded_targets[row])].sum())
                scores[row] = Score(float(gained.sum()), len(gained), size)
        return scores

    @torch.no_grad()
    def log_probabilities(self, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]) -> list[Tensor]:
        """log p of each target token (<bos>, tokens, <eos>) but the first, given the source (tokens, <eos>).

        A tensor (T - 1,) in float64 for each of the B targets, of lengths T.
        """
        (sources, source_valid), (targets, target_valid) = self._padded(source), self._padded(target)
        log_probs = self.require_finite(self.net(sources, targets[:, :-1], source_valid).double().log_softmax(-1))
        gained = log_probs.gather(2, targets[:, 1:, None])[:, :, 0].cpu()
        return [row[real] for row, real in zip(gained, target_valid[:, 1:].cpu(), strict=True)]


def buckets(order: Sequence[int], lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Batches of ``order``, whose ``lengths`` ascend, with at most ``tokens`` padded tokens each, or one row."""
    batch: list[int] = []
    for row, length in zip(order, lengths, strict=True):
        if batch and (len(batch) + 1) * length > tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
