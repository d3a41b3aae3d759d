"""Spelled letters: the synthesiser has the pitch and formants that it is told, and splits share no text."""

import numpy as np
import pytest
import torch
from zoo_multimodal import speech
from zoo_multimodal.speech import GAINS, PHONES, RATE, SPELLING, TRACK, SpokenLetters, Utterance, synthesise

from zoo.errors import UsageError

TINY = {"characters": "ab12", "length": 6, "size": 20}


def steady_tracks(name, frames=200, tract=1.0):
    """The tracks (5, T) of one phone that lasts a second."""
    phone = PHONES[name]
    state = [phone.voice / GAINS[name], phone.noise / GAINS[name], *(f * tract for f in phone.formants)]
    return np.tile(np.array(state)[:, None], frames)


def spectrum(sound):
    """The power at each hertz of a second of sound."""
    return np.abs(np.fft.rfft(sound[:RATE] * np.hanning(RATE))) ** 2


@pytest.mark.parametrize("name", ["iy", "aa", "ao", "ih"])
def test_noise_through_a_vowels_resonators_is_loudest_at_its_formants(name):
    tracks = steady_tracks(name)
    tracks[:2] = [[0.0], [0.3]]
    sounds = synthesise([tracks] * 8, np.full(8, 100.0), np.random.default_rng(0))
    power = np.convolve(sum(map(spectrum, sounds)), np.ones(41) / 41, "same")
    for formant in PHONES[name].formants[:2]:
        near = slice(int(formant) - 90, int(formant) + 91)
        assert abs(int(power[near].argmax()) - 90) <= 60
        assert power[near].max() > 3 * power[int(formant * 1.5)] or name == "aa"


def test_a_voice_has_its_pitch():
    (sound,) = synthesise([steady_tracks("ah", 40)], np.array([125.0]), np.random.default_rng(0))
    part = sound[400:1200] - sound[400:1200].mean()
    autocorrelation = [float(part[:-lag] @ part[lag:]) for lag in range(40, 100)]
    assert 40 + int(np.argmax(autocorrelation)) == pytest.approx(RATE / 125, abs=3)


def test_a_second_resonator_is_the_recurrence_of_klatt():
    a, b, c = speech.resonator(np.array(500.0), 80.0)
    r = np.exp(-np.pi * 80 / RATE)
    assert (float(b), c) == pytest.approx((2 * r * np.cos(2 * np.pi * 500 / RATE), -r * r))
    assert float(a) == pytest.approx(1 - float(b) - c)  # 1 at zero hertz


def test_gain_is_the_root_mean_square_of_filtered_noise():
    tracks = steady_tracks("eh", 400)
    tracks[:2] = [[0.0], [1.0]]
    (sound,) = synthesise([tracks], np.array([100.0]), np.random.default_rng(1))
    assert float(np.sqrt(np.square(sound[800:]).mean())) == pytest.approx(GAINS["eh"], rel=0.1)


def test_letters_are_said_one_after_the_other_between_pauses_at_their_tempo():
    slow, fast = (Utterance("s1", 120.0, 1.0, tempo, 0.05, 0.5).tracks() for tempo in (1.0, 2.0))
    seconds = sum(PHONES[name].seconds for letter in "s1" for name in SPELLING[letter].split())
    assert slow.shape[1] * TRACK / RATE == pytest.approx(seconds + 3 * 0.05, abs=TRACK / RATE)
    assert fast.shape[1] * TRACK / RATE == pytest.approx(seconds / 2 + 3 * 0.05, abs=TRACK / RATE)
    assert slow[0, 0] == slow[0, -1] == 0
    assert slow[1].max() == pytest.approx(PHONES["s"].noise / GAINS["s"])


def test_every_character_has_a_spelling_of_its_own_of_phones_that_exist():
    assert {name for spelling in SPELLING.values() for name in spelling.split()} <= set(PHONES)
    assert len(set(SPELLING.values())) == len(SPELLING) == 36


def test_batches_hold_sounds_and_texts_with_their_ends_and_noise_anew_in_every_epoch():
    data = SpokenLetters(**TINY, seed=3)
    data.ready()
    train, val = data.datasets["train"], data.datasets["val"]
    batch = train.batch(np.array([0, 5]), 0)
    for row in range(2):
        samples, tokens = (int(batch[f"{name}_valid"][row].sum()) for name in ("source", "target"))
        assert not batch["source"][row, samples:].any()
        ids = batch["target"][row, :tokens].tolist()
        assert (ids[0], ids[-1]) == (1, 2)
        assert 1 <= len(ids) - 2 <= 6
        assert samples == train.lengths[[0, 5][row]]
    again, later = (train.batch(np.array([0, 5]), epoch)["source"] for epoch in (0, 1))
    assert torch.equal(again, batch["source"])
    assert not torch.equal(later, batch["source"])
    assert float((later - batch["source"]).std()) < 0.2 * float(batch["source"].std())
    evaluated = val.batch(np.array([4, 1]), 0)
    assert [data.detokenize(row.tolist()) for row in evaluated["target"]] == evaluated["text"]
    assert torch.equal(evaluated["source"], val.batch(np.array([4, 1]), 7)["source"])


def test_splits_share_no_text_and_other_options_have_other_fingerprints():
    data = [SpokenLetters(**TINY | change) for change in ({}, {"noise": 0.2}, {"silent": True}, {"size": 21})]
    texts = [one.text for one in data[0].utterances()]
    evaluated, train = texts[: 2 * speech.EVALUATION_SIZE], texts[2 * speech.EVALUATION_SIZE :]
    assert len(train) == 20
    assert not set(evaluated) & set(train)
    assert {len(text) for text in evaluated} >= {2, 3, 4, 5, 6}
    assert len({one.fingerprint() for one in data}) == 4


def test_silence_has_the_length_of_the_sound():
    loud, silent = (SpokenLetters(**TINY, silent=silent) for silent in (False, True))
    for one in (loud, silent):
        one.ready()
    sounds, zeros = (one.datasets["val"].batch(np.arange(3), 0) for one in (loud, silent))
    assert torch.equal(sounds["source_valid"], zeros["source_valid"])
    assert not zeros["source"].any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"characters": "aä"}, "'ä' has no spelling"), ({"characters": "aa"}, "all different"),
        ({"length": 3}, "fewer than 256 texts of length=3"), ({"noise": -1}, "noise is -1"), ({"size": 0}, "size"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_refused(change, words):
    with pytest.raises(UsageError, match=words):
        SpokenLetters(**TINY | change)
