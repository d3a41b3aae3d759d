"""Slow kernels in the place of those of a GPU."""

import sys
import types

import pytest
import varlen_reference
from zoo_flash import kernels


@pytest.fixture
def slow_kernels(monkeypatch):
    """FlashVarlen works on a CPU, in any dtype: all but the kernels is what runs on a GPU."""
    package = types.ModuleType("flash_attn")
    package.flash_attn_varlen_func = varlen_reference.flash_attn_varlen_func
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_reference.varlen_attn)
    monkeypatch.setattr(kernels, "check", lambda q, v: None)
    monkeypatch.setattr(kernels, "find", lambda name: kernels.KERNELS[name or "flash-attn"])
