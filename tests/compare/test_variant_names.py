"""What variants are called beside each other, and which one a person means."""

import pytest

from zoo.compare.run_records import closest_to_recipe, match_variant, short_names

LONG = ["max_steps=9,val=3", "max_steps=9,position=rope,val=3", "max_steps=9,norm=rmsnorm,position=rope,val=3"]
CHOICES = {
    LONG[0]: {"position": "Learned", "norm": "LayerNorm"},
    LONG[1]: {"position": "RoPE", "norm": "LayerNorm"},
    LONG[2]: {"position": "RoPE", "norm": "RMSNorm"},
}


def test_what_all_variants_share_is_not_said():
    assert list(short_names(LONG).values()) == ["default", "position=rope", "norm=rmsnorm,position=rope"]
    assert list(short_names(["default", "lr=1"]).values()) == ["default", "lr=1"]
    assert list(short_names(["a/lr=1,x=2", "b/lr=1"]).values()) == ["a/x=2", "b/default"]
    assert short_names([]) == {}
    assert short_names(["lr=1"]) == {"lr=1": "lr=1"}  # alone it would pass for the default, which may have failed


def test_names_stay_apart():
    twins = ["x=1,y=2", "y=2,x=1"]
    assert short_names(twins) == dict(zip(twins, twins, strict=True))


def test_the_plainest_differs_least():
    assert closest_to_recipe(reversed(LONG)) == LONG[0]
    assert closest_to_recipe(["b=1", "a=1"]) == "b=1"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (LONG[1], [LONG[1]]),
        ("position=learned", [LONG[0]]),
        ("Learned", [LONG[0]]),
        ("norm=RMSNorm", [LONG[2]]),
        ("position=rope,norm=layernorm", [LONG[1]]),
        ("position=rope", [LONG[1]]),  # what it is called beside the others
        ("RoPE", LONG[1:]),
        ("default", [LONG[0]]),
        ("position=rope,val=3,max_steps=9", [LONG[1]]),  # its earlier name, in another order
        ("position=alibi", []),
        (",", []),
    ],
)
def test_which_variant_is_meant(name, expected):
    assert match_variant(name, CHOICES) == expected
