"""Kernels are measured once per machine, and the choice is stored, repeated and recorded."""

import contextlib
import json
import multiprocessing
import time

import pytest
import torch
from filelock import FileLock

from zoo.errors import UsageError
from zoo.system import kernel_choice
from zoo.system.kernel_choice import MARGIN, SWITCH, choose, fastest, measure

CALL, NAMES = ("products", 1, 384, 1152), ("linear", "columns")
WORDS = "products 1 x 384 x 1152"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder without content, and a process that chose nothing yet."""
    monkeypatch.setenv(SWITCH, "measured")
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    kernel_choice.forget()
    yield tmp_path / "cache"
    kernel_choice.forget()


@pytest.fixture
def measured(monkeypatch):
    """Times that ``measure`` returns in turn, and the calls of it."""

    class Measured(list):
        calls = 0

    times = Measured()

    def fake(kernels):
        times.calls += 1
        assert tuple(kernels) == NAMES
        return dict(zip(NAMES, times.pop(0), strict=True))

    monkeypatch.setattr(kernel_choice, "measure", fake)
    return times


def prepare():
    return dict.fromkeys(NAMES, lambda: None)


def never():
    raise AssertionError("it was measured again")


@pytest.mark.parametrize(("times", "kernel"), [((2.0, 1.0), "columns"), ((1.0, 5.0), "linear")])
def test_the_faster_kernel_is_used_and_stored(times, kernel, measured):
    measured.append(times)
    assert choose(CALL, NAMES, prepare) == choose(CALL, NAMES, never) == kernel
    kernel_choice.forget()  # as in the next process
    assert choose(CALL, NAMES, never) == kernel
    assert kernel_choice.stored()[WORDS] == dict(zip(NAMES, times, strict=True))
    content = json.loads(kernel_choice.choice_file().read_text())
    assert content["processor"] == kernel_choice.processor_name()
    assert (content["torch"], content["threads"]) == (torch.__version__, torch.get_num_threads())
    assert content["choices"][WORDS]["kernel"] == kernel


def test_a_rival_must_save_more_than_the_margin():
    assert fastest({"linear": 1.0, "columns": 1.0 - MARGIN + 0.001}) == "linear"
    assert fastest({"linear": 1.0, "columns": 1.0 - MARGIN - 0.001}) == "columns"
    assert fastest({"linear": 1.0, "columns": 0.9, "packed": 0.8}) == "packed"


def test_plain_measures_nothing_and_reads_nothing(measured, monkeypatch):
    measured.append((2.0, 1.0))
    choose(CALL, NAMES, prepare)
    kernel_choice.forget()
    monkeypatch.setenv(SWITCH, "plain")
    assert choose(CALL, NAMES, never) == "linear"
    assert kernel_choice.record() == {"mode": "plain", "choices": {WORDS: "linear"}}
    monkeypatch.setenv(SWITCH, "fastest")
    with pytest.raises(UsageError, match="ZOO_KERNELS=fastest: use measured or plain"):
        choose(("another",), NAMES, never)


def test_other_threads_and_another_torch_are_measured_anew(measured, monkeypatch):
    measured.extend([(2.0, 1.0), (1.0, 2.0), (2.0, 1.0), (1.0, 2.0)])
    files = set()
    for patch in (
        lambda: None,
        lambda: monkeypatch.setattr(torch, "get_num_threads", lambda: 7),
        lambda: monkeypatch.setattr(torch, "__version__", "9.9"),
        lambda: monkeypatch.setattr(kernel_choice, "processor_name", lambda: "Another / Processor"),
    ):
        patch()
        kernel_choice.forget()
        choose(CALL, NAMES, prepare)
        files.add(kernel_choice.choice_file().name)
    assert measured.calls == len(files) == 4
    assert any(name.startswith("another-processor-") for name in files)


EPYC = "processor\t: 0\ncpu family\t: {}\nmodel\t\t: {}\nmodel name\t: AMD EPYC\nflags\t\t: fpu\n\n"


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (2 * EPYC.format(25, 17), "AMD EPYC (family 25, model 17)"),
        (EPYC.format(26, 2), "AMD EPYC (family 26, model 2)"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd40\n", "aarch64 (implementer 0x41, part 0xd40)"),
        ("", "aarch64"),
        (None, "aarch64"),
    ],
)
def test_generations_of_one_name_are_two_processors(content, name, tmp_path, monkeypatch):
    """Two machines that both said "AMD EPYC" multiplied at 90 and 200 GFLOP/s by the same kernel."""
    monkeypatch.setattr(kernel_choice, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(kernel_choice.platform, "processor", lambda: "")
    monkeypatch.setattr(kernel_choice.platform, "machine", lambda: "aarch64")
    if content is not None:
        kernel_choice.CPUINFO.write_text(content)
    kernel_choice.processor_name.cache_clear()
    try:
        assert kernel_choice.processor_name() == name
    finally:
        kernel_choice.processor_name.cache_clear()


def test_a_resumed_run_uses_the_kernels_of_its_record(measured, monkeypatch):
    measured.append((2.0, 1.0))
    assert choose(CALL, NAMES, prepare) == "columns"
    record = json.loads(json.dumps(kernel_choice.record()))
    assert record == {"mode": "measured", "choices": {WORDS: "columns"}}
    kernel_choice.choice_file().write_text("")  # another machine
    kernel_choice.adopt(record)
    assert kernel_choice.record() == record  # also before the first call of the class
    assert choose(CALL, NAMES, never) == "columns"
    measured.append((1.0, 2.0))
    kernel_choice.adopt({"mode": "measured", "choices": {WORDS: "a kernel of another version"}})
    assert choose(CALL, NAMES, prepare) == "linear"
    monkeypatch.delenv(SWITCH)
    kernel_choice.adopt({"mode": "plain", "choices": {}})  # a run that began with ZOO_KERNELS=plain goes on with it
    assert choose(CALL, NAMES, never) == "linear"
    for odd in (None, [], {"mode": "plain"}, {"choices": 3}, {"mode": 1, "choices": {}}):
        kernel_choice.adopt(odd)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"[]", b"{", b'{"choices": 1}', b'{"choices": {"%s": 1}}', b'{"choices": {"%s": {"times": {}}}}',
     b'{"choices": {"%s": {"times": {"linear": "x", "columns": 1.0}}}}',
     b'{"choices": {"%s": {"times": {"linear": 1.0, "columns": NaN}}}}',
     b'{"choices": {"%s": {"times": {"linear": Infinity, "columns": 1.0}}}}',
     b'{"choices": {"%s": {"times": {"linear": 1.0, "other": 0.5}}}}'],
)  # fmt: skip
def test_a_damaged_file_is_replaced(content, measured):
    measured.append((2.0, 1.0))
    path = kernel_choice.choice_file()
    path.parent.mkdir(parents=True)
    path.write_bytes(content.replace(b"%s", WORDS.encode()))
    assert choose(CALL, NAMES, prepare) == "columns"
    assert kernel_choice.stored() == {WORDS: {"linear": 2.0, "columns": 1.0}}


def test_a_cache_folder_that_cannot_be_used_costs_a_measurement_per_process(cache, measured, monkeypatch):
    measured.extend([(2.0, 1.0), (2.0, 1.0), (2.0, 1.0)])
    cache.write_text("a file where the folder should be")
    assert choose(CALL, NAMES, prepare) == choose(CALL, NAMES, never) == "columns"
    cache.unlink()
    monkeypatch.setattr(kernel_choice, "WAIT", 0.0)
    kernel_choice.forget()
    path = kernel_choice.choice_file()
    path.parent.mkdir(parents=True)
    with FileLock(path.with_suffix(".lock")):  # another process measures without end
        assert choose(CALL, NAMES, prepare) == "columns"
    kernel_choice.forget()
    monkeypatch.delenv("ZOO_CACHE")
    monkeypatch.setattr(kernel_choice.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert choose(CALL, NAMES, prepare) == "columns"
    assert measured.calls == 3


def measure_in_a_process(folder, barrier, answers):
    """Choose once, with times that differ from process to process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZOO_CACHE", folder)
        patch.setenv(SWITCH, "measured")
        kernel_choice.forget()
        barrier.wait()
        name = multiprocessing.current_process().name
        mine = {"linear": 1.0, "columns": 0.5} if name.endswith("0") else {"linear": 0.5, "columns": 1.0}

        def slow(kernels):
            time.sleep(0.2)
            return mine

        patch.setattr(kernel_choice, "measure", slow)
        answers.put(choose(CALL, NAMES, prepare))


def test_processes_that_come_at_once_use_the_same_kernel(cache):
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(4), context.Queue()
    processes = [
        context.Process(target=measure_in_a_process, args=(str(cache), barrier, answers), name=f"p{number}")
        for number in range(4)
    ]
    for process in processes:
        process.start()
    kernels = {answers.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert len(kernels) == 1


def test_measuring_takes_turns_and_the_median_of_ratios(monkeypatch):
    order, clock = [], iter(range(10**6))
    cost = {"linear": 1.0, "columns": 0.5}
    monkeypatch.setattr(kernel_choice, "_repeats", lambda call: 1)

    def seconds(call, repeats):
        name = call()
        order.append(name)
        turn = next(clock)
        return cost[name] * (10.0 if turn in (4, 5) else 1.0)  # the machine is slow for one round

    monkeypatch.setattr(kernel_choice, "_seconds", seconds)
    result = measure({name: (lambda name=name: name) for name in cost})
    assert result == {"linear": 1.0, "columns": 0.5}
    assert order[:4] == ["linear", "columns", "columns", "linear"]
    assert len(order) == 2 * kernel_choice.ROUNDS


def test_a_measurement_does_not_disturb_the_process_and_is_not_disturbed():
    """Random numbers go on as before; gradients are enabled in it, and autocast and inference mode are not."""
    modes = []

    def look():
        torch.rand(3)
        modes.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")))

    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        choose(CALL, NAMES, lambda: dict.fromkeys(NAMES, look))
    assert torch.equal(torch.rand(2), expected)
    assert set(modes) == {(True, False, False)}
    with contextlib.suppress(AssertionError):
        kernel_choice.forget()
        kernel_choice.choice_file().unlink()
        choose(CALL, NAMES, never)
        pytest.fail("an error of a kernel is raised where it is chosen")
