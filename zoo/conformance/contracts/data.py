"""The contract of a data module: an order that depends only on seed and epoch, split over processes, resumable."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from zoo.conformance.check import Inapplicable, once, require
from zoo.conformance.stream_checks import (
    STREAM_PROMISES,
    check_loaders,
    check_resume,
    check_shards,
    digest,
    first_samples,
)
from zoo.conformance.subject import DataSubject
from zoo.conformance.token_checks import clean_import, documentation
from zoo.data.batches import Batches, Loader
from zoo.data.data import Data
from zoo.data.streams import StreamLoader
from zoo.errors import UsageError

FEW = 6
MOST = 2000  # samples of a split that are looked at, evenly
LEAST_TOKENS = 12  # least length of a text: shorter ones are alike by chance
ASIDE = 300  # samples that are looked for in the training data
WORDS = 16  # tokens in a run that no two texts have in common by chance
# hash factors of the tokens of a run
FACTORS = np.random.default_rng(0).integers(1, 2**63, WORDS, dtype=np.uint64) | np.uint64(1)
HASH_SEEDS = ("2", "5", "17")  # with which common pairs of names, such as {"no", "yes"}, stand in either order in a set
PICKED = 24  # samples of a split that stand for its content


def batches_of(batches: Iterable[Any], count: int | None = FEW) -> list[str]:
    """Digests of the first ``count`` batches, all for None."""
    return [digest(batch) for batch in islice(batches, count)]


def epoch(loader: Loader | StreamLoader, number: int) -> Any:
    """The loader, set to an epoch."""
    cast(Any, loader.batch_sampler).sampler.set_epoch(number)  # as Lightning does
    return loader


@once
def splits_and_sizes(subject: DataSubject) -> None:
    """There are samples to train on and to validate with; ``sizes`` is what a model must know, in whole numbers."""
    data = subject.build()
    for split in ("train", "val"):
        if split not in data.streams:
            require(len(data.datasets.get(split, ())) > 0, f"the {split} split is empty or missing.")
    sizes = data.sizes()
    odd = {name: value for name, value in sizes.items() if not isinstance(value, int) or value < 1}
    require(bool(sizes) and not odd, f"sizes must be whole numbers by the names of a model's options, got {sizes}.")


@once
def order_is_repeatable(subject: DataSubject) -> None:
    """The same seed gives the same batches in the same order; another epoch and another seed another order."""
    data, again, other_data = subject.build(seed=1), subject.build(seed=1), subject.build(seed=2)
    batches = batches_of(epoch(data.train_dataloader(), 0))
    same = batches == batches_of(epoch(again.train_dataloader(), 0))
    require(same, "the same seed gives other batches: draw from generators keyed by seed and epoch alone.")
    later = batches_of(epoch(data.train_dataloader(), 1))
    require(batches != later, "the second epoch has the order of the first.")
    require(batches != batches_of(epoch(other_data.train_dataloader(), 0)), "another seed gives the same order.")
    require(later == batches_of(epoch(again.train_dataloader(), 1)), "the same seed gives another second epoch.")
    orders = [batches_of(data.val_dataloader()) for _ in range(2)]
    require(orders[0] == orders[1], "validation batches differ from one time to the next.")


@once
def hash_seed_changes_nothing(subject: DataSubject) -> None:
    """Three processes with other hashes (PYTHONHASHSEED) have the same batches, sizes and fingerprint."""
    if "<locals>" in subject.part.__qualname__ or subject.part.__module__ == "__main__":
        raise Inapplicable("another process cannot import it")
    options = subject.file_options | subject.options
    sizes = pickle.dumps((subject.part, options)).hex()
    program = f"""import sys; sys.path[:] = {sys.path!r}
import pickle, torch
from zoo.conformance.contracts.data import summary
torch.manual_seed(0)  # the seed of the run, which a new process would draw
part, options = pickle.loads(bytes.fromhex({sizes!r}))
data = part(**options | {{"seed": 1}})
data.ready()
print("summary", *summary(data))"""
    summaries = []
    for seed in HASH_SEEDS:
        environment = os.environ | {"PYTHONHASHSEED": seed, "ZOO_CACHE": str(subject.folder / f"hashes-{seed}")}
        done = subprocess.run(
            [sys.executable, "-P", "-c", program], env=environment, capture_output=True, text=True, timeout=900,
            check=False,
        )  # fmt: skip
        lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("summary ")]
        error = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        require(bool(lines), f"it does not load in another process: {error}")
        summaries.append(lines[0])
    names = zip(("fingerprint", "sizes", "batches"), *summaries, strict=True)
    wrong = ", ".join(name for name, *values in names if len(set(values)) > 1)
    require(not wrong, f"with another PYTHONHASHSEED its {wrong} differ: sort what comes from sets, use no hash().")


def summary(data: Data) -> list[str]:
    """Digests of the fingerprint, the sizes, and the first batches of training and validation."""
    batches = [*batches_of(epoch(data.train_dataloader(), 0)), *batches_of(data.val_dataloader())]
    values = (data.fingerprint(), sorted(data.sizes().items()), batches)
    return [hashlib.sha256(repr(value).encode()).hexdigest() for value in values]


@once
def global_randomness_is_left_alone(subject: DataSubject) -> None:
    """Loading draws nothing from torch's global generator: dropout would differ with the data."""
    data = subject.build(seed=1)
    state = torch.get_rng_state()
    batches_of(epoch(data.train_dataloader(), 0), 2)
    require(torch.equal(torch.get_rng_state(), state), "loading draws from torch's global generator.")
    torch.manual_seed(123)
    batches = batches_of(epoch(data.train_dataloader(), 0), 2)
    torch.manual_seed(321)
    require(batches == batches_of(epoch(data.train_dataloader(), 0), 2), "batches depend on torch's global generator.")


@once
def processes_share(subject: DataSubject) -> None:
    """Two or three processes together see every sample of an epoch exactly once; shards of a stream share none."""
    data = subject.build(seed=1)
    if data.streams:
        check_shards(subject)
    for split, seed in (("train", 1), ("val", None)):
        if split in data.streams:
            continue
        total = len(data.datasets[split])
        for world in (1, 2, 3):
            plan = data.plan(split, world, seed)
            indices = [index for rank in range(world) for batch in Batches(plan, rank) for index in batch]
            doubled = len(indices) - len(set(indices))
            require(not doubled, f"{world} processes see {doubled} samples of {split} twice.")
            message = f"{world} processes see {len(indices)} samples of {split}, which has {total}."
            require(len(indices) <= total, message)
    if "train" in data.streams:
        return
    alone = {index for batch in Batches(data.plan("train", 1, 1), 0) for index in batch}
    shared = {index for rank in range(2) for batch in Batches(data.plan("train", 2, 1), rank) for index in batch}
    require(alone == shared, "one process and two see different samples in an epoch.")


@once
def resumes(subject: DataSubject) -> None:
    """Stopped after some batches and loaded into a new loader, it goes on with the next one."""
    data = subject.build(seed=1)
    if data.streams:
        check_resume(subject)
    whole = batches_of(epoch(data.train_dataloader(), 0))
    consumed = min(2, len(whole) - 1)
    loader = epoch(subject.build(seed=1).train_dataloader(), 0)
    running = iter(loader)
    for _ in range(consumed):
        next(running)
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    new = subject.build(seed=1).train_dataloader()
    new.load_state_dict(state)
    remaining = batches_of(epoch(new, 0), FEW - consumed)
    require(remaining == whole[consumed:], "after a resume batches are repeated or left out.")


@once
def workers_change_nothing(subject: DataSubject) -> None:
    """Loaded by a process of its own, batches are the same: what is sent there can be pickled."""
    data = subject.build(seed=1)
    if data.streams:
        return check_loaders(subject)
    alone = batches_of(epoch(data.train_dataloader(), 0), 3)
    pickle.dumps(data.datasets["train"])
    loader = epoch(data._loader("train", data.seed), 0)
    away = Loader(dataset=loader.dataset, batch_sampler=loader.batches, workers=1)
    require(batches_of(away, 3) == alone, "a loading process gives other batches.")


@once
def splits_are_apart(subject: DataSubject) -> None:
    """What is validated and tested with is not trained with: texts by their words, images by their pixels."""
    data = subject.build(seed=1)
    if "train" in data.streams:
        train, allowed = first_samples(data, MOST), data.twins
    else:
        train = samples(data.datasets["train"], MOST)
        searched_share = min(1.0, MOST / len(data.datasets["train"]))  # among fewer samples fewer are found
        allowed = data.twins * searched_share if data.twins < 1 else 1.0
    for split in ("val", "test"):
        if split not in data.datasets or (split == "test" and data.datasets["test"] is data.datasets["val"]):
            continue
        others = samples(data.datasets[split], ASIDE)
        for name, values in others.items():
            if name in train and (twins := twins_of(values, train[name])) is not None:
                share = sum(twins) / len(twins)
                message = (
                    f"{sum(twins)} of {len(twins)} samples of {split} stand in the training data, by their {name!r}"
                )
                message = f"{message}: take whole texts or images out of training (twins = {data.twins})."
                require(share <= allowed, message)


def samples(dataset: Any, most: int | None = None) -> dict[str, list[np.ndarray]]:
    """The samples of a split in the first epoch, at most so many, evenly: by name, one array for each."""
    indices = np.arange(len(dataset))
    if most is not None and len(indices) > most:
        indices = np.linspace(0, len(indices) - 1, most).astype(np.int64)
    columns: dict[str, list[np.ndarray]] = {}
    for part in np.array_split(indices, -(-len(indices) // 64)):
        for name, value in dataset.batch(part, 0).items():
            if isinstance(value, Tensor) and value.dim() > 1 and len(value) == len(part) and value.dtype != torch.bool:
                columns.setdefault(name, []).extend(value.numpy())
    return columns


@once
def near_twins(subject: DataSubject) -> None:
    """Texts to validate with are no nearer to those of training than these are to each other: no word was changed."""
    data = subject.build(seed=1)
    train = first_samples(data, MOST) if "train" in data.streams else samples(data.datasets["train"], MOST)
    texts = {name: LongTexts(rows) for name, rows in train.items() if rows[0].ndim == 1 and rows[0].dtype.kind != "f"}
    applied = False
    for split in sorted({"val", "test"} & set(data.datasets)):
        for name, rows in samples(data.datasets[split], ASIDE // 2).items():
            long_rows = [text for row in rows if len(text := trimmed(row)) >= LEAST_TOKENS] if name in texts else []
            if not long_rows or not texts[name].rows:
                continue
            applied = True
            share, share_of_training = texts[name].near_share(long_rows), texts[name].own_share
            sentence = f"{share:.0%} of the samples of {split} are nearly one of training, by {name!r}, and of those"
            message = f"{sentence} of training {share_of_training:.0%} are another one: split whole texts, then make"
            require(share - share_of_training <= max(0.2, data.twins), f"{message} variants.")
    if not applied:
        raise Inapplicable("its samples are no texts")


class LongTexts:
    """The token rows (T,) of a split that are long enough to compare, indexed by their trigrams."""

    def __init__(self, rows: list[np.ndarray]) -> None:
        self.rows = [text for row in rows if len(text := trimmed(row)) >= LEAST_TOKENS]
        grams = [trigrams(row) for row in self.rows] or [np.zeros(0, np.uint64)]
        codes, holders = np.concatenate(grams), np.repeat(np.arange(len(grams)), list(map(len, grams)))
        order = np.argsort(codes, kind="stable")
        self.codes, self.holders = codes[order], holders[order]

    @cached_property
    def own_share(self) -> float:
        """``near_share`` of rows taken evenly from these."""
        return self.near_share([self.rows[i] for i in np.linspace(0, len(self.rows) - 1, ASIDE // 2).astype(int)])

    def near_share(self, rows: list[np.ndarray]) -> float:
        """The share of ``rows`` of which another row here has nine tenths, in the same order."""
        return sum(map(self._is_near, rows)) / len(rows)

    def _is_near(self, row: np.ndarray) -> bool:
        """Whether one of the two rows that share most rare trigrams with ``row`` nearly equals it."""
        grams = trigrams(row)
        begins, ends = (np.searchsorted(self.codes, grams, side) for side in ("left", "right"))
        places = [slice(begin, end) for begin, end in zip(begins, ends, strict=True) if 0 < end - begin < 100]
        if not places:
            return False
        votes = np.bincount(np.concatenate([self.holders[place] for place in places]))
        most = [number for number in np.argsort(-votes)[:3] if votes[number] and self.rows[number] is not row]
        return any(nearly_equal(row.tolist(), self.rows[number].tolist()) for number in most[:2])


def trigrams(tokens: np.ndarray) -> np.ndarray:
    """A number for each different run of three tokens."""
    windows = np.lib.stride_tricks.sliding_window_view(tokens.astype(np.uint64) + np.uint64(1), 3)
    return np.unique((windows * FACTORS[:3]).sum(1, dtype=np.uint64))


def nearly_equal(tokens: list[int], other_tokens: list[int]) -> bool:
    """Whether nine tenths of both stand in the other in the same order; upper bounds of that share come first."""
    matcher = SequenceMatcher(None, tokens, other_tokens, autojunk=False)
    return all(ratio() >= 0.8 for ratio in (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio))


def twins_of(some: list[np.ndarray], train: list[np.ndarray]) -> list[bool] | None:
    """Which samples stand in the training data; None where they hold too little to tell.

    An image does where another is the same; a text where nine tenths of its runs of WORDS tokens stand somewhere.
    """
    if some[0].dtype.kind == "f" or some[0].ndim > 1:
        train_bytes = {sample.tobytes() for sample in train}
        return [sample.tobytes() in train_bytes for sample in some if len(np.unique(sample[..., :64])) >= 4] or None
    pieces = [runs(trimmed(sample)) for sample in some]
    long_pieces = [piece for piece in pieces if len(piece) >= 8]
    if len(long_pieces) < len(some) / 10:
        return None
    everywhere = runs(np.concatenate([trimmed(sample) for sample in train]))  # rows may follow each other in one text
    if not len(everywhere):
        return [False for _ in long_pieces]
    places = [np.searchsorted(everywhere, piece).clip(max=len(everywhere) - 1) for piece in long_pieces]
    return [bool((everywhere[place] == piece).mean() >= 0.9) for place, piece in zip(places, long_pieces, strict=True)]


def trimmed(tokens: np.ndarray) -> np.ndarray:
    """A row without the same token over and over at its end, as padding is."""
    alike = int(np.argmax(np.append(tokens[::-1] != tokens[-1], True)))
    return tokens if alike < 4 else tokens[: len(tokens) - alike + 1]


def runs(tokens: np.ndarray) -> np.ndarray:
    """A number for each run of WORDS tokens that holds at least eight different ones."""
    if len(tokens) < WORDS:
        return np.zeros(0, np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(tokens.astype(np.uint64) + np.uint64(1), WORDS)
    rich = (np.diff(np.sort(windows, 1), axis=1) > 0).sum(1) >= 7
    return np.unique((windows[rich] * FACTORS).sum(1, dtype=np.uint64))


@once
def every_sample_loads(subject: DataSubject) -> None:
    """Every sample can be loaded, from the first to the last of each split, and holds finite numbers."""
    data = subject.build(seed=1)
    for split, dataset in data.datasets.items():
        few = np.unique(np.linspace(0, len(dataset) - 1, MOST).astype(np.int64))
        for part in np.array_split(few, -(-len(few) // 64)):
            for name, value in dataset.batch(part, 0).items():
                if isinstance(value, Tensor) and value.is_floating_point():
                    message = (
                        f"{name} of {split} holds numbers that are not finite, in samples {part[0]} to {part[-1]}."
                    )
                    require(bool(value.isfinite().all()), message)


class Content(NamedTuple):
    """What the first and the last samples of a split hold, and of which shapes they are."""

    shapes: list[Any]
    digest: str


def content_digests(data: Any) -> dict[str, Content]:
    """What the splits hold that does not change from epoch to epoch."""
    digests = {}
    for split, dataset in data.datasets.items():
        picked = np.unique(np.linspace(0, len(dataset) - 1, PICKED).astype(np.int64))
        batches = [tensors_of(dataset.batch(np.array([index]), epoch)) for index in picked for epoch in (0, 1)]
        if all(digest(batch) == digest(later) for batch, later in zip(batches[::2], batches[1::2], strict=True)):
            shapes = [len(dataset), [{name: value.dim() for name, value in batch.items()} for batch in batches]]
            digests[split] = Content(shapes, "".join(map(digest, batches)))
    return digests


def tensors_of(batch: dict[str, Any]) -> dict[str, Tensor]:
    """The numbers of a batch, of any shape, by name; masks are left out."""
    return {n: v for n, v in batch.items() if isinstance(v, Tensor) and v.dtype != torch.bool}


@once
def fingerprint_follows_content(subject: DataSubject) -> None:
    """Other content has another fingerprint: other options, and one file, line or array after the other changed."""
    data = subject.build(seed=1)
    fingerprint, digests = data.fingerprint(), content_digests(data)
    if subject.file_options:
        follows_files(subject, fingerprint)
    for option, variant in subject.other_options():
        try:
            changed = cast(DataSubject, variant).build(seed=1)
        except (UsageError, ValueError):
            continue
        for split, content in content_digests(changed).items():
            if split in digests and content.shapes == digests[split].shapes and content.digest != digests[split].digest:
                message = f"with {option} the {split} split holds other samples under the same fingerprint"
                message = f"{message}: it covers everything that samples are made from."
                require(changed.fingerprint() != fingerprint, message)


def follows_files(subject: DataSubject, fingerprint: str) -> None:
    """Raise Broken where files elsewhere have another fingerprint, or changed ones the same."""
    for place in ("elsewhere", "changed"):
        shutil.rmtree(subject.folder / place, ignore_errors=True)
    here = subject.folder / "elsewhere"
    again = subject.build(seed=1, **(subject.files(place="elsewhere") or {})).fingerprint()
    require(again == fingerprint, "the same files in another folder have another fingerprint: it is about content.")
    subject.files(seed=1, place="changed")
    other_files = subject.folder / "changed"
    for file in sorted(path for path in here.rglob("*") if path.is_file()):
        whole = file.read_bytes()
        for change, changed_file in variants(whole, other_files / file.relative_to(here), file.suffix):
            file.write_bytes(changed_file)
            try:
                options = {name: relocated(value, subject.folder) for name, value in subject.file_options.items()}
                changed = subject.build(seed=1, **options).fingerprint()  # before the file is as it was
            except UsageError:
                continue
            finally:
                file.write_bytes(whole)
            where = f"{file.relative_to(here)} changed ({change})"
            require(changed != fingerprint, f"{where}, and the fingerprint did not: it covers every sample.")


def relocated(value: Any, folder: Path) -> Any:
    """An option that names files, naming their copies."""
    return value.replace(str(folder / "files"), str(folder / "elsewhere")) if isinstance(value, str) else value


def variants(whole: bytes, other_file: Path, suffix: str) -> Iterator[tuple[str, bytes]]:
    """The content of a file, changed in one way each; ``other_file`` is the file that another seed gives."""
    if not other_file.is_file():
        return
    new = other_file.read_bytes()
    yield "all of it", new
    if suffix == ".npz":
        arrays, others = dict(np.load(io.BytesIO(whole))), dict(np.load(io.BytesIO(new)))
        for name in arrays:
            buffer = io.BytesIO()
            np.savez(buffer, **arrays | {name: others[name]})
            yield f"the array {name}", buffer.getvalue()
    try:
        lines, other_lines = whole.decode().splitlines(), new.decode().splitlines()
    except UnicodeDecodeError:
        return
    last = min(len(lines), len(other_lines)) - 1
    for change, number in (("the last line", last), ("a line in the middle", last // 2)):
        line, other_line = lines[number].split("\t"), other_lines[number].split("\t")
        for column in range(min(len(line), len(other_line))):
            mixed = [*line[:column], other_line[column], *line[column + 1 :]]
            column_told = f", column {column + 1}" if len(line) > 1 else ""
            if mixed != line:
                changed = [*lines[:number], "\t".join(mixed), *lines[number + 1 :]]
                yield change + column_told, ("\n".join(changed) + "\n").encode()


@once
def what_it_says_of_itself(subject: DataSubject) -> None:
    """``fingerprint`` is the same sha256 each time, and ``save`` leaves what a trained model needs."""
    fingerprint, other_fingerprint = (subject.build(seed=seed).fingerprint() for seed in (1, 2))
    is_digest = bool(re.fullmatch(r"[0-9a-f]{64}", fingerprint))
    require(is_digest, f"fingerprint is {fingerprint!r}, not a sha256 in hexadecimal.")
    require(fingerprint == other_fingerprint, "the fingerprint depends on the seed of the order: it is about content.")
    with tempfile.TemporaryDirectory() as folder:
        subject.build().save(Path(folder))


PROMISES = [documentation, clean_import, splits_and_sizes, order_is_repeatable, hash_seed_changes_nothing,
            global_randomness_is_left_alone,
            processes_share, resumes, workers_change_nothing, what_it_says_of_itself,
            splits_are_apart, near_twins, every_sample_loads, fingerprint_follows_content,
            *STREAM_PROMISES]  # fmt: skip
