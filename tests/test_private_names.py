"""No module of zoo touches private names of other packages, but for those that say why they must."""

import ast
from pathlib import Path

import pytest

from tests.private_names import ROOT, by_syntax, uses

INTERNALS = {
    "zoo/config/jsonargparse_internals.py",
    "zoo/system/torch_internals.py",
    "zoo/training/lightning_internals.py",
}
DOCUMENTED = {"_exit", "_getframe"}  # of os and sys: public in spite of their names
EXCEPTIONS = {
    # its own unpickler in Python can be restricted to some opcodes, and the one in C cannot
    ("zoo/inference/safe_pickle.py", "_Unpickler"),
    # what jsonargparse denies can be allowed by name alone; tests/inference/test_import_policy.py watches it
    ("zoo/inference/import_policy.py", "jsonargparse._common.parsing_settings"),
    # where a distribution lies has no other name; without it a message is shorter
    ("zoo/plugins/discovery.py", "_path"),
    # SummaryWriter asks it for its file; tests/system/test_torch_internals.py watches it
    ("zoo/logging/event_files.py", "_get_file_writer"),
    # a module that loads its tensors in a way of its own has no other sign; tests/inference/test_load.py watches it
    ("zoo/inference/weight_files.py", "_load_from_state_dict"),
    # how many functions atexit will call has no other name; tests/system/test_process_exit.py watches it
    ("zoo/system/process_exit.py", "_ncallbacks"),
    # argparse takes `-b` for an option, but not `-1`; tests/cli/test_option_parser.py watches it
    ("zoo/command_line.py", "_negative_number_matcher"),
    # Python documents it for modules, "customizing module attribute access": zoo.compare is a package that is called
    ("zoo/compare/__init__.py", "__class__"),
}


def files():
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "zoo").rglob("*.py"))


def test_no_module_touches_private_names_of_other_packages():
    result = [one for path in files() if path not in INTERNALS for one in uses(ROOT / path)]
    result = [one for one in result if one.name not in DOCUMENTED]
    assert {(one.path, one.name) for one in result} >= EXCEPTIONS, "an exception that nothing needs"
    reported = [f"{one.path}:{one.line} {one.name}" for one in result if (one.path, one.name) not in EXCEPTIONS]
    assert reported == []


@pytest.mark.parametrize(
    "line",
    [
        "import torch._dynamo",
        "from torch._subclasses import fake_tensor",
        "from lightning.pytorch.loops.fit_loop import _FitLoop",
        "trainer._data_connector",
        "torch._foreach_mul_(grads, 2)",
        "self.trainer._checkpoint_connector.dump_checkpoint()",
        "getattr(strategy, '_launcher')",
        "strategy.launcher.__class__ = Launcher",
    ],
)
def test_a_private_name_is_noticed(line):
    assert list(by_syntax(ast.parse(line)))


@pytest.mark.parametrize("line", ["self._window", "record._replace(step=1)", "torch.add(1, 1)", "x.__class__.__name__"])
def test_other_names_are_not(line):
    assert not list(by_syntax(ast.parse(line)))


CHILD = """
from lightning.pytorch.callbacks import RichProgressBar


class Bar(RichProgressBar):
    _own = 1

    def _init_progress(self, trainer):
        self._own = self._progress_stopped
"""


def test_what_a_class_takes_from_its_base_is_noticed(tmp_path, monkeypatch):
    from tests import private_names

    (tmp_path / "child_of_lightning.py").write_text(CHILD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(private_names, "ROOT", Path(tmp_path))
    monkeypatch.setattr(private_names, "defined_in_zoo", lambda: set())
    assert [one.name for one in uses(tmp_path / "child_of_lightning.py")] == ["_init_progress", "_progress_stopped"]
