"""The promises of training data that is a stream: shards that together hold each sample once, and resume."""

from __future__ import annotations

import hashlib
import pickle
import shutil
import tracemalloc
from collections import Counter
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from zoo.conformance.check import Inapplicable, once, require
from zoo.conformance.subject import DataSubject
from zoo.console import format_bytes
from zoo.data.data import Data
from zoo.data.streams import Sample, Stream

SAMPLES = 500  # samples of a shard that are looked at
BATCHES = 40  # batches of a loader that are looked at
GROWN = 2**25  # bytes of the files with which memory is measured
REPEATABLE = (".txt", ".md", ".jsonl", ".tsv", ".csv", ".py")  # files that may hold their content many times over


def stream_of(data: Data) -> Stream:
    """The stream that trains. Raises Inapplicable where there is none."""
    if "train" not in data.streams:
        raise Inapplicable("its training samples are no stream")
    return data.streams["train"]


def digest(batch: Any) -> str:
    """What a sample or a batch holds, as a short name."""
    content = hashlib.sha256()
    for name, value in sorted(batch.items()):
        content.update(name.encode())
        content.update(value.numpy().tobytes() if isinstance(value, Tensor) else repr(value).encode())
    return content.hexdigest()[:12]


def content_of(sample: Sample, name: str) -> Counter[float]:
    """The numbers of the tensor that the stream names, without negative ones; the sample itself where it names none."""
    if not name:
        return Counter([1.0])
    return Counter(number for number in sample[name].flatten().tolist() if number >= 0)


def check_shards(subject: DataSubject) -> None:
    """Raise Broken where two shards share samples, or processes and workers together see others than one process."""
    data = subject.build(seed=1)
    stream = stream_of(data)
    owners: dict[str, int] = {}
    repeated = total = 0
    for shard in range(stream.shards):
        digests = {digest(sample) for sample in islice(stream.open(shard, 0), SAMPLES)}
        repeated += sum(sample_digest in owners for sample_digest in digests)
        total += len(digests)
        owners |= dict.fromkeys(digests, shard)
    message = f"{repeated} of {total} samples stand in two shards: a shard holds what no other one does."
    require(repeated <= total * data.twins, message)
    require(total > 0, "no shard has a sample.")


def check_loaders(subject: DataSubject) -> None:
    """Raise Broken where loading processes change the batches."""
    data = subject.build(seed=1)
    stream = pickle.loads(pickle.dumps(stream_of(data)))
    alone = [digest(batch) for batch in islice(data.train_dataloader(), BATCHES)]
    workers, data.num_workers = data.num_workers, 2
    try:
        away = [digest(batch) for batch in islice(data.stream_loader(stream), BATCHES)]
    finally:
        data.num_workers = workers
    require(away == alone, "two loading processes give other batches than none.")


def check_resume(subject: DataSubject) -> None:
    """Raise Broken where a shard does not go on with the sample after the one at which its state was taken."""
    stream = stream_of(subject.build(seed=1))
    for shard in range(min(stream.shards, 3)):
        whole = [digest(sample) for sample in islice(stream.open(shard, 1), SAMPLES)]
        for consumed in sorted({0, 1, 2, len(whole) // 2, len(whole) - 1, len(whole)} & set(range(len(whole) + 1))):
            reader = stream.open(shard, 1)
            for _ in range(consumed):
                next(reader)
            state = pickle.loads(pickle.dumps(reader.state_dict()))
            again = stream.open(shard, 1)
            again.load_state_dict(state)
            remaining = [digest(sample) for sample in islice(again, SAMPLES - consumed)]
            require(
                remaining == whole[consumed:],
                f"a shard that resumes after {consumed} samples repeats some or leaves some out: state_dict holds its "
                "position, load_state_dict goes there.",
            )


@once
def an_epoch_is_complete(subject: DataSubject) -> None:
    """Of a stream, every epoch holds the same content: no order drops the end of a shard, a file or a row."""
    data = subject.build(seed=1)
    stream = stream_of(data)
    contents = []
    for epoch in range(3):
        content: Counter[float] = Counter()
        for shard in range(stream.shards):
            for sample in stream.open(shard, epoch):
                content += content_of(sample, stream.content)
        contents.append(content)
        require(content.total() > 0, "an epoch holds nothing.")
        missing = (contents[0] - content).total() + (content - contents[0]).total()
        require(
            not missing,
            f"the first epoch and that of number {epoch} differ in {missing} of {content.total()} numbers of "
            f"{stream.content or 'samples'}: what is left at the end of a shard belongs to the epoch.",
        )


@once
def a_blank_sample_weighs_nothing(subject: DataSubject) -> None:
    """Of a stream, ``blank`` looks as a sample does, and holds nothing to learn from."""
    stream = stream_of(subject.build(seed=1))
    sample, blank = next(iter(stream)), stream.blank()
    forms = [{name: (tuple(v.shape), v.dtype) for name, v in values.items()} for values in (sample, blank)]
    require(forms[0] == forms[1], f"blank() has {forms[1]}, a sample {forms[0]}.")
    if stream.content:
        require(not content_of(blank, stream.content), f"{stream.content} of blank() must be negative throughout.")


@once
def memory_is_a_window(subject: DataSubject) -> None:
    """Of a stream, memory does not grow with the files: 32 MB of them take about as much as 8 MB."""
    stream_of(subject.build(seed=1))
    if not subject.file_options:
        raise Inapplicable("it reads no files that could be made larger")
    peaks = []
    for size in (GROWN // 4, GROWN):
        place = f"grown-{size}"
        shutil.rmtree(subject.folder / place, ignore_errors=True)
        options = subject.files(place=place) or {}
        files = [file for file in (subject.folder / place).rglob("*") if file.suffix in REPEATABLE]
        if not files:
            raise Inapplicable("its files cannot be made larger by repeating what they hold")
        for file in files:
            content = file.read_bytes()
            file.write_bytes(content * max(1, size // len(files) // max(1, len(content))))
        tracemalloc.start()
        try:
            data = subject.build(seed=1, **options)
            last_batch: dict[str, Tensor] = {}
            for batch in islice(data.train_dataloader(), 4 * BATCHES):
                last_batch = batch
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
            del last_batch, data
            shutil.rmtree(subject.folder / place)
    growth = peaks[1] - peaks[0]
    require(
        growth < GROWN / 4,
        f"four times the files take {format_bytes(growth)} more memory ({format_bytes(peaks[0])} → "
        f"{format_bytes(peaks[1])}): hold a window of them, not their content.",
    )


def first_samples(data: Data, most: int) -> dict[str, list[Any]]:
    """The first samples of the stream that trains, by name."""
    columns: dict[str, list[Any]] = {}
    for sample in islice(iter(data.streams["train"]), most):
        for name, value in sample.items():
            if value.dim() > 0 and value.dtype != torch.bool:
                columns.setdefault(name, []).append(value.numpy())
    return columns


STREAM_PROMISES = [an_epoch_is_complete, a_blank_sample_weighs_nothing, memory_is_a_window]
