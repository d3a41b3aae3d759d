"""Models leave as graphs whose batch and length are open: by torch.export, and as ONNX in onnxruntime."""

import exports
import pytest
import torch

# the whole: python -m tests.models.exports; images are exported in bfloat16 and to ONNX below
SAMPLE = [("padded language", "window"), ("pair", "plain")]
ALSO = [("pair", "Disentangled"), ("language", "Tiled"), ("image", "plain")]  # in a campaign
CASES = [
    pytest.param(kind, change, marks=marks, id=f"{kind}-{change}")
    for cases, marks in ((SAMPLE, []), (ALSO, [pytest.mark.campaign]))
    for kind, change in cases
]


@pytest.mark.parametrize(("kind", "change"), CASES)
def test_an_export_computes_the_same_with_another_batch_and_another_length(kind, change):
    assert exports.gap_of_export(exports.case(kind, change)) <= 1e-5


def test_a_model_of_bfloat16_is_exported_with_an_open_batch():
    case = exports.case("image", "plain")
    case.net.to(torch.bfloat16)
    narrow = case._replace(inputs=(case.inputs[0].bfloat16(),), others=(case.others[0].bfloat16(),))
    assert exports.gap_of_export(narrow) <= 0.05


def test_an_onnx_file_computes_the_same_with_another_batch():
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install onnx onnxscript onnxruntime")
    assert exports.gap_of_onnx(exports.case("image", "plain")) <= 1e-4
