"""An encoder-decoder from sound to text: a log-mel front end, a convolutional stem, and the usual two stacks."""

import math
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UsageError
from zoo.models.initialization import initialize, preserve_rng
from zoo.models.seq2seq import EncoderDecoder
from zoo.models.stack import Stack
from zoo.parts.block import Memory
from zoo.parts.packing import Packing
from zoo.parts.position import Extent
from zoo.value_checks import at_least

SMALLEST_POWER = 1e-10
DECADES = 8.0  # below the loudest number of a sound everything is equally silent
KNEE, OCTAVES = 1000.0, 27 / math.log(6.4)  # Slaney's mels are linear up to 1000 Hz, which is mel 15
Front: TypeAlias = Literal["masked", "whisper"]


def mel(frequency: float, slaney: bool = False) -> float:
    """The mel of a frequency in Hz: 2595 log10(1 + f / 700) (O'Shaughnessy, 1987), or Slaney's (1998): 3 f / 200 up to
    1000 Hz, and 15 + 27 log(f / 1000) / log(6.4) above.
    """
    if not slaney:
        return 2595 * math.log10(1 + frequency / 700)
    return 0.015 * frequency if frequency < KNEE else 15 + OCTAVES * math.log(frequency / KNEE)


def hertz(number: float, slaney: bool = False) -> float:
    """The frequency in Hz of a mel."""
    if not slaney:
        return 700 * (10 ** (number / 2595) - 1)
    return number / 0.015 if number < 15 else KNEE * math.exp((number - 15) / OCTAVES)


def mel_filters(sample_rate: int, width: int, mels: int, slaney: bool = False) -> Tensor:
    """Triangles over the frequencies of a window of ``width`` samples, (width // 2 + 1, mels).

    Their peaks, of height 1, are evenly spaced in mels between 0 and half of the sample rate; each begins and ends at
    its neighbours' peaks. Slaney's have the area 1 instead, in Hz.
    """
    last = mel(sample_rate / 2, slaney)
    edges = [hertz(last * i / (mels + 1), slaney) for i in range(mels + 2)]
    low, peak, high = (torch.tensor(edges[i : i + mels], dtype=torch.float64) for i in range(3))
    frequency = torch.arange(width // 2 + 1, dtype=torch.float64)[:, None] * sample_rate / width
    rising, falling = (frequency - low) / (peak - low), (high - frequency) / (high - peak)
    triangles = torch.minimum(rising, falling).clamp(min=0)
    return triangles * 2 / (high - low) if slaney else triangles


class LogMel(nn.Module):
    """Loudness by time and frequency: (max(log10 power, peak - 8) + 4) / 4 in mel bands (Radford et al., 2022).

    The power is that of a short-time Fourier transform with a Hann window; frame f is centred on samples f * hop to
    (f + 1) * hop. It has no parameters. That of ``whisper`` is centred on sample f * hop, the sound is mirrored at its
    edges, and the bands are Slaney's.
    """

    window: Tensor
    filters: Tensor

    def __init__(self, sample_rate: int, width: int, hop: int, mels: int, whisper: bool = False):
        """
        Args:
            sample_rate: samples per second.
            width: samples of a window.
            hop: samples from one window to the next.
            mels: number of bands.
            whisper: frames and bands of Whisper.
        """
        super().__init__()
        self.sample_rate, self.width, self.hop, self.mels, self.whisper = sample_rate, width, hop, mels, whisper
        self.register_buffer("window", torch.empty(width), persistent=False)
        self.register_buffer("filters", torch.empty(width // 2 + 1, mels, dtype=torch.float64), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The tables are constants; they are written here so that a net built on the meta device gets them too."""
        if not self.window.is_meta:
            self.window.copy_(torch.hann_window(self.width, dtype=torch.float64))
            self.filters.copy_(mel_filters(self.sample_rate, self.width, self.mels, self.whisper))

    def frames(self, samples):
        """How many frames so many samples give, elementwise."""
        return samples // self.hop if self.whisper else -(-samples // self.hop)

    def forward(self, sound: Tensor, valid: Tensor | None = None) -> Tensor:
        """Samples (B, N), zeros behind their end, to (B, F, mels) in float64, F = ceil(N / hop); floor in Whisper.

        ``valid`` (B, F) is False at frames behind the end, among which the peak is not looked for.
        """
        count = self.frames(sound.size(1))
        before = self.width // 2 if self.whisper else (self.width - self.hop) // 2
        after = (count - 1) * self.hop + self.width - before - sound.size(1)
        # in double precision: autocast would round the numbers to 8 bits in front of the logarithm
        whole = F.pad(sound.double()[:, None], (before, after), "reflect" if self.whisper else "constant")[:, 0]
        waves = torch.stft(
            whole, self.width, self.hop, window=self.window.double(), center=False, return_complex=True
        )  # (B, width // 2 + 1, frames)
        power = (waves.real.square() + waves.imag.square()).mT @ self.filters.double()
        logs = power.clamp(min=SMALLEST_POWER).log10()
        real = logs if valid is None else logs.masked_fill(~valid[..., None], float("-inf"))
        return (torch.maximum(logs, real.amax((1, 2), keepdim=True) - DECADES) + 4) / 4


class Convolution(nn.Conv1d):
    """A convolution whose weights keep the size of what an activation of half of the numbers leaves (He et al., 2015).

    torch's own make frames of sound so small that positions drown them.
    """

    def reset_parameters(self) -> None:
        """Weights N(0, 2 / numbers read), biases zero."""
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class ConvolutionalStem(nn.Module):
    """Frames of sound to tokens by two convolutions of width 3 with GELU, the second of stride 2 (Whisper's).

    What stands behind the end of a sound is zero in front of each of them.
    """

    def __init__(self, bands: int, dim: int):
        """
        Args:
            bands: numbers per frame.
            dim: width of a token.
        """
        super().__init__()
        self.first = Convolution(bands, dim, 3, padding=1)
        self.second = Convolution(dim, dim, 3, stride=2, padding=1)

    def tokens(self, frames):
        """How many tokens so many frames give, elementwise."""
        return -(-frames // 2)

    def forward(self, frames: Tensor, valid: Tensor | None = None) -> Tensor:
        """(B, F, bands), real where ``valid`` (B, F), to (B, ceil(F / 2), dim)."""
        x = frames.mT if valid is None else torch.where(valid[:, None], frames.mT, 0.0)
        x = F.gelu(self.first(x.to(self.first.weight.dtype)))
        x = x if valid is None else x * valid[:, None]
        return F.gelu(self.second(x)).mT


class AudioSeq2Seq(EncoderDecoder):
    """Logits of the next token of a text, from the sound that says it and the text so far (Radford et al., 2022)."""

    def __init__(
        self,
        target_vocab_size: int,
        sample_rate: int = 16000,
        max_samples: int = 480000,
        max_length: int = 448,
        mels: int = 40,
        window_ms: float = 25.0,
        hop_ms: float = 10.0,
        front: Front = "masked",
        decoder_depth: int | None = None,
        seed: int = 0,
        **stack,
    ):
        """
        Args:
            target_vocab_size: number of tokens of the text.
            sample_rate: samples per second of the sounds.
            max_samples: samples of the longest sound.
            max_length: tokens of the longest text.
            mels: bands of the log-mel front end; 80 in Whisper.
            window_ms: milliseconds of sound that a frame is made from.
            hop_ms: milliseconds from one frame to the next; a token of the encoder stands for two frames.
            front: how a sound is heard: to its end, what stands behind it masked; or as in Whisper, with silence up to
                max_samples, and without the factor sqrt(dim) on embeddings of the text and on what the stem gives.
            decoder_depth: number of decoder blocks; as many as the encoder has unless given.
            seed: of the initial weights.

        Raises UsageError for a window shorter than its hop, and for one of fewer than 16 samples.
        """
        super().__init__()
        at_least(1, target_vocab_size=target_vocab_size, sample_rate=sample_rate, max_samples=max_samples)
        at_least(1, max_length=max_length, mels=mels, decoder_depth=decoder_depth)
        width, hop = round(sample_rate * window_ms / 1000), round(sample_rate * hop_ms / 1000)
        if hop < 1 or width < max(hop, 16):
            raise UsageError(
                f"window_ms={window_ms} and hop_ms={hop_ms} are {width} and {hop} samples at {sample_rate} per second: "
                "a window needs at least 16 samples and no fewer than a hop, which needs 1."
            )
        whisper = front == "whisper"
        most = width // (2 if whisper else 4)  # some of Whisper's 128 bands are empty
        if mels > most:
            raise UsageError(
                f"mels={mels} is too many for windows of {width} samples: at most {most} have frequencies."
            )
        if whisper and max_samples <= width:
            raise UsageError(f"max_samples={max_samples} is too few for front=whisper: more than {width} are right.")
        with preserve_rng():
            self.sample_rate, self.max_samples, self.max_length = sample_rate, max_samples, max_length
            self.front = LogMel(sample_rate, width, hop, mels, whisper)
            longest = -(-self.front.frames(max_samples) // 2)
            self.encoder = Stack(Extent((longest,)), cross=False, padded=True, **stack)
            extent = Extent((max_length,), causal=True)
            stack["depth"] = decoder_depth or len(self.encoder.blocks)
            self.decoder = Stack(extent, cross=True, padded=False, **stack)
            self.dim: int = self.encoder.dim
            self.stem = ConvolutionalStem(mels, self.dim)
            self.target_embedding = nn.Embedding(target_vocab_size, self.dim)
            self.head = self.bias = None  # the embedding matrix is the output's (Press and Wolf, 2017)
            self.scale, self.out_scale = 1.0 if whisper else self.dim**0.5, 1.0
            initialize(self, seed)

    def encode(self, source: Tensor, valid: Tensor | None = None) -> Memory:
        """Sounds (B, N), their real samples in front as ``valid`` (B, N) says, to what a decoder looks at."""
        if self.front.whisper:
            samples = source if valid is None else torch.where(valid, source, 0.0)
            return self.encode_frames(self.front(F.pad(samples, (0, self.max_samples - source.size(1)))))
        if valid is None:
            return self.encode_frames(self.front(source))
        count = self.front.frames(valid.sum(1))
        real = torch.arange(self.front.frames(source.size(1)), device=source.device) < count[:, None]
        x = self.stem(self.front(torch.where(valid, source, 0.0), real), real)
        tokens = torch.arange(x.size(1), device=source.device) < self.stem.tokens(count)[:, None]
        packing = Packing.of(tokens) if self.training else None
        return Memory(self.encoder(x * self.scale, tokens, packing=packing), tokens, packing)

    def encode_frames(self, frames: Tensor) -> Memory:
        """What the front end gives, (B, F, mels), without padding, to what a decoder looks at."""
        return Memory(self.encoder(self.stem(frames) * self.scale), None, None)
