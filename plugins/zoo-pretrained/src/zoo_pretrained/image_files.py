"""How images are prepared for a published classifier: preprocessor_config.json and timm's pretrained_cfg, both ways."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.data.image_decoding import INTERPOLATIONS
from zoo.errors import UsageError
from zoo.inference.classification import resize_of_training
from zoo.io import atomic_files
from zoo_pretrained import hf_files
from zoo_pretrained.config_keys import Key, Keys, shorten
from zoo_pretrained.family import Config
from zoo_pretrained.side_files import ANY, FLAG, read_side_file

if TYPE_CHECKING:
    from zoo.inference.trained_model import Trained

log = logging.getLogger(__name__)
IMAGES = "preprocessor_config.json"
PROCESSOR = "processor_config.json"  # of a model of images and texts: it holds that of the images, and overrules it
HALF, OPENAI = [0.5] * 3, ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
_CROPPED = {
    "size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}, "do_center_crop": True,
    "resample": 3, "image_mean": OPENAI[0], "image_std": OPENAI[1],
}  # fmt: skip
# what a class of transformers does where its file says nothing
PROCESSORS: dict[str, dict[str, Any]] = {
    "ViT": {
        "size": {"height": 224, "width": 224}, "crop_size": None, "do_center_crop": False, "resample": 2,
        "image_mean": HALF, "image_std": HALF,
    },
    "DeiT": {
        "size": {"height": 256, "width": 256}, "crop_size": {"height": 224, "width": 224}, "do_center_crop": True,
        "resample": 3, "image_mean": HALF, "image_std": HALF,
    },
    "Siglip": {
        "size": {"height": 224, "width": 224}, "crop_size": None, "do_center_crop": False, "resample": 3,
        "image_mean": HALF, "image_std": HALF,
    },
    "CLIP": _CROPPED,
    "Bit": _CROPPED,
}  # fmt: skip
SHORT_SIDE = ("CLIP", "Bit", "Siglip")  # to whose class a size of one number is the length of the short side
# the class of which a file without a class is, by how the type of the model begins
OWN = {"deit": "DeiT", "dinov2": "Bit", "clip": "CLIP", "siglip": "Siglip", "": "ViT"}
NAME = re.compile(rf"({'|'.join(PROCESSORS)})(ImageProcessor|FeatureExtractor)(Fast|Pil)?")
KEYS = Keys(
    {
        **dict.fromkeys(["do_resize", "do_center_crop", "do_rescale", "do_normalize"], FLAG),
        **dict.fromkeys(["size", "crop_size", "image_mean", "image_std"], ANY),
        **dict.fromkeys(["image_processor_type", "feature_extractor_type"], Key(None, str, optional=True)),
        "resample": Key(None, int, 0, optional=True), "rescale_factor": Key(None, float, 0.0, optional=True),
    },
    {"do_pad": (False, None), "pad_size": (None,), "auto_map": (None,), "do_grayscale": (False, None)},
    """
    _processor_class _valid_processor_keys data_format device disable_grouping do_convert_rgb input_data_format
    processor_class return_tensors transformers_version default_to_square
    """.split(),
)  # fmt: skip


def import_images(source: Path, folder: Path, theirs: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Write images.json: names of classes, and how an image is prepared. Raises UsageError that names a wrong key."""
    channels, cfg = options["channels"], theirs.get("pretrained_cfg")
    if cfg is not None:
        mean, std, way = cfg["mean"], cfg["std"], _timm_way(cfg, options["image_size"])
    else:
        mean, std, way = _transformers_way(source, theirs, options["image_size"])
    labels = theirs.get("id2label") or {}
    names = theirs.get("label_names") or [labels.get(str(n), f"class {n}") for n in range(options["num_classes"])]
    content = {"names": list(names), "mean": mean[:channels], "std": std[:channels]}
    sizes = {"image_size": options["image_size"], "channels": channels}
    atomic_files.write_json(folder / "images.json", {**content, **sizes, "prepare": way})


def _timm_way(cfg: Config, side: int) -> dict[str, Any]:
    """What timm's evaluation does with an image: resized by 1 / crop_pct, and the middle cut out."""
    if cfg["crop_mode"] not in ("center", "squash"):
        raise _unsupported("config.json: pretrained_cfg", cfg, "crop_mode", "center or squash")
    if cfg["interpolation"] not in INTERPOLATIONS:
        raise _unsupported("config.json: pretrained_cfg", cfg, "interpolation", " or ".join(INTERPOLATIONS))
    if not 0 < cfg["crop_pct"] <= 2:
        raise _unsupported("config.json: pretrained_cfg", cfg, "crop_pct", "a share of the side")
    larger = math.floor(side / cfg["crop_pct"])
    resize = larger if cfg["crop_mode"] == "center" else [larger, larger]
    return {"library": "timm", "resize": resize, "interpolation": cfg["interpolation"], "crop": [side, side]}


def _transformers_way(
    source: Path, theirs: Mapping[str, Any], side: int
) -> tuple[list[float], list[float], dict[str, Any]]:
    """Mean, deviation, and what the image processor of a checkpoint does with an image before."""
    path, file = _read_processor(source)
    stated = {key: value for key, value in file.items() if value is not None}
    kind = next(kind for word, kind in OWN.items() if theirs.get("model_type", "").startswith(word))
    name = stated.get("image_processor_type", stated.get("feature_extractor_type", f"{kind}ImageProcessor"))
    if (match := NAME.fullmatch(name)) is None:
        raise _unsupported(path, {"image_processor_type": name}, "image_processor_type",
                           " or ".join(f"{one}ImageProcessor" for one in PROCESSORS))  # fmt: skip
    square = {"height": side, "width": side}
    common = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
    config = {**common, **PROCESSORS[match[1]], **stated}
    if not stated.keys() & {"size", "crop_size"} and (side != 224 or not stated):  # the class's own is another model's
        config |= {"size": square, "do_center_crop": False}
    scale = config["rescale_factor"] if config["do_rescale"] else 1.0
    if not scale:
        raise _unsupported(path, config, "rescale_factor", "a number above 0")
    mean, std = (_three(path, config, key) for key in ("image_mean", "image_std"))
    if not config["do_normalize"]:
        mean, std = [0.0] * 3, [1.0] * 3
    resize = _size(path, config, "size", match[1] in SHORT_SIDE) if config["do_resize"] else None
    crop = _size(path, config, "crop_size", False) if config["do_center_crop"] else None
    names = {value: key for key, value in INTERPOLATIONS.items()}
    if config["resample"] not in names or names[config["resample"]] in ("box", "hamming"):
        raise _unsupported(path, config, "resample", "0, 1, 2 or 3")
    last = crop or resize
    if last is not None and last not in (side, [side, side]):
        raise _unsupported(path, config, "crop_size" if crop else "size", f"the {side} pixels of config.json")
    way = {"library": "transformers", "resize": resize, "interpolation": names[config["resample"]], "crop": crop}
    # pixels are divided by 255 before mean and deviation count
    return [one / (255 * scale) for one in mean], [one / (255 * scale) for one in std], way


def _read_processor(source: Path) -> tuple[Path, dict[str, Any]]:
    """The file that says how images are prepared, and what it says; {} for a missing file."""
    whole = source / PROCESSOR
    own = hf_files.optional(whole).get("image_processor")
    if own is None:
        return source / IMAGES, read_side_file(source / IMAGES, KEYS)
    if not isinstance(own, dict):
        raise _unsupported(whole, {"image_processor": own}, "image_processor", "an object")
    KEYS.complete(own, f"{PROCESSOR}: image_processor", str(whole))
    return whole, own


def _three(path: Path, config: Config, key: str) -> list[float]:
    """Mean or deviation of each channel, said once or for each."""
    value = config[key]
    values = [value] * 3 if isinstance(value, (int, float)) else value
    numbers = isinstance(values, list) and all(
        isinstance(one, (int, float)) and not isinstance(one, bool) and math.isfinite(one) for one in values
    )
    if not numbers or not values or (key == "image_std" and min(values) <= 0):
        raise _unsupported(path, config, key, "a number for each channel, above 0 for a deviation")
    return [float(one) for one in values]


def _size(path: Path, config: Config, key: str, shortest: bool) -> int | list[int]:
    """The length of the short side, or height and width, as a processor reads a number, a pair or an object."""
    value = config[key]
    if isinstance(value, int):
        value = {"shortest_edge": value} if shortest and key == "size" else {"height": value, "width": value}
    if isinstance(value, list) and len(value) == 2:
        value = {"height": value[0], "width": value[1]}
    stated = {name: one for name, one in value.items() if one is not None} if isinstance(value, dict) else {}
    right = stated.keys() in ({"height", "width"}, {"shortest_edge"} if key == "size" else {"height", "width"})
    if not right or not all(isinstance(one, int) and 1 <= one <= 2**15 for one in stated.values()):
        raise _unsupported(path, config, key, "height and width, or shortest_edge,")
    return stated["shortest_edge"] if "shortest_edge" in stated else [stated["height"], stated["width"]]


def _unsupported(where: object, config: Config, key: str, right: str) -> UsageError:
    return UsageError(f"{where}: {key}={shorten(config.get(key))} is not supported; {right} would be.")


def timm_config(trained: Trained, config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the names of classes and the preparation of images, as timm reads them."""
    images = hf_files.optional(trained.place.folder / "images.json")
    if not images:
        return dict(config)
    way, side = images.get("prepare"), images["image_size"]
    timm = {
        "crop_pct": 1.0,
        "crop_mode": "center" if resize_of_training(trained.place.config) == "crop" else "squash",
        "interpolation": "bilinear",
    }
    if way is not None:
        squash = isinstance(way["resize"], list)
        larger = way["resize"][0] if squash else way["resize"]
        timm = {"crop_pct": _crop_pct(side, larger), "crop_mode": "squash" if squash else "center",
                "interpolation": way["interpolation"]}  # fmt: skip
    cfg = {**config["pretrained_cfg"], "mean": images["mean"], "std": images["std"], **timm}
    return {**config, "label_names": images["names"], "pretrained_cfg": cfg}


def write_preprocessor(trained: Trained, folder: Path) -> None:
    """Write transformers' preprocessor_config.json for a classifier of images, unless it is there."""
    images = hf_files.optional(trained.place.folder / "images.json")
    if not images:
        return
    if images["channels"] == 1:
        log.warning("pipelines of transformers give an image in colour: this model reads grey ones, image.convert('L')")
    if images.get("prepare") is None and (folder / IMAGES).is_file():
        return
    atomic_files.write_json(folder / IMAGES, preprocessor(images, resize_of_training(trained.place.config) == "crop"))


def preprocessor(images: Mapping[str, Any], cropped: bool) -> dict[str, Any]:
    """What preprocessor_config.json says for an images.json; ``cropped``: what was trained here saw the middle."""
    side = images["image_size"]
    trained_way = {"resize": side if cropped else [side, side], "crop": [side, side] if cropped else None}
    way = images.get("prepare") or {**trained_way, "interpolation": "bilinear"}
    resize, crop = way["resize"], way["crop"]
    size = {"shortest_edge": resize} if isinstance(resize, int) else _rectangle(resize or [side, side])
    return {
        "image_processor_type": "BitImageProcessor" if crop or isinstance(resize, int) else "ViTImageProcessor",
        **{"do_resize": resize is not None, "size": size, "resample": INTERPOLATIONS[way["interpolation"]]},
        **{"do_center_crop": crop is not None, **({"crop_size": _rectangle(crop)} if crop else {})},
        **{"do_convert_rgb": images["channels"] == 3, "do_rescale": True, "rescale_factor": 1 / 255},
        **{"do_normalize": True, "image_mean": images["mean"], "image_std": images["std"]},
    }


def _rectangle(sides: Sequence[int]) -> dict[str, int]:
    return {"height": sides[0], "width": sides[1]}


def _crop_pct(side: int, larger: int) -> float:
    """The share with which timm enlarges ``side`` to ``larger`` when it rounds down."""
    return next(share for share in (side / larger, side / (larger + 0.5)) if math.floor(side / share) == larger)
