"""Every numeric option of the Trainer with values that no run can have: refused by its key, or a Trainer is built."""

import warnings

import pytest
from lightning.pytorch import Trainer

from tests.covering import choices_in_turn
from zoo.config import fit_options, run_config
from zoo.config.coercion import coerce
from zoo.config.layers import Node
from zoo.config.signatures import members_of, parameters
from zoo.config.trainer_bounds import BOUNDS, ENDS, check_end, check_hardware, check_trainer
from zoo.errors import UsageError

LARGEST_INT = 9_223_372_036_854_775_807  # of 64 bits, which torch counts with
NUMERIC = {
    name: param for name, param in parameters(Trainer).items() if {int, float} & set(members_of(param.annotation))
}
VALUES = (0, -1, -2, -7, 1, 1.5, 1e300, -0.5, 10**12, True, "abc", "")
TEXTS = ("0", "-7", "nan", "1e300", "abc", "true", "[]", "9" * 30, "١")
SOUND = {"max_steps": -1, "max_epochs": 3, "min_steps": 2, "accumulate_grad_batches": 4, "val_check_interval": 0.5,
         "limit_val_batches": 7, "devices": 1, "gradient_clip_val": 1.0, "num_sanity_val_steps": -1,
         "check_val_every_n_epoch": None, "max_time": "00:01:00:00", "overfit_batches": 0.0}  # fmt: skip


def refusal(call) -> str:
    """What a call is refused with; nothing where it is not."""
    try:
        call()
    except UsageError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def schema():
    return run_config.schema()


def test_every_numeric_option_of_the_trainer_has_bounds():
    assert set(NUMERIC) <= set(BOUNDS)
    assert set(BOUNDS) <= set(parameters(Trainer))


@pytest.mark.parametrize("name", sorted(NUMERIC))
def test_what_is_within_its_bounds_builds_a_trainer(name):
    refused = 0
    for value in VALUES:
        if name in ("devices", "num_nodes") and value not in (0, -2, "abc", ""):
            continue  # asks for machines that are not here
        message = refusal(lambda value=value: check_trainer({name: value}, {f"trainer.{name}": f"r.yaml:3 {name}"}))
        if message:
            refused += 1
            assert f"trainer.{name}" in message
            assert "← r.yaml:3" in message
            continue
        if isinstance(value, (int, float)):  # a text is refused by its type before
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                Trainer(**{"logger": False, "accelerator": "cpu", "enable_progress_bar": False, name: value})
    assert refused >= 2


def test_sound_values_are_within_their_bounds():
    check_trainer(SOUND, {})


@pytest.mark.parametrize("value", [0, 0.0, -1, 1.5])
def test_training_on_no_batch_is_refused_and_a_run_of_no_step_is_named_for_it(value):
    message = refusal(lambda: check_trainer({**SOUND, "limit_train_batches": value}, {}))
    assert "limit_train_batches" in message
    assert "trainer.max_steps 0" in message


@pytest.mark.parametrize("others", [{}, {"min_steps": 5, "val_check_interval": 3}, {"fast_dev_run": False}])
@pytest.mark.parametrize("blank", [(), *((name,) for name in ENDS), ENDS])
def test_training_without_an_end_is_refused(blank, others):
    message = refusal(lambda: check_end({**others, **dict.fromkeys(blank)}, "mine.yaml"))
    assert message.startswith("mine.yaml states no end")
    assert "--trainer.max_steps 1000" in message


@pytest.mark.parametrize(
    "end",
    [{"max_steps": 0}, {"max_steps": 5}, {"max_epochs": 2}, {"max_time": "00:00:01:00"}, {"max_steps": -1},
     {"max_epochs": -1}, {"fast_dev_run": True}, {"fast_dev_run": 2}],
)  # fmt: skip
def test_a_stated_end_and_a_stated_lack_of_one_are_decisions(end):
    check_end({**dict.fromkeys(ENDS), **end}, "mine.yaml")


@pytest.mark.parametrize(("name", "text"), choices_in_turn(sorted(NUMERIC), TEXTS))
def test_any_text_for_a_number_is_refused_in_a_sentence_or_resolved(schema, name, text):
    command = fit_options.parse("fit", ["vit-glyphs", f"--trainer.{name}={text}"])
    message = refusal(lambda: run_config.make_plan(command, run_config.read_draft(command), schema))
    assert not message or name in message
    assert len(message.splitlines()) <= 4


def test_a_number_that_nothing_can_count_is_refused_anywhere(schema):
    for key in ("model.num_classes", "data.batch_size", "trainer.max_steps", "model.depth"):
        command = fit_options.parse("fit", ["vit-glyphs", f"--{key}={LARGEST_INT + 1}"])
        with pytest.raises(UsageError, match=key):
            run_config.make_plan(command, run_config.read_draft(command), schema)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [("strategy", "dpp", "Did you mean 'ddp'?"), ("accelerator", "gpus", "Did you mean 'gpu'?"),
     ("accelerator", "cuda", "torch sees no such device here")],
)  # fmt: skip
def test_hardware_that_does_not_exist_is_named(name, value, sentence, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    message = refusal(lambda: check_hardware({name: value}, {f"trainer.{name}": f"--trainer.{name} {value}"}))
    assert sentence in message
    assert f"← --trainer.{name} {value}" in message
    assert len(message) < 600


def test_hardware_that_exists_is_taken():
    check_hardware({"accelerator": "cpu", "strategy": "ddp_find_unused_parameters_true"}, {})
    check_hardware({"accelerator": "auto", "strategy": object()}, {})


@pytest.mark.parametrize("value", [LARGEST_INT, -LARGEST_INT])
def test_the_largest_number_that_torch_counts_with_is_accepted(value):
    assert coerce("model.vocab_size", int, Node(value, "r.yaml:1")) == value
    with pytest.raises(UsageError, match="can be counted"):
        coerce("model.vocab_size", int, Node(value + (1 if value > 0 else -1), "r.yaml:1"))


@pytest.mark.parametrize(("seed", "refused"), [(0, False), (2**32 - 1, False), (2**32, True), (-1, True)])
def test_a_seed_has_32_bits(schema, seed, refused):
    command = fit_options.parse("fit", ["vit-glyphs", f"--seed={seed}"])
    message = refusal(lambda: run_config.make_plan(command, run_config.read_draft(command), schema))
    assert message.startswith("'seed_everything' (--seed) must be a whole number from 0") == refused, message
