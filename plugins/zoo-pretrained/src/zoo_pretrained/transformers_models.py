"""Any model of zoo as a model of the library transformers, whatever parts it has.

Importing this module registers the configurations and models below with AutoConfig and AutoModelFor…. A folder that
`zoo export RUN DIR --format transformers` wrote names it: ``from_pretrained(DIR, trust_remote_code=True)`` finds it.
Weights have zoo's names below ``net.``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast, get_args

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    DynamicCache,
    EncoderDecoderCache,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    ImageClassifierOutput,
    MaskedLMOutput,
    Seq2SeqLMOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils import can_return_tuple
from transformers.utils.deprecation import deprecate_kwarg
from zoo_text.models.embedding import TextEmbedder
from zoo_text.models.encoder import MaskedLanguageModel, TextClassifier, TokenClassifier

from zoo.inference.rebuild_task import rebuild_network, rebuild_task
from zoo.io import atomic_files
from zoo.models.attention_weights import attention_layers
from zoo.models.initialization import derive_seed, rule_of
from zoo.models.language import LanguageModel
from zoo.models.seq2seq import Seq2Seq, Tie
from zoo.models.stack import Stack
from zoo.models.vit import ViT
from zoo.parts.attention import Attention
from zoo.parts.block import Memory
from zoo.parts.cache import Caches
from zoo.parts.few_row_linear import linear
from zoo.parts.ffn import aux_losses
from zoo_pretrained import sentence_files
from zoo_pretrained.transformers_caches import LayerKeys, count_tokens, holds_keys, layer_caches
from zoo_pretrained.transformers_export import sizes

TIES = get_args(Tie)
CHANGEABLE = ("vocab_size", "num_labels", "tie_word_embeddings")  # after an export; other sizes are the task's
IGNORED = -100  # labels of transformers that count for nothing
CODE = "modeling_zoo.py"
STUB = '''"""Finds the model of this folder in the packages that it was exported with."""

try:
    from zoo_pretrained.transformers_models import {config}, {model}
except ImportError as error:
    raise ImportError("This model needs {packages}. Install them. " + str(error)) from error
'''


class ZooConfig(PreTrainedConfig):
    """What config.json holds of a model of zoo: its task with all options, and the sizes that transformers asks for.

    ``task`` is {"class_path": …, "init_args": …} of zoo; ``packages`` are those that its parts need. The number of
    tokens or classes is that of ``vocab_size`` or ``id2label``, which may change after the export.
    """

    task: dict | None = None
    packages: list | None = None
    vocab_size: int = 0
    hidden_size: int = 0
    num_hidden_layers: int = 0
    num_attention_heads: int = 0
    max_position_embeddings: int = 0
    tie_word_embeddings: bool = False
    use_cache: bool = True

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Nothing: a folder gets a file that names these classes, not a copy of them."""

    def network_options(self) -> dict[str, Any]:
        """The options of the task, with the numbers of tokens and classes of today."""
        options = dict((self.task or {})["init_args"])
        for name, size in (("vocab_size", self.vocab_size), ("target_vocab_size", self.vocab_size)):
            if name in options:
                options[name] = size
        if "tie" in options and (options["tie"] not in (False, "none")) != self.tie_word_embeddings:
            pair = {True: "output", False: "none"}
            options["tie"] = pair[self.tie_word_embeddings] if options["tie"] in TIES else self.tie_word_embeddings
        if options.get("tie") in ("inputs", "all"):
            options["source_vocab_size"] = self.vocab_size
        if "num_classes" in options:
            options["num_classes"] = self.num_labels
        return options

    def set_tie(self, tie: bool | str) -> None:
        """Say which of the embeddings and the output are one, as the task has it."""
        task = self.task or {}
        self.task = {**task, "init_args": {**task["init_args"], "tie": tie}}
        self.tie_word_embeddings = tie not in (False, "none")

    def check_sizes(self) -> None:
        """Raise ValueError for a size that is not the task's."""
        options = (self.task or {})["init_args"]
        for name, size in sizes(options).items():
            stated = getattr(self, name, None)
            if name not in CHANGEABLE and stated and stated != size:
                raise ValueError(
                    f"{name}={stated} is not this model's, which is {size}: it follows from config.task and cannot be "
                    "set beside it."
                )


class ZooCausalLMConfig(ZooConfig):
    """The configuration of a causal language model."""

    model_type = "zoo_causal_lm"

    @property
    def final_logit_softcapping(self) -> float | None:
        """The cap of logits, by the name at which trainers that compute logits themselves look for it."""
        return ((self.task or {}).get("init_args") or {}).get("logit_cap")

    @property
    def logit_scale(self) -> float:
        """The factor on logits, in front of the cap, for the same trainers."""
        return ((self.task or {}).get("init_args") or {}).get("logit_scale", 1.0)


class ZooSeq2SeqConfig(ZooConfig):
    """The configuration of an encoder-decoder of text."""

    model_type = "zoo_seq2seq"
    is_encoder_decoder: bool = True
    decoder_start_token_id: int | None = None


class ZooMaskedLMConfig(ZooConfig):
    """The configuration of a masked language model."""

    model_type = "zoo_masked_lm"


class ZooSequenceClassificationConfig(ZooConfig):
    """The configuration of a classifier of texts."""

    model_type = "zoo_sequence_classification"


class ZooTokenClassificationConfig(ZooConfig):
    """The configuration of a classifier of tokens."""

    model_type = "zoo_token_classification"


class ZooTextEmbeddingConfig(ZooConfig):
    """The configuration of an encoder that embeds texts."""

    model_type = "zoo_text_embedding"


class ZooImageClassificationConfig(ZooConfig):
    """The configuration of a classifier of images."""

    model_type = "zoo_image_classification"
    image_size: int = 0
    patch_size: int = 0
    num_channels: int = 0


@contextmanager
def recorded(stack: Stack, hidden: bool, attentions: bool) -> Iterator[tuple[list[Tensor], list[Tensor], list[Tensor]]]:
    """Within the block, a forward leaves the input of the first block and the output of each, (B, T, dim), and the
    weights of self- and cross-attentions, (B, H, T, S).
    """
    states: list[Tensor] = []
    weights: tuple[list[Tensor], list[Tensor]] = [], []
    handles = []

    def keep(x: Tensor) -> None:
        states.append(x.mean(-2) if x.dim() == 4 else x)

    def look(part: Attention, args: tuple, kwargs: dict, _output: object) -> None:
        cache, x, memory = kwargs.get("cache"), args[0], args[1] if len(args) > 1 else None
        pattern, position = kwargs["pattern"], kwargs.get("position")
        if memory is not None or not pattern.offset:
            weights[0 if memory is None else 1].append(part.weights(x, memory, pattern=pattern, position=position))
            return
        common = all(getattr(type(part), name) is getattr(Attention, name) for name in ("project", "weights"))
        if not isinstance(cache, LayerKeys) or not common:
            name = type(part).__name__
            raise ValueError(f"weights of {name} cannot be shown behind a cache. Call with use_cache=False.")
        q, k, _ = part.project(x, None, pattern, position, cache.visible())
        weights[0].append(part.weigh(q, k, pattern))

    if hidden:
        first = cast(nn.Module, stack.blocks[0])
        handles.append(first.register_forward_pre_hook(lambda _block, args: keep(args[0])))
        handles += [block.register_forward_hook(lambda _block, _args, output: keep(output)) for block in stack.blocks]
    if attentions:
        parts = [stack.get_submodule(name) for name in attention_layers(stack)]
        handles += [part.register_forward_hook(look, with_kwargs=True) for part in parts if isinstance(part, Attention)]
    try:
        yield states, *weights
    finally:
        for handle in handles:
            handle.remove()


class ZooModel(PreTrainedModel):
    """A network of zoo as a model of transformers; subclasses say what goes in and comes out."""

    base_model_prefix = ""
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    gradient_checkpointing = False
    config_class: type[ZooConfig]
    reads: ClassVar[type[nn.Module]] = nn.Module  # the network of zoo
    auto: ClassVar[Any] = None  # the class of transformers that loads it
    ties: ClassVar[dict[str, str]] = {}  # a matrix that may be another's, and the other

    def __init__(self, config: ZooConfig) -> None:
        super().__init__(config)
        self.net: Any = build_network(config)
        if not isinstance(self.net, self.reads):
            raise ValueError(f"{type(self.net).__name__} of zoo is no {self.reads.__name__}: take another class.")
        if "num_classes" in config.network_options():
            network = cast(Any, self.net)
            network.head = Classes(network.head)
        blocks = [block for stack in self.stacks() for block in stack.blocks]
        self._no_split_modules = sorted({type(block).__name__ for block in blocks})
        self._tied_weights_keys = shared_weights(self)
        options = config.network_options()
        if "tie" in options:
            config.set_tie(options["tie"])
        self.post_init()

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoModel") -> None:
        """Nothing: a folder gets a file that names these classes, not a copy of them."""

    @classmethod
    def auto_map(cls) -> dict[str, str]:
        """What config.json says of the file that names this class."""
        module = CODE.removesuffix(".py")
        classes = {"AutoConfig": cls.config_class.__name__, cls.auto.__name__: cls.__name__}
        return {auto: f"{module}.{name}" for auto, name in classes.items()}

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As the base, with the file that names this class where the configuration speaks of it."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if getattr(self.config, "auto_map", None):
            names = {"config": type(self.config).__name__, "model": type(self).__name__}
            text = STUB.format(**names, packages=", ".join(self.config.packages or []))
            atomic_files.write_text(Path(save_directory) / CODE, text)

    def write_beside(self, folder: Path, options: Mapping[str, Any], run: Path) -> None:
        """Write further files of an export, for a task's options, from a run."""

    def stacks(self) -> list[Stack]:
        """The stacks of the network."""
        return [module for module in self.net.modules() if isinstance(module, Stack)]

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """The weights that modules have in common, which may be others than the embedding and the output."""
        return dict(self._tied_weights_keys)

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Initialise by zoo's rule what was not loaded; a module keeps those of its weights that were.

        A matrix that is not tied any more begins as a copy of what it was tied to.
        """
        rule, seed = rule_of(self.net), int(torch.randint(2**62, ()))
        for name, part in self.net.named_modules():
            own = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
            loaded = [(tensor, tensor.clone()) for tensor in own if getattr(tensor, "_is_hf_initialized", False)]
            if len(loaded) < len(own) and not any(tensor.is_meta for tensor in own):
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(derive_seed(seed, name))
                    rule.reset(part, name, self.net)
                for tensor, value in loaded:
                    tensor.copy_(value)
        weights = dict(self.named_parameters())
        for name, source in self.ties.items():
            own_weight, shared = weights.get(name), weights.get(source)
            if own_weight is None or shared is None or own_weight.is_meta or shared.is_meta:
                continue
            if getattr(shared, "_is_hf_initialized", False) and not getattr(own_weight, "_is_hf_initialized", False):
                own_weight.copy_(shared)

    def _set_gradient_checkpointing(self, enable: bool = True, *args: Any, **kwargs: Any) -> None:
        """Compute activations of blocks again in the backward pass."""
        self.gradient_checkpointing = enable
        for stack in self.stacks():
            stack.recompute = enable

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of tokens."""
        return self.net.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding of tokens."""
        self.net.embedding, self.net.vocab_size = value, len(cast(Any, value).weight)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of ``forward``; losses of parts that nobody has taken go with their graph."""
        if self.training:
            aux_losses(self.net)
        return super().__call__(*args, **kwargs)

    def loss_of(self, labels: Tensor, options: Mapping[str, Any], **logits: Any) -> Tensor:
        """The mean loss () of labels, with those that parts have of their own in training, such as a mixture's.

        With ``num_items_in_batch``, the labels of all batches whose gradients a trainer adds up, both are this batch's
        share of that mean.
        """
        loss = self.loss_function(labels=labels, config=self.config, **{**options, **logits})
        own = aux_losses(self.net) if self.training else []
        items = options.get("num_items_in_batch")
        if items is not None:
            targets = {**options, **logits}.get("shift_labels")
            if targets is None:
                targets = labels[..., 1:] if self.loss_type == "ForCausalLM" else labels
            share = targets.ne(IGNORED).sum().to(loss.device) / torch.as_tensor(items, device=loss.device)
            own = [share * value for value in own]
            if "pooled_logits" in logits and self.config.problem_type != "single_label_classification":
                loss = share * loss  # transformers gives the mean of this batch, whatever is asked for
        return torch.stack([loss, *own]).sum()

    def pop_outputs(self, options: dict[str, Any]) -> tuple[bool, bool]:
        """Whether hidden states and attention weights are asked for, by the call, whose options lose that, or the
        configuration.
        """
        asks = {name: options.pop(f"output_{name}", None) for name in ("hidden_states", "attentions")}
        hidden, attentions = (
            bool(getattr(self.config, f"output_{name}") if ask is None else ask) for name, ask in asks.items()
        )
        return hidden, attentions

    def begin(
        self, stack: Stack, cache: Any, use_cache: bool | None, tokens: int, make: Callable[[], Any]
    ) -> tuple[Any, Caches | None, int]:
        """The cache of a call, which ``make`` begins where one is to be used and none was given, what the blocks see of
        it, and the number of tokens before the next ``tokens``.
        """
        use_cache = self.config.use_cache if use_cache is None else use_cache
        if cache is None and use_cache and not (self.training and self.gradient_checkpointing):
            cache = make()
        if cache is None:
            return None, None, 0
        # parts with states of their own make room for so many tokens
        capacity = max(self.config.max_position_embeddings, int(cache.get_max_length()) if len(cache) else 0)
        caches = layer_caches(stack, cache, tokens, capacity)
        return cache, caches, caches.length


class Classes(nn.Module):
    """The layer that gives logits of classes, by the name of which PEFT trains and saves it beside its adapters.

    Files have its weights at the name of zoo, without that of this layer.
    """

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier
        self.register_load_state_dict_pre_hook(self._rename)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., dim) to logits (..., classes)."""
        return self.classifier(x)

    @staticmethod
    def _rename(_module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        for name in [name for name in state if name in (f"{prefix}weight", f"{prefix}bias")]:
            state[f"{prefix}classifier.{name.removeprefix(prefix)}"] = state.pop(name)


def shared_weights(model: nn.Module) -> dict[str, str]:
    """The first name of each weight that several modules have in common, by its other names."""
    names: dict[int, str] = {}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first for name, weight in every if (first := names.setdefault(id(weight), name)) != name}


def build_network(config: ZooConfig) -> nn.Module:
    """The network that a configuration describes, with random weights.

    Raises UsageError or PluginError that names the package which is missing.
    """
    if config.task is None:
        raise ValueError("a configuration of zoo's models needs task: it is made by zoo export --format transformers.")
    config.check_sizes()
    section = {"model": {**config.task, "init_args": config.network_options()}}
    network = rebuild_network(section, Path("config.json"))
    return (rebuild_task(section, Path("config.json")) if network is None else network[0]).net


def valid_tokens(attention_mask: Tensor | None, length: int) -> Tensor | None:
    """Real tokens (B, S) of all ``length`` tokens so far, None where all are. Raises ValueError for other masks."""
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2:
        raise ValueError(f"attention_mask must be (batch, tokens), got {tuple(attention_mask.shape)}.")
    valid = attention_mask.bool()
    if valid.size(1) < length:  # of the new tokens alone: those before them were real
        valid = torch.cat([valid.new_ones(len(valid), length - valid.size(1)), valid], 1)
    return None if bool(valid.all()) else valid[:, :length]


def check_positions(position_ids: Tensor | None, valid: Tensor | None, before: int) -> None:
    """Raise ValueError for positions other than those that zoo counts: the first real token is number 0."""
    if position_ids is None:
        return
    tokens = position_ids.size(-1)
    if valid is None:
        right = torch.arange(before, before + tokens, device=position_ids.device).expand_as(position_ids)
        real = torch.ones_like(position_ids, dtype=torch.bool)
    else:
        right, real = (valid.cumsum(1) - 1)[:, before:], valid[:, before:]
    if not bool((position_ids == right)[real.expand(torch.broadcast_shapes(real.shape, position_ids.shape))].all()):
        raise ValueError("position_ids must count the real tokens of each row from 0: zoo's models count them so.")


class ZooForCausalLM(ZooModel, GenerationMixin):
    """A causal language model of zoo."""

    config_class = ZooCausalLMConfig
    reads, auto = LanguageModel, AutoModelForCausalLM
    ties: ClassVar[dict[str, str]] = {"net.head.weight": "net.embedding.weight"}

    def __init__(self, config: ZooConfig) -> None:
        super().__init__(config)
        self.tied_head = TiedHead(self)
        caches = self.net.stack.caches(1)
        self._is_stateful = not all(holds_keys(states) for states in caches)

    @property
    def base_model(self) -> Backbone:  # type: ignore[override] # what trainers call, and no model with weights
        """All but the matrix that turns states into logits."""
        return Backbone(self)

    def get_output_embeddings(self) -> nn.Module:
        """The matrix that turns states into logits, as a layer also where it is the embedding's."""
        return self.tied_head if self.net.head is None else cast(nn.Module, self.net.head)

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the matrix that turns states into logits; the embedding's own is none besides."""
        tied = cast(Any, new_embeddings).weight is self.net.embedding.weight
        self.net.head = None if tied else new_embeddings
        self.config.set_tie(tied)

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None = None, **_: Any) -> Tensor | None:
        """The mask (B, S) as it is: zoo's attention makes causality itself."""
        return attention_mask

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Tokens (B, T), or embeddings (B, T, dim), after those in ``cache``, to logits (B, T, vocab_size).

        ``labels`` (B, T) are the tokens themselves, -100 where none is to be predicted. Raises ValueError for
        ``position_ids`` (B, T) other than those of the mask.
        """
        output = self.states(input_ids, attention_mask, position_ids, cache, inputs_embeds, use_cache, kwargs)
        last = cast(Tensor, output.last_hidden_state)
        rows = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.net.logits(last[:, rows])
        loss = None
        if labels is not None:
            loss = self.loss_of(labels, kwargs, logits=logits, vocab_size=self.config.vocab_size)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            cache=output.cache,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )

    def states(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        options: dict[str, Any] | None = None,
    ) -> BaseModelOutputWithPast:
        """As ``forward``, up to what a matrix turns into logits: ``last_hidden_state`` (B, T, dim)."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
        x = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
        stack, tokens = self.net.stack, x.size(1)
        cache, caches, before = self.begin(stack, cache, use_cache, tokens, DynamicCache)
        valid = valid_tokens(attention_mask, before + tokens)
        check_positions(position_ids, valid, before)
        hidden, attentions = self.pop_outputs({} if options is None else options)
        with recorded(stack, hidden, attentions) as (states, weights, _):
            last = stack(x * self.net.scale, valid, caches=caches)
        if cache is not None:
            count_tokens(cache, tokens)
        return BaseModelOutputWithPast(
            last_hidden_state=last,
            cache=cache,
            hidden_states=(*states[:-1], last) if hidden else None,
            attentions=tuple(weights) if attentions else None,
        )


class TiedHead(nn.Module):
    """The embedding of a causal language model as the layer that turns states into logits; it has no weight itself."""

    bias = None

    def __init__(self, model: ZooForCausalLM) -> None:
        super().__init__()
        self.__dict__["model"] = model  # no submodule: the weight has one name

    @property
    def weight(self) -> Tensor:
        """The matrix (vocab_size, dim)."""
        return cast(Tensor, self.__dict__["model"].net.embedding.weight)

    def forward(self, states: Tensor) -> Tensor:
        """States (..., dim) to (..., vocab_size)."""
        return linear(states, self.weight)


class Backbone:
    """A causal language model without the matrix that turns states into logits, as trainers call it."""

    def __init__(self, model: ZooForCausalLM) -> None:
        self.model = model

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def __call__(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Tokens (B, T), with the options of the model, to ``last_hidden_state`` (B, T, dim)."""
        return self.model.states(input_ids, attention_mask, position_ids, cache, inputs_embeds, use_cache, kwargs)


class ZooEncoder(nn.Module):
    """The encoder of an encoder-decoder, as ``generate`` calls it; its weights are those of the model."""

    main_input_name = "input_ids"

    def __init__(self, model: ZooForConditionalGeneration) -> None:
        super().__init__()
        self.__dict__["model"] = model  # no submodule: the weights have one name

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Tokens (B, S), or embeddings (B, S, dim), to states (B, S, dim)."""
        model = self.__dict__["model"]
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
        x = model.net.source_embedding(input_ids) if inputs_embeds is None else inputs_embeds
        hidden, attentions = model.pop_outputs(kwargs)
        with recorded(model.net.encoder, hidden, attentions) as (states, weights, _):
            last = model.net.encoder(x * model.net.scale, valid_tokens(attention_mask, x.size(1)))
        return BaseModelOutput(
            last_hidden_state=last,
            hidden_states=(*states[:-1], last) if hidden else None,
            attentions=tuple(weights) if attentions else None,
        )


class ZooForConditionalGeneration(ZooModel, GenerationMixin):
    """An encoder-decoder of text of zoo."""

    config_class = ZooSeq2SeqConfig
    reads, auto = Seq2Seq, AutoModelForSeq2SeqLM
    ties: ClassVar[dict[str, str]] = {
        "net.head.weight": "net.target_embedding.weight",
        "net.source_embedding.weight": "net.target_embedding.weight",
    }

    def __init__(self, config: ZooConfig) -> None:
        super().__init__(config)
        self._is_stateful = not all(holds_keys(states) for states in self.net.decoder.caches(1))

    def get_encoder(self, modality: str | None = None) -> ZooEncoder:
        """The encoder."""
        return ZooEncoder(self)

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of source tokens."""
        return self.net.source_embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding of source tokens, which may be that of the target."""
        if self.net.source_embedding is self.net.target_embedding:
            self.net.target_embedding = value
        self.net.source_embedding = value

    def get_output_embeddings(self) -> nn.Module | None:
        """The matrix that turns states into logits; None where it is the embedding."""
        return self.net.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the matrix that turns states into logits; the target embedding's own is none besides."""
        tied = cast(Any, new_embeddings).weight is self.net.target_embedding.weight
        self.net.head = None if tied else new_embeddings
        inputs = self.net.source_embedding is self.net.target_embedding
        self.config.set_tie(
            {(True, True): "all", (True, False): "inputs", (False, True): "output"}.get((inputs, tied), "none")
        )

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Change the number of tokens. Raises ValueError where source and target have vocabularies of their own."""
        net = self.net
        if new_num_tokens is not None and (net.source_embedding is not net.target_embedding or net.bias is not None):
            raise ValueError("only a model with one vocabulary for both sides, and no bias per token, can be resized.")
        return super().resize_token_embeddings(new_num_tokens, *args, **kwargs)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Labels (B, T) moved by one, behind the token with which a target starts."""
        start = self.config.decoder_start_token_id
        if start is None:
            raise ValueError("config.decoder_start_token_id must be set to make decoder_input_ids from labels.")
        moved = torch.cat([labels.new_full((len(labels), 1), start), labels[:, :-1]], 1)
        return moved.masked_fill(moved == IGNORED, start)  # behind the end, which no label sees

    create_masks_for_generate = staticmethod(ZooForCausalLM.create_masks_for_generate)

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Source tokens (B, S) and target tokens (B, T), after those in ``cache``, to logits (B, T, vocab_size).

        Without target tokens they are made from ``labels`` (B, T), -100 where none is to be predicted.
        """
        hidden, attentions = self.pop_outputs(kwargs)
        net = self.net
        if encoder_outputs is None:
            encoder_outputs = self.get_encoder()(
                input_ids, attention_mask, inputs_embeds, output_hidden_states=hidden, output_attentions=attentions
            )
        encoded = encoder_outputs if isinstance(encoder_outputs, BaseModelOutput) else BaseModelOutput(*encoder_outputs)
        source = cast(Tensor, encoded.last_hidden_state)
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            if labels is None:
                raise ValueError("decoder_input_ids, decoder_inputs_embeds or labels must be given")
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        x = net.target_embedding(decoder_input_ids) if decoder_inputs_embeds is None else decoder_inputs_embeds
        tokens, pair = x.size(1), partial(EncoderDecoderCache, DynamicCache(), DynamicCache())
        cache, caches, before = self.begin(net.decoder, cache, use_cache, tokens, pair)
        target = valid_tokens(decoder_attention_mask, before + tokens)
        valid = valid_tokens(attention_mask, source.size(1))
        with recorded(net.decoder, hidden, attentions) as (states, weights, looks):
            last = net.decoder(x * net.scale, target, memory=Memory(source, valid), caches=caches)
        if cache is not None:
            count_tokens(cache, tokens)
        logits = net.logits(last * net.out_scale)
        loss = None
        if labels is not None:
            # labels stand where they are predicted: the target tokens were moved
            loss = self.loss_of(labels, kwargs, logits=logits, shift_labels=labels, vocab_size=logits.size(-1))
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            cache=cache,
            decoder_hidden_states=(*states[:-1], last) if hidden else None,
            decoder_attentions=tuple(weights) if attentions else None,
            cross_attentions=tuple(looks) if attentions else None,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
        )


class ZooEncoderModel(ZooModel):
    """What models share that see a whole text or image at once: one forward of the network, and a loss."""

    output: ClassVar[Any]  # the class of transformers' results

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Tokens (B, T), or embeddings (B, T, dim), to logits; ``labels`` are (B,) or (B, T), -100 where none is."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
        x = cast(Tensor, input_ids if inputs_embeds is None else inputs_embeds)
        segments = token_type_ids if self.net.segments else None
        valid = valid_tokens(attention_mask, x.size(1))
        check_positions(position_ids, valid, 0)
        return self.answer((x, valid, segments), labels, kwargs)

    def answer(self, arguments: tuple, labels: Tensor | None, options: dict[str, Any]) -> Any:
        """The result of one forward of the network with ``arguments``."""
        look_hidden, look_weights = self.pop_outputs(options)
        stack = self.net.stack
        with recorded(stack, look_hidden, look_weights) as (states, weights, _), last_states(stack) as last:
            logits = self.net(*arguments)
        loss = None
        if labels is not None:
            sizes = {"vocab_size": self.config.vocab_size} if self.config.vocab_size else {}
            logits_name = "pooled_logits" if logits.dim() == 2 else "logits"
            loss = self.loss_of(labels, options, **{logits_name: logits}, **sizes)
        return self.output(
            loss=loss,
            logits=logits,
            hidden_states=(*states[:-1], *last) if look_hidden else None,
            attentions=tuple(weights) if look_weights else None,
        )


@contextmanager
def last_states(stack: Stack) -> Iterator[list[Tensor]]:
    """Within the block, a forward leaves the result of a stack, (B, T, dim)."""
    last: list[Tensor] = []
    handle = stack.register_forward_hook(lambda _stack, _args, output: last.append(output))
    try:
        yield last
    finally:
        handle.remove()


class ZooForMaskedLM(ZooEncoderModel):
    """A masked language model of zoo."""

    config_class = ZooMaskedLMConfig
    reads, auto, output = MaskedLanguageModel, AutoModelForMaskedLM, MaskedLMOutput
    ties: ClassVar[dict[str, str]] = {"net.head.own.weight": "net.embedding.weight"}

    def get_output_embeddings(self) -> nn.Module | None:
        """The matrix that turns states into logits; None where it is the embedding."""
        return self.net.head.own

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the matrix that turns states into logits; the embedding's own is none besides."""
        tied = cast(Any, new_embeddings).weight is self.net.embedding.weight
        self.net.head.own = None if tied else new_embeddings
        self.config.set_tie(tied)

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Change the number of tokens; new ones have a bias of zero."""
        embeddings = super().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        bias, size = self.net.head.bias, embeddings.weight.size(0)
        if bias is not None and size != len(bias):
            grown = bias.new_zeros(size)
            grown[: len(bias)] = bias.detach()[:size]
            self.net.head.bias = nn.Parameter(grown, requires_grad=bias.requires_grad)
        return embeddings


class ZooForSequenceClassification(ZooEncoderModel):
    """A classifier of texts of zoo."""

    config_class = ZooSequenceClassificationConfig
    reads, auto, output = TextClassifier, AutoModelForSequenceClassification, SequenceClassifierOutput


class ZooForTokenClassification(ZooEncoderModel):
    """A classifier of tokens of zoo."""

    config_class = ZooTokenClassificationConfig
    reads, auto, output = TokenClassifier, AutoModelForTokenClassification, TokenClassifierOutput


class ZooTextEncoder(ZooEncoderModel):
    """An encoder of texts of zoo without what makes vectors of its states, which sentence-transformers does."""

    config_class = ZooTextEmbeddingConfig
    reads, auto, output = TextEmbedder, AutoModel, BaseModelOutput

    def answer(self, arguments: tuple, labels: Tensor | None, options: dict[str, Any]) -> BaseModelOutput:
        """States (B, T, dim) of tokens (B, T). Raises ValueError for labels, which it has no head for."""
        if labels is not None:
            raise ValueError("an encoder of texts has no head that labels could be compared with.")
        hidden, attentions = self.pop_outputs(options)
        with recorded(self.net.stack, hidden, attentions) as (states, weights, _):
            last = self.net.states(*arguments)
        return BaseModelOutput(
            last_hidden_state=last,
            hidden_states=(*states[:-1], last) if hidden else None,
            attentions=tuple(weights) if attentions else None,
        )

    def write_beside(self, folder: Path, options: Mapping[str, Any], run: Path) -> None:
        """Write the files by which sentence-transformers makes vectors."""
        dense = {name: tensor for name, tensor in self.net.state_dict().items() if name.startswith("dense.")}
        sentence_files.write(folder, options, run, dense)


class ZooForImageClassification(ZooEncoderModel):
    """A classifier of images of zoo."""

    config_class = ZooImageClassificationConfig
    reads, auto, output = ViT, AutoModelForImageClassification, ImageClassifierOutput
    main_input_name = "pixel_values"

    @can_return_tuple
    def forward(
        self, pixel_values: Tensor | None = None, labels: Tensor | None = None, **kwargs: Any
    ) -> ImageClassifierOutput:
        """Normalised images (B, C, H, W) to logits (B, classes); ``labels`` are (B,)."""
        if pixel_values is None:
            raise ValueError("You have to specify pixel_values")
        shape = self.net.channels, self.net.image_size, self.net.image_size
        if tuple(pixel_values.shape[1:]) != shape:
            raise ValueError(
                f"pixel_values must be (batch, {', '.join(map(str, shape))}), got {tuple(pixel_values.shape)}."
            )
        arguments = (pixel_values.to(self.net.embedding.weight.dtype),)
        return self.answer(arguments, labels, kwargs)


MODELS: tuple[type[ZooModel], ...] = (
    ZooForCausalLM,
    ZooForConditionalGeneration,
    ZooForMaskedLM,
    ZooForSequenceClassification,
    ZooForTokenClassification,
    ZooTextEncoder,
    ZooForImageClassification,
)
for _model in MODELS:
    AutoConfig.register(_model.config_class.model_type, _model.config_class)
    _model.auto.register(_model.config_class, _model)
    if _model.reads in (TextClassifier, TokenClassifier, ViT):
        register_checkpoint_conversion_mapping(
            _model.__name__, [WeightRenaming("net.head.", "net.head.classifier.")], overwrite=True
        )
