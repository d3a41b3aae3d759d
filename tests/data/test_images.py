import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from zoo.data import augment
from zoo.data.digits import Digits
from zoo.data.glyphs import Glyphs
from zoo.data.image_data import moments, stratified_split
from zoo.data.image_decoding import FilePixels
from zoo.data.image_sources import LABELLED, ImageFolder, NpzImages, TorchvisionImages
from zoo.errors import UsageError

DRAW = np.random.default_rng(0)


def archive(path, count=60, shape=(12, 12, 3), **changes):
    arrays = {
        "images": DRAW.integers(0, 256, (count, *shape), dtype=np.uint8),
        "labels": np.arange(count) % 5,
        "names": np.array(["a", "b", "c", "d", "e"]),
    }
    np.savez(path, **{name: value for name, value in (arrays | changes).items() if value is not None})
    return str(path)


@pytest.fixture
def files(tmp_path):
    return archive(tmp_path / "train.npz"), archive(tmp_path / "val.npz", 20)


def all_images(loader):
    return torch.cat([batch["images"] for batch in loader])


def test_training_images_are_normalised(files):
    data = NpzImages(*files, batch_size=16, seed=0)
    assert data.sizes() == {"num_classes": 5, "image_size": 12, "channels": 3}
    raw = torch.from_numpy(np.load(files[0])["images"]).permute(0, 3, 1, 2).double() / 255
    assert np.allclose(data.mean, raw.mean((0, 2, 3)), atol=1e-9)
    assert np.allclose(data.std, raw.std((0, 2, 3), correction=0), atol=1e-9)
    got = data.datasets["train"].batch(np.arange(60), 0)
    mean, std = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    assert got["images"].dtype == torch.float32
    assert torch.allclose(got["images"], ((raw.float() - mean) / std), atol=1e-5)
    assert got["labels"].tolist() == (np.arange(60) % 5).tolist()


def test_every_image_comes_once_and_in_another_order_each_epoch(files):
    data = NpzImages(*files, batch_size=16, seed=0)
    data.setup()
    whole = data.datasets["train"].batch(np.arange(60), 0)["images"].sum((1, 2, 3))
    loader = data.train_dataloader()
    orders = []
    for epoch in range(2):
        loader.batches.set_epoch(epoch)
        orders.append(all_images(loader).sum((1, 2, 3)))
        assert torch.equal(orders[-1].sort().values, whole.sort().values)
    assert not torch.equal(*orders)


@pytest.mark.parametrize("way", ["shift", "crop-flip", "randaugment"])
def test_augmentation_depends_on_seed_epoch_and_sample_only(files, way):
    def of(seed, epoch, indices):
        data = NpzImages(*files, augment=way, seed=seed)
        data.setup()
        return data.datasets["train"].batch(np.array(indices), epoch)["images"]

    torch.manual_seed(1)
    first = of(0, 3, list(range(30)))
    torch.manual_seed(2)
    assert torch.equal(first[[7, 20]], of(0, 3, [7, 20]))  # whatever else is in the batch
    assert not torch.equal(first, of(0, 4, list(range(30))))
    assert not torch.equal(first, of(1, 3, list(range(30))))


def test_colours_of_four_channels_are_not_augmented(tmp_path):
    path = archive(tmp_path / "four.npz", shape=(8, 8, 4))
    with pytest.raises(UsageError, match="'randaugment', which changes images of 1 or 3 channels, and these have 4"):
        NpzImages(path, path, augment="randaugment", seed=0).ready()
    NpzImages(path, path, augment="crop-flip", seed=0).ready()


def test_workers_give_the_same_images(files):
    def epoch_three(workers):
        loader = NpzImages(*files, augment="crop-flip", batch_size=16, num_workers=workers, seed=0).train_dataloader()
        loader.batches.set_epoch(3)
        return all_images(loader)

    assert torch.equal(epoch_three(0), epoch_three(2))


def test_validation_is_never_augmented(files):
    unchanged, changed = (
        all_images(NpzImages(*files, augment=way, seed=0).val_dataloader()) for way in ("none", "shift")
    )
    assert torch.equal(unchanged, changed)


def test_shift_moves_by_the_drawn_number_of_pixels():
    images = torch.zeros(3, 1, 16, 16, dtype=torch.uint8)
    images[:, 0, 8, 8] = 9
    draws = np.array([[0.0, 0.0, 1, 1], [0.5, 0.5, 1, 1], [0.999, 0.5, 1, 1]])
    places = [tuple(image[0].nonzero()[0].tolist()) for image in augment.shift(images, draws)]
    assert places == [(10, 10), (8, 8), (6, 8)]
    mirrored = augment.crop_flip(images, np.array([[0.5, 0.5, 0.1, 0]] * 3))
    assert mirrored[0, 0].nonzero()[0].tolist() == [8, 7]


def test_images_are_resized(files):
    data = NpzImages(*files, image_size=6, seed=0)
    assert data.sizes()["image_size"] == 6
    flat = archive(files[0].replace("train", "flat"), images=np.full((60, 8, 12), 77, np.uint8))
    data = NpzImages(flat, flat, image_size=10, seed=0)
    assert data.sizes() == {"num_classes": 5, "image_size": 10, "channels": 1}
    assert data.mean == pytest.approx([77 / 255])
    assert (next(iter(data.val_dataloader()))["images"].abs() < 1e-5).all()  # a constant channel is only centred


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": np.zeros((60, 8, 8), np.float32)}, "images are float32"),
        ({"images": np.zeros((60, 8, 8, 2), np.uint8)}, "must be 1, 3 or 4 channels"),
        ({"images": np.zeros((60, 8, 9), np.uint8)}, "8 × 9: give image_size"),
        ({"images": np.zeros((0, 8, 8), np.uint8)}, "has no images"),
        ({"labels": np.zeros(59, np.int64)}, "60 images but 59 labels"),
        ({"labels": np.zeros(60)}, "labels are float64"),
        ({"labels": np.arange(60) - 1}, "the label of image 0 is -1"),
        ({"labels": np.arange(60)}, "the label of image 5 is 5: with 5 classes labels run from 0 to 4"),
        ({"labels": None}, "has no array 'labels', only images, names"),
        ({"names": np.array([{}], dtype=object)}, "not a whole .npz archive"),
    ],
)
def test_bad_arrays_are_named(tmp_path, changes, message):
    bad = archive(tmp_path / "bad.npz", **changes)
    with pytest.raises(UsageError, match=message) as caught:
        NpzImages(bad, bad, seed=0).setup()
    assert len(str(caught.value).splitlines()) <= 4


def test_other_files_are_named(tmp_path, files):
    with pytest.raises(UsageError, match="Recipes with embedded data: vit-tiny, vit-glyphs"):
        NpzImages(str(tmp_path / "none.npz"), files[1]).setup()
    (tmp_path / "half.npz").write_bytes(Path(files[0]).read_bytes()[:500])
    with pytest.raises(UsageError, match=r"half\.npz is not a whole"):
        NpzImages(str(tmp_path / "half.npz"), files[1]).setup()
    small = archive(tmp_path / "small.npz", shape=(8, 8, 3))
    with pytest.raises(UsageError, match="images of size 8 with 3 channels"):
        NpzImages(files[0], small).setup()
    with pytest.raises(UsageError, match="augment is 'mixup'"):
        NpzImages(*files, augment="mixup")  # type: ignore[arg-type]


def test_names_of_classes_as_bytes_are_utf_8(tmp_path):
    names = ["a", "b", "c", "d", "\u00e9"]
    path = archive(tmp_path / "bytes.npz", names=np.array([name.encode() for name in names]))
    data = NpzImages(path, path, seed=0)
    data.ready()
    assert data.names == names
    path = archive(tmp_path / "latin.npz", names=np.array([name.encode("latin-1") for name in names]))
    with pytest.raises(UsageError, match=r"latin\.npz: the names of the classes are bytes that are not UTF-8"):
        NpzImages(path, path, seed=0).ready()


def test_other_names_of_classes_in_validation_are_refused(tmp_path, files):
    swapped = archive(tmp_path / "swapped.npz", 20, names=np.array(["b", "a", "c", "d", "e"]))
    with pytest.raises(UsageError, match=r"swapped\.npz: .* are b, a, c, d, e, but those of .* are a, b, c, d, e"):
        NpzImages(files[0], swapped, seed=0).ready()
    NpzImages(files[0], archive(tmp_path / "unnamed.npz", 20, names=None), seed=0).ready()


def folder(root, splits=("train", "val"), classes=("cat", "dog")):
    for split in splits:
        for number, name in enumerate(classes):
            (root / split / name).mkdir(parents=True)
            for i in range(3):
                colour = (200 * number, 10 * i, 50)
                Image.new("RGB", (20 + i, 16), colour).save(root / split / name / f"{i}.png")
    return root


def test_image_folders(tmp_path):
    data = ImageFolder(str(folder(tmp_path)), image_size=8, batch_size=4, augment="shift", seed=0)
    assert data.sizes() == {"num_classes": 2, "image_size": 8, "channels": 3}
    assert data.names == ["cat", "dog"]
    batch = data.datasets["val"].batch(np.array([0, 3]), 0)
    assert batch["labels"].tolist() == [0, 1]
    assert torch.allclose(
        batch["images"][:, 0, 0, 0] * data.std[0] + data.mean[0], torch.tensor([0, 200 / 255]), atol=1e-5
    )
    assert data.fingerprint() == ImageFolder(str(tmp_path), image_size=8, seed=1).fingerprint()
    (tmp_path / "train" / "cat" / "0.png").unlink()
    assert data.fingerprint() != ImageFolder(str(tmp_path), image_size=8, seed=1).fingerprint()
    data.save(tmp_path)
    assert json.loads((tmp_path / "images.json").read_text())["names"] == ["cat", "dog"]


def test_folders_of_splits_are_no_classes(tmp_path):
    data = ImageFolder(str(folder(tmp_path / "large", ("Train", "VAL"))), image_size=8, seed=0)
    data.ready()
    assert data.names == ["cat", "dog"]
    assert {split: len(rows) for split, rows in data.datasets.items()} == {"train": 6, "val": 6, "test": 6}
    with pytest.raises(UsageError, match="look like splits would be read as classes: test-set, training_set"):
        ImageFolder(str(folder(tmp_path / "sets", ("training_set", "test-set"))), image_size=8, seed=0).ready()


def test_bad_image_folders_are_named(tmp_path):
    def read(root):
        data = ImageFolder(str(root), image_size=8, seed=0)
        for batch in data.train_dataloader():
            assert len(batch["images"])

    with pytest.raises(UsageError, match="Recipes with embedded data: vit-tiny"):
        read(tmp_path)
    root = folder(tmp_path / "classes")
    (root / "val" / "dog").rename(root / "val" / "dogs")
    with pytest.raises(UsageError, match="classes of train and val differ: dog only in train; dogs only in val"):
        read(root)
    root = folder(tmp_path / "empty")
    (root / "train" / "emu").mkdir()
    with pytest.raises(UsageError, match="emu"):
        read(root)
    root = folder(tmp_path / "text")
    (root / "train" / "cat" / "1.png").write_text("no image")
    with pytest.raises(UsageError, match=r"cat.1\.png cannot be read as an image"):
        read(root)
    root = folder(tmp_path / "half")
    Image.fromarray(DRAW.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(root / "train" / "cat" / "1.png")
    half = root / "train" / "cat" / "1.png"
    half.write_bytes(half.read_bytes()[:5000])
    with pytest.raises(UsageError, match=r"cat.1\.png cannot be read as an image"):
        read(root)


def test_a_decompression_bomb_is_refused_before_it_unpacks(tmp_path):
    root = folder(tmp_path)
    Image.new("1", (9000, 9000)).save(root / "train" / "cat" / "bomb.png")
    start = time.process_time()
    with pytest.raises(UsageError, match=r"bomb\.png has 9000 × 9000 pixels, more than 64 million"):
        ImageFolder(str(root), seed=0).setup()
    assert time.process_time() - start < 1


def test_torchvision_data_sets(tmp_path):
    import hashlib
    import pickle

    from torchvision.datasets import CIFAR10

    with pytest.raises(UsageError, match=r"the data set CIFAR10 in .* is not on disk"):
        TorchvisionImages("CIFAR10", str(tmp_path)).setup()
    with pytest.raises(UsageError, match="Did you mean 'CIFAR10'"):
        TorchvisionImages("cifar1", str(tmp_path)).setup()
    base = tmp_path / CIFAR10.base_folder
    base.mkdir()
    sums = {}
    for name, _ in [*CIFAR10.train_list, *CIFAR10.test_list]:
        content = {"data": DRAW.integers(0, 256, (20, 3072), dtype=np.uint8), "labels": [i % 10 for i in range(20)]}
        (base / name).write_bytes(pickle.dumps(content))
        sums[name] = hashlib.md5((base / name).read_bytes()).hexdigest()
    (base / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    patch = pytest.MonkeyPatch()
    patch.setattr(CIFAR10, "train_list", [[name, sums[name]] for name, _ in CIFAR10.train_list])
    patch.setattr(CIFAR10, "test_list", [[name, sums[name]] for name, _ in CIFAR10.test_list])
    patch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": None})
    try:
        data = TorchvisionImages("CIFAR10", str(tmp_path), val_fraction=0.2, seed=0)
        assert data.sizes() == {"num_classes": 10, "image_size": 32, "channels": 3}
        assert {name: len(rows) for name, rows in data.datasets.items()} == {"train": 80, "val": 20, "test": 20}
        assert data.names == list("abcdefghij")
    finally:
        patch.undo()


def test_stratified_takes_the_same_share_of_each_class():
    labels = np.array([0] * 50 + [1] * 10 + [2] * 20)
    train, val = stratified_split(labels, 0.2, [1])
    assert np.bincount(labels[val]).tolist() == [10, 2, 4]
    assert sorted([*train, *val]) == list(range(80))
    assert (
        val.tolist() == stratified_split(labels, 0.2, [1])[1].tolist() != stratified_split(labels, 0.2, [2])[1].tolist()
    )


def test_digits(monkeypatch, fresh_cache):
    sklearn = pytest.importorskip("sklearn.datasets")
    data = Digits(seed=0)
    assert data.sizes() == {"num_classes": 10, "image_size": 8, "channels": 1}
    assert len(data.datasets["train"]) + len(data.datasets["val"]) == 1797
    assert 355 <= len(data.datasets["val"]) <= 365
    sums = [np.asarray(data.datasets[split].pixels.images).sum((1, 2, 3)) // 15 for split in ("train", "val")]
    assert sorted(np.concatenate(sums)) == sorted(sklearn.load_digits().images.sum((1, 2)).astype(int))
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert Digits(seed=1).fingerprint() == data.fingerprint()  # the second start needs no scipy


def test_digits_without_their_extra(monkeypatch):
    from importlib.metadata import PackageNotFoundError

    def none(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("zoo.data.digits.version", none)
    with pytest.raises(UsageError, match=r"pip install 'zoo-transformers\[digits\]'"):
        Digits().setup()


def test_glyphs(fresh_cache):
    start = time.process_time()
    data = Glyphs(seed=0)
    assert data.sizes() == {"num_classes": 10, "image_size": 14, "channels": 1}
    assert time.process_time() - start < 6
    splits = {name: data.datasets[name].pixels.images.numpy() for name in ("train", "val", "test")}
    assert {name: len(images) for name, images in splits.items()} == {"train": 10000, "val": 1000, "test": 1000}
    rows = {image.tobytes() for images in splits.values() for image in images}
    assert len(rows) == 12000
    labels = data.datasets["train"].labels
    assert abs(np.bincount(labels) - 1000).max() < 100
    # what a nearest class mean gets right is there to be learned, and not everything
    train, val = (torch.from_numpy(splits[name]).float().flatten(1) for name in ("train", "val"))
    means = torch.stack([train[labels == number].mean(0) for number in range(10)])
    right = (torch.cdist(val, means).argmin(1) == data.datasets["val"].labels).float().mean()
    assert 0.4 < right < 0.95


def test_glyphs_options():
    assert Glyphs("abc", image_size=16, size=50, seed=0).sizes()["num_classes"] == 3
    for wrong in ({"characters": "a"}, {"characters": "aa"}, {"characters": "a b"}, {"image_size": 3}, {"size": 0}):
        with pytest.raises(UsageError):
            Glyphs(**wrong)
    with pytest.raises(UsageError, match="no glyph for '文'"):
        Glyphs("a文", size=10).setup()


@pytest.mark.parametrize("count", [1, 255, 257, 2001, 512_001, 1_281_167])
def test_the_mean_of_any_number_of_images_in_files(count):
    """Millions of images are measured by a sample of theirs."""
    image = Image.new("RGB", (8, 8), (51, 102, 255))
    mean, std = moments(FilePixels(count, 8, lambda _: image, 0))
    assert mean == pytest.approx([0.2, 0.4, 1.0])
    assert std == [1.0] * 3


@pytest.mark.parametrize("name", LABELLED)
def test_every_data_set_that_messages_offer_has_a_train_and_a_test_split(tmp_path, name):
    data = TorchvisionImages(name, str(tmp_path))
    for split in ("train", "test"):
        with pytest.raises(UsageError, match=f"the {split} split of the data set {name} in "):
            data._open(split)


def test_qmnist_has_its_class_in_the_first_of_eight_columns(tmp_path):
    raw = tmp_path / "QMNIST" / "raw"
    raw.mkdir(parents=True)
    for split, count in (("train", 60), ("test", 20)):
        images = np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = np.full((count, 8), 77, ">i4")
        labels[:, 0] = np.arange(count) % 10
        for name, kind, array in (("images-idx3-ubyte", 8, images), ("labels-idx2-int", 12, labels)):
            sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
            (raw / f"qmnist-{split}-{name}").write_bytes(bytes([0, 0, kind, array.ndim]) + sizes + array.tobytes())
    data = TorchvisionImages("QMNIST", str(tmp_path))
    data.ready()
    assert data.sizes()["num_classes"] == 10
