"""Pictures of what a transcription looks at, during training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import move_data_to_device
from PIL import Image

from zoo.logging.attention_maps import LAST, SENTENCES, labels, translation_alignment, validation

if TYPE_CHECKING:
    from zoo_multimodal.transcription import Transcription


def sound_pictures(task: Transcription, data: Any) -> dict[str, Image.Image]:
    """The alignment of a few sounds of the validation data with their texts."""
    from zoo.logging.attention_figures import alignment  # late: matplotlib takes half a second

    batch, images = move_data_to_device(validation(data, SENTENCES), task.device), {}
    seconds = 2 * task.net.front.hop / task.net.sample_rate  # of an encoder's token
    for row in range(len(batch["source"])):
        sound, target = (batch[side][row][batch[f"{side}_valid"][row]] for side in ("source", "target"))
        weights = translation_alignment(task.net, sound[None], None, target[None, :-1])
        if weights is not None:
            times = [f"{number * seconds:.1f} s" for number in range(weights.size(2))]
            letters = labels(data.target_tokenizer, target[1:])
            images[f"sound {row + 1}"] = alignment(weights[0], times, letters, None, LAST)
    return images
