"""The interface of each kind as `interfaces.json` records it: what a plugin's author overrides, calls and receives.

``python -m tests.plugins.interface_record`` records it again. It refuses where something that a part may rely on was
removed or changed while the version stayed: raise it by a ``Change`` in `zoo/plugins/interfaces.py`.
"""

import ast
import json
import sys
from pathlib import Path

from zoo import registry
from zoo.plugins import description, interfaces

FILE = Path(__file__).with_name("interfaces.json")
# the base of each kind, and the classes of its methods' arguments and results
CLASSES = {
    "position": ("zoo.parts.position.Position", "zoo.parts.position.Extent"),
    "backend": ("zoo.parts.backend.Backend", "zoo.parts.pattern.Pattern"),
    "attention": (
        "zoo.parts.attention.Attention", "zoo.parts.attention.TokenMixer", "zoo.parts.pattern.Pattern",
        "zoo.parts.cache.PartState",
    ),
    "norm": ("zoo.parts.norm.Norm",),
    "ffn": ("zoo.parts.ffn.FFN",),
    "block": (
        "zoo.parts.block.Block", "zoo.parts.block.Branch", "zoo.parts.block.Context", "zoo.parts.block.Memory",
        "zoo.parts.cache.LayerCache",
    ),
    "task": ("zoo.tasks.task.Task", "zoo.tasks.task.Loss"),
    "data": ("zoo.data.data.Data",),
    "optimizer": (),  # torch's own class
    "schedule": ("zoo.tasks.schedule.Schedule",),
    "init": ("zoo.models.initialization.Init",),
    "callback": (),  # Lightning's own class
    "command": (
        "zoo.command_line.Command", "zoo.command_line.Argument", "zoo.command_line.Option",
        "zoo.command_line.ParsedOptions",
    ),
    "family": ("zoo_pretrained.family.Family",),
}  # fmt: skip
CALLED = ("__init__", "__call__")  # of the names that begin with an underscore


def record(kind):
    """The version of a kind's interface, how many arguments zoo passes to a part, and its members' signatures."""
    members = {}
    for path in CLASSES[kind]:
        module, _, name = path.rpartition(".")
        source = description._find(module, name)
        members |= {f"{name}.{member}": text for member, text in class_members(source.node)}
    passed = description.CLASS_PARAMETERS.get(kind, 0)
    return {"version": interfaces.current(kind), "arguments": passed, "members": members}


def class_members(node):
    """Every public attribute and method of a class, with its type or its signature."""
    yield "(bases)", ", ".join(ast.unparse(base) for base in node.bases)
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and (not item.name.startswith("_") or item.name in CALLED):
            marks = "".join(f"@{ast.unparse(mark)} " for mark in item.decorator_list)
            result = f" -> {ast.unparse(item.returns)}" if item.returns else ""
            yield item.name, f"{marks}({ast.unparse(item.args)}){result}"
        elif isinstance(item, ast.AnnAssign) and not item.target.id.startswith("_"):
            yield item.target.id, ast.unparse(item.annotation)
        elif isinstance(item, ast.Assign) and not item.targets[0].id.startswith("_"):
            yield item.targets[0].id, "attribute"


def broken_promises(before, after):
    """What a part that was written for `before` may rely on and `after` has no more, while the version is the same."""
    if after["version"] != before["version"]:
        return []
    changed = [
        f"{name}: {text} → {after['members'].get(name, 'gone')}"
        for name, text in before["members"].items()
        if after["members"].get(name) != text
    ]
    return changed + (["number of arguments"] if before["arguments"] != after["arguments"] else [])


def main():
    """Write the record, or say what would have to raise a version."""
    before = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    after = {kind: record(kind) for kind in registry.KINDS}
    broken = [f"{kind}: {one}" for kind in before for one in broken_promises(before[kind], after[kind])]
    if broken:
        sys.exit("\n".join(["raise the version in zoo/plugins/interfaces.py first:", *broken]))
    FILE.write_text(json.dumps(after, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
