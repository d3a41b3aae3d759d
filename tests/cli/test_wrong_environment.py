"""What is wrong outside of the command: packages, variables of torch.distributed, ports."""

import os
import shutil
import socket
import string
import subprocess
import sys
from pathlib import Path

import attr
import docstring_parser
import lightning.pytorch.loggers as loggers
import numpy as np
import pytest
from lightning.pytorch.callbacks import DeviceStatsMonitor
from lightning_utilities.core.imports import RequirementCache

from tests.covering import choices_in_turn
from zoo.cli.environment_errors import check_meeting, check_ranks, explain_meeting, port_problem
from zoo.cli.error_report import options_error
from zoo.compare.tensorboard_command import _free_port
from zoo.errors import UsageError
from zoo.training.distributed import announce_nodes

VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCHELASTIC_USE_AGENT_STORE")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", [name for name in loggers.__all__ if name != "Logger"])
def test_a_logger_of_lightning_without_its_package_names_what_to_install(name, tmp_path):
    cls = getattr(loggers, name)
    caches = [
        one for one in vars(__import__(cls.__module__, fromlist=["x"])).values() if isinstance(one, RequirementCache)
    ]
    if any(caches) and name not in ("CSVLogger", "TensorBoardLogger"):
        pytest.skip("its package is installed")
    try:
        cls(**({"save_dir": str(tmp_path)} if name in ("CSVLogger", "TensorBoardLogger") else {}))
    except ImportError as error:
        if getattr(error, "name", None):  # LitLogger imports its package later, and no Trainer takes it
            assert name == "LitLogger"
            return
        answer = options_error(error)
        assert isinstance(answer, UsageError), answer
        assert str(answer).startswith(f"{name} needs a package that is not installed. Install it: pip install '")
        assert str(caches[0].requirement) in str(answer)
    else:  # LitLogger imports its package later, and is none of Lightning's loggers for a Trainer
        assert name in ("CSVLogger", "TensorBoardLogger", "LitLogger") or any(caches)


@pytest.mark.parametrize("seed", range(8))
def test_an_interface_that_is_not_here_is_named_with_those_that_are(seed, monkeypatch):
    draw = np.random.default_rng(seed)
    wrong = "".join(draw.choice(list(string.ascii_lowercase), 9))
    here = [name for _, name in socket.if_nameindex()]
    value = ",".join([*draw.permutation(here)[: seed % 2].tolist(), wrong])
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", value)
    with pytest.raises(UsageError, match=f"GLOO_SOCKET_IFNAME='{value}'.*not here: {wrong}. There are: .*{here[0]}"):
        check_meeting(True, False)
    check_meeting(True, True)  # NCCL reads another variable
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", wrong)
    with pytest.raises(UsageError, match="NCCL_SOCKET_IFNAME"):
        check_meeting(True, True)


@pytest.mark.parametrize("value", ["", "abc", "0", "-1", "65536", "29500.0", "1e3", "²"])
def test_a_port_that_is_none_is_refused(value, monkeypatch):
    monkeypatch.setenv("MASTER_PORT", value)
    with pytest.raises(UsageError, match="is no port"):
        check_meeting(False, False)


def test_a_port_in_use_is_refused_by_the_process_that_opens_it(monkeypatch):
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        port = server.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        with pytest.raises(UsageError, match=f"MASTER_PORT={port} .* in use"):
            check_meeting(True, False)
        check_meeting(False, False)
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")  # torchrun has opened it
        check_meeting(True, False)
        assert "in use" in port_problem(port)
        assert _free_port(port) != port
    assert not port_problem(port)


@pytest.mark.parametrize("value", ["", "no.such.host.invalid", "a" * 70, "256.1.1.1"])
def test_an_address_that_is_not_known_is_refused(value, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", value)
    with pytest.raises(UsageError, match="MASTER_ADDR"):
        check_meeting(False, False)


def test_right_variables_pass(monkeypatch):
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", str(_free_port())), ("GLOO_SOCKET_IFNAME", "lo")):
        monkeypatch.setenv(name, value)
    check_meeting(True, False)
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "detail")
    check_ranks()
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "much")
    with pytest.raises(UsageError, match="TORCH_DISTRIBUTED_DEBUG='much'"):
        check_ranks()


def test_machines_that_wait_for_each_other_know_where(monkeypatch, capsys):
    for name, value in (("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29400")):
        with pytest.raises(UsageError, match=r"num_nodes=2: .* MASTER_ADDR and MASTER_PORT .* NODE_RANK"):
            announce_nodes(2)
        monkeypatch.setenv(name, value)
    announce_nodes(2)
    assert capsys.readouterr().out == "waiting for 2 machines at 10.0.0.1:29400, at most 10 minutes\n"


def test_other_failures_to_meet_say_what_the_environment_has(monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "29500")

    def init_process_group():
        raise RuntimeError("[enforce fail at x.cc:84] rc != 0. it failed\nstack")

    with pytest.raises(RuntimeError) as caught:
        init_process_group()
    message = str(explain_meeting(caught.value))
    assert "it failed" in message
    assert "MASTER_PORT='29500'" in message
    assert explain_meeting(RuntimeError("other")) is None


def test_device_stats_without_psutil(monkeypatch):
    import lightning.pytorch.callbacks.device_stats_monitor as module
    from lightning.pytorch import Trainer

    monkeypatch.setattr(module, "_PSUTIL_AVAILABLE", RequirementCache("no-such-psutil"))
    callback = DeviceStatsMonitor()
    trainer = Trainer(accelerator="cpu", logger=loggers.CSVLogger("unused"), enable_checkpointing=False)
    with pytest.raises(ModuleNotFoundError) as caught:
        callback.setup(trainer, None, "fit")
    assert "DeviceStatsMonitor needs a package" in str(options_error(caught.value))


@pytest.mark.parametrize(
    ("name", "form"), choices_in_turn(["attr", "attrs", "docstring_parser"], ["{}.py", "{}/__init__.py"])
)
def test_a_file_beside_a_script_that_hides_what_options_are_read_with_is_named(name, form, tmp_path):
    hidden = tmp_path / form.format(name)
    hidden.parent.mkdir(exist_ok=True)
    hidden.write_text("x = 1\n")
    (tmp_path / "script.py").write_text(  # without torch
        "from fractions import Fraction\nfrom zoo.config.signatures import parameters\nprint(parameters(Fraction))\n"
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert f"{hidden} hides the package {name}" in done.stderr, done.stderr


def test_another_copy_of_a_package_that_options_are_read_with_is_no_file_that_hides_it(tmp_path):
    """As `pip install --target` makes one, for a run of a comparison, which searches no folder of a script."""
    for package in (attr, docstring_parser):
        shutil.copytree(Path(package.__file__).parent, tmp_path / package.__name__)
    code = "from fractions import Fraction; from zoo.config.signatures import parameters; print(parameters(Fraction))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert "numerator" in done.stdout, done.stderr


QUICK = [("random", "module"), ("attr", "script")]  # each start takes seconds
COMMANDS = {"module": (sys.executable, "-m", "zoo"), "script": (str(Path(sys.executable).with_name("zoo")),)}


@pytest.mark.parametrize(
    ("name", "command"),
    [
        pytest.param(name, command, marks=[] if (name, command) in QUICK else [pytest.mark.campaign])
        for name in ("attr", "random", "yaml", "rich", "packaging")
        for command in COMMANDS
    ],
)
def test_a_file_named_like_a_package_replaces_it_nowhere(name, command, tmp_path):
    (tmp_path / f"{name}.py").write_text("raise SystemExit('the file of the working folder was imported')\n")
    (tmp_path / "own.py").write_text("from zoo.parts.norm import RMSNorm\n\n\nclass Own(RMSNorm):\n    pass\n")
    words = ["fit", "lm-tiny", "--model.norm", "own.Own", "--allow-import", "own", "--print_config"]
    done = subprocess.run([*COMMANDS[command], *words], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "own.Own" in done.stdout
