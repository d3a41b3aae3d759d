"""Strings of strangers, printed by every command: nothing that a terminal obeys, hides or reorders arrives."""

import io
import json
import re
import sys
import types
import unicodedata

import pytest
from cli_parts import package

import zoo.cli
from tests.compare.fabricate import ledger
from zoo import console, recipe_files
from zoo.cli.find_command import all_commands
from zoo.inference.classification import Guess
from zoo.inference.find_run import ModelLocation
from zoo.inference.trained_model import GeneratedText

# around a marker, which proves that the string arrived: titles, links, clipboard, colours, cursors, C0, C1, lines,
# directions, characters without a width, halves of surrogate pairs, markup
AROUND = [
    "\x1b]0;{}\x07", "\x1b]2;{}\x1b\\", "\x1b]8;;http://evil.example\x1b\\{}\x1b]8;;\x1b\\", "\x1b]52;c;{}\x07",
    "\x1b[2J{}", "\x1b[8m{}", "\x1b[31m{}\x1b[0m", "\x1b[1A\x1b[2K{}", "\x1b[6n{}", "\x1b[?1049h{}", "\x1b7{}",
    "\x1bc{}",
    "\x1bP{}\x1b\\", "\x1b_{}\x1b\\", "\x1b^{}\x1b\\", "\x9b31m{}", "\x9d0;{}\x9c", "\x90{}\x9c", "{}\x07", "{}\b\b\b",
    "{}\rfine", "{}\x0bfine", "{}\x0cfine", "{}\x7f", "{}\x85fine", "{}\u2028fine", "{}\u2029fine", "{}\nerror: fine",
    "{}\tfine", "\u202a{}", "\u202b{}", "\u202d{}", "\u202e{}", "\u2066{}", "\u2067{}", "\u2068{}\u2069", "\u200e{}",
    "\u200f{}", "\u061c{}", "a\u200b{}", "a\u200c{}", "a\u200d{}", "a\u2060{}", "\ufeff{}", "a\xad{}", "a\u180e{}",
    "a\u3164{}", "a\u2063{}", "\U000e0041{}", "\ufff9{}", "{}\udc9b", "{}\ud800", "{}\x1e\x1f", "[link=evil]{}[/link]",
    "a\u034f{}", "\x1b[1;1H{}\x9b0m\u202e",
]  # fmt: skip
MARKS = [f"own{number}ed" for number in range(len(AROUND))]
HOSTILE = [text.format(mark) for text, mark in zip(AROUND, MARKS, strict=True)]
NAMES = [text for text in HOSTILE if "/" not in text and "\ud800" not in text]  # that a file may have
WORDS = [text for text in HOSTILE if text == text.encode("utf-8", "ignore").decode()]
RAW = re.compile(rf"[{console.CONTROL}]|(?<=a)[\u200c\u200d]")


def test_there_are_enough():
    assert len({text for text in HOSTILE if console.printable(text) != text}) >= 40


class Carriers:
    """A way for foreign strings into each command: they print all of HOSTILE or NAMES, which they return."""

    def __init__(self, zoo, site, home, monkeypatch):
        self.zoo, self.site, self.home, self.monkeypatch = zoo, site, home, monkeypatch

    def plugin(self):
        """A package for each string, whose version, docstring and option it is."""
        folder = self.site()
        lines = ["from zoo.parts.norm import Norm\n"]
        for number, text in enumerate(HOSTILE):
            lines.append(f"class H{number}(Norm):\n    {text!r}\n    def __init__(self, width, x={text!r}): pass\n")
            line = text.replace("\n", " ").encode("utf-8", "replace").decode()
            package(folder, f"h{number}", f"[zoo.norm]\nH{number} = foreign:H{number}\n", metadata=None)
            info = folder / f"h{number}-0.1.0.dist-info" / "METADATA"
            info.write_text(f"Metadata-Version: 2.1\nName: h{number}\nVersion: 1{line}\n", encoding="utf-8")
        (folder / "foreign.py").write_text("".join(lines), encoding="utf-8")
        self.site()

    def recipe(self, key: bool):
        content = "".join(
            f'"{"x" if key else "k"}{number}{json.dumps(text)[1:-1] if key else ""}": {json.dumps(text)}\n'
            for number, text in enumerate(HOSTILE)
            if "\\ud" not in json.dumps(text)  # which YAML refuses
        )
        (self.home / "foreign.yaml").write_text(content)
        return [text for text in HOSTILE if "\\ud" not in json.dumps(text)]

    def each(self, *words: str):
        """A command for each string as its last word."""
        for text in NAMES:
            self.zoo(*words, text)
        return NAMES

    def list(self):
        self.plugin()
        self.zoo("list", "norm")
        self.zoo("list", "norm", "--json")
        return HOSTILE

    def show(self):
        self.plugin()
        for number in range(len(HOSTILE)):
            self.zoo("show", "norm", f"H{number}")
        self.recipe(key=False)
        self.zoo("show", str(self.home / "foreign.yaml"))
        self.zoo("show", str(self.home / "foreign.yaml"), "--json")
        return HOSTILE

    def docs(self):
        self.plugin()
        self.zoo("docs", str(self.home / "pages"))
        for page in (self.home / "pages").rglob("*.md"):
            assert not RAW.search(page.read_text("utf-8")), page
        for text in NAMES:  # a file in the place of a folder
            (self.home / text).write_text("")
            self.zoo("docs", str(self.home / text))
        return NAMES

    def recipes(self):
        for number, text in enumerate(NAMES):
            line = text.replace("\n", " ").replace("\udc9b", "?")
            (self.home / f"r{number}.yaml").write_text(f"# {line}\nmodel: CausalLM\n", encoding="utf-8")
        self.monkeypatch.setattr(recipe_files, "builtin_folders", lambda: [self.home])
        self.zoo("recipes")
        self.zoo("recipes", "--json")
        return NAMES

    def cp(self):
        (self.home / "r.yaml").write_text("model: CausalLM\n")
        for text in NAMES:
            self.zoo("cp", str(self.home / "r.yaml"), str(self.home / f"{text}.yaml"))
        return NAMES

    def tensorboard(self):
        return self.each("tensorboard")

    def doctor(self):
        from zoo.cli import doctor

        report = {"kind": "norm", "name": "x", "ok": False, "warnings": []}
        plugins = [{**report, "origin": text, "problem": text} for text in HOSTILE]
        self.monkeypatch.setattr(doctor, "_plugins", lambda: plugins)
        self.zoo("doctor")
        self.zoo("doctor", "--json")
        return HOSTILE

    def _configured(self, command):
        """Names of recipes, unknown keys of one, and values that no option can be."""
        self.each(command)
        self.recipe(key=True)
        self.zoo(command, str(self.home / "foreign.yaml"))
        for text in NAMES:
            self.zoo(command, "lm-tiny", "--model.norm", text)
            self.zoo(command, "lm-tiny", f"--{text}", "1")
        return NAMES

    def fit(self):
        return self._configured("fit")

    def validate(self):
        return self._configured("validate")

    def test(self):
        return self._configured("test")

    def predict(self):
        return self._configured("predict")

    def model(self, command, **methods):
        """A trained model that says what strangers wrote."""
        from zoo.cli import inference

        files = ("labels.json",) if command == "texts" else ()
        place = ModelLocation(self.home, self.home / "best.ckpt", {}, self.home / "config.yaml")
        model = types.SimpleNamespace(files=files, place=place, **methods)
        self.monkeypatch.setattr(inference, "load_trained", lambda options, bare=False: model)

    def generate(self):
        self.model("generate", generate=lambda prompt, **_: [GeneratedText(text, 0.0, True) for text in HOSTILE])
        self.zoo("generate", "x", "--prompt", "p")
        self.zoo("generate", "x", "--prompt", "p", "--json")
        return HOSTILE

    def chat(self):
        waiting = iter(HOSTILE * 2)
        self.model("chat", require_chat=lambda: None, chat=lambda turns, **_: GeneratedText(next(waiting), 0.0, True))
        for more in ([], ["--json"]):
            lines = io.TextIOWrapper(io.BytesIO(b"a\n" * len(HOSTILE)))
            self.monkeypatch.setattr(sys, "stdin", lines)
            self.zoo("chat", "x", *more)
        return HOSTILE

    def translate(self):
        def stream(lines, *_, **__):
            for text, _ in zip(HOSTILE, lines, strict=True):
                yield [GeneratedText(text, 0.0, True)]

        self.model("translate", stream=stream, search=lambda *_: None)
        for more in ([], ["--json"]):
            lines = io.TextIOWrapper(io.BytesIO(b"a\n" * len(HOSTILE)))
            self.monkeypatch.setattr(sys, "stdin", lines)
            self.zoo("translate", "x", *more)
        return HOSTILE

    def classify(self):
        self.model("classify", classify=lambda paths, **_: [[Guess(text, 0.5)] for text in HOSTILE[-len(paths) :]])
        for more in ([], ["--json"]):
            self.zoo("classify", "x", *WORDS, *more)
        self.model("texts", classify=lambda text, **_: [[Guess(text, 0.5)]])
        self._texts("classify")
        return HOSTILE

    def _texts(self, command):
        texts = [word for text in WORDS for word in ("--text", text)]
        for more in ([], ["--json"]):
            self.zoo(command, "x", *texts, *more)
        return HOSTILE

    def export(self):
        def export(folder, force):
            folder.mkdir()
            for text in NAMES:
                (folder / text).touch()

        self.model("export", export=export)
        self.zoo("export", "x", str(self.home / "out"))
        return NAMES

    def compare(self):
        for number, text in enumerate("".join(WORDS[start::6]) for start in range(6)):  # a variant costs charts
            for seed in (1, 2, 3, 4):  # fewer decide nothing, and less is written
                folder = self.home / f"runs/v{number}/s{seed}"
                folder.mkdir(parents=True)
                content = ledger(f"v{number}", seed, choices={"position": text, text: number})
                content["variant"] += text
                (folder / "ledger.json").write_text(json.dumps(content))
        self.zoo("compare", str(self.home / "runs"), "--out", str(self.home / "out"))
        self.zoo("compare", str(self.home / "runs"), "--json")
        for file in (self.home / "out").glob("comparison.*"):
            text = file.read_text("utf-8")
            assert file.suffix == ".json" or MARKS[0] in text
            assert not RAW.search(text), file
            assert file.suffix != ".html" or "<own" not in text
        return WORDS  # half a character is refused in a ledger

    def explain(self):
        """Names of recipes, values and options of one, and what a model predicts."""
        from zoo.explain import explain_command
        from zoo.explain.inside import Guess as Prediction
        from zoo.explain.inside import Inside

        self.each("explain")
        (self.home / "r.yaml").write_text(
            "model: {class_path: CausalLM, init_args: {vocab_size: 9, max_length: 4, dim: 8, depth: 1, heads: 2}}\n"
            "data: {class_path: TextFiles, init_args: {path: " + json.dumps(WORDS[0]) + "}}\n"
        )
        guesses = [[Prediction(text, 0.5)] for text in HOSTILE]
        inside = Inside(HOSTILE, [], HOSTILE, [guesses], notes=HOSTILE)
        self.monkeypatch.setattr(explain_command, "_look_inside", lambda options, subject: inside)
        page = self.home / "page.html"
        for more in ([], ["--json"], ["--html", str(page)]):
            self.zoo("explain", str(self.home / "r.yaml"), *more)
        text = page.read_text("utf-8")
        assert MARKS[0] in text
        assert not RAW.search(text)
        assert "<own" not in text
        return HOSTILE

    def check(self):
        from zoo.conformance import check_command

        def examine(job, timeout):
            report = check_command.Report("norm", HOSTILE[0], HOSTILE[1], names=tuple(HOSTILE))
            for text in HOSTILE:
                yield report.add(0.0, text, "FAIL", f"says {text}", 0.1)

        self.monkeypatch.setattr(check_command, "examine", examine)
        self.zoo("check", "norm", "RMSNorm")
        self.zoo("check", "norm", "RMSNorm", "--json")
        return HOSTILE

    def new(self):
        return self.each("new", "norm")

    def help(self):
        return self.each("help")

    def version(self):
        return self.each("version")

    def completion(self):
        return self.each("completion")

    def matrix(self):
        for text in NAMES:
            self.zoo("matrix", "--write", str(self.home / text / "x"))
        return NAMES


COMMANDS = list(all_commands())


class Terminal(io.TextIOWrapper):
    """A stream that claims to be one."""

    def isatty(self):
        return True


STREAMS = {"utf8": ("utf-8", io.TextIOWrapper), "ascii": ("ascii", io.TextIOWrapper), "terminal": ("utf-8", Terminal)}
# each stream is tried with every third command, and all of them with `list`, whose strings come from everywhere; these
# read names, files and options as `fit` does
LIKE_FIT = ("validate", "test", "predict")
CASES = [
    pytest.param(
        command, *stream, id=f"{command}-{name}",
        marks=[] if command not in LIKE_FIT and (turn % 3 == place or command == "list") else [pytest.mark.campaign],
    )
    for turn, command in enumerate(COMMANDS)
    for place, (name, stream) in enumerate(STREAMS.items())
]  # fmt: skip


@pytest.mark.parametrize(("command", "encoding", "stream"), CASES)
def test_no_command_prints_a_foreign_control(command, encoding, stream, site, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.setenv("TERM", "xterm")
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, stream(io.BytesIO(), encoding=encoding, errors="strict"))
    documents = []

    def run(*words):
        before = sys.stdout.tell() if not sys.stdout.isatty() else len(sys.stdout.buffer.getvalue())
        code = zoo.cli.main(list(words))
        sys.stdout.flush()
        if "--json" in words and code in (0, 1, 2):
            documents.append(sys.stdout.buffer.getvalue()[before:].decode(encoding))

    getattr(Carriers(run, site, home, monkeypatch), command)()
    arrived = set()
    for name in ("stdout", "stderr"):
        getattr(sys, name).flush()
        text = getattr(sys, name).buffer.getvalue().decode(encoding)
        assert "Traceback" not in text, text[-1500:]
        without_controls = console.DRAWING.sub("", text) if stream is Terminal else text
        assert not RAW.search(without_controls), (
            name,
            RAW.search(without_controls),
            without_controls[max(0, RAW.search(without_controls).start() - 80) :][:160],
        )
        assert not re.search(r"\x1b\[(8|31|2J|1A)m?own", text)
        arrived |= {mark for mark in MARKS if mark in text}
    assert len(arrived) >= 40, set(MARKS) - arrived
    for document in documents:
        for value in document.strip().splitlines() if document.startswith('{"') else [document]:
            json.loads(value)


def test_every_control_of_unicode_is_escaped():
    unescaped = {"\n", "\t"}
    for code in range(sys.maxunicode + 1):
        letter = chr(code)
        control = unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        if control:
            assert console.printable(letter) != letter, hex(code)
            assert (console.printable(letter, lines=True) == letter) == (letter in unescaped), hex(code)
        elif unicodedata.category(letter)[0] in "LNPS" and unicodedata.name(letter, "").find("FILLER") < 0:
            assert console.printable(letter) == letter, hex(code)


SPELLINGS = ["می\u200cخواهم", "क्\u200dष", "👩\u200d👩\u200d👧", "prix\u00a0: 3\u202f€", "全角\u3000空白", "é ü → –"]


@pytest.mark.parametrize("text", SPELLINGS)
def test_spelling_stays(text):
    assert console.printable(text) == text


def test_escaping_twice_is_escaping_once():
    for text in HOSTILE:
        assert console.printable(console.printable(text)) == console.printable(text)
        assert json.loads(console.as_json(text, "utf-8")) == json.loads(console.as_json(text, "ascii")) == text
        assert not RAW.search(console.as_json(text, "utf-8"))
