"""Sounds without files: letters and digits spelled by a formant synthesiser."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from zoo.data.batches import BatchDataset, Plan, TokenPlan, generator, round_up
from zoo.data.cache import cached_entry, digest, map_array, write_array, write_json
from zoo.data.data import Data
from zoo.data.tokenizer import BOS, EOS, PAD, Tokenizer
from zoo.errors import UsageError
from zoo.value_checks import MOST_SAMPLES, at_least, at_most

RATE = 8000  # samples per second
TRACK = 40  # samples for which the shape of the mouth stays the same: 5 ms
SEED = 19800301  # of texts and voices
EVALUATION_SEED = SEED + 1  # of the noise in validation and test
FEWEST_TEXTS = 256
EVALUATION_SIZE = 500  # validation sounds, and as many test sounds
GROUP = 1000  # sounds that are synthesised side by side
BANDWIDTHS = (80.0, 120.0, 180.0)  # Hz, of the three formants
PITCH = (90.0, 240.0)  # Hz, of the voice
TRACT = (0.88, 1.12)  # factor on formants: a shorter vocal tract has higher ones
TEMPO = (0.8, 1.25)
PAUSE = (0.03, 0.09)  # seconds between two letters
GLIDE = 0.015  # seconds in which one phone turns into the next, on either side
LOUDNESS = (0.3, 0.9)  # peak of a sound


class Phone(NamedTuple):
    """A speech sound: seconds, how loud voice and noise are, and the three lowest formants in Hz."""

    seconds: float
    voice: float
    noise: float
    formants: tuple[float, float, float]

    def gain(self) -> float:
        """The root mean square of what the three resonators make of a signal of 1 with a flat spectrum."""
        frequency = np.exp(-2j * np.pi * (np.arange(256) + 0.5) / 512)
        power = np.ones(256)
        for hertz, width in zip(self.formants, BANDWIDTHS, strict=True):
            a, b, c = resonator(np.array(hertz), width)
            power *= np.abs(a / (1 - b * frequency - c * frequency**2)) ** 2
        return float(np.sqrt(power.mean()))


def resonator(hertz: np.ndarray, width: float) -> tuple[np.ndarray, np.ndarray, float]:
    """a, b and c of y[n] = a x[n] + b y[n-1] + c y[n-2], which passes ``hertz`` within ``width`` (Klatt, 1980)."""
    c = -float(np.exp(-2 * np.pi * width / RATE))
    b = 2 * np.exp(-np.pi * width / RATE) * np.cos(2 * np.pi * hertz / RATE)
    return 1 - b - c, b, c


# vowels have the mean formants of the 33 men of Peterson and Barney (1952), other sounds typical ones (Klatt, 1980)
PHONES = {
    "iy": Phone(0.11, 1.0, 0.0, (270, 2290, 3010)), "ih": Phone(0.08, 1.0, 0.0, (390, 1990, 2550)),
    "eh": Phone(0.09, 1.0, 0.0, (530, 1840, 2480)), "ah": Phone(0.09, 1.0, 0.0, (640, 1190, 2390)),
    "aa": Phone(0.10, 1.0, 0.0, (730, 1090, 2440)), "ao": Phone(0.10, 1.0, 0.0, (570, 840, 2410)),
    "uh": Phone(0.08, 1.0, 0.0, (440, 1020, 2240)), "uw": Phone(0.10, 1.0, 0.0, (300, 870, 2240)),
    "l": Phone(0.07, 0.6, 0.0, (360, 1000, 2700)), "r": Phone(0.07, 0.6, 0.0, (310, 1060, 1380)),
    "w": Phone(0.06, 0.6, 0.0, (290, 610, 2150)), "y": Phone(0.06, 0.6, 0.0, (260, 2070, 3020)),
    "m": Phone(0.08, 0.4, 0.0, (250, 1000, 2200)), "n": Phone(0.08, 0.4, 0.0, (250, 1500, 2600)),
    "v": Phone(0.06, 0.3, 0.1, (220, 1100, 2080)), "z": Phone(0.08, 0.2, 0.2, (250, 2500, 3500)),
    "f": Phone(0.09, 0.0, 0.15, (1100, 2100, 3500)), "th": Phone(0.08, 0.0, 0.1, (1300, 2600, 3600)),
    "s": Phone(0.10, 0.0, 0.35, (2600, 3200, 3700)), "sh": Phone(0.07, 0.0, 0.35, (1700, 2300, 3000)),
    "zh": Phone(0.06, 0.3, 0.2, (1700, 2300, 3000)),
    "-": Phone(0.03, 0.0, 0.0, (400, 1500, 2500)), "=": Phone(0.03, 0.15, 0.0, (200, 900, 2000)),  # mouth closed
    "p": Phone(0.025, 0.0, 0.3, (400, 1100, 2150)), "t": Phone(0.025, 0.0, 0.5, (350, 2600, 3600)),
    "k": Phone(0.025, 0.0, 0.4, (300, 1990, 2850)),
}  # fmt: skip
SPELLING = {
    "a": "eh ih", "b": "= p iy", "c": "s iy", "d": "= t iy", "e": "iy iy", "f": "eh f", "g": "= zh iy",
    "h": "eh ih - sh", "i": "aa ih", "j": "= zh eh ih", "k": "- k eh ih", "l": "eh l", "m": "eh m", "n": "eh n",
    "o": "ao uh", "p": "- p iy", "q": "- k y uw", "r": "aa r", "s": "eh s", "t": "- t iy", "u": "y uw", "v": "v iy",
    "w": "= ah = l y uw", "x": "eh - k s", "y": "w aa ih", "z": "z eh = t",
    "0": "z ih r ao uh", "1": "w ah n", "2": "- t uw", "3": "th r iy", "4": "f ao r", "5": "f aa ih v",
    "6": "s ih - k s", "7": "s eh v ah n", "8": "eh ih - t", "9": "n aa ih n",
}  # fmt: skip


GAINS = {name: phone.gain() for name, phone in PHONES.items()}


class Utterance(NamedTuple):
    """A text and the voice that says it: hertz, factor on formants, factor on tempo, seconds between letters, peak."""

    text: str
    pitch: float
    tract: float
    tempo: float
    pause: float
    peak: float

    def tracks(self) -> np.ndarray:
        """(5, T): how loud voice and noise are, and the three formants in Hz, every 5 ms."""
        times, now = [0.0], self.pause
        values: list[tuple[float, ...]] = [(0.0, 0.0, 500.0, 1500.0, 2500.0)]
        for letter in self.text:
            for name in SPELLING[letter].split():
                phone, gain, seconds = PHONES[name], GAINS[name], PHONES[name].seconds / self.tempo
                edge = min(GLIDE, seconds / 3)
                state = (
                    phone.voice / gain,
                    phone.noise / gain,
                    *(min(0.48 * RATE, f * self.tract) for f in phone.formants),
                )
                times += [now + edge, now + seconds - edge]
                values += [state, state]
                now += seconds
            silent = (0.0, 0.0, *values[-1][2:])
            times += [now + GLIDE, now + self.pause]
            values += [silent, silent]
            now += self.pause
        grid = np.arange(0, now, TRACK / RATE)
        return np.stack([np.interp(grid, times, column) for column in np.array(values).T])


def synthesise(tracks: Sequence[np.ndarray], pitch: np.ndarray, draw: np.random.Generator) -> list[np.ndarray]:
    """Sounds of tracks (5, T) each, by voices of ``pitch`` Hz: float32 (T * TRACK,), of any loudness.

    Pulses at the voice's pitch, which falls by a tenth and trembles, and white noise go through three resonators, one
    after the other (Klatt, 1980).
    """
    lengths = [track.shape[1] for track in tracks]
    voice, noise, *formants = np.zeros((5, max(lengths), len(tracks)))
    for number, track in enumerate(tracks):
        for column, values in zip((voice, noise, *formants), track, strict=True):
            column[: lengths[number], number] = values
    time = np.arange(max(lengths))[:, None] * (TRACK / RATE)
    fall = 1 - 0.1 * time / np.maximum(1e-3, np.array(lengths) * (TRACK / RATE))
    rate = pitch * fall * (1 + 0.015 * np.sin(2 * np.pi * 5 * time)) / RATE  # periods per sample
    filters = [resonator(hertz, width) for hertz, width in zip(formants, BANDWIDTHS, strict=True)]
    out = np.empty((max(lengths) * TRACK, len(tracks)), np.float32)
    phase, earlier = np.zeros(len(tracks)), [np.zeros((2, len(tracks))) for _ in filters]
    for step in range(max(lengths)):
        hiss = noise[step] * draw.standard_normal((TRACK, len(tracks)))
        for sample in range(TRACK):
            phase += rate[step]
            pulse = phase >= 1
            phase -= pulse
            x = 4 * voice[step] * pulse + hiss[sample]
            for (a, b, c), past in zip(filters, earlier, strict=True):
                x = a[step] * x + b[step] * past[0] + c * past[1]
                past[1], past[0] = past[0], x
            out[step * TRACK + sample] = x
    return [out[: length * TRACK, number] for number, length in enumerate(lengths)]


def is_for_training(text: str) -> bool:
    """Whether a text is for training, as three quarters of all texts are, by a hash; the others are for evaluation."""
    return zlib.crc32(text.encode()) % 4 > 0


class Sounds(BatchDataset):
    """Sounds with their texts; `extra` holds what evaluation wants to know of each.

    Sound i is samples ``edges[i, 0]`` to ``edges[i, 1]`` of ``waves`` (int16); its target has its special tokens.
    """

    def __init__(
        self,
        waves: np.ndarray,
        edges: np.ndarray,
        targets: list[list[int]],
        noise: float = 0.0,
        silent: bool = False,
        seed: int | None = None,
        extra: dict[str, list[Any]] | None = None,
    ) -> None:
        self.waves, self.edges, self.targets = waves, edges, targets
        self.noise, self.silent, self.seed, self.extra = noise, silent, seed, extra

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def lengths(self) -> np.ndarray:
        """Samples of each sound."""
        return self.edges[:, 1] - self.edges[:, 0]

    def batch(self, indices: np.ndarray, epoch: int) -> dict[str, Any]:
        """``source`` (B, N) float32 samples, ``target`` (B, T): <bos>, tokens, <eos>. ``…_valid``: False at padding.

        For evaluation also ``source_text``, ``text``, ``type``, ``decode`` (B,) bool, and ``slots`` (0, 5).
        """
        lengths, targets = self.lengths[indices], [self.targets[i] for i in indices]
        source = np.zeros((len(indices), int(lengths.max())), np.float32)
        target = np.zeros((len(indices), max(map(len, targets))), np.int64)
        for row, index in enumerate(indices):
            target[row, : len(targets[row])] = targets[row]
            if not self.silent:
                source[row, : lengths[row]] = self._sound(int(index), epoch)
        sizes = np.array([len(one) for one in targets])
        batch = {
            "source": torch.from_numpy(source),
            "source_valid": torch.from_numpy(np.arange(source.shape[1]) < lengths[:, None]),
            "target": torch.from_numpy(target),
            "target_valid": torch.from_numpy(np.arange(target.shape[1]) < sizes[:, None]),
        }
        if self.extra is None:
            return batch
        columns = {name: [values[i] for i in indices] for name, values in self.extra.items()}
        decode, slots = torch.tensor(columns.pop("decode")), torch.zeros(0, 5, dtype=torch.int64)
        return {**batch, **columns, "decode": decode, "slots": slots}

    def _sound(self, index: int, epoch: int) -> np.ndarray:
        begin, end = self.edges[index]
        sound = self.waves[begin:end].astype(np.float32) / 32768
        if not self.noise:
            return sound
        key = (EVALUATION_SEED, 0, index) if self.seed is None else (self.seed, epoch, index)
        loudness = self.noise * float(np.sqrt(np.square(sound).mean()))
        return sound + loudness * generator(*key).standard_normal(len(sound), dtype=np.float32)


class SpeechData(Data):
    """Sounds and their texts, in batches of similar lengths, up to ``max_seconds`` each."""

    sample_rate = RATE
    max_seconds: float
    target_tokenizer: Tokenizer

    def plan(self, split: str, world: int, seed: int | None) -> Plan:
        """Batches of sounds of similar lengths, up to ``max_seconds`` each."""
        sounds = self.datasets[split]
        assert isinstance(sounds, Sounds)
        longest = int(round_up(sounds.lengths.max(initial=0)))  # which the plan pads by a few samples
        return TokenPlan(sounds.lengths, max(int(self.max_seconds * self.sample_rate), longest) * world, world, seed)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of tokens, special tokens left out."""
        self.ready()
        return self.target_tokenizer.decode(ids)

    def save(self, folder: Path) -> None:
        """target-tokenizer.json."""
        self.ready()
        self.target_tokenizer.save(folder / "target-tokenizer.json")


def write_waves(folder: Path, waves: Sequence[np.ndarray]) -> None:
    """Write sounds (N,) into a folder of the cache, one after the other, and where each begins."""
    write_array(folder / "waves.npy", np.concatenate(waves))
    write_array(folder / "edges.npy", np.cumsum([0, *map(len, waves)], dtype=np.int64))


class SpokenLetters(SpeechData):
    """Random letters and digits, spelled by a formant synthesiser (Klatt, 1980) in a voice of its own for each sound.

    Pitch, vocal tract, tempo, pauses and loudness differ; noise is drawn anew in every epoch, by (seed, epoch, row).
    Mono, 8,000 samples per second; one to ``length`` letters. A hash of a text says whether it is for training or for
    evaluation. `size` sounds train, 500 validate and 500 test. ``silent`` is the baseline: silence of the same length.
    """

    gives = "sounds with texts"

    def __init__(
        self,
        characters: str = "0123456789abcdefghijklmnopqrstuvwxyz",
        length: int = 3,
        size: int = 2000,
        noise: float = 0.05,
        silent: bool = False,
        max_seconds: float = 64.0,
        eval_limit: int = 200,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            characters: letters and digits that texts are made of.
            length: letters of the longest text.
            size: number of training sounds.
            noise: standard deviation of white noise, as a multiple of the sound's own.
            silent: give silence of the same length instead of the sounds.
            max_seconds: seconds of a batch per process, padding included.
            eval_limit: validation sounds that are decoded; all test sounds are.
            seed: of order and noise; the run's unless given.

        Raises UsageError for characters that have no spelling, and where they make too few texts.
        """
        super().__init__(1, num_workers, seed)
        at_least(1, length=length, size=size)
        at_least(0, eval_limit=eval_limit)
        at_most(MOST_SAMPLES, size=size)
        unknown = sorted(set(characters) - set(SPELLING))
        if unknown or len(characters) < 2 or len(set(characters)) < len(characters):
            wrong = f"{unknown[0]!r} has no spelling" if unknown else "two or more are needed, all different"
            raise UsageError(f"characters are {characters!r}: {wrong}. Take some of {''.join(sorted(SPELLING))}.")
        if len(characters) ** length < FEWEST_TEXTS:
            raise UsageError(
                f"{len(characters)} characters make fewer than {FEWEST_TEXTS} texts of length={length}: too few to "
                "train with some and to validate with others. Choose longer texts or more characters."
            )
        if not 0 <= noise <= 100:
            raise UsageError(f"noise is {noise}: it must lie between 0 and 100, multiples of the sound's own loudness.")
        self.characters, self.length, self.size = "".join(sorted(characters)), length, size
        self.noise, self.silent, self.max_seconds, self.eval_limit = noise, silent, max_seconds, eval_limit

    def load(self) -> None:
        """Synthesise the sounds once, and make the splits."""
        options = {"characters": self.characters, "length": self.length, "size": self.size}
        key = {"format": 3, **options, "phones": digest([PHONES, SPELLING])}
        entry = cached_entry("speech", key, self._synthesise)
        texts = json.loads((entry / "texts.json").read_text("utf-8"))
        waves, edges = map_array(entry / "waves.npy"), np.load(entry / "edges.npy")
        self.target_tokenizer = Tokenizer.chars([self.characters], (PAD, BOS, EOS))
        self._fingerprint = hashlib.sha256(
            json.dumps([key, self.noise, self.silent, texts]).encode() + waves[:: len(waves) // 65536 + 1].tobytes()
        ).hexdigest()
        self.longest = int(np.diff(edges).max())
        if self.max_seconds * RATE < self.longest:
            raise UsageError(
                f"max_seconds is {self.max_seconds}, and a sound has {self.longest / RATE:.1f} s. Raise max_seconds."
            )
        first, second = EVALUATION_SIZE, 2 * EVALUATION_SIZE
        places = {"test": (0, first), "val": (first, second), "train": (second, len(texts))}
        self.datasets = {split: self._split(split, texts, waves, edges, *place) for split, place in places.items()}

    def _split(
        self, split: str, texts: list[str], waves: np.ndarray, edges: np.ndarray, start: int, end: int
    ) -> Sounds:
        own, count = texts[start:end], end - start
        limit = self.eval_limit if split == "val" else count
        extra = {
            "source_text": [""] * count, "text": own, "type": [""] * count, "decode": [i < limit for i in range(count)]
        }  # fmt: skip
        targets = [[1, *ids, 2] for ids in self.target_tokenizer.encode_batch(own)]
        return Sounds(
            waves, np.stack([edges[start:end], edges[start + 1 : end + 1]], 1), targets, self.noise, self.silent,
            *((self.seed, None) if split == "train" else (None, extra)),
        )  # fmt: skip

    def _synthesise(self, folder: Path) -> None:
        utterances = self.utterances()
        draw = np.random.default_rng(SEED + 2)
        waves = []
        for begin in range(0, len(utterances), GROUP):
            group = utterances[begin : begin + GROUP]
            sounds = synthesise([one.tracks() for one in group], np.array([one.pitch for one in group]), draw)
            for one, sound in zip(group, sounds, strict=True):
                waves.append((sound * (32767 * one.peak / np.abs(sound).max())).astype(np.int16))
        write_waves(folder, waves)
        write_json(folder / "texts.json", [one.text for one in utterances])

    def utterances(self) -> list[Utterance]:
        """The texts of all splits and their voices: test, then validation, then training."""
        draw = np.random.default_rng(SEED)
        texts: list[str] = []
        while len(texts) < self.size + 2 * EVALUATION_SIZE:
            text = "".join(draw.choice(list(self.characters), draw.integers(1, self.length + 1)))
            if is_for_training(text) == (len(texts) >= 2 * EVALUATION_SIZE):
                texts.append(text)
        ranges = np.array([PITCH, TRACT, TEMPO, PAUSE, LOUDNESS])
        voices = draw.uniform(ranges[:, 0], ranges[:, 1], (len(texts), len(ranges)))
        return [Utterance(text, *voice.tolist()) for text, voice in zip(texts, voices, strict=True)]

    def sizes(self) -> dict[str, int]:
        """The size of the vocabulary, the longest text and the longest sound, and the samples per second."""
        self.ready()
        return {
            "target_vocab_size": self.target_tokenizer.vocab_size, "max_length": self.length + 1,
            "sample_rate": RATE, "max_samples": self.longest,
        }  # fmt: skip
