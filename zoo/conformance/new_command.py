"""`zoo new`: write a package with a part that works, a further part of a package, or a recipe, from templates.

Needs no torch.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import keyword
import re
import shlex
import shutil
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from zoo import __version__, recipe_files, registry
from zoo.cli.show import check_kind
from zoo.command_line import ParsedOptions
from zoo.errors import UsageError
from zoo.io import atomic_files
from zoo.plugins import publishing
from zoo.plugins.description import source_file

TEMPLATES = Path(__file__).parents[1] / "templates"
SUFFIX = ".template"
# how a first run uses a part of each kind
FIT = {
    "task": "zoo fit lm-tiny --model {Class} --model.dim 64 --model.depth 2 --model.heads 4",
    "data": "zoo fit vit-glyphs --data {Class}",
    "callback": "zoo fit lm-tiny --trainer.callbacks {Class}",
    "command": "zoo {class} --help",
    "family": "zoo import CHECKPOINT OUT",
    "executor": "zoo compare lm-tiny --vary model.position=rope,alibi --executor {class}",
    "design": "zoo compare lm-tiny --vary model.position=rope,alibi --{class}=2",
}
BASES = {"family": ("zoo-pretrained",)}  # the packages that have the base class of a kind, besides zoo
FIT_PART = "zoo fit lm-tiny --model.{kind} {Class}"
STACK_ARGUMENTS = {
    "position": "dim, heads, extent", "attention": "dim, heads, backend, dropout", "norm": "dim",
    "ffn": "dim, hidden", "block": "attend, cross, ffn, norm, dropout",
    "optimizer": "params, lr", "schedule": "total", "init": "dim",
}  # fmt: skip


def run(options: ParsedOptions) -> int:
    """`zoo new`."""
    what, name = options.words
    for option in ("dest", "in", "package") if what == "recipe" else ("from",):
        if options.get(option) is not None:
            belongs = "a package: a recipe is written here" if what == "recipe" else "zoo new recipe"
            raise UsageError(f"'--{option}' belongs to {belongs}. See: zoo new --help")
    if what == "recipe":
        return recipe(name, options.get("from"))
    if options.get("in") is not None:
        if other_name := next((option for option in ("dest", "package") if options.get(option) is not None), None):
            raise UsageError(f"'--in' adds to a package, '--{other_name}' makes one. See: zoo new --help")
        return add_part(check_kind(what), name, Path(options.get("in")))
    return package(check_kind(what), name, options.get("dest"), options.get("package"))


def package(kind: str, name: str, destination: str | None = None, package_name: str | None = None) -> int:
    """Write the package of a part."""
    check_class(kind, name)
    if package_name is not None and not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", package_name):
        raise UsageError(f"{package_name!r} cannot name a package: small letters, digits and -, such as zoo-mine.")
    package_name = package_name or distribution_name(name)
    check_distribution(name, package_name)
    target = Path(destination or package_name)
    if target.exists() or target.is_symlink():
        raise UsageError(
            f"{target} exists. Choose another place: zoo new {kind} {name} --dest DIR; "
            f"or add a part to the package there: zoo new {kind} {name} --in {target}"
        )
    contents = files(kind, name, package_name)
    try:
        for path, text in contents.items():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            atomic_files.write_text(target / path, text)
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)  # half a package is of no use
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    for path in contents:
        print(target / path)
    print(f"\nTry it:\n  pip install -e '{target}[test]' && pytest {target}")
    print(f"  zoo check {kind} {name}\n  {recipes_of_kind(kind, name)}")
    return 0


def files(kind: str, name: str, package_name: str) -> dict[str, str]:
    """Every file of a package by its path."""
    module = package_name.replace("-", "_")
    note = f" after those that zoo gives ({STACK_ARGUMENTS[kind]})" if kind in STACK_ARGUMENTS else ""
    needed = [package + oldest_requirement(__version__) for package in (registry.BUILTIN, *BASES.get(kind, ()))]
    values = {
        "Class": name, "class": name.lower(),
        "kind": kind, "a_kind": with_article(kind), "distribution": package_name, "module": module,
        "keyword": publishing.KEYWORD,
        "requires": '", "'.join(needed),
        "fit": recipes_of_kind(kind, name), "given": note,
    }  # fmt: skip
    sources = {
        "pyproject.toml": "pyproject.toml", "README.md": "README.md", "CHANGELOG.md": "CHANGELOG.md",
        f"src/{module}/__init__.py": f"{kind}.py", "tests/test_contract.py": "test_contract.py",
        ".github/workflows/contract.yml": "contract.yml", ".gitignore": "gitignore",
    }  # fmt: skip
    contents = {path: fill_template(source, values) for path, source in sources.items()}
    licence = (TEMPLATES / "LICENSE").read_text(encoding="utf-8")
    return {**contents, "LICENSE": licence}


def add_part(kind: str, name: str, folder: Path) -> int:
    """Add a part to the package in a folder: a module, and its lines in pyproject.toml and CHANGELOG.md.

    Raises UsageError, and changes nothing, where the package has the name or cannot be changed with certainty.
    """
    file = folder / "pyproject.toml"
    try:
        text = file.read_text(encoding="utf-8")
        project = tomllib.loads(text)["project"]
        points = project.get("entry-points", {})
        own = {group: dict(names) for group, names in points.items()}
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}. Name the folder of a package.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} is not the pyproject.toml of a package: {error}") from error
    for group, names in own.items():
        if existing := next((entry for entry in names if entry.lower() == name.lower()), None):
            raise UsageError(f"{folder} has {existing!r} already, in [{group}]. Choose another name.")
    check_class(kind, name)
    source = package_source(folder, str(project.get("name", "")), own)
    module_name = name.lower()
    target = source / f"{module_name}.py"
    if target.exists() or keyword.iskeyword(module_name):
        raise UsageError(f"{target} {'exists' if target.exists() else 'cannot be imported'}. Choose another name.")
    new_text = with_entry_point(text, f"zoo.{kind}", name, f"{source.name}.{module_name}:{name}", file)
    changelog = folder / "CHANGELOG.md"
    try:
        log = changelog.read_text(encoding="utf-8") if changelog.exists() else ""
        new_log = re.sub(r"^(## Unreleased\n+)", rf"\g<1>- {kind} `{name}`\n", log, count=1, flags=re.MULTILINE)
        atomic_files.write_text(target, fill_template(f"{kind}.py", {"Class": name, "class": name.lower()}))
        atomic_files.write_text(file, new_text)
        if new_log != log:
            atomic_files.write_text(changelog, new_log)
    except OSError as error:
        if file.read_text(encoding="utf-8") == text:
            target.unlink(missing_ok=True)
        raise UsageError(f"cannot write into {folder}: {error.strerror or error}") from error
    print(f"{target}\n{file} (changed)")
    if new_log != log:
        print(f"{changelog} (changed)")
    print(f"\nTry it:\n  pip install -e '{folder}[test]'  # again, for the new entry point")
    print(f"  zoo check {kind} {name}\n  {recipes_of_kind(kind, name)}")
    return 0


def package_source(folder: Path, package_name: str, points: dict[str, dict[str, Any]]) -> Path:
    """The folder of a package's modules, which its entry points name, or its own name.

    Raises UsageError where there is none.
    """
    groups = [names for group, names in points.items() if group.removeprefix("zoo.") in registry.KINDS]
    modules = [str(value).partition(":")[0].partition(".")[0] for names in groups for value in names.values()]
    candidates = dict.fromkeys([*modules, re.sub(r"[-.]+", "_", package_name.lower())])
    places = [folder / parent / module for module in candidates if module for parent in ("src", ".")]
    source = next((place for place in places if (place / "__init__.py").is_file()), None)
    if source is None:
        raise UsageError(
            f"{folder} has no package folder, such as {places[0]}, with an __init__.py." if places
            else f"{folder / 'pyproject.toml'} has no name."
        )  # fmt: skip
    return source


def with_entry_point(text: str, group: str, name: str, value: str, file: Path) -> str:
    """The text of a pyproject.toml with one entry point more in a group, and all else as it was.

    Raises UsageError, with the lines to write by hand, where the file is written in a way that cannot be extended.
    """
    lines, entry = text.splitlines(), f'{name} = "{value}"'
    any_group = re.compile(r"\s*\[\s*project\s*\.\s*entry-points\b.*")
    header = re.compile(rf"\s*\[\s*project\s*\.\s*entry-points\s*\.\s*[\"']{re.escape(group)}[\"']\s*\]\s*(#.*)?")
    start = next((number for number, line in enumerate(lines) if header.fullmatch(line)), None)
    if start is None:
        others = [number for number, line in enumerate(lines) if any_group.fullmatch(line)]
        end = table_end(lines, others[-1]) if others else len(lines)
        lines[end:end] = ["", f'[project.entry-points."{group}"]', entry]
    else:
        lines.insert(table_end(lines, start), entry)
    new_text = "\n".join(lines) + "\n"
    expected = tomllib.loads(text)
    expected["project"].setdefault("entry-points", {}).setdefault(group, {})[name] = value
    with contextlib.suppress(tomllib.TOMLDecodeError):
        if tomllib.loads(new_text) == expected:
            return new_text
    raise UsageError(
        f"{file} cannot be extended as it is written. Add these lines yourself, then again: "
        f'[project.entry-points."{group}"] {entry}'
    )


def table_end(lines: list[str], start: int) -> int:
    """The number of the line behind the last entry of the table whose header has the number ``start``."""
    end = next((row for row in range(start + 1, len(lines)) if lines[row].lstrip().startswith("[")), len(lines))
    while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1  # a comment there belongs to what follows
    return end


def with_article(kind: str) -> str:
    """``a norm`` or ``an attention``."""
    return f"{'an' if kind[0] in 'aeiou' or kind == 'ffn' else 'a'} {kind}"


def fill_template(template: str, values: dict[str, str]) -> str:
    """A template with its placeholders replaced; all other braces stay."""
    text = (TEMPLATES / f"{template}{SUFFIX}").read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def recipes_of_kind(kind: str, name: str) -> str:
    """The command that trains with a part."""
    return FIT.get(kind, FIT_PART).replace("{kind}", kind).replace("{Class}", name).replace("{class}", name.lower())


def kebab(name: str) -> str:
    """``MyNorm`` as ``my-norm``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


def distribution_name(name: str) -> str:
    """``MyNorm`` as the package ``zoo-my-norm``: names of plugins begin with ``zoo-``."""
    return f"{publishing.PREFIX}{kebab(name).removeprefix(publishing.PREFIX)}"


def oldest_requirement(version: str) -> str:
    """The versions of zoo that a package written now works with."""
    release = version.partition("+")[0]
    early = re.search(r"[a-z]", release)  # a pre-release is older than its own number
    return f">={release if early else '.'.join(release.split('.')[:2])}"


def check_class(kind: str, name: str) -> None:
    """Raise UsageError for what cannot be the name of a new part."""
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name):
        near = "".join(word[:1].upper() + word[1:] for word in re.split(r"[^A-Za-z0-9]+", name)).lstrip("0123456789")
        hint = f" Did you mean {near!r}?" if near else ""
        raise UsageError(f"{name!r} cannot name a class: letters and digits, the first one a capital.{hint}")
    if keyword.iskeyword(name) or hasattr(builtins, name):
        raise UsageError(f"{name!r} is a word of Python itself. Choose another, such as My{name}.")
    for part in registry.installed_parts(kind):
        if registry.has_name(part, name):
            raise UsageError(f"{kind} {part.name!r} exists in {part.origin}. Choose another name, such as My{name}.")
    source = fill_template(f"{kind}.py", {})
    names_in_use = {
        node.id for node in ast.walk(ast.parse(source.replace("{Class}", "_"))) if isinstance(node, ast.Name)
    }
    if name in names_in_use:
        raise UsageError(f"{name!r} is what a {kind} is made of. Choose another name, such as My{name}.")


def check_distribution(name: str, package_name: str) -> None:
    """Raise UsageError where the package would hide another one."""
    module = package_name.replace("-", "_")
    try:
        owner = f"the installed package {distribution(package_name).name}"
    except PackageNotFoundError:
        owner = f"the module {module}, which is there already" if source_file(module) else ""
    if module in sys.stdlib_module_names or keyword.iskeyword(module):
        owner = f"Python's own {module}"
    if owner:
        raise UsageError(f"{name} would become the package {package_name} and hide {owner}. Choose another name.")


def recipe(name: str, source: str | None) -> int:
    """Write a recipe into the current folder."""
    stem = re.sub(r"\.ya?ml$", "", name)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", stem):
        raise UsageError(f"{name!r} cannot name a recipe: letters, digits and . _ - alone.")
    if recipe_files.packaged_recipe(stem):
        raise UsageError(f"{stem!r} is a packaged recipe. Choose another name: zoo new recipe my-{stem} --from {stem}")
    target = Path(f"{stem}.yaml")
    if target.exists():
        raise UsageError(f"{target} exists. Choose another name, or remove it.")
    values = {"name": stem, "file": str(target)}
    text = fill_template("recipe.yaml", values) if source is None else variant(source, values)
    try:
        atomic_files.write_text(target, text)
    except OSError as error:
        with contextlib.suppress(OSError):  # a name that the disk may not have: the same command must work again
            target.unlink(missing_ok=True)
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    word = shlex.quote(str(target))
    print(f"{target}\n\nFill in its first lines. Try it:\n  zoo check {word}\n  zoo fit {word}")
    return 0


def variant(source: str, values: dict[str, str]) -> str:
    """Another recipe's values under a header of its own."""
    path = recipe_files.find_recipe(source)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    start = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    data = [line for line in lines[:start] if line.startswith("# data: ")] or ["# data: ?"]
    header = fill_template("recipe.yaml", values).splitlines()[:2]
    origin = f"# from: {source}; `zoo show {values['file']}` says which line sets what"
    return "\n".join([*header, *data, origin, *lines[start:]]) + "\n"
