"""A trained language model that fills in."""

from __future__ import annotations

from typing import cast

from zoo.data.tokenizer import EOS
from zoo.errors import UsageError
from zoo.inference.language import Prompt, TrainedLanguageModel
from zoo.inference.trained_model import Gap
from zoo_text.data.infill_prompt import MIDDLE, PREFIX, SUFFIX, Marks, prompt_tokens


class TrainedInfill(TrainedLanguageModel):
    """A language model that also generates what stands between a prefix and a suffix."""

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt; of a Gap in the order prefix, suffix, middle.

        Raises UsageError where the tokenizer lacks the special tokens.
        """
        if not isinstance(prompt, Gap):
            return super().encode_prompt(prompt)
        numbers = [self.tokenizer.special(name) for name in (PREFIX, SUFFIX, MIDDLE, EOS)]
        if None in numbers:
            raise UsageError(f"{self.place.file('tokenizer.json')} lacks {PREFIX}, {SUFFIX}, {MIDDLE} or {EOS}.")
        marks = Marks(*cast(list[int], numbers))
        prefix, suffix = self.tokenizer.encode(prompt.prefix), self.tokenizer.encode_rest(prompt.suffix)
        return [*self.tokenizer.template[0], *prompt_tokens(prefix, suffix, marks)]
