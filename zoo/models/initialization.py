"""One initialisation for every model, drawn per module from a generator named after it.

Matrices, embeddings included: normal with standard deviation 1 / sqrt(3 * width read), GPT-2's 0.02 at width 768 and
torch's default scale at any width. Biases: zero. Everything else: the module's own ``reset_parameters``. Since each
module draws from (seed, its name), two variants start equal wherever they have the same parts.
"""

import contextlib
import hashlib
from collections.abc import Iterator

import torch
from torch import nn


def initialize(net: nn.Module, seed: int = 0) -> nn.Module:
    """Set every parameter of ``net`` in place, leaving torch's global random state as it was."""
    for name, module in net.named_modules():
        tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if tensors and not any(tensor.is_meta for tensor in tensors):
            cuda = {tensor.device for tensor in tensors if tensor.is_cuda}
            with torch.random.fork_rng(cuda):
                # not torch.manual_seed: it seeds every GPU, and fork_rng gives back only those named
                for generator in (torch.default_generator, *(torch.cuda.default_generators[d.index] for d in cuda)):
                    generator.manual_seed(derive_seed(seed, name))
                reset(module)
    return net


@contextlib.contextmanager
def preserve_rng() -> Iterator[None]:
    """Build a model in here: torch's layers draw when they are made, how much depends on the parts, and dropout and
    shuffling would differ after it.
    """
    with torch.random.fork_rng(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        yield


def reset(module: nn.Module) -> None:
    """Draw the parameters that belong to this module itself."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        # an embedding is read as a row of width dim, and as the output matrix it is tied to it reads dim features
        nn.init.normal_(module.weight, std=(3 * module.weight.size(1)) ** -0.5)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    elif callable(own := getattr(module, "reset_parameters", None)):
        own()


def derive_seed(seed: int, name: str) -> int:
    """A seed for one name, the same on every machine."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7], "big")
