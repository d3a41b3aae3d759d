"""zoo's attention on torch's FlexAttention."""

from zoo_flex.flex import Flex

__all__ = ["Flex"]
