"""What trained models of images and captions share when they are asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from zoo.data.image_decoding import decode
from zoo.inference.trained_model import Trained
from zoo_multimodal.captions import encode
from zoo_multimodal.shapes import normal

Picture = Image.Image | np.ndarray


class TrainedOnCaptions(Trained):
    """A trained model with the words of its captions."""

    files = ("captions.json",)

    def tokens(self, captions: Sequence[str], length: int) -> Tensor:
        """(B, length) on the model's device. Raises UsageError for a word that captions do not have."""
        return encode(captions, length).to(self.device)

    def pixels(self, pictures: Sequence[Picture], side: int) -> Tensor:
        """Pictures of any size to (B, 3, side, side) in [-1, 1]."""
        rows = [one if isinstance(one, Image.Image) else Image.fromarray(one) for one in pictures]
        arrays = [np.asarray(decode(one, "RGB", "a picture").resize((side, side))) for one in rows]
        return normal(torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)).to(self.device)
