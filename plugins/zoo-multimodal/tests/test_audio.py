"""The front end of sounds is its formulas; padding changes nothing; a text is decoded as it is scored."""

import cmath
import math

import pytest
import torch
from torch.testing import assert_close
from zoo_multimodal.audio import AudioSeq2Seq, ConvolutionalStem, LogMel, mel_filters

from zoo.errors import UsageError
from zoo.models.initialization import initialize

RATE, WIDTH, HOP, MELS = 1000, 32, 20, 6
SIZES = {"sample_rate": 1000, "max_samples": 400, "max_length": 9, "mels": 6, "window_ms": 32.0, "hop_ms": 20.0}
STACK = {"dim": 16, "depth": 1, "heads": 2, "hidden": 24}


def triangle(frequency, band):
    """The filter of a band at a frequency, in mels."""

    def point(i):
        return 700 * (10 ** (i * 2595 * math.log10(1 + RATE / 2 / 700) / (MELS + 1) / 2595) - 1)

    low, peak, high = point(band), point(band + 1), point(band + 2)
    if frequency <= low or frequency >= high:
        return 0.0
    return (frequency - low) / (peak - low) if frequency <= peak else (high - frequency) / (high - peak)


def log_mel(sound):
    """The front end of a list of samples, by the sum of the Fourier transform."""
    count = -(-len(sound) // HOP)
    rows = []
    for frame in range(count):
        first = frame * HOP - (WIDTH - HOP) // 2
        window = [
            (sound[first + n] if 0 <= first + n < len(sound) else 0.0) * math.sin(math.pi * n / WIDTH) ** 2
            for n in range(WIDTH)
        ]
        power = [
            abs(sum(x * cmath.exp(-2j * math.pi * k * n / WIDTH) for n, x in enumerate(window))) ** 2
            for k in range(WIDTH // 2 + 1)
        ]
        bands = [sum(p * triangle(k * RATE / WIDTH, band) for k, p in enumerate(power)) for band in range(MELS)]
        rows.append([math.log10(max(band, 1e-10)) for band in bands])
    peak = max(max(row) for row in rows)
    return [[(max(number, peak - 8) + 4) / 4 for number in row] for row in rows]


@pytest.mark.parametrize("samples", [1, 20, 97, 140])
def test_the_front_end_is_its_formulas(samples):
    torch.manual_seed(samples)
    sound = torch.randn(2, samples, dtype=torch.float64)
    sound[1] *= torch.logspace(0, -9, samples)  # silence below the loudest by more than eight decades
    front = LogMel(RATE, WIDTH, HOP, MELS)
    for row, result in zip(sound, front(sound), strict=True):
        assert_close(result, torch.tensor(log_mel(row.tolist()), dtype=torch.float64), atol=1e-5, rtol=0)


def test_what_is_loud_behind_the_end_is_not_the_peak():
    torch.manual_seed(0)
    sound = torch.randn(1, 200, dtype=torch.float64)
    sound[:, 100:] *= 1e6
    front, valid = LogMel(RATE, WIDTH, HOP, MELS), torch.arange(10)[None] < 4
    assert_close(front(sound, valid)[:, :4], front(sound[:, :100])[:, :4])
    assert not torch.allclose(front(sound)[:, :4], front(sound[:, :100])[:, :4])


def test_silence_is_the_lowest_loudness():
    assert_close(LogMel(RATE, WIDTH, HOP, MELS)(torch.zeros(1, 40)), torch.full((1, 2, MELS), -1.5).double())


def test_a_tone_is_loudest_in_the_band_whose_peak_is_nearest():
    filters = mel_filters(8000, 256, 40)
    assert_close(filters.max(0).values, torch.ones(40).double(), atol=0.5, rtol=0)
    front = LogMel(8000, 256, 128, 40)
    for band in (8, 20, 33):
        frequency = float(filters[:, band].argmax()) * 8000 / 256
        tone = torch.sin(2 * torch.pi * frequency * torch.arange(4000) / 8000)
        assert int(front(tone[None])[0, 10:20].mean(0).argmax()) == band


def test_the_stem_is_two_convolutions_and_halves_the_frames():
    torch.manual_seed(0)
    stem, frames = ConvolutionalStem(3, 4).double(), torch.randn(1, 7, 3, dtype=torch.float64)
    x = torch.nn.functional.pad(frames[0], (0, 0, 1, 1))
    first = [sum(x[t + i] @ stem.first.weight[:, :, i].T for i in range(3)) + stem.first.bias for t in range(7)]
    y = torch.nn.functional.pad(torch.nn.functional.gelu(torch.stack(first)), (0, 0, 1, 1))
    second = [sum(y[t + i] @ stem.second.weight[:, :, i].T for i in range(3)) + stem.second.bias for t in (0, 2, 4, 6)]
    assert_close(stem(frames)[0], torch.nn.functional.gelu(torch.stack(second)), atol=1e-12, rtol=0)


@pytest.fixture
def net():
    return initialize(AudioSeq2Seq(11, **SIZES, **STACK), 3).double().eval()


@pytest.mark.parametrize("samples", [40, 61, 250])
def test_what_stands_behind_a_sound_changes_nothing(net, samples):
    torch.manual_seed(1)
    sound, target = torch.randn(1, samples), torch.randint(11, (1, 5))
    expected = net(sound.double(), target)
    padded = torch.cat([sound, torch.full((1, 400 - samples), float("nan"))], 1).double()
    valid = torch.arange(400)[None] < samples
    assert_close(net(padded, target, valid), expected, atol=1e-10, rtol=0)
    assert not torch.allclose(net(sound.double() * 0, target), expected)


def test_steps_of_decoding_are_the_whole_text(net):
    torch.manual_seed(2)
    sound, target = torch.randn(2, 300).double(), torch.randint(11, (2, 6))
    valid = torch.arange(300) < torch.tensor([[300], [123]])
    whole, state = net(sound, target, valid), net.begin(sound, valid, 6)
    for t in range(6):
        assert_close(state.step(target[:, t : t + 1]), whole[:, t], atol=1e-10, rtol=0)


def test_a_net_on_the_meta_device_gets_its_tables_when_it_is_initialised():
    with torch.device("meta"):
        net = AudioSeq2Seq(11, **SIZES, **STACK)
    net = initialize(net.to_empty(device="cpu"), 3)
    assert_close(net.front.filters, mel_filters(RATE, WIDTH, MELS))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hop_ms": 40.0}, "32 and 40 samples"), ({"window_ms": 8.0, "hop_ms": 4.0}, "at least 16"),
        ({"mels": 9}, "at most 8"), ({"max_samples": 0}, "max_samples"),
    ],
)  # fmt: skip
def test_sizes_that_cannot_be_are_refused(change, words):
    with pytest.raises(UsageError, match=words):
        AudioSeq2Seq(11, **SIZES | change, **STACK)
