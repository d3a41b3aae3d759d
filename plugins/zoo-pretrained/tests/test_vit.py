"""Vision Transformers of transformers and timm, imported: the same logits, a command that names images, and back."""

import json

import numpy as np
import peers
import pytest
import tokenizers
import torch
from import_steps import gap, loaded, same_tensors
from PIL import Image
from zoo_pretrained.hf_export import export_pretrained
from zoo_pretrained.vit import TimmViT

import zoo
from zoo.cli import main

DTYPES = {torch.float32: 1e-5, torch.float64: 1e-10}
TIMM = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}


@torch.no_grad()
@peers.in_both_types(peers.IMAGES)
def test_a_classifier_of_transformers(case, dtype, tmp_path, monkeypatch):
    with peers.wide(monkeypatch, dtype):
        model = peers.build_peer(case, dtype)
        model.save_pretrained(tmp_path / "theirs")
        images = torch.randn(3, case[2].get("num_channels", 3), 16, 16, dtype=dtype)
        right = model(images).logits
        assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
        ours = loaded(tmp_path / "ours", dtype)
        assert gap(ours.net(images), right) <= DTYPES[dtype]
        export_pretrained(ours, tmp_path / "again")
        again = peers.reloaded(case, tmp_path / "again", dtype)
        if "CLIP" in case[0]:  # whose classes do not depend on its last norm, which is not read
            model.vision_model.post_layernorm = again.vision_model.post_layernorm
        assert same_tensors(model, again)
        assert gap(again(images).logits, right) <= 1e-12


@torch.no_grad()
@pytest.mark.parametrize("name", ["siglip", "clip"])
def test_the_image_tower_of_a_model_of_images_and_texts_gets_a_classifier_of_zeros(name, tmp_path, capsys):
    _, config, options = peers.IMAGES[name]
    texts = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 2,
             "vocab_size": peers.WORDS}  # fmt: skip
    tower = {**options["vision_config"], **({"vision_use_head": True} if name == "siglip" else {})}
    case = (config.replace("Config", "Model"), config, {"vision_config": tower, "text_config": texts})
    model = peers.build_peer(case)
    model.save_pretrained(tmp_path / "theirs")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    assert "text_model.embeddings" in capsys.readouterr().out.partition("not read")[2]
    net, images = loaded(tmp_path / "ours").net, torch.randn(3, 3, 16, 16)
    assert not net(images).any()
    net.head = torch.nn.Identity()  # what it reads is the mean of the tower's patches
    patches = model.vision_model(images).last_hidden_state[:, net.special :]
    assert gap(net(images), patches.mean(1)) <= 1e-5


@torch.no_grad()
@peers.in_both_types(peers.TEXT_TOWERS)
def test_a_tower_of_texts_and_its_import_agree_and_its_export_is_the_tower(case, dtype, tmp_path, monkeypatch):
    with peers.wide(monkeypatch, dtype):
        model = peers.build_peer(case, dtype)
        model.save_pretrained(tmp_path / "theirs")
        assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
        ours = loaded(tmp_path / "ours", dtype)
        tokens = torch.randint(3, peers.WORDS - 2, (3, 21))
        ends = torch.tensor([20, 11, 1])
        tokens[torch.arange(21) >= ends[:, None]] = peers.WORDS - 1  # the end is padding, too
        valid = torch.arange(21) <= ends[:, None]

        def vectors(peer):
            output = peer(input_ids=tokens, attention_mask=valid.long())
            return output.pooler_output if case[0] == "CLIPTextModel" else output.text_embeds

        assert gap(ours.net(tokens, valid), vectors(model)) <= DTYPES[dtype]
        export_pretrained(ours, tmp_path / "again")
        again = peers.reloaded(case, tmp_path / "again", dtype)
        assert same_tensors(model, again)
        assert gap(vectors(again), vectors(model)) <= 1e-12


@torch.no_grad()
@pytest.mark.parametrize("name", ["clip-text", "clip-text-headless"])
def test_an_imported_tower_of_texts_embeds_texts_as_the_tower_does(name, tmp_path):
    case = peers.TEXT_TOWERS[name]
    model, (begin, end) = peers.build_peer(case), (peers.WORDS - 2, peers.WORDS - 1)
    model.save_pretrained(tmp_path / "theirs")
    words = {f"w{number}": number for number in range(begin)} | {"<b>": begin, "<e>": end}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "w0"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    inner.post_processor = tokenizers.processors.RobertaProcessing(("<e>", end), ("<b>", begin))
    fast = peers.transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<b>", eos_token="<e>", pad_token="<e>", unk_token="w0", model_max_length=21
    )
    fast.save_pretrained(tmp_path / "theirs")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    texts = ["w5 w7 w9", "w3"]
    theirs = [model(**fast(text, return_tensors="pt"))[0 if name == "clip-text" else 1][0] for text in texts]
    assert gap(torch.from_numpy(zoo.load(tmp_path / "ours").embed(texts)), torch.stack(theirs)) <= 1e-5


def timm_model(folder, dtype=torch.float32, **options):
    """A random model of timm, and the folder that its hub functions write."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model = peers.timm.models.VisionTransformer(**{**TIMM, **options}).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    about = {"architecture": "vit_tiny_patch16_224", "num_classes": 5, "model_args": {**TIMM, **options}}
    (folder / "config.json").write_text(json.dumps(about))
    return model


@torch.no_grad()
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"qkv_bias": False, "in_chans": 1, "mlp_ratio": 2.0}])
def test_a_state_dict_of_timm(options, dtype, tmp_path):
    model = timm_model(tmp_path / "theirs", dtype, **options)
    images = torch.randn(3, options.get("in_chans", 3), 16, 16, dtype=dtype)
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    ours = loaded(tmp_path / "ours", dtype)
    assert gap(ours.net(images), model(images)) <= DTYPES[dtype]
    family = export_pretrained(ours, tmp_path / "again")
    from safetensors.torch import load_file

    assert family.name == "timm"
    model.load_state_dict(load_file(tmp_path / "again" / "model.safetensors"))
    assert gap(ours.net(images), model(images)) <= DTYPES[dtype]


def test_timms_names_of_sizes_are_enough(tmp_path):
    family = TimmViT()

    for name in ("vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224.augreg_in1k"):
        expected = family.options(family.complete({"architecture": name, "num_classes": 7}, "config.json"))
        with torch.device("meta"):
            model = peers.timm.create_model(name, num_classes=7)
        assert expected["dim"] == model.embed_dim
        assert expected["depth"] == len(model.blocks)
        assert expected["heads"] == model.blocks[0].attn.num_heads
        assert (expected["patch_size"], expected["image_size"]) == (16, 224)


def test_an_average_of_tokens_that_is_normalised_afterwards_is_refused(tmp_path, capsys):
    timm_model(tmp_path / "theirs", global_pool="avg", class_token=False)
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 2
    assert "class_token=False is not supported in timm" in capsys.readouterr().err
    timm_model(tmp_path / "other", global_pool="avg")
    assert main(["import", str(tmp_path / "other"), str(tmp_path / "ours")]) == 2
    assert "global_pool='avg' is not supported in timm" in capsys.readouterr().err


def test_the_command_imports_classes_and_normalisation_and_names_an_image(tmp_path, capsys):
    names = {str(n): name for n, name in enumerate(["ant", "bee", "cat", "dog", "eel"])}
    case = (*peers.IMAGES["vit"][:2], {**peers.VISION, "id2label": {int(k): v for k, v in names.items()}})
    model = peers.build_peer(case)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    model.save_pretrained(theirs)
    (theirs / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.4] * 3, "image_std": [0.2] * 3}))
    assert main(["import", str(theirs), str(ours)]) == 0
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "one.png")
    capsys.readouterr()
    assert main(["classify", str(ours), str(tmp_path / "one.png"), "--top", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["classes"][0]
    with torch.no_grad():
        normal = (torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255 - 0.4) / 0.2
        chance = model(normal).logits.softmax(-1)[0]
    assert result["label"] == names[str(int(chance.argmax()))]
    assert result["probability"] == pytest.approx(float(chance.max()), abs=1e-5)
