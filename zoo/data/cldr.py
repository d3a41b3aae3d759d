"""Sentence pairs in any two languages from Babel's CLDR data: dates, lists, quantities and names.

A kind is a function that samples a meaning and returns a function that phrases it in a locale.
"""

from __future__ import annotations

import datetime
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import babel
from babel import Locale
from babel.dates import DateTimeFormat, format_time, format_timedelta, get_date_format
from babel.lists import format_list
from babel.localedata import locale_identifiers
from babel.numbers import format_currency, get_currency_name
from babel.units import format_unit

from zoo.data.pair_data import Pair, Span
from zoo.errors import UsageError
from zoo.registry import suggest

UNITS = (
    "length-kilometer length-meter length-centimeter length-mile length-foot mass-kilogram mass-gram mass-pound "
    "duration-second duration-minute duration-hour duration-day duration-week duration-month duration-year "
    "temperature-celsius temperature-fahrenheit volume-liter speed-kilometer-per-hour speed-meter-per-second "
    "digital-megabyte digital-gigabyte area-square-kilometer area-hectare energy-kilowatt-hour power-watt "
    "angle-degree electric-volt"
).split()
CURRENCIES = "USD EUR GBP JPY CNY CHF INR BRL CAD AUD MXN KRW SEK PLN TRY ZAR".split()
SECONDS = (1, 60, 3600, 86400, 604800, 2600000, 31536000)
SLOTS = {"E": "weekday", "c": "weekday", "M": "month", "L": "month", "d": "day", "y": "year"}  # by CLDR's letter
FIELD = re.compile(r"%\((\w+)\)s")
# no-break spaces become plain ones; marks of writing direction say nothing
REPLACEMENTS = str.maketrans({"\xa0": " ", "\u202f": " "} | dict.fromkeys("\u061c\u200e\u200f\u202a\u202b\u202c"))
LEAST_NAMES = 100
LEAST_UNITS = 8


@dataclass
class Phrase:
    """A text and where in it the parts of a date stand."""

    text: str
    slots: dict[str, Span] = field(default_factory=dict)

    def __add__(self, text: str) -> Phrase:
        return Phrase(self.text + text, self.slots)

    def __radd__(self, text: str) -> Phrase:
        shifted = {name: (start + len(text), end + len(text)) for name, (start, end) in self.slots.items()}
        return Phrase(text + self.text, shifted)


Say: TypeAlias = Callable[[Locale], Phrase]


class Book:
    """What can be said in both of two locales, and the random numbers that choose from it."""

    def __init__(self, source: str, target: str, seed: int) -> None:
        self.locales = locale(source), locale(target)
        self.random = random.Random(seed)
        self.territories = self._shared("territories", lambda code: len(code) == 2)
        self.languages = self._shared("languages", lambda code: "_" not in code)
        self.currencies = [
            c for c in CURRENCIES if all(get_currency_name(c, locale=locale) != c for locale in self.locales)
        ]
        self.units = [
            unit for unit in UNITS if all(unit not in quantity(1.5, unit)(locale).text for locale in self.locales)
        ]
        self._need(LEAST_NAMES, self.territories, "countries")
        self._need(LEAST_NAMES, self.languages, "languages")
        self._need(len(CURRENCIES) // 2, self.currencies, "currencies")
        self._need(LEAST_UNITS, self.units, "units")
        january = [locale.months["format"]["wide"][1] for locale in self.locales]
        self._need(2, [name for name in january if name != "M01"], "names of January")

    def pair(self, kind: str) -> Pair | None:
        """A pair of this kind, or None where Babel lacks a pattern and answers with its own key."""
        say = KINDS[kind](self)
        source, target = (say(locale) for locale in self.locales)
        if any(unit in text for text in (source.text, target.text) for unit in UNITS):
            return None
        slots = [(source.slots[name], target.slots[name]) for name in source.slots if name in target.slots]
        return Pair(source.text, target.text, kind, tuple(slots))

    def number(self) -> int | float:
        """A small, middling or large number, with or without decimals."""
        draw = self.random
        case = draw.randrange(5)
        if case < 3:
            return draw.randint(0, (20, 999, 99999)[case])
        return round(draw.uniform(0, 100), 1) if case == 3 else round(draw.uniform(0, 9999), 2)

    def _shared(self, attribute: str, fits: Callable[[str], bool]) -> list[str]:
        tables = [getattr(locale, attribute) for locale in self.locales]
        both = sorted(set(tables[0]) & set(tables[1]))
        return [code for code in both if fits(code) and all(table[code] != code for table in tables)]

    def _need(self, least: int, available: list[str], what: str) -> None:
        if len(available) < least:
            names = " and ".join(map(str, self.locales))
            raise UsageError(
                f"Babel {babel.__version__} has {len(available)} {what} that both {names} name, {least} are needed.\n"
                "Choose languages with fuller data, for example en, de, fr, es, pt, ru, zh, ja, ko, ar or hi."
            )


def locale(name: str) -> Locale:
    """The locale of that name. Raises UsageError with the nearest name."""
    identifiers = locale_identifiers()
    normal = name.replace("-", "_")
    exact = {identifier.lower(): identifier for identifier in identifiers}.get(normal.lower())
    if exact is None:
        raise UsageError(f"Babel {babel.__version__} has no locale {name!r}.{suggest(normal, identifiers)}")
    return Locale.parse(exact)


def normalize_spaces(text: str) -> str:
    """Text without no-break spaces and direction marks."""
    return text.translate(REPLACEMENTS)


def listing(names: Callable[[Locale], list[str]], style: str = "standard") -> Say:
    """Names joined by the locale's commas and its "and", or its "or"."""
    return lambda locale: Phrase(normalize_spaces(format_list(names(locale), style=style, locale=locale)))  # type: ignore[arg-type]


def quantity(value: float, unit: str) -> Say:
    """A number with its unit, in the right plural."""
    return lambda locale: Phrase(normalize_spaces(format_unit(value, unit, length="long", locale=locale)))


def price(value: float, currency: str) -> Say:
    """A number with the currency's name, in the right plural."""
    return lambda locale: Phrase(normalize_spaces(format_currency(value, currency, locale=locale, format_type="name")))


def day(value: datetime.date, length: str) -> Say:
    """A date, with the places of its weekday, month, day and year: each field of CLDR's pattern said on its own."""

    def say(locale: Locale) -> Phrase:
        pattern = str(get_date_format(length, locale=locale).format)  # type: ignore[arg-type]
        fields = DateTimeFormat(value, locale)
        text, slots = "", {}
        # a split by a pattern with one group alternates: literal, field, literal, field, …, literal
        for i, piece in enumerate(FIELD.split(pattern)):
            part = normalize_spaces(fields[piece]) if i % 2 else normalize_spaces(piece.replace("%%", "%"))
            if i % 2 and piece[0] in SLOTS:
                slots[SLOTS[piece[0]]] = (len(text), len(text) + len(part))
            text += part
        return Phrase(text, slots)

    return say


def some_day(book: Book, first_year: int, last_year: int) -> datetime.date:
    """Any day of these years."""
    days = datetime.date(first_year, 1, 1).toordinal(), datetime.date(last_year, 12, 31).toordinal()
    return datetime.date.fromordinal(book.random.randint(*days))


def date(book: Book) -> Say:
    """A date between 1900 and 2099."""
    return day(some_day(book, 1900, 2099), book.random.choice(["full", "full", "long", "medium"]))


def date_time(book: Book) -> Say:
    """A date with a time of day."""
    say = day(some_day(book, 1950, 2060), book.random.choice(["long", "full"]))
    time = datetime.time(book.random.randrange(24), book.random.randrange(60))
    return lambda locale: say(locale) + (" " + normalize_spaces(format_time(time, "short", locale=locale)))


def countries(book: Book) -> Say:
    """One to four countries, joined by "and"."""
    codes = book.random.sample(book.territories, book.random.randint(1, 4))
    return listing(lambda locale: [locale.territories[code] for code in codes])


def countries_or(book: Book) -> Say:
    """Two or three countries, joined by "or"."""
    codes = book.random.sample(book.territories, book.random.randint(2, 3))
    return listing(lambda locale: [locale.territories[code] for code in codes], "or")


def languages(book: Book) -> Say:
    """One to four languages, joined by "and"."""
    codes = book.random.sample(book.languages, book.random.randint(1, 4))
    return listing(lambda locale: [locale.languages[code] for code in codes])


def unit(book: Book) -> Say:
    """A number with a unit."""
    return quantity(book.number(), book.random.choice(book.units))


def units(book: Book) -> Say:
    """Two numbers with units."""
    parts = [quantity(book.number(), name) for name in book.random.sample(book.units, 2)]
    return listing(lambda locale: [part(locale).text for part in parts])


def relative_time(book: Book) -> Say:
    """A time span before or after now, such as "in 3 days"."""
    span = datetime.timedelta(seconds=book.random.choice(SECONDS) * book.random.randint(1, 40))
    span = -span if book.random.random() < 0.5 else span
    return lambda locale: Phrase(
        normalize_spaces(format_timedelta(span, add_direction=True, threshold=1.2, locale=locale))
    )


def money(book: Book) -> Say:
    """An amount of money."""
    return price(book.number(), book.random.choice(book.currencies))


def country_money(book: Book) -> Say:
    """A country and an amount of money."""
    code, say = book.random.choice(book.territories), money(book)
    return lambda locale: normalize_spaces(locale.territories[code]) + ": " + say(locale)


def country_date(book: Book) -> Say:
    """A country and a date."""
    code = book.random.choice(book.territories)
    say = day(some_day(book, 1900, 2099), book.random.choice(["full", "long"]))
    return lambda locale: normalize_spaces(locale.territories[code]) + ", " + say(locale)


def language_country(book: Book) -> Say:
    """A language, and a country in parentheses."""
    language, code = book.random.choice(book.languages), book.random.choice(book.territories)
    return lambda locale: Phrase(normalize_spaces(f"{locale.languages[language]} ({locale.territories[code]})"))


KINDS: dict[str, Callable[[Book], Say]] = {
    function.__name__: function for function in (
        date, date_time, countries, countries_or, languages, unit, units, relative_time, money, country_money,
        country_date, language_country,
    )
}  # fmt: skip
