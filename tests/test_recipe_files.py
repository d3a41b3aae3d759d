"""Recipes that a plugin brings."""

import json

import pytest
from cli_parts import package

from zoo import recipe_files, registry

RECIPE = "# borrowed: a recipe of a plugin\nmodel: CausalLM\ndata: StdlibDocs\n"


def shelf(folder, name, recipes, target="recipes"):
    """A package whose entry point names a folder of recipes, and whose import would be an error."""
    module = name.replace("-", "_")
    package(folder, name, f"[zoo.recipes]\n{module} = {module}.{target}\n")
    inside = folder / module / "recipes"
    (inside / "compare").mkdir(parents=True)
    (folder / module / "__init__.py").write_text("raise RuntimeError('imported')\n")
    for recipe, text in recipes.items():
        (inside / f"{recipe}.yaml").write_text(text)


@pytest.fixture
def borrowed(site):
    folder = site()
    shelf(
        folder, "p-shelf", {"borrowed": RECIPE, "lm-tiny": "# lm-tiny: not this one\n", "compare/mine": "# mine: x\n"}
    )
    return site()


def test_a_plugins_recipe_is_found_by_its_name_and_listed_with_its_package(borrowed, zoo):
    home = borrowed / "p_shelf" / "recipes"
    assert recipe_files.find_recipe("Borrowed") == home / "borrowed.yaml"
    assert zoo("recipes", "borrowed")[1].splitlines()[-1].split(maxsplit=1) == [
        "borrowed",
        "a recipe of a plugin (p-shelf)",
    ]
    report = {one["name"]: one for one in json.loads(zoo("recipes", "--json")[1])}
    assert report["borrowed"]["distribution"] == "p-shelf"
    assert report["lm-tiny"]["distribution"] == "zoo-transformers"
    assert zoo("show", "borrowed")[1].startswith("# borrowed")


def test_zoos_own_recipe_keeps_its_name_and_comparisons_are_kept_apart(borrowed):
    assert borrowed not in recipe_files.find_recipe("lm-tiny").parents
    assert "mine" in [one.name for one in recipe_files.comparisons()]
    assert "compare/mine" not in [one.name for one in recipe_files.recipes()]


def test_a_plugin_that_is_switched_off_brings_no_recipe(borrowed, monkeypatch):
    monkeypatch.setenv(registry.DISABLE_VARIABLE, "p-shelf")
    assert recipe_files.packaged_recipe("borrowed") is None


def test_a_shelf_that_is_no_folder_is_told_by_the_doctor(site, zoo):
    shelf(site(), "p-empty", {}, target="nothing")
    site()
    reasons = [flaw.reason for flaw in registry.metadata_flaws() if flaw.package.name == "p-empty"]
    message = "entry point 'p_empty' in [zoo.recipes]: 'p_empty.nothing' is not a folder of an installed package"
    assert reasons == [message]
    assert message in zoo("list")[1]


def test_only_yaml_files_are_comparisons_by_path(tmp_path):
    for name, expected in (("mine.yaml", True), ("mine.yml", True), ("mine.txt", False), ("mine", False)):
        (tmp_path / name).write_text("recipe: lm-tiny\n")
        assert (recipe_files.comparison_file(str(tmp_path / name)) is not None) is expected
