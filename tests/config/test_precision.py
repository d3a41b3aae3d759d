"""Where nobody says a precision, a machine that is fast at bfloat16 uses it; a run keeps what it began with."""

from pathlib import Path

import pytest
import torch
import yaml

from zoo.config import precision

AMX = {"avx512_bf16": True, "amx_bf16": True}


@pytest.fixture
def able(monkeypatch):
    """Sets what torch says of this machine; no GPU unless one is asked for."""
    monkeypatch.setenv(precision.SWITCH, "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def set_(supported, gpu=None):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: supported, raising=False)
        if gpu is not None:
            monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
            monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: gpu)

    return set_


@pytest.mark.parametrize(
    ("supported", "gpu", "trainer", "expected"),
    [
        (AMX, None, {}, "bf16-mixed"),
        ({"avx512_bf16": True}, None, {}, None),
        ({}, None, {}, None),
        (AMX, None, {"precision": "32-true"}, "32-true"),
        (AMX, None, {"precision": None}, "bf16-mixed"),
        (AMX, None, {"plugins": ["MyPrecision"]}, None),
        (AMX, None, {"accelerator": "tpu"}, None),
        ({}, True, {}, "bf16-mixed"),
        (AMX, False, {}, None),  # the GPU computes, and it has no such products
        (AMX, False, {"accelerator": "cpu"}, "bf16-mixed"),
        ({}, True, {"accelerator": "cpu"}, None),
    ],
)
def test_the_machine_decides_where_nobody_else_has(able, supported, gpu, trainer, expected):
    able(supported, gpu)
    options = dict(trainer)
    precision.choose_precision(options)
    assert options.get("precision") == expected


@pytest.mark.parametrize("word", ["0", "off", "No"])
def test_it_can_be_turned_off(able, monkeypatch, word):
    able(AMX)
    monkeypatch.setenv(precision.SWITCH, word)
    trainer = {}
    precision.choose_precision(trainer)
    assert trainer == {}


def test_a_torch_that_knows_no_capabilities_computes_as_ever(monkeypatch):
    monkeypatch.setenv(precision.SWITCH, "1")
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert not precision.has_fast_bf16("cpu")
    assert not precision.has_bf16("cpu")


def config_of(run="runs/lm-toy/default/s1"):
    return yaml.safe_load(Path(run, "config.yaml").read_text())["trainer"].get("precision")


def test_the_header_and_the_configuration_say_so(zoo, work, able):
    able(AMX)
    code, output, err = zoo("fit", "lm-toy")
    assert code == 0, err
    header = " ".join(output.split())  # its lines are wrapped
    assert "bf16-mixed, which this machine is fast at (exact: --trainer.precision 32-true)" in header
    assert config_of() == "bf16-mixed"
    # whoever repeats it, wherever, computes the same
    able({})
    code, output, err = zoo("fit", "runs/lm-toy/default/s1/config.yaml", "--name", "again")
    assert code == 0, err
    assert "bf16-mixed ·" in output
    assert config_of("runs/lm-toy/again/s1") == "bf16-mixed"


@pytest.mark.parametrize(("first", "later", "expected"), [(AMX, {}, "bf16-mixed"), ({}, AMX, None)])
def test_a_run_goes_on_as_it_began(zoo, work, able, first, later, expected):
    able(first)
    assert zoo("fit", "lm-toy")[0] == 0
    able(later)
    code, output, err = zoo("fit", "lm-toy", "--resume")
    assert code == 0, err
    assert ("bf16-mixed ·" if expected else "32-true, bf16-mixed may be faster") in output
    assert "differs" not in output
    assert config_of() == expected
    code, output, err = zoo("validate", "lm-toy")
    assert code == 0, err
    assert "differs" not in output


def test_another_precision_for_a_run_that_goes_on_needs_a_word(zoo, work, able):
    able(AMX)
    assert zoo("fit", "lm-toy")[0] == 0
    code, _, err = zoo("fit", "lm-toy", "--name", "default", "--resume", "--trainer.precision", "32-true")
    assert code == 2
    assert "trainer.precision: bf16-mixed → 32-true" in err


def test_a_run_that_said_nothing_is_repeated_as_it_was(zoo, work, able):
    able({})
    assert zoo("fit", "lm-toy")[0] == 0
    able(AMX)
    code, output, err = zoo("fit", "runs/lm-toy/default/s1/config.yaml", "--name", "again")
    assert code == 0, err
    assert "32-true" in output
    assert config_of("runs/lm-toy/again/s1") is None
