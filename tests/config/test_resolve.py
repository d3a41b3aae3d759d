import cli_toys
import pytest
from cli_parts import TOYS, part

from zoo.config.signatures import parameters
from zoo.errors import PluginError, UsageError
from zoo.parts.norm import Norm

BASE = """\
model:
  class_path: Toy
  init_args:
    lr: 3e-4
    norm: {class_path: Layer, init_args: {eps: 1e-3}}
data:
  class_path: Text
  init_args: {path: a.txt}
trainer:
  max_steps: 5
"""


def options(plan):
    return plan.config["model"]["init_args"]


def error(resolve, *texts, **options):
    with pytest.raises(UsageError) as caught:
        resolve(*texts, **options)
    assert len(str(caught.value).splitlines()) <= 4
    return str(caught.value)


def test_names_ignore_case_and_become_class_paths(resolve):
    plan = resolve(BASE, options="--model.norm rms --model toy --data TEXT")
    assert plan.config["model"]["class_path"] == "cli_toys.Toy"
    assert options(plan)["norm"] == {"class_path": "cli_toys.RMS", "init_args": {"eps": 1e-6}}
    assert plan.config["data"]["class_path"] == "cli_toys.Text"


def test_class_paths_work_as_names(resolve):
    plan = resolve(BASE, options="--model.norm cli_toys.RMS")
    assert options(plan)["norm"]["class_path"] == "cli_toys.RMS"


def test_the_registered_part_alone_is_imported(resolve, install):
    names = [part(kind, name, f"cli_toys:{name}") for kind, names_of_kind in TOYS.items() for name in names_of_kind]
    install(*names, part("norm", "Broken", "no_such_module:Broken"))
    assert options(resolve(BASE))["norm"]["class_path"] == "cli_toys.Layer"


def test_a_new_part_forgets_the_options_of_the_old(resolve):
    assert options(resolve(BASE, options="--model.norm rms"))["norm"]["init_args"] == {"eps": 1e-6}
    again = resolve(BASE, "model: {init_args: {norm: RMS}}", options="--model.norm Layer")
    assert options(again)["norm"]["init_args"] == {"eps": 1e-5, "bias": True}
    assert "model.norm.eps" not in again.origins
    wrong = BASE.replace("eps", "epps")
    assert "norm 'Layer' has no option 'epps'" in error(resolve, wrong, options="--model.norm rms")


def test_the_same_part_keeps_and_merges_options(resolve):
    plan = options(resolve(BASE, options="--model.norm layer --model.norm.bias false"))
    assert plan["norm"]["init_args"] == {"eps": 1e-3, "bias": False}


def test_defaults_of_the_default_part_do_not_leak(resolve):
    # jsonargparse would give Layer the 1e-6 of RMS, the default of the slot
    plan = resolve("model: Toy\ndata: {class_path: Text, init_args: {path: a}}", options="--model.norm layer")
    assert options(plan)["norm"]["init_args"]["eps"] == 1e-5


def test_an_option_of_the_default_part(resolve):
    plan = resolve("model: Toy\ndata: {class_path: Text, init_args: {path: a}}", options="--model.norm.eps 1e-2")
    assert options(plan)["norm"] == {"class_path": "cli_toys.RMS", "init_args": {"eps": 1e-2}}


def test_another_task_keeps_what_both_share(resolve):
    plan = resolve(BASE, options="--model similar --model.ahead 2")
    assert options(plan)["norm"] == {"class_path": "cli_toys.Layer", "init_args": {"eps": 1e-3, "bias": True}}
    assert (options(plan)["lr"], options(plan)["ahead"]) == (3e-4, 2)
    assert plan.origins["model.norm.eps"] == "r0.yaml:5"
    back = resolve(BASE, options="--model similar --model toy")
    assert back.config == resolve(BASE).config
    assert back.notes == resolve(BASE).notes == []


def test_what_another_task_lacks_is_dropped_and_named(resolve):
    base = BASE.replace("lr: 3e-4", "flag: true\n    mode: sum")
    plan = resolve(base, options="--model similar")
    assert {"flag", "limit"} & options(plan).keys() == set()
    assert options(plan)["mode"] == 3  # of another type
    assert plan.notes == [
        "Similar lacks model.flag of Toy, model.mode of Toy: dropped ← r0.yaml:5",
        "model.lr is 0.01, the default of Similar; that of Toy is 0.001",
        "model.schedule is Steep, the default of Similar; that of Toy is Flat",
        "model.mode is 3, the default of Similar; that of Toy is mean",
    ]
    assert options(resolve(BASE, options="--model other")) == {"smooth": 0.0}


def test_the_order_of_options_and_task_does_not_matter(resolve):
    after = resolve(BASE, options="--model similar --model.ahead 2 --model.dim 4")
    assert resolve(BASE, options="--model.ahead 2 --model.dim 4 --model similar").config == after.config
    for order in ("--model similar --model.flag true", "--model.flag true --model similar"):
        message = error(resolve, BASE, options=order)
        assert "model.flag is no option of Similar" in message
        assert "Add --model Toy" in message


def test_a_file_between_may_name_another_task(resolve):
    plan = resolve(BASE, "model: {class_path: Similar, init_args: {ahead: 5}}", options="--model toy")
    assert plan.config == resolve(BASE).config
    assert plan.notes == ["Toy lacks model.ahead of Similar: dropped ← r1.yaml:1"]
    assert "unknown key 'model.nonsense'" in error(
        resolve, BASE, "model: {init_args: {nonsense: 5}}", options="--model similar"
    )


def test_forgetting_for_data_and_optimizer(resolve):
    plan = options(resolve(BASE, options="--model.optimizer.momentum 0.9"))
    assert plan["optimizer"]["class_path"] == "torch.optim.SGD"
    assert plan["optimizer"]["init_args"]["momentum"] == 0.9
    base = BASE.replace("lr: 3e-4", "optimizer: {init_args: {momentum: 0.9}}")
    plan = options(resolve(base, options="--model.optimizer adamw"))
    assert "momentum" not in plan["optimizer"]["init_args"]
    message = error(resolve, base, options="--model.optimizer.momentum 0.8 --model.optimizer adamw")
    assert "optimizer 'AdamW' has no option 'momentum'" in message
    assert message.endswith("← --model.optimizer.momentum 0.8")


def test_later_files_and_options_win(resolve):
    plan = resolve(BASE, "model: {init_args: {lr: 1}}\ntrainer: {max_steps: 7}\n", options="--model.lr=2")
    assert options(plan)["lr"] == 2.0
    assert plan.config["trainer"] == {"max_steps": 7}
    assert plan.origins["model.lr"] == "--model.lr=2"
    assert plan.origins["trainer.max_steps"] == "r1.yaml:2"
    assert plan.origins["model.norm.eps"] == "r0.yaml:5"


def test_null_and_optional_slots(resolve):
    assert options(resolve(BASE, options="--model.backend fast"))["backend"]["init_args"] == {"tile": 3}
    assert options(resolve(BASE, options="--model.backend fast --model.backend null"))["backend"] is None
    assert "must name a norm" in error(resolve, BASE, options="--model.norm null")
    assert "no backend is chosen" in error(resolve, BASE, options="--model.backend.tile 3")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--model.attention slidin", "unknown attention 'slidin'. Did you mean 'Sliding'?"),
        ("--model.attention.windw 3", "attention 'Sliding' has no option 'windw'. Did you mean 'window'?"),
        ("--model.leraning_rate 1", "unknown key 'model.leraning_rate'. Did you mean 'model.lr'?"),
        ("--model.learning_rate 1", "Did you mean 'model.lr'?"),
        ("--model.d_model 1", "Did you mean 'model.dim'?"),
        ("--model.num_heads 1", "Did you mean 'model.heads'?"),
        ("--trainer.epochs 1", "Did you mean 'trainer.max_epochs'?"),
        ("--trainer.max_epoch 1", "unknown key 'trainer.max_epoch'. Did you mean 'trainer.max_epochs'?"),
        ("--trainer.max_ste 1", "unknown key 'trainer.max_ste'"),
        ("--data.batchsize 1", "Did you mean 'data.batch_size'?"),
        ("--model.norm.dim 1", "'dim' of norm 'Layer' is set by the model."),
        ("--model.optimizer sdg", "Did you mean 'SGD'?"),
        ("--model.schedule step", "unknown plan 'step'. Did you mean 'Steep'?"),
        ("--model.norm [a]", "takes one norm, not a list"),
        ("--model.norm cli_toys.Fast", "'cli_toys.Fast' is not a norm"),
        ("--model.norm cli_toys.Norm", "is the base of every norm"),
        ("--model.norm cli_toys.Nothing", "cannot be imported"),
        ("--model.lr.x 1", "'model.lr' must be a number"),
        ("--trainer 3", "'trainer' must hold keys"),
        ("--model.lr 1 --model.lr.x 2", "'model.lr.x' is set, but 'model.lr' is '1'."),
        ("--trainer.strategy ddp --trainer.strategy.x 2", "'trainer.strategy.x' is set, but 'trainer.strategy' is"),
        ("--trainer.callbacks [Flat] --trainer.callbacks.total 2", "'trainer.callbacks.total' is set, but"),
    ],
)
def test_messages_name_the_option_and_what_is_right(resolve, options, expected):
    message = error(resolve, BASE, options=options)
    assert expected in message
    assert message.endswith(f"← --{options.rpartition('--')[2]}")


def test_messages_name_file_and_line(resolve):
    assert error(resolve, BASE + "modle: 1\n") == "unknown key 'modle'. Did you mean 'model'? ← r0.yaml:11"
    changed = BASE.replace("3e-4", "3e-x")
    assert error(resolve, changed) == "'model.lr' must be a number, got '3e-x'. ← r0.yaml:4"
    assert error(resolve, BASE.replace("Layer", "Lay")).endswith("← r0.yaml:5")
    assert error(resolve, BASE.replace("lr: 3e-4", "dict_kwargs: {a: 1}")).startswith("unknown key 'model.dict_kwargs'")


def test_required_options_are_asked_for(resolve):
    assert "Text needs a value for 'data.path'. Add --data.path" in error(resolve, "model: Toy\ndata: Text\n")
    assert "no data is chosen" in error(resolve, "model: Toy\n")
    assert "no model is chosen" in error(resolve, "data: Text\n")


def test_groups_of_values(resolve):
    plan = resolve(BASE, options="--data.extra.lower false")
    assert plan.config["data"]["init_args"]["extra"] == {"lower": False, "share": 0.5}
    assert "Did you mean 'data.extra.lower'?" in error(resolve, BASE, options="--data.extra.lowr 1")
    assert "must be a number" in error(resolve, BASE, options="--data.extra.share x")


def test_options_behind_null_start_from_the_defaults_in_records_and_in_parts(resolve):
    layers = [f"data: {{init_args: {{extra: {extra}}}}}\n" for extra in ("{lower: false}", "null", "{share: 0.25}")]
    for plan in (resolve(BASE, *layers), resolve(BASE, *layers[:2], options="--data.extra.share 0.25")):
        assert plan.config["data"]["init_args"]["extra"] == {"lower": True, "share": 0.25}
    backends = ("{class_path: fast, init_args: {tile: 5}}", "null", "fast")
    plan = resolve(BASE, *(f"model: {{init_args: {{backend: {backend}}}}}\n" for backend in backends))
    assert options(plan)["backend"]["init_args"] == {"tile": 3}


def test_lists_of_parts_and_loose_slots(resolve):
    text = BASE + "  callbacks:\n    - Flat\n    - {class_path: steep, init_args: {power: 3}}\n"
    callbacks = {"trainer": {"max_steps": 5}}
    path = "cli_toys."
    flat = {"class_path": f"{path}Flat", "init_args": {"total": 1, "warmup": 0}}
    with pytest.raises(UsageError, match=r"Flat needs a value for 'trainer.callbacks\[0\].total'"):
        resolve(text)
    text = text.replace("- Flat", "- {class_path: Flat, init_args: {total: 1}}").replace("{power: 3}", "{total: 2}")
    plan = resolve(text).config["trainer"]
    assert plan["callbacks"] == [flat, {"class_path": f"{path}Steep", "init_args": {"total": 2, "power": 2.0}}]
    assert plan["max_steps"] == callbacks["trainer"]["max_steps"]
    assert resolve(text, options="--trainer.callbacks []").config["trainer"]["callbacks"] == []
    assert resolve(BASE, options="--trainer.strategy ddp").config["trainer"]["strategy"] == "ddp"
    assert resolve(BASE, options="--trainer.devices 2").config["trainer"]["devices"] == 2
    assert resolve(BASE, options="--trainer.devices [0,1]").config["trainer"]["devices"] == [0, 1]


def test_slots_follow_kwargs_through_the_models():
    # guards the private function of jsonargparse that zoo.config.signatures uses
    from zoo.config.signatures import parameters

    plan = parameters(cli_toys.Toy)
    assert list(plan)[-5:] == ["dim", "heads", "norm", "backend", "attention"]
    assert "extent" not in plan
    assert plan["norm"].slot.base is cli_toys.Norm
    assert plan["norm"].slot.owner_arguments == 1
    assert plan["backend"].slot.optional
    assert plan["lr"].slot is None
    assert plan["norm"].owner is cli_toys.Stack


@pytest.mark.parametrize("path", ["os.system", "subprocess.Popen", "builtins.eval", "json.decoder.JSONDecoder"])
@pytest.mark.parametrize("option", ["--model.norm", "--model", "--data", "--model.schedule", "--model.optimizer"])
def test_foreign_class_paths_are_not_imported(resolve, monkeypatch, path, option):
    import importlib

    import cli_toys

    def refuse(name, *_):
        assert name == "cli_toys", f"imported {name}"
        return cli_toys

    monkeypatch.setattr(importlib, "import_module", refuse)
    message = error(resolve, BASE, options=f"{option} {path}")
    assert f"the class path {path!r} is not imported" in message
    assert "--allow-import" not in message


@pytest.mark.parametrize(
    "path", ["zoo.compare.tensorboard_command.subprocess.Popen", "cli_toys.Path", "torch.os.system", "a..b", "."]
)
def test_foreign_classes_behind_allowed_modules(resolve, path):
    assert path in error(resolve, BASE, options=f"--model.norm {path}")


def test_allow_import_admits_one_module(resolve, tmp_path, monkeypatch):
    text = "import cli_toys\nclass Mine(cli_toys.Norm):\n    def __init__(self, dim: int, a: int = 1): ...\n"
    (tmp_path / "mymod_zoo_test.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    path = "mymod_zoo_test.Mine"
    assert "add: --allow-import mymod_zoo_test" in error(resolve, BASE, options=f"--model.norm {path}")
    plan = resolve(BASE, options=f"--model.norm {path} --model.norm.a 3 --allow-import mymod_zoo_test")
    assert options(plan)["norm"] == {"class_path": path, "init_args": {"a": 3}}


def test_nothing_is_built_while_resolving(resolve):
    cli_toys.INSTANCES.clear()
    resolve(BASE)
    assert cli_toys.INSTANCES == []


class ByPlace(Norm):
    def __init__(self, dim: int, eps: float = 1e-6, /):
        super().__init__()


def test_an_option_without_a_name_is_the_parts_mistake():
    with pytest.raises(PluginError, match="ByPlace takes 'eps' by its place alone: remove the / behind it"):
        parameters(ByPlace, 1)
