"""Whisper of transformers, imported: features, logits, cached steps, greedy texts with their beginnings, and back."""

import json
import wave

import numpy as np
import peers
import pytest
import torch
from import_steps import gap, imported, loaded, same_tensors
from odd_tokenizers import byte_bpe
from zoo_multimodal.audio import LogMel
from zoo_pretrained.hf_export import _family, export_pretrained

import zoo
from zoo.cli import main
from zoo.config import fit_options, run_config
from zoo.errors import UsageError
from zoo.inference.rebuild_task import complete_options, rebuild_task

transformers = peers.transformers
DTYPES = {torch.float32: 1e-5, torch.float64: 1e-10}
RATE = 16000


def extractor(case):
    """The feature extractor of a case: a second of sound."""
    frames = 2 * case[2]["max_source_positions"]
    sizes = {"feature_size": case[2]["num_mel_bins"], "hop_length": RATE // frames, "chunk_length": 1, "n_fft": 600}
    return transformers.WhisperFeatureExtractor(**sizes)


def sounds(rows=2):
    """Noise with a tone, softer towards the end, of different lengths."""
    time = torch.arange(RATE) / RATE
    return [(torch.sin(900 * (row + 1) * time) * torch.exp(-3 * time) + 0.01 * torch.randn(RATE))[: RATE - 3001 * row]
            .numpy() for row in range(rows)]  # fmt: skip


@pytest.mark.parametrize("sizes", [{}, {"feature_size": 128}, {"chunk_length": 2, "hop_length": 80, "n_fft": 256}])
def test_features_are_those_of_its_extractor(sizes):
    theirs = transformers.WhisperFeatureExtractor(**sizes)
    front = LogMel(RATE, theirs.n_fft, theirs.hop_length, theirs.feature_size, whisper=True)
    for samples in [*sounds(), np.zeros(777, np.float32), np.float32([1.0])]:
        whole = np.zeros((1, theirs.n_samples), np.float32)
        whole[0, : len(samples)] = samples
        ours = front(torch.from_numpy(whole)).mT
        assert gap(ours, torch.from_numpy(theirs._np_extract_fbank_features(whole, "cpu")).double()) <= 1e-5
        # by torch it has the transform in float32, which is less exact eight decades below the peak
        fast = np.asarray(theirs(samples, sampling_rate=RATE).input_features)
        assert gap(ours, torch.from_numpy(fast).double().view_as(ours)) <= 1e-3


@torch.no_grad()
@peers.in_both_types(peers.SPEECH)
def test_a_whisper_and_its_import_agree_and_its_export_is_the_whisper(case, dtype, tmp_path, monkeypatch):
    with peers.wide(monkeypatch, dtype):
        model = peers.build_peer(case, dtype)
        model.save_pretrained(tmp_path / "theirs")
        extractor(case).save_pretrained(tmp_path / "theirs")
        imported(tmp_path / "theirs", tmp_path / "ours")
        ours = loaded(tmp_path / "ours", dtype)
        net, target = ours.net, torch.randint(3, peers.WORDS, (2, 24))
        features = torch.randn(2, case[2]["num_mel_bins"], 2 * case[2]["max_source_positions"], dtype=dtype)
        right = model(input_features=features, decoder_input_ids=target).logits
        memory, caches, steps = net.encode_frames(features.mT), net.decoder.caches(24), []
        assert gap(net.decode(target, memory), right) <= DTYPES[dtype]
        for begin, end in ((0, 1), (1, 6), (6, 24)):
            steps.append(net.decode(target[:, begin:end], memory, caches))
        assert gap(torch.cat(steps, 1), right) <= DTYPES[dtype]

        samples = torch.randn(2, 9000, dtype=dtype)
        valid = torch.arange(9000) < torch.tensor([[9000], [5000]])
        padded = torch.nn.functional.pad(torch.where(valid, samples, 0.0), (0, RATE - 9000))
        by_sound = model(input_features=net.front(padded).mT.to(dtype), decoder_input_ids=target).logits
        assert gap(net(samples, target, valid), by_sound) <= DTYPES[dtype]

        export_pretrained(ours, tmp_path / "again")
        again = peers.reloaded(case, tmp_path / "again", dtype)
        assert same_tensors(model, again)
        about = [transformers.WhisperFeatureExtractor.from_pretrained(tmp_path / name) for name in ("theirs", "again")]
        assert about[0].to_dict() == about[1].to_dict()
        assert gap(again(input_features=features, decoder_input_ids=target).logits, right) <= DTYPES[dtype] / 10


LANGUAGES, TASKS = ("<|en|>", "<|zh|>", "<|de|>"), ("<|translate|>", "<|transcribe|>")
SPECIALS = (
    "<|endoftext|>", "<|startoftranscript|>", *LANGUAGES, *TASKS, "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
)  # fmt: skip
# by name: what generation_config.json says, options of both, options of transformers' tokenizer; forced tokens by their
# places in SPECIALS
BEGINNINGS = {
    "heard": ({"forced_decoder_ids": [[1, None], [2, 6]]}, {}, {}),
    "heard-without-task": ({}, {}, {"language": "german", "task": "transcribe"}),
    "language": ({"forced_decoder_ids": [[1, None], [2, 5]]}, {"language": "de"}, {"language": "zh"}),
    "translate": ({}, {"language": "zh", "task": "translate"}, {"predict_timestamps": True}),
    "task": ({"forced_decoder_ids": [[1, 3], [2, 6]]}, {"task": "translate"}, {"task": "translate"}),
    "by-file": ({"language": "chinese", "task": "transcribe"}, {}, {"language": "Mandarin"}),
    "forced-by-config": ({"suppress_tokens": []}, {}, {}),
    "forced": ({"forced_decoder_ids": [[1, 4], [2, 6], [3, 9]]}, {}, {"add_prefix_space": True}),
    "english-alone": ({"lang_to_id": None, "task_to_id": None, "is_multilingual": False,
                       "forced_decoder_ids": [[1, 9]]}, {}, {}),
    "bare": ({"lang_to_id": None, "task_to_id": None, "no_timestamps_token_id": None, "no_repeat_ngram_size": 3,
              "suppress_tokens": [9, 40],
              "begin_suppress_tokens": [220, 0]}, {}, {}),
    "prompt": ({"suppress_tokens": [11, 12, 13], "repetition_penalty": 1.3}, {"prompt": "the lazy  dog"}, {}),
}  # fmt: skip


def folder_of_theirs(folder, answers, **settings):
    """A Whisper with a tokenizer of a few hundred tokens, special ones behind all others, saved by transformers."""
    inner = byte_bpe(())
    first = inner.get_vocab_size()
    model = json.loads(inner.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    prefix = settings.pop("add_prefix_space", False)
    tokenizer = transformers.WhisperTokenizer(vocab=model["vocab"], merges=merges, add_prefix_space=prefix)
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIALS[1:])})
    tokenizer.set_prefix_tokens(**settings)
    size = first + len(SPECIALS) + 5  # and some that no tokenizer has, as published ones have
    case = peers.SPEECH["whisper"]
    ends = dict.fromkeys(["eos_token_id", "bos_token_id", "pad_token_id"], first)
    more = {"vocab_size": size, "decoder_start_token_id": first + 1, **ends}
    peer = peers.build_peer((*case[:2], {**case[2], **more}))
    sizes = {
        "lang_to_id": {name: first + 2 + n for n, name in enumerate(LANGUAGES)}, "is_multilingual": True,
        "task_to_id": {"translate": first + 5, "transcribe": first + 6}, "no_timestamps_token_id": first + 9,
        "max_length": 40,
        "no_repeat_ngram_size": 2,
    }  # fmt: skip
    for key, value in {**sizes, **answers}.items():
        if key == "forced_decoder_ids":
            value = [[place, None if number is None else first + number] for place, number in value]
        if value is not None:
            setattr(peer.generation_config, key, value)
    if answers.get("suppress_tokens") == []:
        peer.config.forced_decoder_ids = [[1, first + 3], [2, first + 5]]
    peer.generation_config._from_model_config = False  # or transformers makes it anew, without these
    peer.save_pretrained(folder)
    processor = transformers.WhisperProcessor(extractor(case), tokenizer)
    processor.save_pretrained(folder)
    return peer, processor


@torch.no_grad()
@pytest.mark.parametrize("name", BEGINNINGS)
def test_sounds_are_written_down_as_transformers_writes_them(name, tmp_path):
    answers, options, settings = BEGINNINGS[name]
    _, processor = folder_of_theirs(tmp_path / "theirs", answers, **settings)
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    assert main(["export", str(tmp_path / "ours"), str(tmp_path / "again"), "--format", "hf"]) == 0
    ours, signals = zoo.load(tmp_path / "ours"), sounds(3)
    texts = ["the quick fox", " naïve <|de|> 人工", "the<|endoftext|>"]
    for folder in ("theirs", "again"):
        model = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / folder).eval()
        loading = transformers.AutoTokenizer.from_pretrained(tmp_path / folder)
        for text in texts:
            tokenizer = ours.target_tokenizer
            assert tokenizer.framed(tokenizer.encode(text)) == loading(text).input_ids
        request = {key: value for key, value in options.items() if key != "prompt"}
        if "prompt" in options:
            request["prompt_ids"] = loading.get_prompt_ids(options["prompt"], return_tensors="pt")
        frames = ours.net.front(torch.stack([torch.from_numpy(np.resize(one, RATE)) for one in signals])).mT.float()
        expected = model.generate(frames, do_sample=False, num_beams=1, **request)
        full = [np.resize(one, RATE) for one in signals]
        output = ours.transcribe(full, **options)
        assert [one.text for one in output] == loading.batch_decode(expected, skip_special_tokens=True)
    assert len({one.text for one in output}) > 1 or "penalty" in str(answers)
    assert processor.feature_extractor.to_dict() == transformers.WhisperFeatureExtractor.from_pretrained(
        tmp_path / "again").to_dict()  # fmt: skip


def test_a_recipe_has_the_parameters_of_the_published_model_and_biases_of_keys():
    parsed = fit_options.parse("fit", ["whisper-tiny"])
    model = complete_options(run_config.make_plan(parsed, run_config.read_draft(parsed)).config["model"])
    family, config = _family(model, "whisper")
    assert family.name == "whisper"
    with torch.device("meta"):
        ours = rebuild_task({"model": model}, "whisper-tiny").net
        config.pop("feature_extractor")
        theirs = [
            transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**one)) for one in ({}, config)
        ]
    counts = [sum(one.numel() for one in module.parameters()) for module in (ours, *theirs)]
    assert counts == [counts[1] + 12 * 384, counts[1], counts[1]] == [37_765_248, 37_760_640, 37_760_640]


@pytest.mark.parametrize(
    ("file", "change", "word"),
    [
        ("preprocessor_config.json", {"hop_length": 80}, "max_source_positions=50"),
        ("preprocessor_config.json", {"feature_size": 11}, "num_mel_bins=10"),
        ("preprocessor_config.json", {"sampling_rate": 8000}, "sampling_rate=8000"),
        ("preprocessor_config.json", {"dither": 0.1}, "dither=0.1"),
        ("preprocessor_config.json", {"n_fft": 100}, "n_fft=100"),
        ("config.json", {"decoder_attention_heads": 2}, "decoder_attention_heads=2"),
        ("config.json", {"tie_word_embeddings": False}, "tie_word_embeddings=False"),
        ("generation_config.json", {"forced_decoder_ids": [[2, 3]]}, "forced_decoder_ids"),
        ("generation_config.json", {"lang_to_id": {"<|en|>": 99}}, "lang_to_id"),
        ("generation_config.json", {"return_timestamps": True}, "return_timestamps"),
        ("generation_config.json", {"language": "klingon"}, "language='klingon'"),
    ],
)
def test_what_zoo_would_hear_or_write_otherwise_is_refused_by_its_name(file, change, word, tmp_path, capsys):
    case = peers.SPEECH["whisper"]
    peers.build_peer(case).save_pretrained(tmp_path / "theirs")
    extractor(case).save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 2
    assert word in capsys.readouterr().err


def test_a_language_and_a_task_that_a_model_lacks_are_refused(tmp_path):
    folder_of_theirs(tmp_path / "theirs", {})
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    ours, sound = zoo.load(tmp_path / "ours"), sounds(1)[0]
    refused = [({"language": "fr"}, "no language 'fr'.*de"), ({"task": "sing"}, "no task 'sing'"),
               ({"prompt": "<|de|>"}, "special token"), ({"prompt": "fox " * 60}, "too many tokens")]  # fmt: skip
    for request, words in refused:
        with pytest.raises(UsageError, match=words):
            ours.transcribe(sound, **request)


@torch.no_grad()
def test_an_import_is_trained_further_on_recordings(tmp_path, monkeypatch):
    answers = {"forced_decoder_ids": [[1, None], [2, 6]], "suppress_tokens": [11, 12], "repetition_penalty": 1.2}
    folder_of_theirs(tmp_path / "theirs", answers, language="german", task="transcribe")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    (tmp_path / "sounds" / "wav").mkdir(parents=True)
    lines = []
    for number, samples in enumerate(sounds(3) * 4):
        with wave.open(str(tmp_path / "sounds" / "wav" / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes((samples / 4 * 32767).astype("<i2").tobytes())
        lines.append(json.dumps({"audio": f"wav/{number}.wav", "text": f"the fox {number}"}))
    (tmp_path / "sounds" / "train.jsonl").write_text("\n".join(lines))
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    words = ["--data.path", str(tmp_path / "sounds"), "--trainer.max_steps", "2"]
    words += ["--trainer.val_check_interval", "2", "--trainer.logger", "false", "--trainer.accelerator", "cpu"]
    words += ["--model.lr", "1e-12", "--trainer.precision", "32-true"]
    with torch.enable_grad():
        assert main(["fit", str(tmp_path / "ours" / "recipe.yaml"), "--runs", str(tmp_path / "runs"), *words]) == 0
    run = next((tmp_path / "runs").glob("*/*/s1"))
    trained, ours, full = zoo.load(run), zoo.load(tmp_path / "ours"), [np.resize(one, RATE) for one in sounds(3)]
    assert trained.target_tokenizer.template[0][0] == trained.start
    assert main(["export", str(run), str(tmp_path / "again"), "--format", "hf"]) == 0
    model = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / "again").eval()
    loading = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    frames = ours.net.front(torch.from_numpy(np.stack(full))).mT.float()
    for options in ({}, {"language": "zh", "task": "translate"}, {"prompt": "the lazy  dog"}):
        texts = [one.text for one in ours.transcribe(full, **options)]
        assert [one.text for one in trained.transcribe(full, **options)] == texts
        if "prompt" in options:
            options = {"prompt_ids": loading.get_prompt_ids(options["prompt"], return_tensors="pt")}
        expected = model.generate(frames, do_sample=False, num_beams=1, **options)
        assert loading.batch_decode(expected, skip_special_tokens=True) == texts
