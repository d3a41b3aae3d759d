"""Recordings of users: whole, damaged, and in other formats; what lies beside their tables."""

import json
import logging
import os
import struct
import wave

import numpy as np
import pytest
from zoo_multimodal.sound_files import SoundFiles, read_wave

from zoo.errors import UsageError

RATE = 8000


def write_sound(path, count=300):
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(np.random.default_rng(count).normal(0, 3000, count).astype("<i2").tobytes())
    return path.read_bytes()


def header(form, bits, size, channels=1):
    """A WAV file's header of a format number, with room for ``size`` bytes of samples."""
    wide = channels * bits // 8
    more = struct.pack("<HHI", 22, bits, 4) + struct.pack("<H", 1) + b"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71"
    chunk = struct.pack("<HHIIHH", form, channels, RATE, RATE * wide, wide, bits) + (more if form == 65534 else b"")
    return b"RIFF" + struct.pack("<I", 20 + len(chunk) + size) + b"WAVEfmt " + struct.pack("<I", len(chunk)) + chunk


@pytest.mark.parametrize("missing", [1, 2, 100, 599, 600])
def test_a_recording_that_ends_early_is_named(tmp_path, missing):
    path = tmp_path / "a.wav"
    path.write_bytes(write_sound(path)[:-missing])
    with pytest.raises(UsageError, match=r"a\.wav is cut off: it ends after [\d,]+ of 300 samples"):
        read_wave(path, RATE, 9999)


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 0xFFFFFFFF - 36])
def test_a_header_that_was_written_before_the_end_of_the_sound_is_taken(tmp_path, size):
    content = write_sound(tmp_path / "a.wav")
    place = content.index(b"data") + 4
    (tmp_path / "a.wav").write_bytes(content[:place] + struct.pack("<I", size) + content[place + 4 :])
    assert len(read_wave(tmp_path / "a.wav", RATE, 9999)) == 300


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"RIFF", "is cut off: it ends within its header."),
        (header(1, 16, 60)[:20], "is cut off: it ends within its header."),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0a\n", "git lfs pull"),
        (b"<!DOCTYPE html>\n<html>", "an HTML page"),
        (b"these are 44 bytes that are no sound of any kind", "RIFF id."),
        (b"fLaC" + bytes(60), "Convert it: ffmpeg"),
        (header(3, 32, 40) + b"data" + struct.pack("<I", 40) + bytes(40), "unknown format: 3. Convert it: ffmpeg"),
        (header(7, 8, 40) + b"data" + struct.pack("<I", 40) + bytes(40), "unknown format: 7. Convert it: ffmpeg"),
        (b"ID3\x04" + bytes(60), "Convert it: ffmpeg"),
        (header(1, 24, 30) + b"data" + struct.pack("<I", 30) + bytes(30), "1 channels of 24 bits"),
    ],
)
def test_a_file_of_another_kind_is_named_with_the_way_out(tmp_path, content, reason):
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(UsageError, match=r"a\.wav") as caught:
        read_wave(tmp_path / "a.wav", RATE, 9999)
    assert reason in str(caught.value)
    assert ("ffmpeg" in str(caught.value)) == ("ffmpeg" in reason)


@pytest.mark.parametrize("place", ["", "sounds"])
def test_recordings_that_a_table_names_are_not_said_to_be_left_out(tmp_path, place, caplog):
    folder = tmp_path / place
    folder.mkdir(exist_ok=True)
    lines = []
    for number in range(12):
        write_sound(folder / f"{number}.wav", 300 + number)
        lines.append(
            json.dumps({"audio": str((folder / f"{number}.wav").relative_to(tmp_path)), "text": f"a {number}"})
        )
    (tmp_path / "train.jsonl").write_text("\n".join(lines[:11]) + "\n")
    (tmp_path / "notes.odt").write_text("of the recordings")
    with caplog.at_level(logging.INFO):
        SoundFiles(str(tmp_path), sample_rate=RATE, seconds=1.0, max_seconds=1.0).load()
    message = next(text for text in caplog.messages if "left out" in text)
    assert ("11.wav" in message) == (place == "")
    assert "notes.odt" in message
    assert "/0.wav" not in message


def write_table(folder, count=12, first=300):
    """A folder of sounds and their table, whose texts are their names."""
    folder.mkdir(parents=True)
    for number in range(count):
        write_sound(folder / f"{number}.wav", first + number)
    rows = [{"audio": f"{number}.wav", "text": f"{folder.name} {number}"} for number in range(count)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def load_sounds(path):
    data = SoundFiles(str(path), sample_rate=RATE, seconds=1.0, max_seconds=1.0, val_fraction=0.3)
    data.ready()
    return data


@pytest.mark.parametrize("count", [1000, 1001, 1007])
def test_a_batch_holds_the_longest_sound_that_is_taken(tmp_path, count):
    write_table(tmp_path / "a", first=count - 11)
    seconds = count / RATE
    data = SoundFiles(str(tmp_path / "a"), sample_rate=RATE, seconds=seconds, max_seconds=seconds, val_fraction=0.3)
    data.ready()
    longest = max(int(data.datasets[split].lengths.max()) for split in ("train", "val"))
    assert longest == count
    assert all(data.plan(split, 2, 0).count for split in ("train", "val"))


def test_a_row_names_a_sound_from_the_folder_of_its_own_table(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    write_table(tmp_path / "a")
    write_table(tmp_path / "b", first=600)
    sounds = load_sounds(tmp_path / "*" / "train.jsonl").datasets["val"]
    lengths = {text: int(end - start) for text, (start, end) in zip(sounds.extra["text"], sounds.edges, strict=True)}
    assert lengths
    assert all(length == {"a": 300, "b": 600}[text[0]] + int(text[2:]) for text, length in lengths.items())


def test_sounds_that_were_replaced_or_taken_away_are_read_again(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    write_table(tmp_path / "a")
    before, status = load_sounds(tmp_path / "a").fingerprint(), (tmp_path / "a/3.wav").stat()
    content = (tmp_path / "a/3.wav").read_bytes()
    (tmp_path / "a/3.wav").write_bytes(content[:-2] + b"\1\2")
    os.utime(tmp_path / "a/3.wav", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert load_sounds(tmp_path / "a").fingerprint() != before
    for name in ("3.wav", "11.wav"):
        (tmp_path / "a" / name).rename(tmp_path / name)
        with pytest.raises(UsageError, match=f"{name} cannot be read: No such file"):
            load_sounds(tmp_path / "a")
        (tmp_path / name).rename(tmp_path / "a" / name)
