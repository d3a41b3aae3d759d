"""Your own recordings: WAV files, and the texts that they say in a table."""

from __future__ import annotations

import hashlib
import json
import re
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zoo.data.batches import generator, sample_sentence
from zoo.data.cache import cached_entry, digest, map_array, write_json
from zoo.data.data import require_fraction, split_by_content
from zoo.data.source_files import file_state, find_place
from zoo.data.table_files import Tables, choose_columns, text_of
from zoo.data.tokenizer import BOS, EOS, PAD, Tokenizer
from zoo.errors import UsageError
from zoo.io import atomic_files, limits
from zoo.value_checks import at_least
from zoo_multimodal.speech import RATE, Sounds, SpeechData, write_waves

SPLIT = 20220921  # of the sounds that validate
# how files of sound begin: WAV, FLAC, Ogg, MP3, AIFF, CAF, Sun audio, MP4, WebM
SOUND = re.compile(rb"RIF[FX]|RF64|fLaC|OggS|ID3|\xff[\xe0-\xff]|FORM|caff|\.snd|.{4}ftyp|\x1a\x45\xdf\xa3", re.DOTALL)
STREAMED = 2**30 - 2**12  # samples of a header that was written before the sound had ended, as into a pipe
ROLES = {"audio": ["audio", "path", "file", "wav"], "text": ["text", "sentence", "transcription"]}


def read_wave(path: Path, rate: int, most: int) -> np.ndarray:
    """The samples (N,) int16 of a WAV file. Raises UsageError where it is none, or not as the model needs it."""
    try:
        with wave.open(str(path), "rb") as file:
            shape, count = (file.getnchannels(), 8 * file.getsampwidth(), file.getframerate()), file.getnframes()
            content = file.readframes(min(count, most + 1))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except (EOFError, wave.Error) as error:
        limits.refuse_other_file(path)
        with path.open("rb") as other:
            head = other.read(limits.HEAD_BYTES)
        if not head:
            raise UsageError(f"{path} is empty.") from error
        if isinstance(error, EOFError):
            raise UsageError(f"{path} is cut off: it ends within its header.") from error
        convert = f" Convert it: ffmpeg -i {path.name} -c:a pcm_s16le -ac 1 -ar {rate} NEW.wav"
        raise UsageError(
            f"{path} is no WAV file of 16-bit PCM: {error}.{convert if SOUND.match(head) else ''}"
        ) from error
    if shape != (1, 16, rate):
        raise UsageError(
            f"{path} has {shape[0]} channels of {shape[1]} bits, {shape[2]:,} samples per second. This model reads "
            f"1 channel of 16 bits, {rate:,} per second."
        )
    if len(content) < 2 * min(count, most + 1) and count < STREAMED:
        raise UsageError(f"{path} is cut off: it ends after {len(content) // 2:,} of {count:,} samples.")
    if len(content) > 2 * most:
        raise UsageError(f"{path} is too long: a model of these sounds takes at most {most / rate:.1f} s.")
    return np.frombuffer(content, "<i2")


class SoundFiles(SpeechData):
    """Your own recordings: a table with the columns `audio`, paths of WAV files from its folder, and `text`.

    A table is a file of JSON lines, CSV or Parquet, or a folder with one for each split. Sounds are mono, 16 bits.
    Without a table to validate, `val_fraction` of the texts is set aside; without one to test, test is validation.
    """

    gives = "sounds with texts"

    def __init__(
        self,
        path: str,
        tokenizer: str | None = None,
        sample_rate: int = 16000,
        seconds: float = 30.0,
        max_length: int = 448,
        max_seconds: float = 120.0,
        val_fraction: float = 0.1,
        columns: dict[str, str] | None = None,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """
        Args:
            path: a table, or a folder of tables.
            tokenizer: a run's folder or a tokenizer.json whose tokenizer is used; the characters of the training texts
                unless given.
            sample_rate: samples per second of all files.
            seconds: of the longest sound that is taken.
            max_length: tokens of the longest text that is taken, special ones included.
            max_seconds: seconds of a batch per process, padding included.
            val_fraction: share of the texts that validate where no table is for that.
            columns: names of the columns `audio` and `text`, where they have others.
            seed: of the order; the run's unless given.
        """
        super().__init__(1, num_workers, seed)
        at_least(1, sample_rate=sample_rate, max_length=max_length)
        require_fraction(val_fraction=val_fraction)
        if not 0 < seconds <= max_seconds:
            raise UsageError(f"seconds={seconds} must lie above 0 and be no more than max_seconds={max_seconds}.")
        self.path, self.tokenizer, self.columns = find_place(path), tokenizer, choose_columns(columns, ROLES)
        self.sample_rate, self.max_samples = sample_rate, round(seconds * sample_rate)
        self.max_length, self.max_seconds, self.val_fraction = max_length, max_seconds, val_fraction

    @classmethod
    def sample_files(cls, folder: Path, seed: int) -> dict[str, Any]:
        """Write twenty short sounds with random texts and their table; the options that read them."""
        draw, lines = generator(seed, 0), []
        (folder / "sounds").mkdir()
        for number in range(20):
            with wave.open(str(folder / "sounds" / f"{number}.wav"), "wb") as file:
                file.setparams((1, 2, RATE, 0, "NONE", ""))
                samples = draw.normal(0, 3000, 400 + 20 * number).astype("<i2")
                file.writeframes(samples.tobytes())
            lines.append(json.dumps({"audio": f"sounds/{number}.wav", "text": f"{sample_sentence(draw)} {number}"}))
        atomic_files.write_text(folder / "train.jsonl", "\n".join(lines) + "\n")
        return {"path": str(folder), "sample_rate": RATE, "seconds": 0.2, "max_seconds": 0.2, "val_fraction": 0.25}

    def load(self) -> None:
        """Read the tables, gather the sounds in the cache, and make the splits."""
        tables = Tables({"train": str(self.path)}, self.columns, "spell-tiny", names_files=True)
        rows: dict[str, list[tuple[Path, str]]] = {}
        for split in tables.splits:
            rows[split] = [(row.folder / text_of(row, "audio"), text_of(row, "text")) for row in tables.rows(split)]
        tables.tell_unused(path for own in rows.values() for path, _ in own)
        if "val" not in rows:
            held_out = split_by_content([text for _, text in rows["train"]], self.val_fraction, [SPLIT])
            both = list(zip(rows["train"], held_out, strict=True))
            rows |= {split: [row for row, out in both if out == (split == "val")] for split in ("train", "val")}
        rows.setdefault("test", rows["val"])
        texts = {split: [text for _, text in own] for split, own in rows.items()}
        if self.tokenizer is None:
            self.target_tokenizer = Tokenizer.chars(texts["train"] + texts["val"] + texts["test"], (PAD, BOS, EOS))
        else:
            here = Path(self.tokenizer).expanduser()
            self.target_tokenizer = Tokenizer.load(here / "target-tokenizer.json" if here.is_dir() else here)
        every: dict[Path, None] = {path: None for own in rows.values() for path, _ in own}
        stamps = [[str(path.absolute()), *file_state(path)] for path in every]
        entry = cached_entry(
            "sounds", [stamps, self.sample_rate, self.max_samples], lambda to: self._gather([*every], to)
        )
        waves, edges = map_array(entry / "waves.npy"), np.load(entry / "edges.npy")
        spans = {path: (edges[n], edges[n + 1]) for n, path in enumerate(every)}
        self.datasets = {}
        for split, own in rows.items():
            count = len(own)
            extra: dict[str, list[Any]] = {
                "source_text": [""] * count, "text": texts[split], "type": [""] * count, "decode": [True] * count,
            }  # fmt: skip
            targets = [self._target(ids) for ids in self.target_tokenizer.encode_batch(texts[split])]
            for text in (text for text, ids in zip(texts[split], targets, strict=True) if len(ids) > self.max_length):
                raise UsageError(f"{text!r:.60} has more than max_length={self.max_length} tokens.")
            sounds = Sounds(waves, np.array([spans[path] for path, _ in own]), targets,
                            extra=None if split == "train" else extra)  # fmt: skip
            self.datasets[split] = sounds
        digests = dict(zip(every, json.loads((entry / "digests.json").read_text("utf-8")), strict=True))
        sounds_of = {split: [digests[path] for path, _ in own] for split, own in rows.items()}
        self._fingerprint = digest([self.target_tokenizer.identity(), texts, sounds_of, self.sample_rate])

    def _target(self, ids: Sequence[int]) -> list[int]:
        """The tokens of a text with those around it: the template of a published tokenizer, or <bos> and <eos>."""
        tokenizer = self.target_tokenizer
        if tokenizer.published and tokenizer.inner.post_processor is not None:
            return tokenizer.framed(ids)
        if tokenizer.bos is None or tokenizer.eos is None:
            raise UsageError(f"the tokenizer {tokenizer.source} lacks {BOS} or {EOS}, which a transcription needs.")
        return [tokenizer.bos, *ids, tokenizer.eos]

    def _gather(self, paths: list[Path], folder: Path) -> None:
        waves = [read_wave(path, self.sample_rate, self.max_samples) for path in paths]
        for path in (path for path, samples in zip(paths, waves, strict=True) if not len(samples)):
            raise UsageError(f"{path} holds no sound.")
        write_waves(folder, waves)
        write_json(folder / "digests.json", [hashlib.sha256(samples.tobytes()).hexdigest() for samples in waves])

    def sizes(self) -> dict[str, int]:
        """The size of the vocabulary, the longest text and the longest sound, and the samples per second."""
        self.ready()
        return {
            "target_vocab_size": self.target_tokenizer.vocab_size, "max_length": self.max_length,
            "sample_rate": self.sample_rate, "max_samples": self.max_samples,
        }  # fmt: skip
