"""Describe a part from its source text without importing it: a summary line and its options."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.machinery
import importlib.util
import inspect
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from zoo.registry import Part, most_similar

# number of leading constructor arguments that the model passes itself, by kind: they are not options of the user
CLASS_PARAMETERS = {
    "position": 3, "attention": 4, "norm": 1, "ffn": 2, "block": 5, "optimizer": 2, "schedule": 1, "init": 1,
}  # fmt: skip
PLACE_PARAMETERS = ("layer", "depth")  # a stack gives them to those of its parts that take them
MAX_HOPS = 6
# a module that uses one of these may have names that its source text does not bind
MAKES_NAMES = {"*", "__getattr__", "globals", "setattr", "vars", "exec", "import_module"}
# what reading and parsing a source text raises
UNREADABLE = (OSError, ImportError, SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True)
class Option:
    """One constructor parameter as in the source text."""

    name: str
    type: str
    default: str | None  # None: a value is required
    about: str = ""  # what its class's docstring says of it


@dataclass(frozen=True)
class Description:
    """Summary, options and place of a class according to its source text."""

    summary: str
    options: tuple[Option, ...]
    file: str | None = None
    line: int = 0
    text: str = ""  # the docstring

    def as_dict(self) -> dict[str, object]:
        """All fields, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _ClassSource:
    """The syntax tree of a class and the module that defines it."""

    module: str
    node: ast.ClassDef


def describe(part: Part) -> Description:
    """The description of a registered part; empty if its source cannot be found."""
    module, _, name = part.target.partition(":")
    about = describe_class(module, name, CLASS_PARAMETERS.get(part.kind, 0))
    if part.kind not in CLASS_PARAMETERS:
        return about
    return replace(about, options=tuple(option for option in about.options if option.name not in PLACE_PARAMETERS))


def describe_class(module: str, name: str, skipped: int = 0) -> Description:
    """The description of a class by its module and name, without its first ``skipped`` parameters."""
    source = _find(module, name)
    if source is None:
        return Description("", ())
    doc = _docstring(source.node) or _assigned_docstring(source)
    options = _options(source, MAX_HOPS)
    path = source_file(source.module)
    summary = " ".join(doc.strip().partition("\n\n")[0].split())
    return Description(
        summary.partition(" Paper: ")[0], tuple(options[skipped:]), str(path) if path else None, source.node.lineno,
        doc.strip(),
    )  # fmt: skip


@functools.cache
def _docstring(node: ast.ClassDef | ast.FunctionDef) -> str | None:
    """The docstring of a class or function; trees are parsed once, so that a node stands for its text."""
    return ast.get_docstring(node)


def _assigned_docstring(source: _ClassSource) -> str:
    """The literal text at the start of a later ``Class.__doc__ = …``, as torch's optimizers have; empty without one."""
    tree = _tree(source.module)
    for node in tree.body if tree else ():
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == f"{source.node.name}.__doc__":
            leftmost: ast.expr = node.value
            while isinstance(leftmost, ast.BinOp):
                leftmost = leftmost.left
            text = leftmost.value if isinstance(leftmost, ast.Constant) else ""
            return inspect.cleandoc(text) if isinstance(text, str) else ""
    return ""


@dataclass(frozen=True)
class Member:
    """A public method of a class, or an attribute that its body sets: with its signature or value, and docstring."""

    name: str
    code: str
    text: str = ""
    method: bool = False


def describe_members(module: str, name: str) -> tuple[Member, ...]:
    """The public methods and attributes of a class and its bases, the nearest of each name."""
    members: dict[str, Member] = {}
    for source in _lineage(_find(module, name)):
        for member in _own_members(source.node):
            above = members.setdefault(member.name, member)
            if not above.text and member.text:  # said where a base declares it
                members[member.name] = replace(above, text=member.text)
    return tuple(members.values())


def _lineage(source: _ClassSource | None) -> Iterator[_ClassSource]:
    """A class and its bases, of each the first whose source text is found."""
    for _ in range(MAX_HOPS):
        if source is None:
            return
        yield source
        module, bases = source.module, source.node.bases
        source = next((parent for base in bases if (parent := _find_base(module, base))), None)


@dataclass(frozen=True)
class NetworkSource:
    """What a task says of its network: its class path, the options it lacks, and the class that uses a trained one."""

    path: str
    training_options: tuple[str, ...]
    trained: str


def describe_network(module: str, name: str) -> NetworkSource | None:
    """The network of a task, where that alone holds what was trained.

    None unless the task declares ``training_options`` and ``trained``, its ``network`` calls a class with ``**options``
    alone, and no class between the task and that declaration has a constructor of its own.
    """
    network: _ClassSource | None = None
    declared: dict[str, object] = {}
    for source in _lineage(_find(module, name)):
        for item in source.node.body:
            if isinstance(item, ast.FunctionDef) and item.name == "network" and network is None:
                network = _called_class(source, item)
                if network is None:
                    return None
        for member in _own_members(source.node):
            if member.name in ("training_options", "trained"):
                with contextlib.suppress(ValueError):  # not a literal
                    declared.setdefault(member.name, ast.literal_eval(member.code))
        if "training_options" not in declared and _constructor(source.node)[0] is not None:
            return None
    options, trained = declared.get("training_options"), declared.get("trained")
    if network is None or not isinstance(options, tuple) or not isinstance(trained, str) or not trained:
        return None
    return NetworkSource(f"{network.module}.{network.node.name}", options, trained)


def _called_class(source: _ClassSource, method: ast.FunctionDef) -> _ClassSource | None:
    """The class that a method calls with its ``**options`` and nothing else."""
    call = _forwarding_call(method, method.args.kwarg.arg) if method.args.kwarg else None
    if call is None or call.args or len(call.keywords) > 1 or not isinstance(call.func, ast.Name):
        return None
    return _find(source.module, call.func.id)


@functools.cache
def _own_members(node: ast.ClassDef) -> tuple[Member, ...]:
    """What the body of a class defines itself."""
    return tuple(member for item in node.body for member in _members_of(item))


def _members_of(item: ast.stmt) -> Iterator[Member]:
    if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
        result = f" -> {ast.unparse(item.returns)}" if item.returns else ""
        text = " ".join((_docstring(item) or "").partition("\n\n")[0].split())
        yield Member(item.name, f"({ast.unparse(item.args)}){result}", text, True)
    elif isinstance(item, ast.Assign | ast.AnnAssign) and item.value is not None:
        target = item.target if isinstance(item, ast.AnnAssign) else item.targets[0]
        if isinstance(target, ast.Name) and not target.id.startswith("_"):
            yield Member(target.id, ast.unparse(item.value))


def import_problem(module: str) -> str:
    """Why importing a module would fail, as far as its place and its source text say; empty if that cannot be told."""
    if find_spec(module) is None:
        top, *inside = module.split(".")
        parent = find_spec(".".join([top, *inside[:-1]])) if inside else None
        if parent is not None and _makes_modules(parent):
            return ""
        return f"there is no module {module}"
    try:
        _parse(module)
    except UNREADABLE as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        return f"{source_file(module)}{line} cannot be read: {getattr(error, 'msg', None) or type(error).__name__}"
    return ""


def missing_class(module: str, name: str) -> str:
    """That a module binds no such name, with the most similar class; empty if it does or may when it is imported."""
    tree = _tree(module)
    if tree is None or name in _classes_and_imports(tree)[0] or _names(tree) & {name, *MAKES_NAMES}:
        return ""
    near = most_similar(name, _classes_and_imports(tree)[0])
    return f"{source_file(module)} has no class {name}" + (f". Did you mean {near}?" if near else "")


@functools.cache
def _names(tree: ast.Module) -> set[str]:
    """Every name that a module binds or uses."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.Name):
            names.add(node.id)
    return names


def _makes_modules(package: importlib.machinery.ModuleSpec) -> bool:
    """Whether a package may make modules that no search finds: it is no source text, or this names what does so."""
    tree = _tree(package.name)
    return tree is None or any(
        getattr(node, "id", getattr(node, "attr", "")) in ("__path__", "modules", "meta_path")
        for node in ast.walk(tree)
    )


_specs: dict[str, importlib.machinery.ModuleSpec | None] | None = None  # a cache inside `cache_lookups`, else None


@contextlib.contextmanager
def cache_lookups() -> Iterator[None]:
    """Search for each module only once inside the block, in which nothing must be installed."""
    global _specs
    before, _specs = _specs, {} if _specs is None else _specs
    try:
        yield
    finally:
        _specs = before


def find_spec(module: str) -> importlib.machinery.ModuleSpec | None:
    """The spec of a module without importing it or its parent packages; None if there is no such module."""
    if _specs is None:
        return _search_spec(module)
    if module not in _specs:
        _specs[module] = _search_spec(module)
    return _specs[module]


def _search_spec(module: str) -> importlib.machinery.ModuleSpec | None:
    """What the finders of the import system say, as `importlib.util.find_spec`, which would import the packages."""
    above, _, _ = module.rpartition(".")
    places: list[str] | None = None
    try:
        if above:
            parent = find_spec(above)
            if parent is None or parent.submodule_search_locations is None:
                return None
            places = list(parent.submodule_search_locations)
        elif module in sys.modules:
            return importlib.util.find_spec(module)
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        return next(filter(None, (find(module, places, None) for find in finders if find)), None)
    except Exception:  # third-party import hooks may raise anything, and Python's where folders have no __init__
        folders = [Path(place, module.rpartition(".")[2]) for place in places or ()]
        spec = importlib.machinery.ModuleSpec(module, None, is_package=True)
        in_archive = (folder for folder in folders if not folder.parent.is_dir())  # whose folders the system has not
        spec.submodule_search_locations = [str(folder) for folder in (*filter(Path.is_dir, folders), *in_archive)]
        return spec if spec.submodule_search_locations else None


def source_file(module: str) -> Path | None:
    """The place of a module's source text, which may be inside a zip file; None without a text."""
    spec = find_spec(module)
    origin = spec.origin if spec else None
    return Path(origin) if origin and origin.endswith(".py") else None


_trees: dict[str, ast.Module] = {}  # by file


def _parse(module: str) -> ast.Module | None:
    """The syntax tree of a module, read by the loader that would import it; None without a source text."""
    spec = find_spec(module)
    read = getattr(spec.loader, "get_data", None) if spec else None
    if spec is None or spec.origin is None or source_file(module) is None or read is None:
        return None
    if spec.origin not in _trees:
        with warnings.catch_warnings():  # about invalid escapes in the source
            warnings.simplefilter("ignore")
            _trees[spec.origin] = ast.parse(read(spec.origin))
    return _trees[spec.origin]


def _tree(module: str) -> ast.Module | None:
    try:
        return _parse(module)
    except UNREADABLE:
        return None


@functools.cache
def _classes_and_imports(
    tree: ast.Module,
) -> tuple[dict[str, ast.ClassDef], dict[str, tuple[ast.ImportFrom, ast.alias]]]:
    """The classes of a module by name (the first of each), and its ``from`` imports by local name."""
    classes: dict[str, ast.ClassDef] = {}
    imports: dict[str, tuple[ast.ImportFrom, ast.alias]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            classes.setdefault(node.name, node)
    for inner in _statements(tree):
        if isinstance(inner, ast.ImportFrom):
            for alias in inner.names:
                imports.setdefault(alias.asname or alias.name, (inner, alias))
    return classes, imports


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Every statement below a node, the nearest levels first; expressions, most of a tree, are not visited."""
    level: list[ast.AST] = [tree]
    while level:
        level = [
            inner
            for node in level
            for field in ("body", "orelse", "handlers", "finalbody", "cases")
            for inner in getattr(node, field, ())
        ]
        yield from (node for node in level if isinstance(node, ast.stmt))


def _find(module: str, name: str, hops: int = MAX_HOPS) -> _ClassSource | None:
    """The definition of a class, following `from x import name`."""
    tree = _tree(module)
    if tree is None or hops == 0:
        return None
    classes, imports = _classes_and_imports(tree)
    if name in classes:
        return _ClassSource(module, classes[name])
    if name in imports:
        statement, alias = imports[name]
        return _find(_absolute(module, statement), alias.name, hops - 1)
    stars = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"]
    return next(filter(None, (_find(_absolute(module, node), name, hops - 1) for node in stars)), None)


def _find_base(module: str, base: ast.expr) -> _ClassSource | None:
    """The definition of a base as a class statement writes it: ``Base``, ``package.module.Base``, ``Base[T]``."""
    expression = base.value if isinstance(base, ast.Subscript) else base
    if isinstance(expression, ast.Name):
        return _find(module, expression.id)
    tree = _tree(module)
    if (
        tree is None or not isinstance(expression, ast.Attribute) or expression.attr == "Module"
    ):  # torch's has no options
        return None
    local, dot, inside = ast.unparse(expression.value).partition(".")
    places = [
        f"{_absolute(module, node)}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in _statements(tree) if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names if (alias.asname or alias.name.partition(".")[0]) == local
    ]  # fmt: skip
    whole = f"{local}{dot}{inside}"  # `import a.b` binds a
    return _find(whole if whole in places else f"{places[0]}{dot}{inside}", expression.attr) if places else None


def _absolute(module: str, node: ast.ImportFrom) -> str:
    """The module that an import statement names, relative ones included."""
    if not node.level:
        return node.module or ""
    path = source_file(module)
    package = module.split(".") if path and path.name == "__init__.py" else module.split(".")[:-1]
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def _options(source: _ClassSource, hops: int, owner: _ClassSource | None = None) -> list[Option]:
    """The constructor parameters of a class or its nearest base that has a constructor, following `**kwargs`.

    ``owner`` is the class whose methods ``self`` has, where it inherits the constructor.
    """
    init, own_options = _constructor(source.node)
    if init is None:
        return (
            _fields(source, hops) if _is_dataclass(source.node) else _inherited_options(source, hops, owner or source)
        )
    options = [*own_options]
    if not all(option.about for option in options):  # said where a base declares it
        above = {option.name: option.about for option in _inherited_options(source, hops)}
        options = [replace(option, about=option.about or above.get(option.name, "")) for option in options]
    if init.args.kwarg and hops:
        names = {option.name for option in options}
        options += [
            option for option in _forwarded_options(source, init, hops, owner or source) if option.name not in names
        ]
    return options


@functools.cache
def _constructor(node: ast.ClassDef) -> tuple[ast.FunctionDef | None, tuple[Option, ...]]:
    """The constructor that a class defines itself, if it does, and its parameters."""
    init = next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
    if init is None:
        return None, ()
    arguments = init.args
    positional = [*arguments.posonlyargs, *arguments.args][1:]
    defaults: list[ast.expr | None] = [*arguments.defaults]
    padded = [None] * (len(positional) - len(defaults)) + defaults
    pairs = [*zip(positional, padded, strict=False), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    phrases = _phrases(_docstring(node)) | _phrases(_docstring(init))
    return init, tuple(_option(argument, default, phrases) for argument, default in pairs)


def _is_dataclass(node: ast.ClassDef) -> bool:
    """Whether a class is decorated as a dataclass whose constructor takes its fields."""
    for decorator in node.decorator_list:
        function, words = (decorator.func, decorator.keywords) if isinstance(decorator, ast.Call) else (decorator, [])
        if ast.unparse(function).rpartition(".")[2] == "dataclass":
            return not any(word.arg == "init" and ast.unparse(word.value) == "False" for word in words)
    return False


def _fields(source: _ClassSource, hops: int) -> list[Option]:
    """What the constructor of a dataclass takes: the fields of its bases, from the last one on, then its own."""
    parents = [_find_base(source.module, base) for base in reversed(source.node.bases) if hops]
    options = {option.name: option for parent in parents if parent for option in _fields(parent, hops - 1)}
    phrases = _phrases(_docstring(source.node))
    for item in source.node.body if _is_dataclass(source.node) else ():
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id != "_":
            call = item.value if isinstance(item.value, ast.Call) else None
            words = {word.arg: word.value for word in call.keywords}\
                if call and ast.unparse(call.func).endswith("field") else {"default": item.value}  # fmt: skip
            factory, is_option = words.get("default_factory"), words.get("init") or ast.Constant(True)
            default = ast.Call(factory, [], []) if factory else words.get("default")
            option = _option(ast.arg(item.target.id, item.annotation), default, phrases)
            if "ClassVar" not in option.type and ast.unparse(is_option) != "False":
                about = option.about or (options[option.name].about if option.name in options else "")
                options[option.name] = replace(option, about=about)
    return [*options.values()]


def _inherited_options(source: _ClassSource, hops: int, owner: _ClassSource | None = None) -> list[Option]:
    parents = [_find_base(source.module, base) for base in source.node.bases if hops]
    # a class such as Generic or a mixin has none
    return next(filter(None, (_options(parent, hops - 1, owner) for parent in parents if parent)), [])


def _option(argument: ast.arg, default: ast.expr | None, phrases: Mapping[str, str]) -> Option:
    kind = ast.unparse(argument.annotation) if argument.annotation else ""
    return Option(argument.arg, kind, None if default is None else ast.unparse(default), phrases.get(argument.arg, ""))


def _phrases(docstring: str | None) -> dict[str, str]:
    """What the lines ``name: phrase`` or ``name (type): phrase`` below ``Args:`` say of each option; deeper lines go on
    with a phrase.
    """
    _, *below = re.split(r"^ *(?:Args|Arguments):\n", docstring or "", maxsplit=1, flags=re.MULTILINE)
    lines = below[0].splitlines() if below else []
    phrases: dict[str, str] = {}
    name, indent = "", next((len(line) - len(line.lstrip()) for line in lines if line.strip()), 0)
    for line in lines:
        depth = len(line) - len(line.lstrip())
        if not line.strip() or depth < indent:
            break
        if depth == indent:
            parts = re.match(r"\**(\w+)\s*(?:\(.*?\))?\s*:(.*)", line.strip())
            name, phrase = parts.groups() if parts else (line.strip(), "")
            phrases[name] = phrase.strip()
        else:
            phrases[name] += f" {line.strip()}"
    return phrases


def _forwarded_options(source: _ClassSource, function: ast.FunctionDef, hops: int, owner: _ClassSource) -> list[Option]:
    """The options of the class that receives a function's `**kwargs`, except those that the call sets itself."""
    call = _forwarding_call(function, function.args.kwarg.arg) if function.args.kwarg else None
    if call is None:
        return []
    options = _target_options(source, call, hops, owner)
    passed_names = {word.arg for word in call.keywords}
    return [option for option in options[len(call.args) :] if option.name not in passed_names]


@functools.cache
def _forwarding_call(init: ast.FunctionDef, name: str) -> ast.Call | None:
    """The first call in a function that passes on `**name`."""
    for call in ast.walk(init):
        if isinstance(call, ast.Call) and any(
            word.arg is None and isinstance(word.value, ast.Name) and word.value.id == name for word in call.keywords
        ):
            return call
    return None


def _target_options(source: _ClassSource, call: ast.Call, hops: int, owner: _ClassSource) -> list[Option]:
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr == "__init__":
        return _inherited_options(source, hops)
    own = ("self", "cls")
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id in own:
        for home in _lineage(owner):
            for item in home.node.body:
                if isinstance(item, ast.FunctionDef) and item.name == function.attr:
                    return _forwarded_options(home, item, hops, owner)
    if isinstance(function, ast.Name):
        target = _find(source.module, function.id)
        return _options(target, hops - 1) if target else []
    return []
