"""A trained model of sounds and one of clips read files, and refuse what they cannot read."""

import json
import wave

import numpy as np
import pytest
import torch
from PIL import Image

import zoo
from zoo.cli import main
from zoo.errors import UsageError

TINY = ["--trainer.max_steps", "2", "--trainer.precision", "32-true", "--model.dim", "12", "--model.heads", "2"]
TINY += ["--model.depth", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("media")


def train(folder, recipe, *options):
    assert main(["fit", recipe, *TINY, "--runs", str(folder / "runs"), "--name", "tiny", *options]) == 0
    return zoo.load(str(folder / "runs" / recipe / "tiny" / "s1"))


@pytest.fixture(scope="module")
def speech(folder):
    return train(folder, "spell-tiny", "--data.size", "20", "--data.characters", "ab12", "--data.length", "6")


@pytest.fixture(scope="module")
def clips(folder):
    return train(folder, "clips-tiny", "--data.size", "20")


def write_wav(path, samples, rate=8000, channels=1):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


def test_files_and_samples_say_the_same_alone_and_beside_others(speech, folder):
    draw = np.random.default_rng(0)
    sounds = [(draw.standard_normal(count) * 0.1).clip(-1, 1) for count in (3000, 5000, 800)]
    paths = [write_wav(folder / f"{number}.wav", sound) for number, sound in enumerate(sounds)]
    read = [np.round(sound * 32767).astype(np.float32) / 32768 for sound in sounds]
    texts = speech.transcribe(paths)
    assert [one.text for one in texts] == [speech.transcribe(sound)[0].text for sound in read]
    assert [one.score for one in texts] == pytest.approx([speech.transcribe(p)[0].score for p in paths], rel=0.02)
    assert len(speech.transcribe(paths, beams=2)) == 3


def test_sounds_that_it_cannot_read_are_named(speech, folder):
    (folder / "text.wav").write_text("no sound")
    wrong = [
        (folder / "text.wav", "is no WAV file"),
        (folder / "none.wav", "cannot be read"),
        (write_wav(folder / "fast.wav", np.zeros(100), rate=16000), "16,000 samples per second"),
        (write_wav(folder / "stereo.wav", np.zeros(100), channels=2), "2 channels of 16 bits"),
        (write_wav(folder / "long.wav", np.zeros(80000)), "takes at most"),
        (np.zeros(0), "sound 1 holds no sound"),
        (write_wav(folder / "silent.wav", np.zeros(0)), "silent.wav holds no sound"),
        ([0.1, 0.2], "sound 1 is float64 .*samples .N,. are right"),
        ([None], "samples .N,. are right"),
        (torch.zeros(5, dtype=torch.int64), "sound 1 is int64"),
        (np.zeros(80000), r"has 80,000 samples\. This model takes 15,560 at most"),
        (np.zeros((2, 5)), "samples .N,. are right"),
        (np.array([0.1, np.nan]), "not finite"),
    ]
    for sound, message in wrong:
        with pytest.raises(UsageError, match=message):
            speech.transcribe(sound)
    with pytest.raises(UsageError, match="it can transcribe, and cannot translate"):
        speech.translate("hello")


def test_an_animated_picture_gets_the_probabilities_of_evaluation(clips, folder):
    frames = np.random.default_rng(0).integers(0, 255, (6, 16, 16), np.uint8)
    images = [Image.fromarray(frame) for frame in frames]
    path = folder / "clip.png"
    images[0].save(path, save_all=True, append_images=images[1:])
    batch = clips.normal(torch.from_numpy(frames)[None, :, None])
    with torch.no_grad():
        expected = clips.net(batch).double().softmax(-1)[0]
    (guesses,) = clips.classify(path, top=6)
    assert [guess.probability for guess in guesses] == pytest.approx(expected.sort(descending=True).values.tolist())
    assert {guess.label for guess in guesses} == set(clips.names)
    images[0].save(folder / "one.png")
    with pytest.raises(UsageError, match=r"one\.png has 1 frame, and this model needs 6"):
        clips.classify(folder / "one.png")


def test_a_clip_is_explained_without_an_input(clips, folder, capsys):
    assert main(["explain", str(clips.place.folder), "--image", str(folder / "one.png")]) == 2
    assert "a ClipClassification is explained without an input" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "options", "right"),
    [("spell-tiny", ["--model", "Translation"], "Phrasebook"), ("clips-tiny", ["--model", "Classification"], "Glyphs"),
     ("vit-glyphs", ["--model", "ClipClassification"], "MovingCharacters"),
     ("translation-tiny", ["--model", "Transcription"], "SpokenLetters")],
)  # fmt: skip
def test_data_of_another_kind_are_refused_with_those_that_are_right(recipe, options, right, folder, capsys):
    assert main(["fit", recipe, *options, "--data.size", "400", "--runs", str(folder / "none")]) == 2
    assert f"--data {right}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "earlier"),
    [("speech", "zoo.tasks.transcription.Transcription"),
     ("clips", "zoo.tasks.classification.ClipClassification")],
)  # fmt: skip
def test_an_export_answers_as_its_run_also_one_that_names_the_class_where_it_was_in_zoo(
    name, earlier, request, tmp_path
):
    trained = request.getfixturevalue(name)
    place = trained.export(tmp_path / "out")
    config = json.loads((place / "config.json").read_text())
    sound = np.random.default_rng(0).uniform(-0.5, 0.5, 4000)
    clip = tmp_path / "clip.gif"
    frames = [Image.fromarray(np.full((16, 16), 40 * number, np.uint8)) for number in range(6)]
    frames[0].save(clip, save_all=True, append_images=frames[1:])

    def answer(model):
        return model.transcribe(sound) if name == "speech" else model.classify(clip)

    expected = answer(trained)
    assert answer(zoo.load(place)) == expected
    config["model"]["class_path"] = earlier
    (place / "config.json").write_text(json.dumps(config))
    assert answer(zoo.load(place)) == expected
