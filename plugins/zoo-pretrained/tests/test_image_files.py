"""Images of imported classifiers: every key that prepares them is obeyed as its library does, or refused."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from zoo_pretrained.image_files import PROCESSORS, _crop_pct, import_images, preprocessor, write_preprocessor
from zoo_pretrained.vit import CFG

from zoo.cli import main
from zoo.data.image_decoding import prepare_published, published_way
from zoo.data.image_sources import ImageFolder
from zoo.errors import UsageError
from zoo.inference import weight_files
from zoo.inference.classification import prepare_image
from zoo.tasks.classification import Classification

SIDE = 16
SQUARE = {"height": SIDE, "width": SIDE}
STANDARD = {"do_resize": True, "size": SQUARE, "do_center_crop": False, "do_rescale": True, "rescale_factor": 1 / 255,
         "do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2}  # fmt: skip
CROPPED = {"do_center_crop": True, "crop_size": SQUARE}


def picture(draw, width, height):
    """Smooth colours with noise, so that neither a shift nor another interpolation goes unnoticed."""
    y, x = np.mgrid[0:height, 0:width]
    waves = np.stack([x * 5 % 256, y * 7 % 256, (x + 2 * y) * 3 % 256], -1)
    return Image.fromarray(((waves + draw.integers(0, 40, waves.shape)) % 256).astype(np.uint8))


def ours(folder, image, theirs):
    """The image as an imported model sees it, (3, SIDE, SIDE)."""
    options = {"num_classes": 2, "image_size": SIDE, "channels": 3}
    import_images(folder, folder, theirs, options)
    path = folder / "images.json"
    _, mean, std, _, _ = prepare_image(path)
    pixels = prepare_published(image, published_way(path), SIDE).float()
    return (pixels / 255 - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)


def drawn_processor(draw):
    """Keys of preprocessor_config.json as people write them, some left out and some written in an old way."""
    kind = str(draw.choice(list(PROCESSORS)))
    config = {"image_processor_type": f"{kind}ImageProcessor", **STANDARD}
    config |= {
        "resample": int(draw.integers(4)),
        "do_rescale": bool(draw.integers(4)),
        "do_normalize": bool(draw.integers(3)),
    }
    config["rescale_factor"] = float(draw.choice([1 / 255, 1 / 127.5, 0.01]))
    config["image_mean"], config["image_std"] = (
        draw.random(3).round(3).tolist(),
        (draw.random(3) + 0.1).round(3).tolist(),
    )
    larger = int(draw.integers(SIDE - 4, 2 * SIDE))
    if draw.integers(3):
        sizes = [{"height": larger, "width": larger + 3}, {"shortest_edge": larger}, larger]
        config |= {**CROPPED, "size": sizes[int(draw.integers(3))], "crop_size": [SQUARE, SIDE][int(draw.integers(2))]}
    if draw.integers(2):
        del config[str(draw.choice(["do_rescale", "do_normalize", "image_mean", "image_std", "resample"]))]
    return config


@pytest.mark.parametrize("seed", range(40))
def test_drawn_processors_give_transformers_pixels(tmp_path, seed):
    from transformers import AutoImageProcessor

    draw = np.random.default_rng(seed)
    config = drawn_processor(draw)
    whole = seed % 3 == 0  # as a model of images and texts has it, which overrules the other
    content = {"image_processor": config, "processor_class": "CLIPProcessor"} if whole else config
    (tmp_path / f"{'' if whole else 'pre'}processor_config.json").write_text(json.dumps(content))
    if whole:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps({**STANDARD, "image_mean": [0.1] * 3}))
    image = picture(draw, *(int(side) for side in draw.integers(SIDE, 60, 2)))
    right = AutoImageProcessor.from_pretrained(tmp_path)(image, return_tensors="pt")["pixel_values"][0]
    result = ours(tmp_path, image, {"model_type": "vit"})
    torch.testing.assert_close(result, right.float(), rtol=1e-4, atol=1e-4, msg=lambda text: f"{config}: {text}")
    (tmp_path / "back").mkdir()
    content = preprocessor(json.loads((tmp_path / "images.json").read_text()), False)
    (tmp_path / "back/preprocessor_config.json").write_text(json.dumps(content))
    back = AutoImageProcessor.from_pretrained(tmp_path / "back")(image, return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(back, right.float(), rtol=1e-4, atol=1e-4, msg=lambda text: f"{content}: {text}")


@pytest.mark.parametrize("seed", range(0, 40, 7))
def test_data_that_measure_an_import_prepare_images_as_its_library_does(tmp_path, monkeypatch, seed):
    from transformers import AutoImageProcessor

    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    draw = np.random.default_rng(seed)
    home, pictures = tmp_path / "import", [picture(draw, *map(int, draw.integers(SIDE, 60, 2))) for _ in range(8)]
    home.mkdir()
    for number, image in enumerate(pictures):
        place = tmp_path / "data" / ("train", "val")[number // 4] / "ab"[number % 2] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        image.save(place)
    (home / "preprocessor_config.json").write_text(json.dumps(drawn_processor(draw)))
    ours(home, pictures[0], {"model_type": "vit"})
    data = ImageFolder(str(tmp_path / "data"), image_size=SIDE)
    data.adopt(home)
    processor = AutoImageProcessor.from_pretrained(home)
    right = torch.cat([processor(pictures[n], return_tensors="pt")["pixel_values"] for n in (4, 6, 5, 7)]).float()
    torch.testing.assert_close(data.datasets["val"].batch(np.arange(4), 0)["images"], right, rtol=1e-4, atol=1e-4)
    data.save(tmp_path)
    assert published_way(tmp_path / "images.json") == published_way(home / "images.json")


@pytest.mark.parametrize("kind", ["ViT", "DeiT", "CLIP", "Siglip"])
@pytest.mark.parametrize("is_named", [True, False])
def test_old_names_and_absent_keys_mean_what_the_class_does(tmp_path, kind, is_named):
    from transformers import AutoImageProcessor

    config = {"feature_extractor_type": f"{kind}FeatureExtractor"} if is_named and kind != "Siglip" else {}
    config |= {"size": {"height": SIDE, "width": SIDE}, "crop_size": SIDE}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    image = picture(np.random.default_rng(1), 40, 23)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind.lower()}))
    right = AutoImageProcessor.from_pretrained(tmp_path)(image, return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(ours(tmp_path, image, {"model_type": kind.lower()}), right)


@pytest.mark.parametrize("seed", range(20))
def test_drawn_configurations_of_timm_give_its_pixels(tmp_path, seed):
    from timm.data import create_transform, resolve_data_config

    draw = np.random.default_rng(seed)
    cfg = {"input_size": [3, SIDE, SIDE], "crop_pct": float(draw.choice([0.7, 0.875, 0.9, 0.95, 1.0]))}
    cfg |= {"interpolation": str(draw.choice(["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]))}
    cfg |= {"crop_mode": str(draw.choice(["center", "squash"])), "mean": draw.random(3).round(3).tolist()}
    if draw.integers(2):
        del cfg[str(draw.choice(["crop_pct", "interpolation", "crop_mode", "mean"]))]
    image = picture(draw, *(int(side) for side in draw.integers(SIDE, 60, 2)))
    right = create_transform(**resolve_data_config(pretrained_cfg=cfg))(image)
    result = ours(tmp_path, image, {"pretrained_cfg": CFG.complete(cfg, "timm", "x")})
    torch.testing.assert_close(result, right, rtol=1e-4, atol=1e-4, msg=lambda text: f"{cfg}: {text}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("image_processor_type", "BeitImageProcessor"), ("do_pad", True), ("resample", 4), ("resample", 9),
        ("size", {"shortest_edge": SIDE, "longest_edge": 99}), ("size", {"height": 20, "width": 20}), ("size", "large"),
        ("size", {"max_height": 20, "max_width": 20}), ("image_std", [0, 1, 1]), ("image_mean", ["x"]),
        ("rescale_factor", 0), ("auto_map", {"AutoImageProcessor": "mine.Own"}), ("do_resize", "yes"),
        ("an_unknown_key", 3), ("do_rescale", 1), ("crop_pct", 0.9),
    ],
)  # fmt: skip
def test_what_is_not_obeyed_is_refused_by_its_key(tmp_path, key, value):
    config = {"image_processor_type": "ViTImageProcessor", **STANDARD, key: value}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=key):
        ours(tmp_path, picture(np.random.default_rng(0), 20, 20), {"model_type": "vit"})


@pytest.mark.parametrize(("key", "value"), [("crop_mode", "border"), ("interpolation", "random"), ("crop_pct", 0)])
def test_what_timm_would_do_otherwise_is_refused_by_its_key(tmp_path, key, value):
    cfg = CFG.complete({"input_size": [3, SIDE, SIDE], key: value}, "timm", "x")
    with pytest.raises(UsageError, match=key):
        ours(tmp_path, picture(np.random.default_rng(0), 20, 20), {"pretrained_cfg": cfg})


@pytest.mark.parametrize("side", [16, 224, 384])
def test_a_share_that_is_written_gives_the_size_that_was_read(side):
    for larger in range(side // 2, 2 * side):
        assert int(side / _crop_pct(side, larger)) == larger


@pytest.mark.parametrize("library", ["timm", "transformers"])
def test_a_thin_image_takes_no_memory(library):
    way = {"library": library, "resize": SIDE, "interpolation": "bilinear", "crop": [SIDE, SIDE]}
    with pytest.raises(UsageError, match="too thin"):
        prepare_published(Image.new("RGB", (2_000_000, 1)), way, SIDE)


@pytest.mark.parametrize("seed", range(20))
def test_the_processor_of_an_export_gives_the_pixels_of_the_import(tmp_path, seed):
    """Whichever file said how, and whatever file of its name lies there."""
    from transformers import AutoImageProcessor

    draw = np.random.default_rng(seed)
    config, whole = drawn_processor(draw), seed % 3 == 0
    content = {"image_processor": config, "processor_class": "CLIPProcessor"} if whole else config
    if seed % 3 != 1:  # else no file says anything
        (tmp_path / f"{'' if whole else 'pre'}processor_config.json").write_text(json.dumps(content))
    image = picture(draw, *(int(side) for side in draw.integers(SIDE, 60, 2)))
    right = ours(tmp_path, image, {"model_type": "vit"})
    (out := tmp_path / "out").mkdir()
    if seed % 2:
        (out / "preprocessor_config.json").write_text(json.dumps({**STANDARD, "image_mean": [0.1] * 3}))
    write_preprocessor(SimpleNamespace(place=SimpleNamespace(folder=tmp_path, config={"resize": "crop"})), out)
    pixels = AutoImageProcessor.from_pretrained(out)(image, return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(pixels.float(), right, rtol=1e-4, atol=1e-4, msg=lambda text: f"{config}: {text}")


@pytest.mark.parametrize("resize", ["crop", "stretch", None])
def test_an_export_of_what_was_trained_here_says_how_images_were_made_fit(tmp_path, resize):
    """By the command, which loads no more of a model than its weights."""
    sizes = {"num_classes": 2, "image_size": SIDE, "channels": 3, "patch_size": 8, "dim": 16, "depth": 1, "heads": 2}
    start = tmp_path / "start"
    start.mkdir()
    weight_files.write_weights(Classification(**sizes), start / "model.safetensors")
    model = {"class_path": "zoo.tasks.classification.Classification", "init_args": sizes}
    (start / "config.json").write_text(json.dumps({"format": 1, "model": model, "resize": resize}))
    images = {"names": ["a", "b"], "mean": [0.5] * 3, "std": [0.4] * 3, "image_size": SIDE, "channels": 3}
    (start / "images.json").write_text(json.dumps(images))
    assert main(["export", str(start), str(tmp_path / "out"), "--format", "transformers"]) == 0
    content = json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())
    assert content["do_center_crop"] == (resize == "crop")
    assert content["size"] == ({"shortest_edge": SIDE} if resize == "crop" else SQUARE)
