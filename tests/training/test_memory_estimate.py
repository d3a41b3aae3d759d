"""The memory that a run is said to take is near what it takes."""

import os
import sys
from types import SimpleNamespace

import pytest
import torch

from tests import forks
from tests.test_recipes import build
from zoo import registry
from zoo.cli.fit_summary import memory_of
from zoo.system import malloc
from zoo.system.torch_internals import fake_tensors, is_fake
from zoo.tasks.lm import CausalLM
from zoo.tasks.translation import Translation
from zoo.training import memory_estimate
from zoo.training.memory_estimate import MemoryCounter, estimate, full_batch, packed_shape, rows, training_batch

TOLERANCE = 0.15
PARTS = ["", "ffn=SwiGLU position=RoPE norm=RMSNorm", "backend=Naive"]
# a fork for each of its arguments prints the estimate and the peak; glibc gives blocks of 64 KB and more back
PROBE = """
import ctypes, os, sys, torch
for option in (-3, -1):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
    assert ctypes.CDLL(None).mallopt(option, 65536)
torch.set_num_threads(1)
from bench.study import peak_above
from zoo import registry
from zoo.training.memory_estimate import estimate, full_batch
from zoo.tasks.lm import CausalLM
def measure(parts):
    parts = {k: registry.get(k, v) for k, v in parts.items()}
    task = CausalLM(4096, 256, dim=256, depth=4, heads=4, **parts).train()
    expected = estimate(task, full_batch(task, 8))
    optimizer = task.make_optimizer()
    tokens = torch.randint(4096, (8, 257))
    def step(rows=8, length=256):
        loss = task.loss({"inputs": tokens[:rows, :length], "targets": tokens[:rows, 1 : length + 1]})
        (loss.total / loss.size).backward()
        optimizer.step()
        optimizer.zero_grad()
    step(1, 8)
    print(expected.total, peak_above(step) + expected.weights + expected.states, flush=True)
for words in sys.argv[1:]:
    if not (child := os.fork()):
        measure(dict(word.split("=") for word in words.split()))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of a process can be set back on Linux only")
@pytest.mark.parametrize("models", [PARTS[:1], pytest.param(PARTS, marks=pytest.mark.campaign)], ids=["one", "all"])
def test_a_language_model_takes_what_was_said(models):
    """In a process whose allocator gives memory back."""
    env = {**os.environ, malloc.SWITCH: "0", "OMP_NUM_THREADS": "1"}
    done = forks.run([sys.executable, "-c", PROBE, *models], env=env, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    pairs = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    for parts, (estimated, peak) in zip(models, pairs, strict=True):
        assert estimated == pytest.approx(peak, rel=TOLERANCE), parts


@pytest.mark.parametrize("name", ["lm-tiny", "translation-tiny", "vit-tiny"])
def test_tasks_of_every_kind_can_be_estimated_and_batches_count(name):
    task = build(name, torch.device("cpu"), small=True)
    before = [p.clone() for p in task.net.parameters()]
    one, four = (estimate(task, full_batch(task, count)) for count in (1, 4))
    assert one[:3] == four[:3]
    assert one.gradients <= one.batch < four.batch < 5 * one.batch
    assert all(torch.equal(*pair) for pair in zip(before, task.net.parameters(), strict=True))
    assert not any(p.is_meta for p in task.net.parameters())


def test_tables_of_integers_have_the_device_of_the_weights():
    class Tabled(CausalLM):
        def loss(self, batch):
            places = torch.arange(batch["inputs"].size(1), device=self.net.order.device)
            later = self.net.order[None] > places[:, None]
            batch["inputs"] = batch["inputs"].masked_fill(later.any(0), 1)
            return super().loss(batch)

    def build_task(device):
        with torch.device(device):
            task = Tabled(31, 8, dim=16, depth=1, heads=2)
            task.net.register_buffer("order", torch.arange(8), persistent=False)
        return task

    batch = full_batch(build_task("cpu"), 3)
    assert estimate(build_task("meta"), dict(batch)) == estimate(build_task("cpu"), dict(batch))


def test_estimates_draw_no_random_number():
    task = build("translation-tiny", torch.device("cpu"), small=True)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    estimate(task, full_batch(task, 2))
    assert torch.equal(torch.rand(3), expected)


def test_memory_counts_as_long_as_it_is_used_and_views_do_not_count():
    batch = torch.zeros(10)
    with fake_tensors(), MemoryCounter([batch]) as counter:
        first = torch.zeros(1000)
        second = first + 1
        assert counter.in_use == counter.peak == 8000
        view = second[:10].view(2, 5)
        batch.add_(1)
        assert counter.in_use == 8000
        del first
        assert counter.in_use == 4000
        del second
        assert counter.in_use == 4000  # the view keeps all of it
        del view
        assert (counter.in_use, counter.peak) == (0, 8000)


def test_integers_have_values_in_an_estimate_and_other_numbers_have_none():
    mask = torch.tensor([True, False, True, True])
    with fake_tensors() as mode, MemoryCounter([mask]):
        x = torch.zeros(4, 2)
        assert is_fake(x)
        assert x[mask].shape == (3, 2)
        assert mask.nonzero()[:, 0].tolist() == [0, 2, 3]
        assert (torch.arange(3) + 1).tolist() == [1, 2, 3]
        assert is_fake(mode.from_tensor(torch.rand(2)) * 2)
        assert is_fake(torch.arange(2**23) == 0)  # too many to be computed for an estimate


def test_packed_sequences_have_torchs_shapes():
    x, lengths = torch.rand(3, 5, 2), torch.tensor([5, 4, 1])
    expected = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    with fake_tensors() as mode:
        data, counts = packed_shape(mode.from_tensor(x), lengths, True)
    assert data.shape == expected.data.shape
    assert counts.tolist() == expected.batch_sizes.tolist()


def test_padding_that_is_removed_takes_no_memory():
    task = build("translation-tiny", torch.device("cpu"), small=True)
    whole = full_batch(task, 16)
    padded = {**whole, "source_valid": whole["source_valid"].clone()}
    padded["source_valid"][1:, 4:] = False
    assert estimate(task, padded).batch < 0.9 * estimate(task, whole).batch


def test_the_chunked_loss_never_has_all_logits():
    rows, words = 64, 4096
    task = Translation(source_vocab_size=64, target_vocab_size=words, dim=16, max_length=32, depth=1, heads=2)
    assert estimate(task, full_batch(task, rows)).batch < 4 * rows * 31 * words


class Stories:
    """Data with batches of three lengths, of which the second is the longest."""

    num_workers, streams = 3, {}

    def train_dataloader(self):
        """Batches whose lengths differ."""
        assert self.num_workers == 0
        return [
            {"inputs": torch.zeros(2, length, dtype=torch.long), "targets": torch.zeros(2, length)}
            for length in (3, 7, 5)
        ]


def test_the_largest_of_the_first_batches_is_taken_where_lengths_differ():
    task, data = CausalLM(31, 8, dim=16, depth=1, heads=2), Stories()
    batch, description = training_batch(task, 12, data)
    assert batch["inputs"].shape == (2, 7)
    assert description == "the largest of the first 9 batches"
    assert data.num_workers == 3
    batch, description = training_batch(task, 12, None)
    assert batch["inputs"].shape == (12, 8)
    assert description == "a batch of 12 at full length"
    images = build("vit-tiny", torch.device("cpu"), small=True)
    batch, description = training_batch(images, 5, Stories())  # which are all of one size
    assert len(batch["images"]) == 5
    with pytest.raises(NotImplementedError, match="how many samples"):
        training_batch(task, 0, None)


def test_a_task_without_samples_of_full_length_is_not_estimated():
    class Short(CausalLM):
        def sample(self, rows):
            return {"inputs": torch.zeros(rows, 4, dtype=torch.long)}

    with pytest.raises(NotImplementedError, match="Short makes no samples of the greatest length"):
        full_batch(Short(31, 8, dim=16, depth=1, heads=2), 2)


def test_rows_come_from_the_options_of_the_data():
    task = CausalLM(31, 8, dim=16, depth=1, heads=2)
    assert rows(task, {"batch_size": 12}) == 12
    assert rows(task, {"batch_size": 12, "longer": 2}) == 6  # training texts are half as long as the longest
    assert rows(task, {"batch_size": 3, "longer": 2}) == 2
    assert rows(task, {"max_tokens": 80}) == 10
    assert rows(task, {}) == 0
    assert rows(task, {"rate": 0.5, "text": {"class_path": "TextFiles", "init_args": {"batch_size": 7}}}) == 7
    assert rows(task, {"batch_size": 12, "text": {"init_args": {"batch_size": 7}}}) == 12
    assert rows(task, {"text": "column"}) == rows(task, {"text": {"class_path": "TextFiles"}}) == 0


def test_the_memory_of_a_machine_is_the_least_limit(monkeypatch, tmp_path):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(memory_estimate, "CONTAINER_LIMIT", tmp_path / "memory.max")
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setattr(resource, "getrlimit", lambda what: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert memory_estimate.device_memory(torch.device("cpu")) == machine
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_estimate.device_memory(torch.device("cpu")) == machine
    (tmp_path / "memory.max").write_text("5000\n")
    assert memory_estimate.device_memory(torch.device("cpu")) == 5000
    monkeypatch.setattr(resource, "getrlimit", lambda what: (4000, resource.RLIM_INFINITY))
    assert memory_estimate.device_memory(torch.device("cpu")) == 4000


@pytest.mark.parametrize(("limit", "warns"), [(10**6, True), (10**12, False)])
def test_the_header_warns_of_a_step_that_does_not_fit(limit, warns, monkeypatch):
    monkeypatch.setattr(memory_estimate, "device_memory", lambda device: limit)
    task = build("lm-tiny", torch.device("cpu"), small=True)
    config = {"trainer": {}, "model": {"init_args": {}}, "data": {"init_args": {"batch_size": 4}}}
    line = memory_of(task, SimpleNamespace(config=config))
    assert line.startswith("  memory  about ")
    assert (" more than the 977 KiB here: take a smaller batch" in " ".join(line.split())) is warns


@pytest.mark.parametrize("error", [RuntimeError("needs\nnumbers"), KeyError("a part"), OSError("no file"), TypeError()])
def test_the_header_says_why_memory_is_unknown(error, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(memory_estimate, "estimate", fail)
    task = build("lm-tiny", torch.device("cpu"), small=True)
    config = {"trainer": {}, "model": {"init_args": {}}, "data": {"init_args": {"batch_size": 4}}}
    reason = " ".join(str(error).split()) or "TypeError"
    assert memory_of(task, SimpleNamespace(config=config)) == f"  memory  unknown: {reason}"


@pytest.mark.parametrize(
    ("trainer", "options", "reason"),
    [
        ({"precision": "bf16-mixed"}, {}, "with precision bf16-mixed"),
        ({}, {"recompute": True}, "with recompute"),
        ({"accumulate_grad_batches": 4}, {}, "with accumulate_grad_batches"),
        (
            {"callbacks": [{"class_path": "zoo.training.weight_averages.EMA"}]},
            {},
            "with EMA, which keeps a copy of the weights",
        ),
        ({"callbacks": "EMA"}, {}, "with EMA, which keeps a copy of the weights"),
    ],
)
def test_the_header_says_which_option_the_estimate_does_not_know(trainer, options, reason):
    config = {"trainer": trainer, "model": {"init_args": options}, "data": {"init_args": {"batch_size": 4}}}
    task = build("lm-tiny", torch.device("cpu"), small=True)
    assert memory_of(task, SimpleNamespace(config=config)) == f"  memory  unknown {reason}"


@pytest.mark.parametrize("name", [part.name for part in registry.parts("optimizer")])
def test_what_an_optimizer_keeps_is_seen(name):
    """Against its state after a step of the whole model; blocks of 8-bit states end with a weight."""
    task = CausalLM(512, 32, dim=160, depth=1, heads=4, optimizer=registry.get("optimizer", name))
    before = torch.random.get_rng_state()
    estimated = memory_estimate.optimizer_bytes(task)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in task.parameters())
    optimizer = task.make_optimizer()
    for parameter in task.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    states = {
        one.data_ptr(): one.nbytes
        for state in optimizer.state.values()
        for one in state.values()
        if isinstance(one, torch.Tensor) and one.dim()
    }
    assert estimated == pytest.approx(sum(states.values()), rel=0.03)


class Factors(torch.optim.Optimizer):
    """Keeps what SOAP, Shampoo and Adafactor do: matrices of each side in lists, means of rows and columns, blocks."""

    def __init__(self, params, lr=1e-3, max_precondition_dim=300):
        super().__init__(params, {"lr": lr, "max_precondition_dim": max_precondition_dim})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                sides = [side for side in weight.shape if side <= group["max_precondition_dim"]]
                factors = [torch.zeros(side, side) for side in sides] if weight.dim() > 1 else [[]]
                means = [torch.zeros(*(1 if i == axis else side for i, side in enumerate(weight.shape)))
                         for axis in range(weight.dim())]  # fmt: skip
                blocks = torch.zeros(-(-weight.numel() // 256))
                self.state[weight] = {"exp_avg": torch.zeros_like(weight), "GG": factors, "mean": tuple(means),
                                      "absmax": blocks, "step": torch.tensor(1.0)}  # fmt: skip


@pytest.mark.parametrize("dim", [8, 128, 160, 256])
def test_states_of_any_layout_grow_with_the_sides_that_they_have(dim):
    task = CausalLM(512, 32, dim=dim, depth=1, heads=4, optimizer=Factors)
    estimated = memory_estimate.optimizer_bytes(task)
    optimizer = task.make_optimizer()
    optimizer.step()
    states = memory_estimate.tensors_in(list(optimizer.state.values()))
    assert estimated == pytest.approx(sum(state.nbytes for state in states if state.dim()), rel=0.03)


def test_an_error_that_no_part_means_is_not_hidden(monkeypatch):
    def fail(*_):
        raise NameError("a fault")

    monkeypatch.setattr(memory_estimate, "estimate", fail)
    config = {"trainer": {}, "model": {"init_args": {}}, "data": {"init_args": {"batch_size": 4}}}
    with pytest.raises(NameError):
        memory_of(build("lm-tiny", torch.device("cpu"), small=True), SimpleNamespace(config=config))
