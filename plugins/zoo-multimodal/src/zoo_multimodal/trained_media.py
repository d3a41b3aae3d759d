"""Trained models of sounds and of clips: what sounds say, and the classes of clips."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError
from zoo.inference.classification import Picture, Resize, TrainedClassification, open_image
from zoo.inference.decoding_rules import GenerationRules, Ruled
from zoo.inference.find_run import ModelLocation
from zoo.inference.rebuild_task import TaskNetwork
from zoo.inference.trained_model import GeneratedText, Trained
from zoo.models.decoding_state import State
from zoo.models.generation import GenerationConfig, generate
from zoo.parts.block import Memory
from zoo_multimodal.sound_files import read_wave

if TYPE_CHECKING:
    from zoo.tasks.task import Task

Sound: TypeAlias = str | Path | np.ndarray | Tensor
TIMES = re.compile(r"<\|\d+\.\d+\|>")  # tokens of Whisper that are no text
ROWS = 16  # sounds that are written down at once


class TrainedTranscription(Trained):
    """A model of audio to text with the tokenizer of its texts."""

    files = ("target-tokenizer.json",)

    def __init__(self, task: Task | TaskNetwork, place: ModelLocation) -> None:
        super().__init__(task, place)
        self.target_tokenizer = Tokenizer.load(place.file(self.files[0]))
        self.check_entries("target_vocab_size", self.target_tokenizer.vocab_size, self.files[0])
        bos, eos = self.target_tokenizer.bos, self.target_tokenizer.eos
        if bos is None or eos is None:
            raise UsageError(f"the tokenizer in {place.folder} lacks <bos> or <eos>, which a transcription needs.")
        self.start = bos
        self.settings: dict[str, Any] = place.config.get("generation") or {}
        self.rules = GenerationRules.of_config(place.config)
        self.ends = [eos] if self.rules is None else self.rules.ends

    @torch.no_grad()
    def transcribe(
        self,
        sounds: Sound | Sequence[Sound],
        *,
        beams: int = 1,
        language: str | None = None,
        task: str | None = None,
        prompt: str = "",
    ) -> list[GeneratedText]:
        """What each sound says: a WAV file (mono, 16 bits), or samples (N,) between -1 and 1.

        A Whisper takes the ``language`` that is spoken, such as de, or hears which it is; the ``task`` transcribe or
        translate (into English); and a ``prompt``, the text that precedes.

        Raises UsageError for another sample rate than the model's, for longer sounds than it takes, for what is no
        sound, and for a language or a task that the model lacks.
        """
        several = [sounds] if isinstance(sounds, (str, Path, np.ndarray, Tensor)) else list(sounds)
        texts = []
        for begin in range(0, len(several), ROWS):
            waves = [self._samples(one, number + begin + 1) for number, one in enumerate(several[begin : begin + ROWS])]
            lengths = torch.tensor([len(one) for one in waves])
            source = torch.zeros(len(waves), int(lengths.max()), dtype=torch.float32)
            for row, samples in zip(source, waves, strict=True):
                row[: len(samples)] = torch.from_numpy(samples)
            valid = torch.arange(source.size(1)) < lengths[:, None]
            encoded = self.net.begin(source.to(self.device), valid.to(self.device), self.net.max_length)
            first = self._beginning(encoded.memory, len(waves), language, task, prompt)
            # transformers leaves the last place empty
            most = self.net.max_length - first.size(1) + (self.rules is None)
            if most < 1:
                raise UsageError(f"the prompt has too many tokens for max_length={self.net.max_length}: {prompt!r:.60}")
            longest = torch.full((len(waves),), most, device=self.device)
            state: State = encoded
            if self.rules is not None and self.rules.change_logits:
                state = Ruled(encoded, first.tolist(), self.rules, longest.tolist(), beams)
            search = GenerationConfig(max_length=most, beams=beams)
            for best, *_ in generate(state, first, self.ends, search, longest):
                text = self.target_tokenizer.decode(best.tokens)
                texts.append(GeneratedText(TIMES.sub("", text) if self.rules else text, best.score, best.ended))
        return texts

    def _beginning(self, memory: Memory, rows: int, language: str | None, task: str | None, prompt: str) -> Tensor:
        """The tokens (B, T) with which texts begin: a prompt, the start, a language, a task and that there are no
        times, as transformers' Whisper begins them.
        """
        languages, tasks = (self.settings.get(f"{kind}_to_id") or {} for kind in ("lang", "task"))
        for name, word, choices in (("language", language and f"<|{language}|>", languages), ("task", task, tasks)):
            if word and word not in choices:
                names = ", ".join(key.strip("<|>") for key in choices)
                there = f"There are: {names}." if choices else "It has none to choose from."
                raise UsageError(f"{self.place.folder} knows no {name} {word.strip('<|>')!r}. {there}")
        language, task = language or self.settings.get("language"), task or self.settings.get("task")
        forced = [] if language or task else [token for _, token in self.settings.get("forced_decoder_ids") or ()]
        beginning = [[self.start, *forced] for _ in range(rows)]
        if language:
            spoken = [languages[f"<|{language}|>"]] * rows
        elif languages and (not forced or forced[0] is None):
            numbers = torch.tensor(sorted(languages.values()), device=self.device)
            start = torch.full((rows, 1), self.start, device=self.device)
            spoken = numbers[self.net.decode(start, memory)[:, -1, numbers].argmax(-1)].tolist()
        else:
            spoken = []
        for row, number in zip(beginning, spoken, strict=False):
            row[1:2] = [number]
        behind = [tasks[task]] if task else [tasks["transcribe"]] if language and tasks else []
        silent = self.settings.get("no_timestamps_token_id")
        before: list[int] = []
        if prompt:
            previous = self.target_tokenizer.specials.get("<|startofprev|>")
            before = self.target_tokenizer.encode(f" {prompt.strip()}")
            if previous is None or set(before) & set(self.target_tokenizer.specials.values()):
                raise UsageError(f"prompt={prompt!r:.60}: the model takes none, or it spells a special token.")
            before = [previous, *before]
        whole = [[*before, *(token for token in [*row, *behind] if token is not None)] for row in beginning]
        for row in whole:
            row += [silent] if silent is not None and row[-1] != silent else []
        return torch.tensor(whole, device=self.device)

    def _samples(self, sound: Sound, number: int) -> np.ndarray:
        """A sound as float32 (N,) between -1 and 1."""
        name = str(sound) if isinstance(sound, (str, Path)) else f"sound {number}"
        if isinstance(sound, (str, Path)):
            file = read_wave(Path(sound).expanduser(), self.net.sample_rate, self.net.max_samples)
            sound = file.astype(np.float32) / 32768
        samples = np.asarray(sound)
        if not samples.size:
            raise UsageError(f"{name} holds no sound.")
        if samples.ndim != 1 or not np.issubdtype(samples.dtype, np.floating):
            raise UsageError(f"{name} is {samples.dtype} {samples.shape}: floating-point samples (N,) are right.")
        if not np.isfinite(samples).all():
            raise UsageError(f"{name} holds samples that are not finite numbers.")
        if len(samples) > self.net.max_samples:
            most, seconds = self.net.max_samples, self.net.max_samples / self.net.sample_rate
            raise UsageError(
                f"{name} has {len(samples):,} samples. This model takes {most:,} at most, {seconds:.1f} s."
            )
        return samples.astype(np.float32)


class TrainedClips(TrainedClassification):
    """A classifier of clips with the names of its classes and its normalisation."""

    explained_inputs = ""  # a clip's attention is not shown yet

    def _pixels(self, picture: Picture, number: int, resize: Resize | None) -> Tensor:
        """One clip as (1, F, C, size, size) in uint8, from an animated GIF, PNG or WebP."""
        name = str(picture) if isinstance(picture, (str, Path)) else f"clip {number}"
        clip = open_image(picture, name)
        count = getattr(clip, "n_frames", 1)
        if count != self.net.frames:
            raise UsageError(
                f"{name} has {count} frame{'s' * (count != 1)}, and this model needs {self.net.frames}: give an "
                "animated GIF, PNG or WebP with as many."
            )
        frames = []
        for place in range(count):
            clip.seek(place)
            frames.append(super()._pixels(clip.copy(), number, resize))
        return torch.stack(frames, 1)
