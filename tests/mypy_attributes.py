"""A plugin of mypy: an attribute that no class declares is an error, also of torch's modules.

``nn.Module.__getattr__`` gives mypy a type for every name, so that a renamed attribute of a part, which others read,
would be noticed by no check. Buffers and parameters that a class registers by name are declared in its body:
``kernel: Tensor``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mypy.errorcodes import ATTR_DEFINED
from mypy.nodes import TypeInfo
from mypy.plugin import AttributeContext, Plugin
from mypy.types import AnyType, Type, TypeOfAny

MODULE = "torch.nn.modules.module.Module"


def undeclared(name: str, context: AttributeContext) -> Type:
    """Report an attribute that has no declaration; its type is then Any, so that there is one error."""
    context.api.fail(f'"{context.type}" declares no attribute "{name}"', context.context, code=ATTR_DEFINED)
    return AnyType(TypeOfAny.from_error)


class DeclaredAttributes(Plugin):
    """Reports attributes of modules that only ``nn.Module.__getattr__`` has."""

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        """The reporter, for names that the class Module lacks: mypy asks for these behind __getattr__ alone."""
        owner, _, name = fullname.rpartition(".")
        if owner != MODULE:
            return None
        symbol = self.lookup_fully_qualified(MODULE)
        declared = symbol is not None and isinstance(symbol.node, TypeInfo) and symbol.node.get(name) is not None
        return None if declared else partial(undeclared, name)


def plugin(version: str) -> type[Plugin]:
    """The entry point that mypy calls."""
    return DeclaredAttributes
