"""Checkpoints, exports and data built to run code or to exhaust the machine: none is loaded, and none is executed."""

import contextlib
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import zoo
from tests import forks
from tests.covering import choices_in_turn
from zoo.errors import ZooError
from zoo.inference import weight_files
from zoo.inference.safe_pickle import screen_pickle
from zoo.tasks.classification import Classification

MODEL = {
    "class_path": "zoo.tasks.classification.Classification",
    "init_args": {"num_classes": 10, "image_size": 8, "channels": 1, "dim": 8, "depth": 1, "heads": 2, "patch_size": 4},
}
END = {"trainer": {"max_steps": 2}}  # without an end a training is refused whatever else is wrong
IMAGES = {"names": [str(n) for n in range(10)], "mean": [0.5], "std": [0.5], "image_size": 8, "channels": 1}


@pytest.fixture
def run(tmp_path):
    """The folder of a run with a sound checkpoint, made without training."""
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"model": MODEL}))
    (folder / "images.json").write_text(json.dumps(IMAGES))
    (folder / "finished.json").write_text("{}")
    save(folder, content())
    return folder


@pytest.fixture(scope="session")
def task():
    return Classification(**MODEL["init_args"])


def content(**more):
    state = Classification(**MODEL["init_args"]).state_dict()
    return {"state_dict": state, "epoch": 0, "global_step": 1, "pytorch-lightning_version": "2.6.6", **more}


def path(folder: Path) -> Path:
    return folder / "checkpoints" / "last.ckpt"


def save(folder, what):
    torch.save(what, path(folder))


def archive(folder, pickled: bytes, more=(), compression=zipfile.ZIP_STORED):
    """A checkpoint file with a pickle of one's own and members besides."""
    with zipfile.ZipFile(path(folder), "w", compression) as file:
        file.writestr("archive/data.pkl", pickled)
        file.writestr("archive/version", b"3\n")
        file.writestr("archive/byteorder", b"little")
        for name, data in more:
            file.writestr(name, data)


class Calls:
    """Pickles as a call."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def touch(canary) -> str:
    return f"touch {canary.file}"


PAYLOADS = {
    "os.system": lambda c: Calls(os.system, touch(c)),
    "subprocess.Popen": lambda c: Calls(subprocess.Popen, ["touch", str(c.file)]),
    "eval": lambda c: Calls(eval, f"open({str(c.file)!r}, 'w')"),
    "exec": lambda c: Calls(exec, f"open({str(c.file)!r}, 'w')"),
    "open": lambda c: Calls(open, str(c.file), "w"),
    "getattr": lambda c: Calls(getattr, Calls(__import__, "os"), "system"),
    "torch.load": lambda c: Calls(torch.load, str(c.file)),
    "torch.hub": lambda c: Calls(torch.hub.load_state_dict_from_url, f"http://127.0.0.1:{c.port}/x"),
    "a numpy array": lambda c: np.array([Calls(os.system, touch(c))], dtype=object),
    "a module": lambda c: torch.nn.Linear(1, 1),
    "a path": lambda c: Path("x"),
    "bytearray of 2**40": lambda c: Calls(bytearray, 2**40),
    "a tensor of 2**40": lambda c: Calls(torch.Tensor, 2**40),
    "a legacy tensor": lambda c: Calls(torch.FloatTensor, 2**38),
}
HOLDERS = {
    "state_dict": lambda p: content() | {"state_dict": {"a": p}},
    "whole": lambda p: p,
    "zoo_parts": lambda p: content(zoo_parts=[p]),
    "optimizer": lambda p: content(optimizer_states=[{"state": {0: {"exp_avg": p}}}]),
    "hyper_parameters": lambda p: content(hyper_parameters={"_instantiator": "os.system", "x": {"y": (p,)}}),
    "a key": lambda p: content() | {"callbacks": {"x": {1: [[(p,)]]}}},
}


def loads(folder, canary):
    """Loading by all ways is refused in a sentence."""
    with pytest.raises(ZooError) as caught:
        zoo.load(folder)
    assert len(str(caught.value).splitlines()) <= 4
    with contextlib.suppress(ZooError):
        assert weight_files.read_entry(path(folder), "zoo_parts") is None
    canary.assert_silent()
    return str(caught.value)


def test_the_run_of_the_attacks_is_sound(run):
    assert zoo.load(run).names == IMAGES["names"]
    assert set(screen_pickle(path(run))) == set(content())


@pytest.mark.parametrize(("payload", "holder"), choices_in_turn(PAYLOADS, HOLDERS))
def test_pickles_are_refused(run, canary, payload, holder):
    save(run, HOLDERS[holder](PAYLOADS[payload](canary)))
    assert "last.ckpt" in loads(run, canary)


@pytest.mark.parametrize(("payload", "protocol"), choices_in_turn(["os.system", "eval", "subprocess.Popen"], range(6)))
def test_every_protocol_is_refused(run, canary, payload, protocol):
    pickled = pickle.dumps(content(x=0) | {"state_dict": {}, "x": PAYLOADS[payload](canary)}, protocol)
    archive(run, pickled)
    assert "Nothing in it was run" in loads(run, canary)
    path(run).write_bytes(pickled)  # the form of torch before 1.6, and of everybody else
    loads(run, canary)


HAND_WRITTEN = {
    "a call of old": b"cos\nsystem\n(S'touch @'\ntR.",
    "an instance": b"(S'touch @'\nios\nsystem\n.",
    "an object": b"(cos\nsystem\nS'touch @'\no.",
    "a new object": b"\x80\x02cos\nsystem\n(S'touch @'\nt\x81.",
    "a name from the stack": b"\x80\x04\x8c\x02os\x94\x8c\x06system\x93\x8c\x07touch @\x85R.",
    "an extension": b"\x80\x02\x82\x01.",
    "an attribute": b"\x80\x02ccollections\nOrderedDict\n)R}X\x05\x00\x00\x00__init__q\x00K\x01sb.",
    "a state of a set": b"\x80\x02c__builtin__\nset\n)R}X\x01\x00\x00\x00aK\x01sb.",
    "a method": b"\x80\x02ccollections\nOrderedDict.fromkeys\n)R.",
    "a dotted name": b"\x80\x02ctorch\nhub.os.system\n(S'touch @'\ntR.",
    "a long memo": b"\x80\x02}r\xff\xff\xff\xff.",
    "a long text": b"\x80\x02X\xff\xff\xff\x7fabc.",
    "a long bytearray": b"\x80\x05\x96\x00\x00\x00\x00\x00\x01\x00\x00.",
    "a long number": b"\x80\x02\x8b\xff\xff\xff\x7f1.",
    "nothing": b"",
    "no end": b"\x80\x02}",
    "an empty stack": b".",
    "no text": b"\x80\x02X\x02\x00\x00\x00\xff\xfe.",
    "a storage that is none": b"\x80\x02K\x01Q.",
    "a reduced number": b"\x80\x02K\x01)R.",
    "a reduced storage": b"\x80\x02ctorch\nFloatStorage\n(K\x05tR.",
    "no dict": b"\x80\x02]K\x01a.",
    "numbers for keys": b"\x80\x02}K\x01K\x02s.",
    "a hundred thousand marks": b"\x80\x02" + b"(" * 100_000 + b".",
    "deep": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "deep tuples": b"\x80\x02)" + b"\x85" * 100_000 + b".",
}


@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_pickles_written_by_hand_are_refused(run, canary, name):
    archive(run, HAND_WRITTEN[name].replace(b"@", str(canary.file).encode()))
    start = time.process_time()
    loads(run, canary)
    assert time.process_time() - start < 10


@pytest.mark.parametrize("value", [b"}", b"]", b"c__builtin__\nset\n)R"], ids=["dict", "list", "set"])
def test_attributes_of_all_but_an_ordered_dict_are_refused(run, canary, value):
    """In a checkpoint with no other fault: an OrderedDict, which has versions of modules, is read without them."""
    beginning, end = b"\x80\x02}X\x01\x00\x00\x00a", b"}X\x01\x00\x00\x00bK\x01sbs."
    archive(run, beginning + b"ccollections\nOrderedDict\n)R" + end)
    assert screen_pickle(path(run)) == {"a": {}}
    archive(run, beginning + value + end)
    assert "its pickle sets attributes" in loads(run, canary)


def shared(levels: int):
    result = [0]
    for _ in range(levels):
        result = [result, result]
    return result


def circle():
    result: list = []
    result.append(result)
    return result


@pytest.mark.parametrize("value", [shared(60), shared(30), circle(), {"a": {"b": circle()}}], ids=str.__class__)
def test_what_takes_for_ever_to_walk_through_is_refused(run, canary, value):
    save(run, content(callbacks=value))
    assert "unfolds to more" in (message := loads(run, canary)) or "holds itself" in message


def tensor(storage: tuple, offset, size, stride) -> bytes:
    """The pickle of one tensor of a storage (key, elements)."""

    class Pickler(pickle._Pickler):
        def persistent_id(self, value):
            return ("storage", torch.FloatStorage, *value[1:], "cpu", storage[1]) if value[:1] == ("S",) else None

    class TensorState:
        def __reduce__(self):
            return torch._utils._rebuild_tensor_v2, (Key(("S", storage[0])), offset, size, stride, False, None)

    class Key(tuple):
        pass

    buffer = io.BytesIO()
    pickler = Pickler(buffer, 2)
    pickler.persistent_id = lambda value: (
        ("storage", torch.FloatStorage, storage[0], "cpu", storage[1]) if isinstance(value, Key) else None
    )
    pickler.dump({"state_dict": {"x": TensorState()}})
    return buffer.getvalue()


DATA = ("archive/data/0", b"\0" * 40)  # ten numbers


@pytest.mark.parametrize(
    ("storage", "offset", "size", "stride", "message"),
    [
        (("0", 10), 0, (11,), (1,), "beyond its storage"),
        (("0", 10), 5, (6,), (1,), "beyond its storage"),
        (("0", 10), 0, (2, 5), (9, 1), "beyond its storage"),
        (("0", 10**6), 0, (10**6,), (1,), "has 40 bytes"),
        (("0", 2), 0, (2,), (1,), "has 40 bytes"),
        (("1", 10), 0, (10,), (1,), "is missing"),
        (("../../x", 10), 0, (10,), (1,), "is missing"),
        (("0", 10), -1, (5,), (1,), "the shape"),
        (("0", 10), 0, (-5,), (1,), "the shape"),
        (("0", 10), 0, (5,), (-1,), "the shape"),
        (("0", 10), 0, (5, 1), (1,), "the shape"),
        (("0", 10), 0, (2**70,), (0,), "the shape"),
        (("0", 10), 0, (10**6, 10**6), (0, 0), "expands a storage"),
        (("0", -1), 0, (1,), (1,), "without a type"),
        (("0", 10.5), 0, (1,), (1,), "without a type"),
        (("0", 10), 0, [5], (1,), "is not made of"),
        (("0", 10), True, (5,), (1,), "the shape"),
    ],
)  # fmt: skip
def test_tensors_beyond_their_storage_are_refused(run, canary, storage, offset, size, stride, message):
    archive(run, tensor(storage, offset, size, stride), [DATA])
    assert message in loads(run, canary)


def test_a_tensor_within_its_storage_is_read(run):
    archive(run, tensor(("0", 10), 0, (2, 5), (5, 1)), [DATA])
    assert screen_pickle(path(run))["state_dict"]["x"].shape == (2, 5)
    assert weight_files.read_tensors(path(run))["x"].shape == (2, 5)


MEMBERS = {
    "up": [("../../escaped", b"x")],
    "up, of windows": [("..\\..\\escaped", b"x")],
    "absolute": [("/tmp/zoo-attack-escaped", b"x")],
    "a drive": [("C:/escaped", b"x")],
    "twice": [("archive/data.pkl", b"\x80\x02}.")],
    "a second archive": [("other/data.pkl", b"\x80\x02}.")],
    "torchscript": [("archive/constants.pkl", b"\x80\x02}."), ("archive/code/__torch__.py", b"import os")],
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", MEMBERS)
def test_members_that_leave_the_archive_are_refused(run, canary, name):
    archive(run, pickle.dumps({"state_dict": {}}, 2), MEMBERS[name])
    loads(run, canary)
    assert not Path("/tmp/zoo-attack-escaped").exists()


def test_a_link_in_an_archive_is_refused(run, canary):
    link = zipfile.ZipInfo("archive/link")
    link.external_attr = 0o120777 << 16
    archive(run, pickle.dumps({"state_dict": {}}, 2), [(link, b"/etc/passwd")])
    assert "'link', which torch.save did not write" in loads(run, canary)


def end_records(data: bytes) -> tuple[bytes, bytes, int]:
    """An archive's local part, its table of contents, and the number of entries in it."""
    end = data.rindex(b"PK\x05\x06")
    count, size, start = struct.unpack("<HII", data[end + 10 : end + 20])
    return data[:start], data[start : start + size], count


def two_tables(outer: bytes, inner: bytes, order: str) -> bytes:
    """One file with two tables of contents: readers that search differently find another archive."""
    local, table, count = end_records(outer)
    other_local, other_table, other_count = end_records(inner)
    shift = len(local)
    moved, place = bytearray(other_table), 0
    while place < len(moved):
        name, extra, comment = struct.unpack("<HHH", moved[place + 28 : place + 34])
        offset = struct.unpack("<I", moved[place + 42 : place + 46])[0] + shift
        moved[place + 42 : place + 46] = struct.pack("<I", offset)
        place += 46 + name + extra + comment
    body = local + other_local
    tables = [(table, count), (bytes(moved), other_count)]
    tables = tables if order == "outer first" else tables[::-1]
    if order == "in a comment":
        tables = tables[::-1]
    parts, starts = body, []
    for entries, _ in tables:
        starts.append(len(parts))
        parts += entries
    records = [
        struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, n, n, len(entries), start, 0)
        for (entries, n), start in zip(tables, starts, strict=True)
    ]
    if order == "in a comment":
        first = records[0][:-2] + struct.pack("<H", len(records[1]))
        return parts + first + records[1]
    return parts + b"".join(records)


def archive_bytes(pickled: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, data in (
            ("archive/data.pkl", pickled),
            ("archive/version", b"3\n"),
            ("archive/byteorder", b"little"),
        ):
            file.writestr(name, data)
    return buffer.getvalue()


def harmful() -> bytes:
    return b"\x80\x02cos\nsystem\nX\x01\x00\x00\x00xR."


@pytest.mark.parametrize("order", ["outer first", "inner first", "in a comment"])
@pytest.mark.parametrize("swapped", [False, True])
def test_of_two_archives_in_one_file_the_one_that_torch_reads_is_screened(run, order, swapped):
    marks = [pickle.dumps({"state_dict": {name: 1}}, 2) for name in ("a", "b")]
    path(run).write_bytes(two_tables(*map(archive_bytes, marks[::-1] if swapped else marks), order))
    try:
        read = torch.load(path(run), weights_only=True)
    except Exception:
        with pytest.raises(ZooError):
            screen_pickle(path(run))
        return
    with contextlib.suppress(ZooError):
        assert screen_pickle(path(run)) == read
    for pair in ((marks[0], harmful()), (harmful(), marks[0])):
        path(run).write_bytes(two_tables(*map(archive_bytes, pair), order))
        with contextlib.suppress(ZooError):  # what is accepted is what torch reads
            assert screen_pickle(path(run)) == torch.load(path(run), weights_only=True)


@pytest.mark.parametrize("before", [b"\x80\x02}.", pickle.dumps({"state_dict": {}}, 2), b"#!/bin/sh\n", b"\0" * 512])
def test_an_archive_behind_other_bytes_is_refused(run, canary, before):
    """torch reads the beginning of such a file as a pickle of its oldest format, and zipfile the archive."""
    path(run).write_bytes(before + archive_bytes(pickle.dumps(content(state_dict={}), 2)))
    assert "does not begin as an archive" in loads(run, canary)


def long(number: int) -> bytes:
    data = pickle.encode_long(number)
    return b"\x8a" + bytes([len(data)]) + data


PRIME = 2**61 - 1  # by which Python reduces whole numbers for their hash
MANY_ONES = b"\x80\x02](" + b"K\x01" * 100_000 + b"eq\x00"  # a list that the pickle can name again
# made when they are tried: some hold millions of words
TOO_MUCH = {
    "keys of one hash": lambda: b"\x80\x02}(" + b"".join(long(PRIME * n) + b"N" for n in range(100_000)) + b"u.",
    "one by one": lambda: b"\x80\x02}" + b"".join(long(PRIME * n) + b"Ns" for n in range(1, 100_000)) + b".",
    "in a set": lambda: (
        b"\x80\x02c__builtin__\nset\n](" + b"".join(long(PRIME * n) for n in range(100_000)) + b"e\x85R."),
    "floats of one hash": lambda: b"\x80\x02}(" + b"".join(
        b"G" + struct.pack(">d", 2.0 ** (61 * n)) + b"N" for n in range(16)) + b"u.",
    "keys of shared tuples": lambda: b"\x80\x02}K\x01" + b"q\x00h\x00\x86" * 60 + b"Ns.",
    "a shape of shared tuples": lambda: tensor(("0", 10), 0, (5,), (1,)).replace(
        b"K\x05\x85", b"K\x05\x85" + b"q\xf0h\xf0\x86" * 60, 1),
    "marks": lambda: b"\x80\x02" + b"(" * 3_100_000 + b".",
    "lists": lambda: b"\x80\x02" + b"]" * 3_100_000 + b".",
    "sets": lambda: b"\x80\x02" + b"\x8f" * 3_100_000 + b".",
    "memo": lambda: b"\x80\x02]" + b"".join(b"r" + struct.pack("<I", n) for n in range(3_100_000)) + b".",
    "a set, again and again": lambda: MANY_ONES + b"c__builtin__\nset\nh\x00\x85R" * 20_000 + b".",
    "a shape, again and again": lambda: MANY_ONES + b"ctorch\nSize\nh\x00\x85R" * 20_000 + b".",
}  # fmt: skip


QUICK = ("keys of one hash", "marks", "a shape of shared tuples")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.campaign]) for name in TOO_MUCH]
)
def test_screening_itself_is_bounded(run, name):
    """In a process of its own that may have 3 GiB: neither hours nor the whole memory."""
    archive(run, TOO_MUCH[name](), [DATA])
    code = (
        "import resource, sys, time; from pathlib import Path\n"
        "from zoo.inference.safe_pickle import screen_pickle\n"
        "from zoo.errors import CheckpointError\n"
        "base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; start = time.process_time()\n"
        "try: screen_pickle(Path(sys.argv[1])); print('accepted')\n"
        "except CheckpointError as error: print(str(error).splitlines()[0][-120:])\n"
        "print(time.process_time() - start, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) / 1024)"
    )
    done = forks.run([sys.executable, "-c", code, str(path(run))], text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    message, figures = done.stdout.splitlines()
    seconds, mebibytes = map(float, figures.split())
    assert message != "accepted"
    assert seconds < 60
    assert mebibytes < 1600


def test_compressed_bombs_are_refused(run, canary):
    archive(run, pickle.dumps({"state_dict": {}}, 2), [("archive/data/0", bytes(2**26))], zipfile.ZIP_DEFLATED)
    assert path(run).stat().st_size < 2**20
    assert "bomb" in loads(run, canary)
    archive(run, pickle.dumps({"state_dict": {}}, 2), [("archive/data/0", os.urandom(99))], zipfile.ZIP_DEFLATED)
    assert "compressed" in loads(run, canary) or "bomb" in loads(run, canary)


def test_archives_of_other_kinds_are_refused(run, canary, tmp_path):
    for mode in ("w", "w:gz"):
        with tarfile.open(path(run), mode) as file:
            for name in ("../../escaped", "pickle", "sys_info", "storages"):
                info = tarfile.TarInfo(name)
                info.size = 4
                file.addfile(info, io.BytesIO(b"data"))
        loads(run, canary)
    assert not list(tmp_path.parent.glob("escaped"))
    scripted = torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))
    torch.jit.save(scripted, str(path(run)))
    loads(run, canary)


def test_the_environment_cannot_make_torch_unpickle(run, canary, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    save(run, content(x=PAYLOADS["os.system"](canary)))
    loads(run, canary)
    torch.serialization.add_safe_globals([Calls])
    save(run, content(x=PAYLOADS["eval"](canary)))
    loads(run, canary)
    torch.serialization.clear_safe_globals()


@pytest.mark.parametrize("command", ["fit", "test", "validate", "predict", "classify", "export"])
@pytest.mark.parametrize("payload", ["os.system", "bytearray of 2**40"])
def test_no_command_loads_them(refused, run, canary, tmp_path, command, payload):
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"model": MODEL, "data": {"class_path": "Digits"}, **END}))
    save(run, content(x=PAYLOADS[payload](canary)))
    words = {"classify": [run, "x.png"], "export": [run, "out"]}.get(command, ["r.yaml", "--ckpt_path", path(run)])
    assert "last.ckpt" in refused(command, *words)


@pytest.mark.parametrize("url", ["http://127.0.0.1:{}/x.ckpt", "s3://x/y.ckpt", "file:///tmp/x.ckpt"])
def test_no_command_fetches_a_checkpoint(refused, canary, tmp_path, url):
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"model": MODEL, "data": {"class_path": "Digits"}, **END}))
    url = url.format(canary.port)
    refused("fit", "r.yaml", "--ckpt_path", url)
    refused("classify", url, "x.png")
    (tmp_path / "r.yaml").write_text((tmp_path / "r.yaml").read_text() + f"ckpt_path: {url}\n")
    refused("test", "r.yaml")


@pytest.fixture
def exported(run, tmp_path):
    return zoo.load(run).export(tmp_path / "out")


def header(folder: Path, text: bytes, size: int | None = None, data: bytes = b"") -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text) if size is None else size) + text + data)


def entry(**changes) -> bytes:
    return json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} | changes}).encode()


HEADERS = {
    "longer than the file": (b"{}", 2**62, b""),
    "of a gigabyte": (b"{}", 2**30, b""),
    "negative": (b"{}", 2**64 - 1, b""),
    "of forty megabytes": (b'{"__metadata__": {"x": "' + b"y" * 40 * 2**20 + b'"}}', None, b""),
    "empty": (b"", None, b""),
    "no JSON": (b"{{{{", None, b""),
    "deep": (b"[" * 100_000, None, b""),
    "a list": (b"[1]", None, b""),
    "a tensor beyond the file": (entry(data_offsets=[0, 2**40]), None, b"\0" * 4),
    "a shape beyond the data": (entry(shape=[2**40]), None, b"\0" * 4),
    "a negative shape": (entry(shape=[-1]), None, b"\0" * 4),
    "offsets backwards": (entry(data_offsets=[4, 0]), None, b"\0" * 4),
    "a hole": (entry(data_offsets=[4, 8]), None, b"\0" * 8),
    "an unknown dtype": (entry(dtype="os.system"), None, b"\0" * 4),
    "tied to nothing": (b'{"__metadata__": {"tied": "{\\"a\\": \\"b\\"}"}}', None, b""),
    "tied, a list": (b'{"__metadata__": {"tied": "[1]"}}', None, b""),
    "tied, deep": (b'{"__metadata__": {"tied": "' + b"[" * 50_000 + b'"}}', None, b""),
    "tied, no JSON": (b'{"__metadata__": {"tied": "__import__(1)"}}', None, b""),
}


@pytest.mark.parametrize("name", HEADERS)
def test_safetensors_headers_are_refused(exported, canary, name):
    header(exported, *HEADERS[name])
    start = time.process_time()
    with pytest.raises(ZooError, match=r"model\.safetensors") as caught:
        zoo.load(exported)
    assert len(str(caught.value).splitlines()) <= 4
    assert time.process_time() - start < 5
    (exported / "model.safetensors").write_bytes(b"1234")
    with pytest.raises(ZooError, match=r"model\.safetensors"):
        zoo.load(exported)


CALLED = ["os.system", "builtins.eval", "torch.hub.load", "zoo.recipe_files.copy_recipe", "zoo.data.cache.write_file",
          "evilmodule.call", "evilmodule.Payload", "lightning.pytorch.callbacks.LambdaCallback",
          "zoo.__main__.main"]  # fmt: skip


@pytest.mark.parametrize(("target", "form"), choices_in_turn(CALLED, ["text", "class", "deep", "task", "nested"]))
def test_the_configuration_of_a_run_names_no_code(run, exported, evil, canary, target, form):
    node = {"class_path": target, "init_args": {"args": ["touch", str(canary.file)]}}
    options = dict(MODEL["init_args"])
    model = {"class_path": MODEL["class_path"], "init_args": options}
    if form == "text":
        options["norm"] = options["schedule"] = target
    elif form == "class":
        options["schedule"] = node
    elif form == "deep":
        options["optimizer"] = {"class_path": "torch.optim.AdamW", "init_args": {"betas": [node, node]}}
    elif form == "nested":
        options["lr"] = {"a": [{"b": node}]}
    else:
        model = node
    (run / "config.yaml").write_text(yaml.safe_dump({"model": model}))
    about = json.loads((exported / "config.json").read_text())
    (exported / "config.json").write_text(json.dumps({**about, "model": model}))
    for folder in (run, exported):
        with pytest.raises(ZooError) as caught:
            zoo.load(folder)
        assert len(str(caught.value).splitlines()) <= 4
        canary.assert_silent()


def test_an_archive_of_images_runs_nothing(refused, canary, tmp_path):
    objects = np.array([Calls(os.system, touch(canary))] * 4, dtype=object)
    np.savez(tmp_path / "objects.npz", images=objects, labels=np.zeros(4, np.int64))
    np.savez_compressed(
        tmp_path / "bomb.npz", images=np.zeros((70_000, 32, 32), np.uint8), labels=np.zeros(70_000, int)
    )
    claim = io.BytesIO()
    np.lib.format.write_array_header_1_0(claim, {"descr": "|u1", "fortran_order": False, "shape": (2**40, 8, 8)})
    with zipfile.ZipFile(tmp_path / "claim.npz", "w") as file:
        file.writestr("images.npy", claim.getvalue())
        file.writestr("labels.npy", claim.getvalue())
    for name in ("objects", "bomb", "claim"):
        data = {"class_path": "NpzImages", "init_args": {"train": f"{name}.npz", "val": f"{name}.npz"}}
        (tmp_path / "r.yaml").write_text(yaml.safe_dump({"model": MODEL, "data": data, **END}))
        assert f"{name}.npz" in refused("fit", "r.yaml")


def test_an_image_starts_no_program(refused, run, canary, tmp_path):
    """Pillow hands PostScript to Ghostscript, whatever the file is called."""
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n(" + str(canary.file).encode() + b") (w) file\n%%EOF\n"
    (tmp_path / "x.png").write_bytes(script)
    assert "x.png" in refused("classify", run, "x.png")
