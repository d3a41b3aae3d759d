"""The contract of a task: a loss summed over predictions, metrics that reset, a model whose FLOPs can be counted."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zoo.conformance.check import Inapplicable, once, require
from zoo.conformance.short_training import train
from zoo.conformance.subject import TaskSubject
from zoo.conformance.token_checks import clean_import, difference, documentation
from zoo.errors import UsageError
from zoo.models.loss import IGNORED
from zoo.models.parameter_roles import parameter_roles
from zoo.tasks.lm import LanguageTask
from zoo.tasks.task import Loss
from zoo.training.model_cost import cost


def batch_of(subject: TaskSubject) -> tuple[Any, dict[str, Any]]:
    """The task in evaluation, and a batch of four samples for it. Raises Inapplicable where it gives no sample."""
    task = subject.build()
    try:
        return task, task.sample(4)
    except NotImplementedError:
        raise Inapplicable("it gives no sample(rows)") from None


def part_of(batch: dict[str, Any], rows: slice) -> dict[str, Any]:
    """Some rows of a batch; values that do not have one entry per row stay."""
    size = max(len(value) for value in batch.values() if isinstance(value, Tensor))
    return {
        name: value[rows] if isinstance(value, (Tensor, list)) and len(value) == size else value
        for name, value in batch.items()
    }


@once
def sizes_and_metrics(subject: TaskSubject) -> None:
    """``monitored_metrics`` says which metrics decide, ``data_sizes`` which options the data sets."""
    monitored, sizes = subject.part.monitored_metrics, subject.part.data_sizes  # type: ignore[attr-defined]
    fine = bool(monitored) and set(monitored.values()) <= {"min", "max"}
    require(fine, f"monitored_metrics is {monitored}: name metrics, each min or max.")
    parameters = inspect.signature(subject.part).parameters
    for name, value in sizes.items():
        require(name in parameters, f"data_sizes names {name}, which is no option.")
        message = f"data_sizes names {name}, which has a default: None lets the data set it."
        require(parameters[name].default is None, message)
        message = f"data_sizes gives {name} no small whole number, to try the task with."
        require(isinstance(value, int) and value > 0, message)


@once
def example_can_be_counted(subject: TaskSubject) -> None:
    """``example`` gives arguments on the meta device that ``net`` takes, and how many predictions they hold."""
    task = subject.build()
    arguments, tokens = task.example()
    require(tokens >= 1, f"example says that it holds {tokens} predictions.")
    require(all(tensor.is_meta for tensor in arguments), "example holds data: make it on device='meta'.")
    require(cost(task).flops > 0, "the net computes nothing with its example.")


def loss_is_a_sum(subject: TaskSubject) -> None:
    """The loss of a batch is a sum over its predictions: the losses of its halves add up to it, and so do the sizes."""
    task, batch = batch_of(subject)
    whole = task.loss(batch)
    require(whole.total.dim() == 0 and bool(whole.total.isfinite()), "the loss is not one finite number.")
    require(int(whole.size) > 0, f"a batch of 4 samples counts {int(whole.size)} predictions.")
    halves = [task.loss(part_of(batch, rows)) for rows in (slice(0, 1), slice(1, None))]
    size = sum(int(half.size) for half in halves)
    require(size == int(whole.size), f"parts of a batch count {size} predictions, the whole {int(whole.size)}.")
    total = torch.stack([half.total for half in halves]).sum()
    gap = difference(total, whole.total)
    require(gap <= 1e-4, f"parts of a batch have losses that differ by {gap:.1e} from the whole: sum, do not average.")


def figures_of_any_batching(subject: TaskSubject) -> None:
    """Evaluated in other batches, the same samples give the same loss and the same figures."""
    task, batch = batch_of(subject)
    parts = [part_of(batch, rows) for rows in (slice(0, 1), slice(1, None))]
    with torch.no_grad():
        whole, split = task.loss(batch).total, sum(task.loss(part).total for part in parts)
        results = []
        for batches in ([batch], parts):
            losses = [task.evaluate(portion) for portion in batches]
            total, size = (sum(float(value[place]) for value in losses) for place in (0, 1))
            own = task.compute_metrics(total / size)
            if "loss" not in own and difference(split, whole) > 1e-4:
                raise Inapplicable("its loss is not a sum over samples")
            results.append({"loss": total / size, **own})  # a task may report another loss, as of the whole split
    for name, value in results[0].items():
        gap = abs(results[1][name] - value) / max(1.0, abs(value))
        message = f"{name} is {value:.6g} of one batch, and {results[1][name]:.6g} of the same samples in two"
        require(not gap > 1e-4, f"{message}: add up sums and counts, and divide at the end.")


def evaluation_is_plain(subject: TaskSubject) -> None:
    """An evaluation reports the loss that trains, or the cross-entropy of what the net gives; a label that is predicted
    for sure costs nothing: smoothing is for training alone.
    """
    task, batch = batch_of(subject)
    batch = {name: torch.zeros_like(value) if name == "decode" else value for name, value in batch.items()}
    options = [name for name in inspect.signature(subject.part).parameters if "smooth" in name]
    for name in options:
        trials = [subject.changed(**{name: share}).build() for share in (0.0, 0.3)]
        trials[1].load_state_dict(trials[0].state_dict())
        gap = difference(*(repeated(trial.evaluate, batch).total for trial in trials))
        require(gap <= 1e-5, f"{name}=0.3 changes the loss of an evaluation by {gap:.1e}: smooth in training alone.")
    heads = [name.removesuffix(".weight") for name, role in parameter_roles(task).items() if role == "head"]
    labels, outputs = batch.get("labels"), list[Tensor]()
    if len(heads) == 1 and labels is not None and not labels.is_floating_point():
        head = task.get_submodule(heads[0])
        hook = task.net.register_forward_hook(lambda module, inputs, output: outputs.append(output))
        reported = repeated(task.evaluate, batch).total
        if outputs and outputs[0].shape[:-1] == labels.shape:
            logits = outputs[0].float().flatten(0, -2)
            entropy = torch.nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="sum")
            gap = min(difference(reported, total) for total in (entropy, repeated(task.loss, batch).total))
            message = f"evaluate() differs by {gap:.1e} from the cross-entropy of what the net gives"
            require(gap <= 1e-4, f"{message}, and as much or more from loss(): is it smoothed, or on another scale?")
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.mul_(1e4)
        outputs.clear()
        repeated(task.evaluate, batch)
        hook.remove()
        if outputs and outputs[0].shape[:-1] == labels.shape:
            sure = torch.where(labels == IGNORED, labels, outputs[0].argmax(-1))
            total, size = repeated(task.evaluate, batch | {"labels": sure})
            loss = float(total / size)
            require(loss <= 0.05, f"labels predicted for sure cost {loss:.2g} each in evaluation: is it smoothed?")
            return
    if not options:
        raise Inapplicable("it has no option of smoothing, and its batch no labels of what its output predicts")


def evaluation_is_repeatable(subject: TaskSubject) -> None:
    """Evaluating a batch twice gives the same loss, draws no random number and leaves figures that start anew."""
    task, batch = batch_of(subject)
    batch = {name: torch.zeros_like(value) if name == "decode" else value for name, value in batch.items()}
    with torch.no_grad():
        state = torch.get_rng_state()
        loss = task.evaluate(batch)
        figures = task.compute_metrics(float(loss.total / loss.size))
        loss_again = task.evaluate(batch)
        again = task.compute_metrics(float(loss_again.total / loss_again.size))
    require(torch.equal(loss.total, loss_again.total), "two evaluations of one batch differ: is dropout on?")
    require(torch.equal(torch.get_rng_state(), state), "evaluation draws random numbers.")
    same = all(again[name] == value or value != value for name, value in figures.items())
    require(same, f"figures remember the evaluation before: {figures} and then {again}. Reset metrics.")


def evaluation_is_of_the_next_token(subject: TaskSubject) -> None:
    """A task whose ``prediction`` is the next token reports the cross-entropy of what it gives for ``inputs`` against
    ``targets``, whatever it trains with: other tasks of this prediction are compared with it by that loss.
    """
    if subject.part.prediction != LanguageTask.prediction:  # type: ignore[attr-defined]
        raise Inapplicable("its metrics judge something else than the next token")
    task, batch = batch_of(subject)
    with torch.no_grad():
        reported = task.evaluate(batch)
        logits, targets = task(batch["inputs"]).flatten(0, 1).float(), batch["targets"].flatten()
    expected = torch.nn.functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    count = int((targets != IGNORED).sum())
    require(int(reported.size) == count, f"evaluate() counts {int(reported.size)} predictions of {count} next tokens.")
    gap = difference(reported.total, expected)
    require(gap <= 1e-4, f"evaluate() differs by {gap:.1e} from the cross-entropy of the next tokens.")


def padding_counts_for_nothing(subject: TaskSubject) -> None:
    """Padding changes neither loss nor number of predictions, in training and evaluation, whatever it holds; a task
    whose texts all have one length declares ``fixed_length = True`` and refuses others.
    """
    task, batch = batch_of(subject)
    batch = {name: torch.zeros_like(value) if name == "decode" else value for name, value in batch.items()}
    groups = padded_together(batch)
    if not groups:
        raise Inapplicable("its batch holds no mask named valid, and no targets or labels for each token")
    if task.fixed_length:
        shorter = shortened(batch, groups[0], batch[groups[0][0]].shape[1] - 1)
        try:
            repeated(task.loss, shorter)
        except UsageError:
            return
        require(False, "it declares fixed_length, and takes a text that is shorter.")
    for training, measure in ((True, task.loss), (False, task.loss), (False, task.evaluate)):
        task.train(training)
        if training and draws(measure, batch):
            continue  # what is drawn depends on the width of a batch, so that losses differ by chance
        where = f"{measure.__name__}() in {'training' if training else 'evaluation'}"
        for fields in groups:
            width = batch[fields[0]].shape[1]
            for real in {width // 2, width - 1}:
                expected = repeated(measure, shortened(batch, fields, real))
                for seed in (0, 1):
                    figures = repeated(measure, padded(batch, fields, real, seed))
                    message = f"{where}: {width - real} tokens of padding in {', '.join(fields)} change"
                    sizes = int(figures.size), int(expected.size)
                    require(sizes[0] == sizes[1], f"{message} the number of predictions from {sizes[1]} to {sizes[0]}.")
                    gap = difference(figures.total, expected.total)
                    message = f"{message} the loss by {gap:.1e}: pass on which tokens are real, and sum those."
                    require(gap <= 1e-4, message)


def draws(measure: Callable[[Any], Loss], batch: dict[str, Any]) -> bool:
    """Whether the loss of a batch depends on torch's random numbers, as with dropout or negative samples."""
    return not torch.equal(repeated(measure, batch).total, repeated(measure, batch, seed=1).total)


def repeated(measure: Callable[[Any], Loss], batch: dict[str, Any], seed: int = 0) -> Loss:
    """The loss of a batch, from one seed."""
    torch.manual_seed(seed)
    with torch.no_grad():
        return measure(batch)


def padded_together(batch: dict[str, Any]) -> list[list[str]]:
    """Names of the values of a batch that are padded together, (B, T, ...) each, beginning with what says where.

    That is a mask: ``valid``, or ``NAME_valid`` for NAME alone; or ``targets`` or ``labels`` per token, which are -100
    where nothing is to be predicted.
    """
    tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor) and value.dim() > 1}
    masks = [name for name in tensors if name == "valid" or name.endswith("_valid")]
    own = {mask: mask.removesuffix("valid").rstrip("_") for mask in masks}
    groups = [[mask, *(n for n in tensors if n == own[mask])] for mask in masks if own[mask]]
    grouped = {name for group in groups for name in group}
    others = [name for name in ("valid", "targets", "labels") if name in tensors and name not in grouped][:1]
    for name in others:
        shape = tensors[name].shape[:2]
        groups.append([name, *(n for n, t in tensors.items() if t.shape[:2] == shape and n not in {name, *grouped})])
    return groups


def shortened(batch: dict[str, Any], fields: list[str], real: int) -> dict[str, Any]:
    """The batch with the first ``real`` tokens of some values."""
    return {name: value[:, :real] if name in fields else value for name, value in batch.items()}


def padded(batch: dict[str, Any], fields: list[str], real: int, seed: int) -> dict[str, Any]:
    """The batch with padding behind the first ``real`` tokens of some values, which holds whatever ``seed`` draws."""
    draw, result = torch.Generator().manual_seed(seed), dict(batch)
    for name in fields:
        value = batch[name].clone()
        tail = value[:, real:]
        if value.dtype == torch.bool:
            tail.zero_()
        elif name in ("targets", "labels") or (not value.is_floating_point() and bool((value < 0).any())):
            tail.fill_(IGNORED)
        elif value.is_floating_point():
            tail.copy_(100 * torch.randn(tail.shape, generator=draw))
        else:
            some = torch.randint(value.numel(), tail.shape, generator=draw)
            tail.copy_(value.flatten()[some])
        result[name] = value
    return result


def trains(subject: TaskSubject) -> None:
    """A few steps on one batch: finite loss and gradients, every parameter moves."""
    task, batch = batch_of(subject)

    def loss() -> Tensor:
        total, size = task.loss(batch)
        return total / size

    train(task.train(), loss, type(task).__name__, may_freeze=True)


PROMISES = [documentation, clean_import, sizes_and_metrics, example_can_be_counted, loss_is_a_sum,
            padding_counts_for_nothing, evaluation_is_repeatable, figures_of_any_batching,
            evaluation_is_plain, evaluation_is_of_the_next_token, trains]  # fmt: skip
