"""What the class paths of a configuration may import: zoo, its plugins, the Lightning family, and nothing else."""

from __future__ import annotations

import sys

from zoo import registry

ROOTS = ("zoo", "lightning", "pytorch_lightning", "torch", "torchvision", "torchmetrics")


def allowed_roots(extra: tuple[str, ...] = ()) -> list[str]:
    """What a class path may start with: zoo, its installed plugins, the Lightning family and what was allowed."""
    packages = {
        part.module.partition(".")[0]
        for kind in registry.KINDS
        for part in registry.listed(kind)
        if not registry.disabled(part.distribution)
    }
    # a plugin cannot open the standard library, nor what is no module's name
    opened = sorted(name for name in packages - sys.stdlib_module_names if name.isidentifier())
    return list(dict.fromkeys([*ROOTS, *opened, *extra]))


def allowed(path: str, extra: tuple[str, ...] = ()) -> bool:
    """Whether a class path may be imported."""
    plain = all(piece.isidentifier() for piece in path.split("."))
    return plain and any(path == root or path.startswith(root + ".") for root in allowed_roots(extra))


def import_policy(allow: tuple[str, ...] = ()) -> None:
    """Let jsonargparse import what a recipe may name and nothing else; it would run any class path otherwise."""
    from jsonargparse import set_parsing_settings  # here: names are checked in milliseconds without it

    set_parsing_settings(
        import_path_denylist=["*"],
        import_path_allowlist=[root for root in allowed_roots(allow) if root.partition(".")[0] != "jsonargparse"],
        instantiate_subclass_spec_in_any=False,
        config_read_mode_fsspec_enabled=False,
        config_read_mode_urls_enabled=False,
    )
