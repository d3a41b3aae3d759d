"""FSDP2: every process holds a share of each weight, its gradient and its optimizer state; also of parts of a model."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from zoo.errors import UsageError
from zoo.logging.run_record import weight_digests
from zoo.models.initialization import LATER, in_order_of_reset, sets_below
from zoo.models.stack import Stack
from zoo.parts.block import Block
from zoo.tasks.task import Task
from zoo.training.distributed import PATIENCE
from zoo_scale.shards import ShardWriter, empty_share
from zoo_scale.tensor_parallel import Divider, Division, gather_whole, refusal

log = logging.getLogger(__name__)

STEPS = ("training_step",)
# optimizers of torch that need whole tensors, and what for: those of zoo and of packages say it as ``whole_tensors``
WHOLE: dict[type[Optimizer], str] = {
    torch.optim.Adafactor: "keeps sums over rows and columns of whole matrices",
}
FIRST_FORWARD = "first_forward"  # a method that does nothing


class FSDP2(ModelParallelStrategy):
    """Shards the weights of each block, and those outside of blocks, over all processes (Zhao et al., 2023).

    A checkpoint holds whole tensors, as that of one process: it resumes with any number of processes, also by ddp.
    """

    gathers_state = True  # what it gives to be saved is whole
    tensor_parallel: int | None = 1  # processes that divide parts of the model among them; None: all

    def __init__(self, timeout: timedelta = PATIENCE, process_group_backend: str | None = None):
        """
        Args:
            timeout: longest time to wait for a process that hangs.
            process_group_backend: library of collective operations; nccl on GPUs and gloo on CPUs unless given.
        """
        super().__init__("auto", 1, False, process_group_backend, timeout)
        self._divided = False  # whether states to be saved are shares at present
        self._writer: ShardWriter | None = None
        self._divisions: dict[str, Division] = {}  # of parameters by tensor parallelism, by their names in the task
        self.first_digests: dict[str, str] = {}  # of initial weights, by the names of parameters in the network

    def connect(self, model: LightningModule) -> None:
        """Note the types that tensors are drawn in, before they are converted to a precision."""
        super().connect(model)
        members = [(member, name, tensor) for member in model.modules() for name, tensor in own_tensors(member).items()]
        self._built_types = {(member, name): tensor.dtype for member, name, tensor in members}

    @staticmethod
    def build_network(build: Callable[[], Any]) -> Any:
        """A network on the meta device, which ``setup`` initialises; on the CPU, with a warning, where it cannot be."""
        with torch.device("meta"):
            net = build()
        for name, module in net.named_modules():
            label = name or type(module).__name__
            redraws = isinstance(module, (nn.Linear, nn.Embedding)) or hasattr(module, "reset_parameters")
            if own_tensors(module) and not (redraws and hasattr(module, LATER)):
                log.warning("each process builds the whole model: nothing sets %s anew.", label)
                return build()
            if sets_below(module) and any(isinstance(member, Stack) for member in module.modules()):
                log.warning("each process builds the whole model: %s resets blocks, which are shared out.", label)
                return build()
        return net

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Whether Lightning hands over the states of optimizers in a checkpoint."""
        return True

    def setup_environment(self) -> None:
        """Join the processes. Raises UsageError where tensor parallelism needs another number of them."""
        world = self.num_nodes * self.num_processes
        self._tensor_parallel_size = self.tensor_parallel or world
        if world % self._tensor_parallel_size:
            error = UsageError(
                f"{self._tensor_parallel_size} processes divide the model, and {world} are no multiple of that: "
                "set trainer.devices or trainer.num_nodes."
            )
            error.everywhere = True
            raise error
        self._data_parallel_size = world // self._tensor_parallel_size
        super().setup_environment()

    @property
    def data_process(self) -> tuple[int, int]:
        """Which share of a batch this process has, and of how many."""
        mesh = self.device_mesh["data_parallel"]
        return mesh.get_local_rank(), mesh.size()

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """A tensor (...) of one process of each share of a batch, (shares, ...)."""
        if group in (None, torch.distributed.group.WORLD):  # Lightning's modules name the latter
            group = self.device_mesh["data_parallel"].get_group()
        return super().all_gather(tensor, group, sync_grads)

    def setup(self, trainer: Trainer) -> None:
        """Initialise the task and shard it, one block after another, then make its optimizers.

        Raises UsageError for what cannot be sharded.
        """
        task = self.lightning_module
        assert task is not None
        assert self.accelerator is not None
        self.accelerator.setup(trainer)
        self.model = self.precision_plugin.convert_module(task)
        divider = Divider(task, self._tensor_group) if self._tensor_parallel_size != 1 else None
        names = {id(parameter): name for name, parameter in cast(Task, task).net.named_parameters()}
        digests: dict[str, str] = {}

        def take_share(module: nn.Module) -> None:
            tensors = materialize(module, self._built_types)
            digests.update(weight_digests((names[id(tensor)], tensor) for tensor, _ in tensors if id(tensor) in names))
            for tensor, dtype in tensors:
                tensor.data = tensor.data.to(dtype)
            if divider is not None:
                divider.divide(module)

        shard_module(task, self.device_mesh["data_parallel"], take_share)
        self.first_digests = {name: digests[name] for name in names.values() if name in digests}
        self._divisions = divider.divisions if divider else {}
        self.model_to_device()
        if self._divisions:
            self.precision_plugin.clip_grad_by_norm = self._clip_norm  # type: ignore[method-assign]
        self.barrier()
        if trainer.state.fn == "fit":
            self.setup_optimizers(trainer)
            for optimizer in self.optimizers:
                prepare_optimizer(optimizer, bool(self._divisions))
        self.setup_precision_plugin()

    @property
    def _tensor_group(self) -> Any:
        return self.device_mesh["tensor_parallel"].get_group()

    def _clip_norm(self, optimizer: Optimizer, clip_val: float) -> None:
        """Scale all gradients so that their norm, that of the whole model, is at most ``clip_val``."""
        names = {id(parameter): name for name, parameter in self._parameters().items()}
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        squares = torch.zeros(2, dtype=torch.float64, device=self.root_device)  # of parts, and of what all have
        for parameter in parameters:
            square = whole_tensor(torch.linalg.vector_norm(parameter.grad)).double() ** 2
            squares[0 if names.get(id(parameter)) in self._divisions else 1] += square
        parts, common = squares
        torch.distributed.all_reduce(parts, group=self._tensor_group)
        factor = float(clip_val / ((parts + common).sqrt() + 1e-6))  # as torch.nn.utils.clip_grad_norm_
        for parameter in parameters if factor < 1 else ():
            parameter.grad.mul_(factor)

    def _parameters(self) -> dict[str, nn.Parameter]:
        assert self.lightning_module is not None
        return dict(self.lightning_module.named_parameters())

    # evaluation: the number of forwards, as in decoding, differs between processes

    def on_validation_start(self) -> None:
        """Give every process the whole weights."""
        self._gather_weights()

    def on_validation_end(self) -> None:
        """Leave every process its share."""
        self._release_weights()

    on_test_start, on_test_end = on_validation_start, on_validation_end
    on_predict_start, on_predict_end = on_validation_start, on_validation_end

    def _gather_weights(self) -> None:
        for module in self._sharded():
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()
        assert self.lightning_module is not None
        for name, division in self._divisions.items():
            if division.vocabulary:  # decoding needs all logits; what shards weights puts the own part back
                place, _, own = name.rpartition(".")
                owner = self.lightning_module.get_submodule(place)
                if len(part := owner.get_parameter(own)) < sum(division.sections):
                    whole = gather_whole(part.detach(), division, self._tensor_group)
                    owner.register_parameter(own, nn.Parameter(whole, requires_grad=False))

    def _release_weights(self) -> None:
        for module in self._sharded():
            module.set_reshard_after_forward(True, recurse=False)
            module.reshard()

    def _sharded(self) -> list[FSDPModule]:
        assert self.model is not None
        return [module for module in self.model.modules() if isinstance(module, FSDPModule)]

    # checkpoints

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The whole weights in the first process; every process must call this."""
        assert self.lightning_module is not None
        state = self.lightning_module.state_dict()
        if self._divided:
            return state
        return {name: self._gather_state(value, self._divisions.get(name)) for name, value in state.items()}

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The whole state of an optimizer in the first process; every process must call this."""
        optimizer = getattr(optimizer, "optimizer", optimizer)
        state = optimizer.state_dict()
        if self._divided:
            return state
        divisions = self._divisions_of(optimizer)
        moments = {number: self._gather_state(value, divisions.get(number)) for number, value in state["state"].items()}
        return {**self._gather_state({name: value for name, value in state.items() if name != "state"}),
                "state": moments}  # fmt: skip

    def _divisions_of(self, optimizer: Optimizer) -> dict[int, Division]:
        """How the parameters of an optimizer are divided by tensor parallelism, by their numbers in its state."""
        names = {id(parameter): name for name, parameter in self._parameters().items()}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        divisions = {number: self._divisions.get(names.get(id(p), "")) for number, p in enumerate(parameters)}
        return {number: division for number, division in divisions.items() if division is not None}

    def _gather_state(self, state: Any, division: Division | None = None) -> Any:
        """Whole tensors on the CPU in the first process; ``division`` is that of tensors with dimensions in it."""
        if isinstance(state, DTensor):
            whole = gather_whole(state.full_tensor(), division if state.dim() else None, self._tensor_group)
            return whole.cpu() if self.is_global_zero else None
        if isinstance(state, Mapping):
            return {name: self._gather_state(value, division) for name, value in state.items()}
        if isinstance(state, (list, tuple)):
            return type(state)(self._gather_state(value, division) for value in state)
        return state.cpu() if isinstance(state, Tensor) else state

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write a checkpoint of whole tensors, in the first process; hand over one of shares in every process."""
        if self.is_global_zero or self._divided:
            self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options=storage_options)

    @contextmanager
    def divided_state(self) -> Iterator[None]:
        """States to be saved are shares within."""
        self._divided = True
        try:
            yield
        finally:
            self._divided = False

    def write_shards(self, content: dict[str, Any], folder: Path, in_background: bool) -> Future[dict[str, Any]]:
        """Write the tensors of a checkpoint in ``folder`` as shards, as `ShardWriter.write`."""
        if self._divisions:
            raise refusal("a checkpoint into shards. Take --save whole")
        self._writer = self._writer or ShardWriter()
        return self._writer.write(content, folder, in_background)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """The content of a checkpoint: tensors of one file are whole, of those in shards each process reads its own."""
        writer = self.checkpoint_io
        writer.empty, before = self._empty_share, writer.empty  # type: ignore[attr-defined]
        try:
            content = writer.load_checkpoint(checkpoint_path, weights_only=weights_only)
        finally:
            writer.empty = before  # type: ignore[attr-defined]
        if self._divisions:
            self._take_own_parts(content)
        return content

    def _take_own_parts(self, content: dict[str, Any]) -> None:
        """Leave in a checkpoint the parts of whole tensors that this process has by tensor parallelism."""
        mesh = self.device_mesh["tensor_parallel"]
        rank, count = mesh.get_local_rank(), mesh.size()
        weights = content.get("state_dict", {})
        for name in self._divisions.keys() & weights.keys():
            weights[name] = self._divisions[name].part(weights[name], rank, count).contiguous()
        for optimizer, state in zip(self.optimizers, content.get("optimizer_states", []), strict=False):
            for number, division in self._divisions_of(optimizer).items():
                values = state["state"].get(number, {})
                for name, value in values.items():
                    if isinstance(value, Tensor) and value.dim():
                        values[name] = division.part(value, rank, count).contiguous()

    def _empty_share(self, size: torch.Size, dtype: torch.dtype, name: str) -> Tensor:
        """Where a tensor of this name in a checkpoint is read into: divided as the one of now, if that is known."""
        assert self.lightning_module is not None
        words = name.split(".", 4)
        like = None
        if words[0] == "state_dict":
            like = self.lightning_module.state_dict().get(name.removeprefix("state_dict."))
        elif words[0] == "optimizer_states" and len(words) == 5 and words[2] == "state" and words[3].isdigit():
            groups = self.optimizers[int(words[1])].param_groups if int(words[1]) < len(self.optimizers) else []
            parameters = [parameter for group in groups for parameter in group["params"]]
            like = parameters[int(words[3])] if int(words[3]) < len(parameters) else None
        return empty_share(size, dtype, like)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Take the own share of weights as `load_checkpoint` gives them."""
        assert self.lightning_module is not None
        shares = self.lightning_module.state_dict()
        loaded = {name: share_like(value, shares.get(name)) for name, value in checkpoint["state_dict"].items()}
        self.lightning_module.load_state_dict(loaded, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Take the own share of states of optimizers as `load_checkpoint` gives them."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            optimizer.load_state_dict(state)
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    values = optimizer.state.get(parameter, {})
                    for name, value in values.items():
                        if isinstance(value, Tensor) and value.shape == parameter.shape:
                            values[name] = share_like(value, parameter)


class TensorParallel(FSDP2):
    """All processes divide the heads and hidden units of the model among them, and read the same samples."""

    tensor_parallel = None


class FSDP2TensorParallel2(FSDP2):
    """Each two processes divide the model among them, and these pairs divide its parts and the samples, as fsdp2."""

    tensor_parallel = 2


class FSDP2TensorParallel4(FSDP2):
    """As fsdp2_tp2, with four processes in the place of each two."""

    tensor_parallel = 4


class FSDP2TensorParallel8(FSDP2):
    """As fsdp2_tp2, with eight processes in the place of each two."""

    tensor_parallel = 8


def share_like(value: Tensor, like: Any) -> Tensor:
    """The share of a tensor shaped like ``like`` that this process holds; the tensor itself where that is whole."""
    if not isinstance(like, DTensor) or isinstance(value, DTensor):
        return value
    return distribute_tensor(value.detach().to(like.device), like.device_mesh, like.placements)


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a module itself, each of its shape, by name."""
    return {**dict(module.named_parameters(recurse=False)), **dict(nn.Module.named_buffers(module, recurse=False))}


@torch.no_grad()
def materialize(
    module: nn.Module, types: Mapping[tuple[nn.Module, str], torch.dtype]
) -> list[tuple[Tensor, torch.dtype]]:
    """Give what is on the meta device in a module memory, and the numbers that one process draws.

    They are of ``types``, by owner and name. The result: these tensors, any shape, and the types that they had here.
    """
    waiting = {id(member): member for member in module.modules()  # by id: torchmetrics' == is always true
               if any(tensor.is_meta for tensor in own_tensors(member).values())}  # fmt: skip
    tensors: list[tuple[Tensor, torch.dtype]] = []
    for member in waiting.values():
        for name, tensor in own_tensors(member).items():
            if tensor.is_meta:
                tensors.append((tensor, tensor.dtype))
                memory = torch.empty(tensor.shape, dtype=types[member, name])
                whole = nn.Parameter(memory, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else memory
                torch.utils.swap_tensors(tensor, whole)
    for _, member in in_order_of_reset(module):
        if id(member) in waiting or (waiting and sets_below(member) and LATER in vars(member)):
            vars(member).pop(LATER)()
    return tensors


def shard_module(task: nn.Module, mesh: Any, prepare: Callable[[nn.Module], None] = lambda module: None) -> None:
    """Shard every block of every stack by itself, and what is left with the task, whose steps are its forwards.

    ``prepare`` is called for each of these just before.
    """
    holders: Counter[int] = Counter()
    blocks = [block for stack in task.modules() if isinstance(stack, Stack) for block in stack.blocks]
    for block in blocks:
        holders.update({id(parameter) for parameter in block.parameters()})
    for block in blocks:
        alone = all(holders[id(parameter)] == 1 for parameter in block.parameters())  # others belong to several blocks
        if alone and called_alone(cast(type[Block], type(block))):
            prepare(block)
            fully_shard(block, mesh=mesh, reshard_after_forward=True)
    prepare(task)
    fully_shard(task, mesh=mesh, reshard_after_forward=True)
    setattr(task, FIRST_FORWARD, lambda: None)
    for name in (FIRST_FORWARD, *STEPS):
        register_fsdp_forward_method(task, name)
    with torch.no_grad():  # torch takes the module of the first forward for the root, and decoding begins in a block
        getattr(task, FIRST_FORWARD)()


def called_alone(block: type[Block]) -> bool:
    """Whether each block of a stack is called as a module, which makes its weights whole; Reversible ones are not."""
    return getattr(block.through, "__func__", None) is getattr(Block.through, "__func__", block)


class GatheringMuon(torch.optim.Muon):
    """Muon's step on one whole matrix at a time, whose share every process takes.

    Products of shares would add up bfloat16 in another order: steps that differ by a few percent from those of one
    process, after a transfer in each product.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of every matrix that has a gradient. There is no closure."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_whole(parameter, {name: value for name, value in group.items() if name in self.defaults})
        return None

    def _step_whole(self, parameter: nn.Parameter, options: dict[str, Any]) -> None:
        whole = nn.Parameter(whole_tensor(parameter))
        whole.grad = whole_tensor(parameter.grad)
        single = torch.optim.Muon([whole], **options)
        single.state[whole] = {name: whole_tensor(value) for name, value in self.state[parameter].items()}
        single.step()
        parameter.copy_(share_like(whole, parameter))
        self.state[parameter] = {name: share_like(value, parameter) for name, value in single.state[whole].items()}


def whole_tensor(value: Any) -> Any:
    """The whole of what processes hold shares of; anything else as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def prepare_optimizer(optimizer: Optimizer, divided: bool = False) -> None:
    """Have the Muon in an optimizer gather its matrices. Raises UsageError for a state that cannot be divided.

    ``divided``: by tensor parallelism too, where Muon would have parts of matrices.
    """
    check_optimizer(optimizer)
    if divided and any(isinstance(member, torch.optim.Muon) for member in getattr(optimizer, "members", ())):
        raise refusal("optimizer Muon, which needs whole matrices. Take torch.optim.AdamW")
    for member in getattr(optimizer, "members", ()):
        if isinstance(member, torch.optim.Muon):
            member.__class__ = GatheringMuon


def check_optimizer(optimizer: Optimizer) -> None:
    """Raise UsageError for an optimizer whose state cannot be divided."""
    if isinstance(optimizer, torch.optim.Muon):
        raise UsageError("optimizer torch.optim.Muon multiplies shares of matrices in bfloat16. Take zoo's: Muon.")
    for member in (optimizer, *getattr(optimizer, "members", ())):
        reasons = (reason for kind, reason in WHOLE.items() if isinstance(member, kind))
        if reason := getattr(member, "whole_tensors", "") or next(reasons, ""):
            raise UsageError(
                f"optimizer {type(member).__name__} {reason}, which trainer.strategy fsdp2 divides. "
                "Take torch.optim.AdamW: its state is divided by the number of processes."
            )
