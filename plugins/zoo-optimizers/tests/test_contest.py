"""The packaged contest compares all optimizers of the package with zoo's own, each at its best rate, to one target."""

import contextlib

import pytest

from zoo import recipe_files, registry
from zoo.cli import find_command
from zoo.compare.command import read_comparison

try:
    from tests.plugin_paths import registered  # in zoo's checkout the package need not be installed
except ImportError:

    def registered(*_):
        return contextlib.nullcontext()


@pytest.fixture
def contest(tmp_path):
    with registered("zoo-optimizers", tmp_path):
        packaged = next(one for one in recipe_files.comparisons() if one.name == "optimizers")
        words = ["optimizers", "--model.dim", "32"]
        yield packaged, read_comparison(find_command.parse(find_command.find_command("compare"), words))


def test_the_contest_has_every_optimizer_of_the_package_a_tuned_rate_and_a_target(contest):
    packaged, comparison = contest
    (factor,) = comparison.vary
    own = {part.name for part in registry.parts("optimizer") if "zoo_optimizers" in part.path}
    assert own - {"AdamW8bit"} < set(factor.values)  # which saves memory, and takes AdamW's steps
    assert factor.key == "model.optimizer"
    assert comparison.tune.startswith("model.lr=")
    assert comparison.at.startswith("to:")
    assert comparison.options[-1].replace("=", " ").split()[-1] == "32", "another size is an option of the command"
    assert len(comparison.seeds) >= 5
    assert all(f"{word}: " in "\n".join(packaged.header) for word in ("asks", "time"))
