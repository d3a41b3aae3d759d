"""Every part keeps the contract of its kind, at its defaults and where it has something to do at short lengths."""

import pytest
from zoo_efficient.linformer import Linformer
from zoo_efficient.local import SlidingWindow, Strided
from zoo_efficient.lsh import LSH
from zoo_efficient.performer import Performer
from zoo_efficient.reversible import Reversible

from zoo.conformance import checks

PARTS = [Linformer, Performer, LSH, SlidingWindow, Strided, Reversible]
# a vector between two buckets may fall into the other when it is rounded to 16 bits: test_efficient_lsh.py
USUAL = [check for part in PARTS for check in checks(part) if (part, check.name) != (LSH, "dtypes")]
# the default width and stride reach over the kit's sequences; these do not, and so tokens have places
SHORT = [
    check
    for part, options in ((SlidingWindow, {"width": 3}), (Strided, {"stride": 3}))
    for check in checks(part, **options)
    if check.name != "no_token_is_special"
]


@pytest.mark.parametrize("check", USUAL, ids=lambda check: f"{check.subject.name}-{check}")
def test_contract(check):
    check()


@pytest.mark.parametrize("check", SHORT, ids=lambda check: f"{check.subject.name}-{check}")
def test_contract_at_small_sizes(check):
    check()
