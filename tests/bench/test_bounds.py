"""The variants of an operation have twice the FLOPs, or twice the bytes, and nothing else."""

import pytest
import torch

from bench.studies import bounds
from bench.studies.bounds import PRODUCTS, Product, function_times, product_times, row
from zoo.explain.ceilings import Ceilings


@pytest.mark.parametrize("product", [one for one in PRODUCTS if not one.few], ids=lambda one: one.name)
def test_scaled_products_keep_flops_or_bytes(product):
    base, double, half = product.operation, product.scaled(2.0).operation, product.scaled(0.5).operation
    assert (double.flops, double.traffic) == (8 * base.flops, 4 * base.traffic)  # a quarter as many: twice, and once
    assert (8 * half.flops, 4 * half.traffic) == (base.flops, base.traffic)  # eight times as many: once, and twice


@pytest.mark.parametrize("product", [one for one in PRODUCTS if one.few], ids=lambda one: one.name)
def test_products_of_few_rows_keep_nearly_all_bytes(product):
    base, double, half = product.operation, product.scaled(2.0).operation, product.scaled(0.5).operation
    assert double.flops == 2 * base.flops == 4 * half.flops
    assert double.traffic == pytest.approx(base.traffic, rel=0.01)
    assert 2 * half.traffic == pytest.approx(2 * base.traffic, rel=0.01)


def test_each_measurement_has_three_times(monkeypatch):
    monkeypatch.setattr(bounds, "BYTES", 2**18)
    monkeypatch.setattr(bounds, "TURNS", 1)
    for times in (product_times(Product("small", 8, 16, 8)), function_times(torch.exp)):
        assert len(times) == 3
        assert min(times) > 0


def test_a_row_agrees_where_the_measurement_says_the_same():
    product = Product("x", 8, 8, 8)
    for flops, bytes_, agree in ((2.0, 1.0, "yes"), (1.0, 2.0, "no")):
        assert row("x", product.operation, [1.0, flops, bytes_], Ceilings(1.0, 1e9))[-1] == agree
