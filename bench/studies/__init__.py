"""The studies, by the name that ``python -m bench`` knows them by."""

from __future__ import annotations

import importlib

from bench.study import Study

NAMES = (
    "attention curves operations roofline bounds overhead startup verdict_time loading mixers exercises recall widths "
    "speculation busy compilation kernels claims preparation"
).split()


def study(name: str) -> Study:
    """The function of a study, imported when it is called for."""
    return importlib.import_module(f"bench.studies.{name}").study
