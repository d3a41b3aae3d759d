"""The checks of a data module follow each other, since they share what is loaded."""

import pytest

from zoo.conformance.subject import DataSubject


def group_of(item):
    """The data module that an item checks, or the item itself."""
    check = getattr(item, "callspec", None) and item.callspec.params.get("check")
    subject = getattr(check, "subject", None)
    return (item.path, subject.part) if isinstance(subject, DataSubject) else item


@pytest.hookimpl(trylast=True)  # after the plugin that shuffles: parts, and the checks of a part, stay in random order
def pytest_collection_modifyitems(items):
    places = {}
    for item in items:
        places.setdefault(group_of(item), len(places))
    items.sort(key=lambda item: places[group_of(item)])
