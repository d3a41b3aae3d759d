import sys

import pytest
from cli_parts import TOYS, part

import zoo.cli as command_line
from zoo.cli import doctor, forward
from zoo.errors import PartError, PluginError

TEXT = "model: Toy\ndata: {class_path: Text, init_args: {path: a}}\n"


@pytest.fixture
def with_plugins(install):
    def use(*more):
        install(*(part(kind, name, f"cli_toys:{name}") for kind, listed in TOYS.items() for name in listed), *more)

    return use


def test_a_clash_names_both_packages_and_class_paths(resolve, with_plugins):
    with_plugins(part("attention", "My", "cli_toys:Sliding", "my-attn", "0.1.0"),
                 part("attention", "My", "cli_other:My", "other", "2.0"))  # fmt: skip
    with pytest.raises(PartError) as caught:
        resolve(TEXT, options="--model.attention my")
    assert str(caught.value).startswith("two packages register attention 'my': my-attn 0.1.0 and other 2.0. Write its")
    assert "cli_other.My" in str(caught.value)
    assert str(caught.value).endswith("← --model.attention my")
    assert resolve(TEXT, options="--model.attention cli_toys.Sliding").config["model"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import no_such_triton\n", "ModuleNotFoundError: No module named 'no_such_triton'"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("def f(:\n", "SyntaxError"),
        ("1 / 0\n", "ZeroDivisionError"),
    ],
)
def test_a_broken_plugin_is_fatal_only_when_named(resolve, with_plugins, tmp_path, monkeypatch, body, reason):
    (tmp_path / "cli_broken.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cli_broken", raising=False)
    with_plugins(part("attention", "My", "cli_broken:My", "my-attn", "0.1.0"))
    assert resolve(TEXT).config["model"]
    with pytest.raises(PluginError) as caught:
        resolve(TEXT, options="--model.attention my")
    assert "my-attn 0.1.0" in str(caught.value)
    assert reason in str(caught.value)
    assert caught.value.code == 3


def test_doctor_lists_broken_and_clashing_plugins(with_plugins, zoo):
    with_plugins(part("norm", "Gone", "cli_gone:Gone", "my-norm", "0.1.0"),
                 part("norm", "Twice", "cli_toys:RMS", "a", "1"),
                 part("norm", "Twice", "cli_other:X", "b", "2"))  # fmt: skip
    code, out, _ = zoo("doctor")
    assert code == 2
    assert "my-norm 0.1.0" in out
    assert "also registered by b 2" in out


def test_a_torch_that_does_not_fit_is_told_from_metadata(monkeypatch, zoo):
    installed = {"torch": "2.13.0", "torchvision": "0.29.2"}
    monkeypatch.setattr(doctor, "installed", installed.get)
    told = doctor.torch_mismatch(["numpy", "torch==2.15.0", "pillow>=5"])
    assert told == (
        "torchvision 0.29.2 was built for torch 2.15.0 but torch 2.13.0 is installed.\nRun: pip install torch==2.15.0"
    )
    assert doctor.torch_mismatch(["torch==2.13.0"]) is None
    monkeypatch.setitem(installed, "torch", "2.15.0+cpu")
    assert doctor.torch_mismatch(["torch (==2.15.0)"]) is None
    monkeypatch.setattr(doctor, "torch_mismatch", lambda: told)
    code, _, err = zoo("fit")
    assert code == 2
    assert err == f"error: {told}\n"


def test_lightning_is_a_synonym(monkeypatch, zoo):
    as_zoo = zoo("fit", "--help"), zoo("list", "norm"), zoo("fit", "no-such-recipe")
    monkeypatch.setattr(sys, "argv", ["/x/bin/lightning"])
    assert (zoo("fit", "--help"), zoo("list", "norm"), zoo("fit", "no-such-recipe")) == as_zoo
    code, _, err = zoo("studio", "start")
    assert code == 2
    assert "lightning-sdk is not installed" in err


def test_other_lightning_commands_go_to_the_sdk(monkeypatch, zoo):
    seen = []

    class Point:
        def load(self):
            return lambda: seen.append(list(sys.argv))

    monkeypatch.setattr(forward, "sdk", Point)
    monkeypatch.setattr(sys, "argv", ["/x/bin/lightning"])
    assert zoo("studio", "start")[0] == 0
    assert seen == [["/x/bin/lightning", "studio", "start"]]
    monkeypatch.setattr(sys, "argv", ["/x/bin/zoo"])
    assert zoo("studio", "start")[0] == 2


def test_exit_codes_and_length_of_failures(monkeypatch, capsys):
    from zoo import errors

    def failing(error):
        def run(words, program):
            raise error

        return run

    for error, code in (
        (errors.UsageError("\n".join("abcdefgh")), 2), (errors.PluginError("x"), 3), (errors.NonFiniteError("x"), 4),
        (errors.CheckpointError("x"), 5), (errors.ZooError("x"), 1), (KeyboardInterrupt(), 130),
    ):  # fmt: skip
        monkeypatch.setattr(command_line, "_dispatch", failing(error))
        assert command_line.main([]) == code
        assert len(capsys.readouterr().err.splitlines()) <= 4
    monkeypatch.setattr(command_line, "_dispatch", failing(KeyError("x")))
    assert command_line.main([]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "this looks like a bug" in err
    monkeypatch.setattr(command_line, "_dispatch", failing(errors.UsageError("x")))
    assert command_line.main(["--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err
