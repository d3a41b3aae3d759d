"""A Vision Transformer of clips: patches of several frames as tokens."""

from torch import Tensor

from zoo.errors import UsageError
from zoo.models.vit import ViT
from zoo.parts.attention import nearest
from zoo.value_checks import at_least


class ClipTransformer(ViT):
    """Logits of a clip's class, from patches of its frames as tokens (Arnab et al., 2021, model 1).

    A patch may span several frames, a tubelet. Positions have three axes, time, row and column, among which RoPE and
    Sinusoidal divide their width.
    """

    def __init__(self, num_classes: int, frames: int = 8, tubelet_size: int = 1, channels: int = 1, **image):
        """
        Args:
            num_classes: number of classes.
            frames: number of frames of a clip.
            tubelet_size: frames of a patch, a divisor of frames.
            channels: 1 for grey, 3 for colour.
        """
        at_least(1, frames=frames, tubelet_size=tubelet_size, channels=channels)
        if frames % tubelet_size:
            raise UsageError(
                f"frames={frames} is not divisible by tubelet_size={tubelet_size}. "
                f"Try {nearest(frames, tubelet_size, 'tubelet_size')}."
            )
        self.frames, self.tubelet_size = frames, tubelet_size
        super().__init__(num_classes, channels=tubelet_size * channels, **image)
        self.channels = channels

    def grid(self, side: int) -> tuple[int, ...]:
        """Patches in time, in height and in width."""
        return self.frames // self.tubelet_size, side, side

    def patches(self, clips: Tensor) -> Tensor:
        """(B, F, C, H, W) to (B, patches, tubelet_size * C * patch_size * patch_size), by time, row and column."""
        tubelets = clips.unflatten(1, (-1, self.tubelet_size)).flatten(2, 3)  # (B, time, tubelet_size * C, H, W)
        return super().patches(tubelets.flatten(0, 1)).unflatten(0, tubelets.shape[:2]).flatten(1, 2)

    def forward(self, clips: Tensor) -> Tensor:
        """Clips (B, F, C, H, W) to logits (B, num_classes)."""
        return super().forward(clips)
