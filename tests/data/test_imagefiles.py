"""Image files as they come: turned by a camera, of unknown endings, in another folder, with labels that have gaps."""

import logging

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from zoo.data import image_decoding, image_sources
from zoo.data.image_decoding import FilePixels, Files, decode
from zoo.data.image_sources import ENDINGS, ImageFolder, NpzImages
from zoo.errors import UsageError

ORIENTATION = ExifTags.Base.Orientation
# how a camera must have stored a picture for each mark, so that it is seen as it was
STORED = {
    1: [], 2: [Image.Transpose.FLIP_LEFT_RIGHT], 3: [Image.Transpose.ROTATE_180], 4: [Image.Transpose.FLIP_TOP_BOTTOM],
    5: [Image.Transpose.TRANSPOSE], 6: [Image.Transpose.ROTATE_90], 7: [Image.Transpose.TRANSVERSE],
    8: [Image.Transpose.ROTATE_270],
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))


def scene(width: int = 24, height: int = 16) -> Image.Image:
    """Four corners of different colours."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = (250, 10, 10)
    pixels[: height // 2, width // 2 :] = (10, 250, 10)
    pixels[height // 2 :, : width // 2] = (10, 10, 250)
    return Image.fromarray(pixels)


def save(path, mark: int | None, picture: Image.Image | None = None) -> None:
    picture = picture or scene()
    exif = Image.Exif()
    if mark is not None:
        exif[ORIENTATION] = mark
        for way in STORED.get(mark, []):
            picture = picture.transpose(way)
    picture.save(path, exif=exif)


@pytest.fixture
def folders(tmp_path):
    """Call with a name: two classes of three images for training and for validation."""

    def make(name: str = "images", ending: str = ".png"):
        for split in ("train", "val"):
            for number, kind in enumerate(("cat", "dog")):
                place = tmp_path / name / split / kind
                place.mkdir(parents=True)
                for index in range(3):
                    Image.new("RGB", (9, 9), (40 * index, 90 * number, 7)).save(place / f"{index}{ending}")
        return tmp_path / name

    return make


@pytest.mark.parametrize("ending", ["png", "tiff", "webp"])
@pytest.mark.parametrize("mark", STORED)
def test_an_image_is_seen_upright(tmp_path, mark, ending):
    path = tmp_path / f"a.{ending}"
    if ending == "webp":
        picture = scene()
        for way in STORED[mark]:
            picture = picture.transpose(way)
        exif = Image.Exif()
        exif[ORIENTATION] = mark
        picture.save(path, exif=exif, lossless=True)
    else:
        save(path, mark)
    with Image.open(path) as image:
        assert np.array_equal(np.asarray(decode(image, "RGB", "")), np.asarray(scene()))
    right = FilePixels(1, 8, lambda _: scene(), None).fetch(np.array([0]))
    assert torch.equal(FilePixels(1, 8, Files([str(path)]), None).fetch(np.array([0])), right)


@pytest.mark.parametrize("mark", STORED)
def test_a_jpeg_is_upright_in_training_and_when_it_is_named(tmp_path, mark):
    save(tmp_path / "a.jpg", mark, scene(128, 96))
    result = FilePixels(1, 16, Files([str(tmp_path / "a.jpg")]), None).fetch(np.array([0])).float()
    right = FilePixels(1, 16, lambda _: scene(128, 96), None).fetch(np.array([0])).float()
    assert (result - right).abs().mean() < 12  # of 255: another rotation differs by 80


@pytest.mark.parametrize("side", [257, 256, 250])
def test_a_large_jpeg_is_resized_as_the_whole_of_it(tmp_path, side):
    picture = Image.new("RGB", (side, side), "red")
    picture.paste(Image.new("RGB", (side - 2, side - 2), "white"), (1, 1))
    picture.save(tmp_path / "a.jpg", quality=95)
    result = FilePixels(1, 30, Files([str(tmp_path / "a.jpg")]), None).fetch(np.array([0]))[0].float()
    with Image.open(tmp_path / "a.jpg") as image:
        right = image_decoding.middle_square(image.convert("RGB"), 30).float()
    assert (result - right).abs().max() < 16


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_white(tmp_path, mode):
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[2:5, :, 3] = 255
    pixels[5:, :, 3] = 51 if mode != "P" else 0
    picture = Image.fromarray(pixels)
    if mode == "P":
        picture = Image.fromarray(pixels[..., 3] // 255).convert("P")
        picture.putpalette([9, 9, 9, 0, 0, 0])
    picture.convert(mode).save(tmp_path / "a.png", **({"transparency": 0} if mode == "P" else {}))
    result = FilePixels(1, 8, Files([str(tmp_path / "a.png")]), None).fetch(np.array([0]))[0]
    right = 255 - torch.from_numpy(pixels[..., 3])
    assert torch.equal(result, right.expand(3, 8, 8))


@pytest.mark.parametrize("mark", [0, 9, 255, None])
def test_a_mark_that_means_nothing_turns_nothing(tmp_path, mark):
    save(tmp_path / "a.png", mark)
    with Image.open(tmp_path / "a.png") as image:
        assert np.array_equal(np.asarray(decode(image, "RGB", "")), np.asarray(scene()))


@pytest.mark.parametrize("ending", [".avif", ".heic", ".jfif", ".txt", ".svg", ".JPEG2", ""])
def test_files_of_other_endings_are_counted_and_named(folders, ending, caplog):
    root = folders()
    for index in range(4):
        (root / f"train/cat/more{index}{ending}").write_bytes(b"something")
    data = ImageFolder(str(root), image_size=8)
    with caplog.at_level(logging.WARNING):
        data.ready()
    message = " ".join(record.getMessage() for record in caplog.records)
    assert f"4 files are left out, 4 {ending.lower() or 'without an ending'}" in message
    assert f"more0{ending}" in message
    assert len(data.datasets["train"]) == 6


@pytest.mark.parametrize("ending", ENDINGS)
def test_files_of_known_endings_are_left_out_where_they_belong_to_no_class(folders, ending, caplog):
    root = folders()
    (root / f"val/a{ending.upper()}").write_bytes(b"something")
    with caplog.at_level(logging.WARNING):
        ImageFolder(str(root), image_size=8).ready()
    assert "1 file is left out" in caplog.text


def test_what_editors_and_file_managers_leave_is_no_image_and_no_class(folders, caplog):
    root = folders()
    for name in (".DS_Store", "Thumbs.db", "desktop.ini"):
        (root / "train/cat" / name).write_bytes(b"x")
    (root / "train/.ipynb_checkpoints").mkdir()
    Image.new("RGB", (9, 9)).save(root / "train/.ipynb_checkpoints/0.png")
    data = ImageFolder(str(root), image_size=8)
    with caplog.at_level(logging.WARNING):
        data.ready()
    assert data.names == ["cat", "dog"]
    assert len(data.datasets["train"]) == 6
    assert "4 files are left out, 4 hidden (train/.ipynb_checkpoints, …)" in caplog.text


def test_a_class_of_unknown_endings_alone_is_refused_by_them(folders):
    root = folders()
    for path in (root / "train/cat").iterdir():
        path.rename(path.with_suffix(".avif"))
    with pytest.raises(
        UsageError, match=r"cat(.|\n)*3 \.avif \(cat/0\.avif, …\), which are not read(.|\n)*end in \.jpg .*\.pnm$"
    ):
        ImageFolder(str(root), image_size=8).ready()


@pytest.mark.parametrize("whole", [True, False])
def test_another_folder_with_the_same_names_and_sizes_is_other_data(folders, whole, monkeypatch):
    if not whole:
        monkeypatch.setattr(image_sources, "DECODED_BYTES", 0)
    first, second = folders("a", ".bmp"), folders("b", ".bmp")
    marks = [ImageFolder(str(root), image_size=8).fingerprint() for root in (first, second)]
    assert marks[0] == marks[1]  # moved, not changed
    Image.new("RGB", (9, 9), (1, 2, 3)).save(second / "val/dog/1.bmp")  # as long as before
    assert ImageFolder(str(second), image_size=8).fingerprint() != marks[0]


GAPS = [[0, 1_000_000, 2_000_000], [1, 2, 3], [0, 2, 2], [5, 5, 5], [0, 1, 2**40]]


@pytest.mark.parametrize("labels", GAPS)
def test_labels_with_gaps_are_refused_unless_the_classes_have_names(tmp_path, labels):
    path = tmp_path / "a.npz"
    arrays = {"images": np.zeros((3, 4, 4), np.uint8), "labels": np.array(labels)}
    np.savez(path, **arrays)
    with pytest.raises(UsageError, match=r"a\.npz: labels run to \d+, and no image has the label \d+"):
        NpzImages(str(path), str(path)).ready()
    if max(labels) < 10:
        np.savez(path, **arrays, names=np.array([f"class {n}" for n in range(max(labels) + 1)]))
        data = NpzImages(str(path), str(path))
        assert data.sizes()["num_classes"] == max(labels) + 1


def test_a_picture_with_more_pixels_than_may_be_unpacked_is_refused_by_its_header(tmp_path, monkeypatch):
    monkeypatch.setattr(image_decoding, "MOST_PIXELS", 100)
    path = tmp_path / "picture.png"
    Image.new("RGB", (10, 10)).save(path)
    assert Files([str(path)])(0).size == (10, 10)
    Image.new("RGB", (11, 10)).save(path)
    with pytest.raises(UsageError, match=r"picture.png has 11 × 10 pixels"):
        Files([str(path)])(0)


@pytest.mark.parametrize("size", [(24, 16), (16, 24), (7, 5), (16, 16), (33, 16), (300, 17), (16, 301), (1, 1)])
def test_the_middle_square_is_that_of_torchvision(size):
    """Exactly: a model is used with what it was trained with."""
    functional = pytest.importorskip("torchvision.transforms.functional")
    noise = np.random.default_rng(sum(size)).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    for side in (5, 16):
        expected = functional.pil_to_tensor(functional.center_crop(functional.resize(image, [side]), [side]))
        assert torch.equal(image_decoding.middle_square(image, side), expected)
