"""Trained models of sounds and of clips: what sounds say, and the classes of clips."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from zoo.data.tokenizer import Tokenizer
from zoo.errors import UsageError
from zoo.inference.classification import Picture, Resize, TrainedClassification, open_image
from zoo.inference.find_run import ModelLocation
from zoo.inference.networks import TaskNetwork
from zoo.inference.trained_model import GeneratedText, Trained
from zoo.models.generation import GenerationConfig, generate

if TYPE_CHECKING:
    from zoo.tasks.task import Task

Sound: TypeAlias = str | Path | np.ndarray
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
        self.start, self.end = bos, eos

    @torch.no_grad()
    def transcribe(self, sounds: Sound | Sequence[Sound], *, beams: int = 1) -> list[GeneratedText]:
        """What each sound says: a WAV file (mono, 16 bits), or samples (N,) between -1 and 1.

        Raises UsageError for another sample rate than the model's, for longer sounds than it takes, and for what is no
        sound.
        """
        several = [sounds] if isinstance(sounds, (str, Path, np.ndarray)) else list(sounds)
        search = GenerationConfig(max_length=self.net.max_length, beams=beams)
        texts = []
        for begin in range(0, len(several), ROWS):
            waves = [self._samples(one, number + begin + 1) for number, one in enumerate(several[begin : begin + ROWS])]
            lengths = torch.tensor([len(one) for one in waves])
            source = torch.zeros(len(waves), int(lengths.max()), dtype=torch.float32)
            for row, samples in zip(source, waves, strict=True):
                row[: len(samples)] = torch.from_numpy(samples)
            valid = torch.arange(source.size(1)) < lengths[:, None]
            state = self.net.begin(source.to(self.device), valid.to(self.device), search.max_length)
            first = torch.full((len(waves), 1), self.start, device=self.device)
            longest = torch.full((len(waves),), search.max_length, device=self.device)
            for best, *_ in generate(state, first, self.end, search, longest):
                texts.append(GeneratedText(self.target_tokenizer.decode(best.tokens), best.score, best.ended))
        return texts

    def _samples(self, sound: Sound, number: int) -> np.ndarray:
        """A sound as float32 (N,) between -1 and 1."""
        name = f"sound {number}" if isinstance(sound, np.ndarray) else str(sound)
        samples = np.asarray(sound) if isinstance(sound, np.ndarray) else self._read(Path(sound).expanduser())
        if samples.ndim != 1 or not len(samples) or not np.issubdtype(samples.dtype, np.floating):
            raise UsageError(f"{name} is {samples.dtype} {samples.shape}: floating-point samples (N,) are right.")
        if not np.isfinite(samples).all():
            raise UsageError(f"{name} holds samples that are not finite numbers.")
        if len(samples) > self.net.max_samples:
            most, rate = self.net.max_samples / self.net.sample_rate, self.net.sample_rate
            raise UsageError(f"{name} lasts {len(samples) / rate:.1f} s, and this model takes at most {most:.1f} s.")
        return samples.astype(np.float32)

    def _read(self, path: Path) -> np.ndarray:
        """The samples of a WAV file. Raises UsageError where it is none, or not as the model needs it."""
        try:
            with wave.open(str(path), "rb") as file:
                shape = file.getnchannels(), 8 * file.getsampwidth(), file.getframerate()
                content = file.readframes(min(file.getnframes(), self.net.max_samples + 1))
        except (OSError, EOFError, wave.Error) as error:
            raise UsageError(f"{path} cannot be read as a WAV file: {error}") from error
        if shape != (1, 16, self.net.sample_rate):
            raise UsageError(
                f"{path} has {shape[0]} channels of {shape[1]} bits, {shape[2]:,} samples per second. This model reads "
                f"1 channel of 16 bits, {self.net.sample_rate:,} per second."
            )
        return np.frombuffer(content, "<i2").astype(np.float32) / 32768


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
