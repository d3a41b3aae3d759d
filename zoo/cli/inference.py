"""generate, chat, translate, classify, export: use a trained model from the command line."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from zoo import console, registry
from zoo.command_line import ParsedOptions, call_by_name
from zoo.console import printable
from zoo.errors import PluginError, UsageError
from zoo.inference.find_run import CONFIG, FINISHED
from zoo.io import atomic_files


def run(options: ParsedOptions) -> int:
    """Run the command of these options."""
    write_utf8()
    FUNCTIONS[options.command](options)
    return 0


def write_utf8() -> None:
    """Let both output streams write UTF-8, as zoo reads it, whatever the terminal's locale is."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8")


def load_trained(options: ParsedOptions, bare: bool = False) -> Any:
    """The trained model that a command names. Raises a ZooError where it does not support the command."""
    from zoo.cli import doctor, warning_filters
    from zoo.inference.find_run import find_model

    place = find_model(options.words[0], options.get("runs"))  # a wrong name is refused before torch is imported
    word = Path(options.words[0])
    is_weights = word.is_file() and word.suffix not in (".yaml", ".yml")
    if not is_weights and not (word.is_dir() and word.samefile(place.folder)):
        print(f"using {place.weights}", file=sys.stderr)  # a recipe, or a folder of runs, may mean any of them
    doctor.check_torch()
    warning_filters.filter_warnings(options.get("debug"))
    from zoo.inference.load import load

    model = load(place, options.get("device"), allow=options.allowed, bare=bare)
    getattr(model, options.command)
    if options.values.get("split_special_tokens"):
        for tokenizer in model.tokenizers:
            tokenizer.splits_specials = True
    if options.values.get("dtype") == "bf16" and options.command != "export":
        convert_to_bf16(model, options)
    if options.values.get("int8"):
        model.quantise()
    draft = options.values.get("speculate")
    if draft is not None:
        if options.get("beams") not in (None, 1):
            raise UsageError("--speculate and --beams exclude each other: beam search verifies no guesses.")
        if draft != "lookup":
            draft = load(draft, options.get("device"), runs=options.get("runs"), allow=options.allowed)
            if options.values.get("dtype") == "bf16":
                draft.use_bf16()
        model.speculate(draft)
    return model


def convert_to_bf16(model: Any, options: ParsedOptions) -> None:
    """Round the weights of a model to bfloat16. Raises UsageError where the device does not multiply in it."""
    from zoo.config.precision import has_bf16

    if options.values.get("int8"):
        raise UsageError("--dtype bf16 and --int8 exclude each other: 8 bits serve float32.")
    if not has_bf16(model.device.type):
        raise UsageError(
            f"--dtype bf16: this machine has no bfloat16 instructions on {model.device.type}: it would be slower than "
            "float32. Leave it out."
        )
    model.use_bf16()


def generate(options: ParsedOptions) -> None:
    """`zoo generate`: the prompt and what follows it, or JSON."""
    model = load_trained(options)  # first: a wrong name is reported before a text is read
    from zoo.inference.trained_model import Gap

    prompts = options.get("prompt") or [_standard_input()]
    settings = options.subset(
        "length", "temperature", "top_k", "top_p", "seed", "beams", "length_penalty", "n_best", "stop"
    )
    suffix = options.get("suffix")
    for number, prompt in enumerate(prompts):
        start = prompt if suffix is None else Gap(prompt, suffix)
        own = {**settings, "seed": settings.get("seed", 1) + number} if number else settings
        for rank, result in enumerate(model.generate(start, **own)):  # each has samples of its own
            if options.get("json"):
                print_json({"prompt": prompt, **({} if suffix is None else {"suffix": suffix}), **result._asdict()})
                continue
            print(("\n" if number or rank else "") + prompt + result.text + (suffix or ""), flush=True)


def chat(options: ParsedOptions) -> None:
    """`zoo chat`: an answer to each line, with the turns before; an empty line begins a new conversation."""
    model = load_trained(options)
    model.require_chat()  # before the first line is typed
    from zoo.data.conversation import Turn

    settings = options.subset("max_tokens", "temperature", "top_k", "top_p", "seed")
    turns: list[Turn] = []
    for line in _typed_lines():
        if not line.strip():
            turns.clear()
            continue
        turns.append(Turn("user", line))
        answer = model.chat(turns, **settings)
        turns.append(Turn("assistant", answer.text))
        if options.get("json"):
            print_json({"turn": len(turns) // 2, "user": line, "assistant": answer.text, "ended": answer.ended})
        else:
            # one line per line, whatever the model generates
            print(answer.text.replace("\r", " ").replace("\n", " "), flush=True)


def translate(options: ParsedOptions) -> None:
    """`zoo translate`: lines to lines, in windows that are sorted by length."""
    if options.get("n_best") > 1 and not options.get("json"):
        raise UsageError("--n-best above 1 gives several translations of a line: add --json, which says whose.")
    model = load_trained(options)
    if options.get("to"):
        model.set_language(options.get("to"))
    search = model.search(*(options.get(name) for name in ("beams", "length_penalty", "n_best", "max_length")))
    settings = options.subset("batch_tokens", "too_long")
    if sys.stdin.isatty():
        settings["window"] = 1  # each line is translated as it is typed
    sources: list[str] = []
    picture = options.get("attention")
    with _progress("lines") as tell:
        lines = _remember(stdin_lines(), sources)
        for number, best in enumerate(model.stream(lines, search, **settings, tell=tell), 1):
            source = sources.pop(0)
            if picture and best[0].text:
                draw(model, source, best[0].text, picture)
                picture = None
            if options.get("json"):
                for translation in best:
                    print_json({"line": number, "source": source, **translation._asdict()})
            else:
                # one line per line, whatever the model generates
                print(best[0].text.replace("\r", " ").replace("\n", " "), flush="window" in settings)


def draw(model: Any, source: str, target: str, path: str) -> None:
    """Save a picture of the attention of a translation. Raises UsageError for a model without cross-attention."""
    import torch
    from PIL import Image

    from zoo.logging.attention_maps import align_tokens

    tokens, source_ids = model.target_ids(target), model.source_ids(model.source_tokenizer.encode(source))
    ids = torch.tensor(source_ids, device=model.device), torch.tensor(tokens, device=model.device)
    image = align_tokens(model.net, ids, (model.source_tokenizer, model.target_tokenizer))
    if image is None:
        raise UsageError("this model has no attention to draw: --attention needs one that has.")
    try:
        suffix = Path(path).suffix.lower()
        kind = Image.registered_extensions().get(suffix)
        if kind is None:
            raise ValueError(f"unknown file extension {suffix!r}")
        with atomic_files.replace_file(Path(path)) as draft:
            image.save(draft, kind)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"cannot write the picture {path}: {error}. Name a .png file in a folder that exists."
        ) from error


def classify(options: ParsedOptions) -> None:
    """`zoo classify`: an image, or a text, and its likeliest classes per line."""
    model, paths = load_trained(options), options.words[1:]
    if "labels.json" in model.files:
        classify_texts(options, model)
        return
    if options.get("text"):
        raise UsageError(f"{options.words[0]} classifies images: zoo classify {options.words[0]} IMAGE ...")
    if not paths:
        raise UsageError(f"no image to classify: zoo classify {options.words[0]} IMAGE ...")
    results = model.classify(paths, **options.subset("top", "resize"))
    for path, guesses in zip(paths, results, strict=True):
        if options.get("json"):
            print_json({"image": path, "classes": [guess._asdict() for guess in guesses]})
        else:
            print("\t".join([printable(path), *_labels(guesses)]))


def classify_texts(options: ParsedOptions, model: Any) -> None:
    """The likeliest classes of each text, or JSON. Raises UsageError for images."""
    if options.get("resize"):
        raise UsageError("--resize is for images, and this model classifies texts.")
    if len(options.words) > 1:
        raise UsageError(f"{options.words[1]!r} is one word too many: a text is written with --text.")
    for text in options.get("text") or stdin_lines():
        guesses = model.classify(text, **options.subset("top"))[0]
        if options.get("json"):
            print_json({"text": text, "classes": [guess._asdict() for guess in guesses]})
        else:
            print("\t".join(_labels(guesses)), flush=True)


def _labels(guesses: Iterable[Any]) -> list[str]:
    return [f"{printable(guess.label)} {guess.probability:.3f}" for guess in guesses]


def export(options: ParsedOptions) -> None:
    """`zoo export`: write the files, and print their names and sizes."""
    exporter, force = _exporter(options.get("format")), options.get("force")
    model, folder = load_trained(options, bare=bool(exporter)), Path(options.words[1])
    if model.place.source.name == CONFIG and not (model.place.folder / FINISHED).is_file():
        atomic_files.warn(f"{model.place.folder} is not finished: this is its best state so far")
    if options.values.get("dtype") == "bf16":
        model.use_bf16()
    if exporter:
        family = call_by_name(exporter, model, folder, force)
        print(f"{family.name}: {family.architecture}", file=sys.stderr)
    else:
        model.export(folder, force)
    for path in sorted(folder.iterdir()):
        print(f"{printable(str(path))}  {path.stat().st_size:,} bytes")


def _exporter(word: str) -> str:
    """The function ``package.module:function`` of the families that write a format; empty for zoo's own.

    Raises UsageError for a format that no installed family has.
    """
    exporters = {"zoo": ""}
    for part in registry.parts("family") if word != "zoo" else ():
        with suppress(PluginError):
            family: Any = part.load()
            exporters |= family.exporters
    if word not in exporters:
        hint = registry.suggest(word, exporters)
        if len(exporters) == 1:
            hint = " hf is written by the package zoo-pretrained. Install it: pip install -e plugins/zoo-pretrained"
        raise UsageError(f"'--format' must be {' or '.join(exporters)}, got {word!r}.{hint} See: zoo export --help")
    return exporters[word]


FUNCTIONS: dict[str, Callable[[ParsedOptions], None]] = {
    "generate": generate, "chat": chat, "translate": translate, "classify": classify, "export": export,
}  # fmt: skip


def print_json(value: dict[str, Any]) -> None:
    """Print an object as one line of JSON."""
    print(console.as_json(value))


def _standard_input() -> str:
    """Everything on standard input, without the line end that a shell adds; nothing from a terminal."""
    if sys.stdin.isatty():
        return ""
    return "\n".join(stdin_lines())


def _typed_lines() -> Iterator[str]:
    """The lines of standard input, each after a prompt on standard error where a terminal is read."""
    lines, is_terminal = stdin_lines(), sys.stdin.isatty()
    while True:
        if is_terminal:
            print("> ", end="", file=sys.stderr, flush=True)
        line = next(lines, None)
        if line is None:
            return
        yield line


def stdin_lines() -> Iterator[str]:
    r"""The lines of standard input. Only ``\n`` ends one; raises UsageError that names a line that is not UTF-8."""
    for number, raw in enumerate(sys.stdin.buffer, 1):
        if (number == 1 and raw[:2] in (b"\xff\xfe", b"\xfe\xff")) or b"\0" in raw:
            raise UsageError(
                f"standard input, line {number}: a NUL or a mark of UTF-16, and not UTF-8. Convert it: iconv -f UTF-16 "
                "-t UTF-8"
            )
        raw = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
        try:
            yield raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            wrong = f"byte 0x{raw[error.start]:02x}"
            raise UsageError(
                f"standard input, line {number}: {wrong} is not UTF-8. Convert it: iconv -f LATIN1 -t UTF-8"
            ) from error


def _remember(lines: Iterable[str], store: list[str]) -> Iterator[str]:
    """The same lines, each also added to ``store``."""
    for line in lines:
        store.append(line)
        yield line


@contextmanager
def _progress(unit: str) -> Iterator[Callable[[int], object]]:
    """A count on standard error if it is a terminal and standard output is not; nothing elsewhere."""
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    started, done, console = time.monotonic(), 0, Console(stderr=True)
    # by default rich also captures standard output and writes it to the terminal
    with Progress(TextColumn("{task.description}"), console=console, redirect_stdout=False) as bar:
        task = bar.add_task(f"0 {unit}")

        def tell(more: int) -> None:
            nonlocal done
            done += more
            rate = done / max(time.monotonic() - started, 1e-9)
            bar.update(task, description=f"{done:,} {unit} · {rate:,.0f} per second")

        yield tell
