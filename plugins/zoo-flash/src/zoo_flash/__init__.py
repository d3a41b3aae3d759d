"""zoo's attention on flash kernels for packed sequences."""

from zoo_flash.flash import FlashVarlen

__all__ = ["FlashVarlen"]
