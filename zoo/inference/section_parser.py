"""A parser of jsonargparse for a section of a configuration, which parses each part in it once."""

from contextvars import ContextVar
from typing import Any

from jsonargparse import ArgumentParser, Namespace

_is_checking: ContextVar[bool] = ContextVar("is_checking", default=False)


class SectionParser(ArgumentParser):
    """Checks what it has parsed as it is: jsonargparse parses a part once more to check it, and its parts twice."""

    def validate(self, *namespace: Any, **options: Any) -> None:
        """Check parsed values, those of parts included, whose parsers are of this class, too."""
        before = _is_checking.set(True)
        try:
            super().validate(*namespace, **options)
        finally:
            _is_checking.reset(before)

    def parse_object(self, obj: Any, *others: Any, **options: Any) -> Namespace:
        """Parse a dictionary, or check what is parsed."""
        if not (_is_checking.get() and isinstance(obj, Namespace)):
            return super().parse_object(obj, *others, **options)
        try:
            self.validate(obj)
        except (TypeError, KeyError) as error:
            self.error(str(error), error)
        return obj


def section_parser(base: type) -> SectionParser:
    """A parser for a section ``model`` that describes an object of a subclass of ``base``."""
    parser = SectionParser(exit_on_error=False)
    parser.add_subclass_arguments(base, "model", fail_untyped=False, required=True)
    return parser
