import re
import threading
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning_utilities.core.rank_zero import rank_zero_only

from zoo.cli import resume
from zoo.config import fit_options, precision, run_config, run_folder
from zoo.config.passive_settings import CALLBACKS
from zoo.errors import UsageError
from zoo.inference import find_run
from zoo.training import distributed
from zoo.training.ema import EMA


def test_only_differences_name_a_variant():
    base = {"model": int, "model.lr": 0.1, "model.norm": float}
    full = {"model": int, "model.lr": 0.2, "model.norm": float, "model.position": complex, "model.dim": 8,
            "trainer.devices": 2, "trainer.enable_progress_bar": False, "data.num_workers": 3, "seed_everything": 4,
            }  # fmt: skip
    changes = run_folder.differences(full, base, {"model.dim": 8})
    assert changes == {"model.lr": 0.2, "model.position": complex}
    assert run_folder.variant_name(changes) == "position=complex,lr=0.2"
    assert run_folder.variant_name({}) == "default"


BY_LISTS = [(EMA, {"decay": 0.9}), (EarlyStopping, {"monitor": "val/loss"})]


def callback_values(*items):
    values = {}
    for index, (cls, options) in enumerate(items):
        key = f"{CALLBACKS}[{index}]"
        values |= {key: cls, **{f"{key}.{name}": value for name, value in options.items()}}
    return values


def test_callbacks_that_are_left_out_name_the_variant():
    watching = (LearningRateMonitor, {})
    results = [
        callback_values(*BY_LISTS), {CALLBACKS: None}, callback_values(BY_LISTS[0]), callback_values(BY_LISTS[1]),
        callback_values((EMA, {}), BY_LISTS[1]), callback_values((EMA, {"decay": 0.8})),
        callback_values((EMA, {"decay": 0.8}), BY_LISTS[1]), callback_values((EMA, {}), watching),
    ]  # fmt: skip
    base = callback_values(*BY_LISTS)
    names = [run_folder.variant_name(run_folder.differences(full, base, {})) for full in results]
    assert names[:2] == ["default", "callbacks=none"]
    assert len(set(names)) == len(results), names
    for nothing in ({}, {CALLBACKS: []}, callback_values(watching)):  # whatever way none are named
        assert run_folder.variant_name(run_folder.differences(nothing, base, {})) == "callbacks=none"
    single = {CALLBACKS: EMA, f"{CALLBACKS}.decay": 0.9}
    assert run_folder.differences({CALLBACKS: EMA}, single, {}) == {CALLBACKS: [EMA]}
    assert not run_folder.differences(base, callback_values(*BY_LISTS, watching), {})  # what only watches


def test_ambiguous_keys_get_more_of_their_path():
    changes = {"model.norm.eps": 1e-3, "model.optimizer.eps": 1e-8, "model.dim": 4}
    assert run_folder.variant_name(changes) == "norm.eps=0.001,dim=4,optimizer.eps=1e-08"
    assert run_folder.variant_name({"model.norm": str, "model": int}) == "model=int,norm=str"


CHANGES = {
    "trainer.max_steps": 9, "model.dim": 16, "data.max_length": 64, "tune.rank": 4, "model.attention": "GQA",
    "model.position": "RoPE", "model.position.base": 500, "model": int,
}  # fmt: skip


def test_a_name_begins_with_the_model_and_its_parts():
    name = run_folder.variant_name(dict(sorted(CHANGES.items())))
    assert name == "model=int,position=RoPE,base=500,attention=GQA,dim=16,max_length=64,rank=4,max_steps=9"
    assert name == run_folder.variant_name(CHANGES)  # whatever the order of the options
    short = {key: CHANGES[key] for key in ("trainer.max_steps", "model.position")}
    assert run_folder.variant_name(short, "dim=8,max_steps=5") == "position=RoPE,max_steps=9,dim=8"
    assert run_folder.variant_name({}, "dim=8") == "dim=8"


def test_values_are_safe_and_long_variants_are_hashed():
    assert run_folder.variant_name({"data.path": "/x/../my corpus.txt"}) == "path=my_corpus-954a6719"
    assert run_folder.variant_name({"data.path": "../.."}) == "path=5ec1f7e7"
    assert (
        run_folder.variant_name({"a.flag": True, "a.none": None, "a.list": (1, 2.5)})
        == "flag=true,list=1-2.5,none=none"
    )
    long = {f"model.option{index}": "x" * 30 for index in range(20)}
    assert len(run_folder.variant_name(long)) <= run_folder.LONGEST
    assert run_folder.variant_name(long) != run_folder.variant_name({**long, "model.option19": "y"})


def nfc(text):
    return unicodedata.normalize("NFC", text)


@given(st.lists(st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"])), min_size=2, max_size=4))
@example(["基线", "方案"])  # letters
@example(["हिन्दी", "ไทย"])  # marks
@example(["🔥", "🚀", ""])  # signs, of which nothing stays
@example(["a b", "a_b", "_a_b", "a\tb"])
@example(["café", "cafe\u0301", "cafe"])
@example(["x" * 60, "x" * 61, "基" * 60, "基" * 61])
def test_different_texts_have_different_names_and_a_name_stays(texts):
    names = {text: run_folder.slug(text) for text in texts}
    assert len(set(names.values())) == len({nfc(text) or "empty" for text in texts})
    for name in names.values():
        assert run_folder.slug(name) == name
        assert len(name.encode()) <= run_folder.LONGEST_VALUE
        assert name not in ("", ".", "..")
        assert Path(name).name == name


@pytest.mark.parametrize("name", ["..", "a/b", "", " ", "-x", "a..b", "x" * 200, "a\nb", "基" * 41, "基 线", "🔥"])
def test_names_that_could_leave_the_folder(name):
    with pytest.raises(UsageError, match="--name"):
        run_folder.check_name(name)


def test_the_users_own_names_have_letters_of_every_script():
    assert [run_folder.check_name(name) for name in ("基线", "cafe\u0301", "हिन्दी=2")] == ["基线", "café", "हिन्दी=2"]


def test_a_folder_is_made_once(tmp_path):
    run = run_folder.RunLocation(tmp_path, "lm", "default", 1)
    assert run_folder.claim(run) == tmp_path / "lm/default/s1"
    (run.folder / run_folder.CONFIG).write_text("")
    with pytest.raises(UsageError, match="was started and not finished") as caught:
        run_folder.claim(run)
    assert len(str(caught.value).splitlines()) == 2
    (run.folder / run_folder.FINISHED).write_text("{}")
    with pytest.raises(UsageError, match="is finished") as caught:
        run_folder.claim(run)
    assert all(word in str(caught.value) for word in ("--resume", "--overwrite", "--name"))
    assert run_folder.claim(run, resume=True) == run.folder
    assert run_folder.claim(run, overwrite=True) == run.folder
    assert [path.name for path in run.folder.iterdir()] == ["starting"]


def test_a_folder_that_zoo_did_not_make_is_not_deleted(tmp_path):
    run = run_folder.RunLocation(tmp_path, "lm", "default", 1)
    run.folder.mkdir(parents=True)
    (run.folder / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="will not be deleted"):
        run_folder.claim(run, overwrite=True)
    assert (run.folder / "thesis.tex").exists()


def test_one_of_many_gets_the_folder(tmp_path):
    run = run_folder.RunLocation(tmp_path, "lm", "default", 1)
    won = []

    def claim():
        try:
            won.append(run_folder.claim(run))
        except UsageError:
            return

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_numbers_that_differ_have_different_names():
    numbers = [0.0012345678, 0.0012345679, 0.1 + 0.2, 0.3, 1e-5, 1e22 / 3]
    assert [float(run_folder.slug(number)) for number in numbers] == numbers


def test_other_ranks_make_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_zero_only, "rank", 1, raising=False)
    run = run_folder.RunLocation(tmp_path, "lm", "default", 1)
    assert run_folder.claim(run) == run.folder
    assert not run.folder.exists()


def test_a_saved_configuration_knows_its_recipe_and_variant(tmp_path):
    file = tmp_path / run_folder.CONFIG
    file.write_text(f"{run_folder.HEADER}lm-tiny/position=alibi\nmodel: x\n")
    assert run_folder.recipe_of(file, "x") == ("lm-tiny", "position=alibi")
    file.write_text("model: x\n")
    assert run_folder.recipe_of(file, "x") == ("config", None)
    assert run_folder.recipe_of(tmp_path / "my.yaml", "x") == ("my", None)
    assert run_folder.recipe_of(None, "CausalLM") == ("causallm", None)


RECIPE = """
model: {class_path: CausalLM, init_args: {dim: 16, depth: 1, heads: 2}}
data: {class_path: StdlibDocs, init_args: {max_length: 64}}
trainer: {max_steps: 4}
"""


def test_a_recipe_with_the_name_of_a_configuration_is_a_recipe(tmp_path, monkeypatch):
    monkeypatch.setattr(precision, "has_fast_bf16", lambda device: True)
    monkeypatch.delenv(precision.SWITCH, raising=False)
    schema, root = run_config.schema(), tmp_path / "runs"

    def plan(command, *options):
        draft = fit_options.parse(command, [str(tmp_path / run_folder.CONFIG), "--runs", str(root), *options])
        return run_config.make_plan(draft, run_config.read_draft(draft), schema)

    (tmp_path / run_folder.CONFIG).write_text(RECIPE)
    other = root / "other" / "default" / "s1" / "checkpoints" / "last.ckpt"
    other.parent.mkdir(parents=True)
    other.write_text("")
    assert plan("fit").config["trainer"]["precision"] == precision.BF16_MIXED
    assert plan("fit", "--resume").run == run_folder.RunLocation(root, "config", "default", 1)
    with pytest.raises(UsageError, match=r"add --tune\.rank 8"):
        plan("fit", "--tune.start", "x", "--tune.alpha", "4")
    with pytest.raises(UsageError, match=r"no checkpoint in .*config/default/s2"):
        resume.choose_checkpoint(plan("test", "--seed", "2"))

    (tmp_path / run_folder.CONFIG).write_text(f"{run_folder.HEADER}lm/default{RECIPE}")  # which a run has written
    assert "precision" not in plan("fit").config["trainer"]


def test_the_newest_or_best_checkpoint(tmp_path):
    import os

    assert find_run.checkpoint_to_use(tmp_path) is None
    for index, name in enumerate(["best.ckpt", "last.ckpt"]):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (index, index))
    assert find_run.checkpoint_to_use(tmp_path) == tmp_path / "best.ckpt"


def test_runs_that_others_start_from_are_told_apart():
    runs = [
        "runs/lm-tiny/default/s1",
        "runs/vit-tiny/default/s1",
        "runs/lm-tiny/position=alibi/s1",
        "runs/lm-tiny/default/s2",
    ]
    assert len({run_folder.slug(run) for run in runs}) == len(runs)
    long = [f"runs/lm-tiny/{'dim=16,' * 20}depth={depth}/s1" for depth in (1, 2)]
    assert len({run_folder.slug(run) for run in long}) == 2
    assert all(len(run_folder.slug(run)) <= 40 for run in [*runs, *long])


# what launchers set: torchrun, SLURM, LSF, Open MPI, Kubernetes operators, and people by hand
LAUNCHER_VARIABLES = (
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_NTASKS_PER_NODE"),
    *("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "KUBERNETES_PORT"),
)


@given(st.dictionaries(st.sampled_from(LAUNCHER_VARIABLES), st.integers(0, 7).map(str)), st.sampled_from([1, "1", [0]]))
def test_one_process_is_the_first_whatever_a_launcher_says(variables, devices):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setattr(rank_zero_only, "rank", int(variables.get("RANK", "0")), raising=False)  # as Lightning reads it
        distributed.settle_rank({"accelerator": "cpu", "devices": devices})
        assert run_folder.first_rank()
        assert [type(one) for one in distributed.launcher_of({"accelerator": "cpu"})] == [LightningEnvironment]


@pytest.mark.parametrize(("variables", "first"), [
    ({}, True), ({"LOCAL_RANK": "1"}, False), ({"NODE_RANK": "1", "LOCAL_RANK": "0"}, False),
    ({"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "LOCAL_RANK": "1", "GROUP_RANK": "0", "WORLD_SIZE": "2"}, False),
])  # fmt: skip
def test_of_several_processes_the_launcher_says_which_is_the_first(variables, first, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rank_zero_only, "rank", 0, raising=False)
    options = {"accelerator": "cpu", "devices": 2}
    assert distributed.launcher_of(options) == []
    distributed.settle_rank(options)
    assert run_folder.first_rank() is first


@pytest.mark.parametrize(
    ("settings", "same"),
    [({"deterministic": False}, True), ({"callbacks": []}, True), ({"limit_val_batches": 1.0}, True),
     ({"precision": "32-true"}, True), ({"precision": 32}, True), ({"precision": "bf16-mixed"}, False),
     ({"limit_val_batches": 1}, False), ({"check_val_every_n_epoch": None}, False), ({"max_steps": None}, False)],
)  # fmt: skip
def test_what_a_configuration_leaves_out_is_null_only_where_null_is_the_default(settings, same):
    assert run_folder.is_same_config({"trainer": settings}, {"trainer": {}}) is same
    assert run_folder.is_same_config({"trainer": {}}, {"trainer": settings}) is same


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("link", ["runs", "runs/lm-tiny", "runs/lm-tiny/a", "runs/lm-tiny/a/s1"])
@pytest.mark.parametrize("itself", [True, False])
def test_a_link_to_nothing_above_a_run_is_named(link, itself, resume, tmp_path):
    place = tmp_path / link
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(place if itself else tmp_path / "gone")
    run = run_folder.RunLocation(tmp_path / "runs", "lm-tiny", "a", 1)
    assert run.folder == tmp_path / "runs/lm-tiny/a/s1"
    with pytest.raises(UsageError, match=re.escape(f"{place} is a link to ")):
        run_folder.check(run, resume=resume)
