"""Every part passes the checks of its kind; only XPos declares failures, of its factors beyond 35,000 places."""

import pytest
from zoo_frontier.attention import MLA, Differential, GatedAttention, Sinks, Softcap, ValueResidual
from zoo_frontier.block import DropPath, HyperConnections, LayerScale, MixerOnly, MixtureOfDepths, OpenPreNorm
from zoo_frontier.ffn import ClampedSwiGLU, DeepSeekMoE, SharedMoE, SquaredReLU
from zoo_frontier.mixer import GatedDeltaNet, Mamba2
from zoo_frontier.norm import DynamicTanh
from zoo_frontier.position import FIRE, KERPLE, XPos, YaRN
from zoo_frontier.task import MTP

from zoo.conformance import checks

TOKEN_PARTS = [
    DynamicTanh,
    SquaredReLU,
    ClampedSwiGLU,
    SharedMoE,
    DeepSeekMoE,
    LayerScale,
    MixerOnly,
    OpenPreNorm,
    DropPath,
    HyperConnections,
    MixtureOfDepths,
]
MIXERS = [MLA, GatedAttention, ValueResidual, Softcap, Sinks, Differential, GatedDeltaNet, Mamba2]
PARTS = [*TOKEN_PARTS, *MIXERS, YaRN, XPos, KERPLE, FIRE, MTP]


@pytest.mark.parametrize("part", PARTS)
def test_no_failure_is_declared(part):
    assert part is XPos or not getattr(part, "known_failures", {})


@pytest.mark.parametrize(
    "check", [check for part in PARTS for check in checks(part)], ids=lambda check: f"{check.subject.name}-{check}"
)
def test_contract(check):
    check()
