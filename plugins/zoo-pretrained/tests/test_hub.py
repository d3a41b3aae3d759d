"""Models of the hub: from a server on this machine that answers as the hub does, into a cache of the test's own."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import zoo
from zoo.errors import UsageError
from zoo.inference.hub import describe_origin, is_remote, local_folder

pytest.importorskip("huggingface_hub", reason="reads the hub")
transformers = pytest.importorskip("transformers", reason="writes the model that is read")

OLD, NEW = "1" * 40, "2" * 40


class Hub(ThreadingHTTPServer):
    """Repositories by name and revision, each with files; what was asked for; and errors by name of a repository."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.repositories, self.errors, self.requests = {}, {}, []


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def send(self, status, body=b"", body_too=True, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if body_too:
            self.wfile.write(body)

    def answer(self, body_too):
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append((self.command, path))
        parts = path.strip("/").split("/")
        if parts[0] == "api":  # /api/models/ORG/NAME/revision/REV, or …/tree/REV
            name, kind, revision = "/".join(parts[2:4]), parts[4] if len(parts) > 4 else "revision", parts[5:]
        else:  # /ORG/NAME/resolve/REV/FILE
            name, kind, revision = "/".join(parts[:2]), "resolve", parts[3:4]
        if name in self.server.errors:
            status, code = self.server.errors[name]
            return self.send(status, b'{"error": "no"}', body_too, X_Error_Code=code, X_Error_Message="no")
        if name not in self.server.repositories:
            return self.send(404, b'{"error": "no"}', body_too, X_Error_Code="RepoNotFound")
        versions = self.server.repositories[name]
        commit = {"main": NEW, "v1": OLD}.get("".join(revision) or "main", "".join(revision))
        if commit not in versions:
            return self.send(404, b'{"error": "no"}', body_too, X_Error_Code="RevisionNotFound")
        files = versions[commit]
        if kind == "revision":
            siblings = [{"rfilename": file} for file in files]
            about = {"_id": "1", "id": name, "modelId": name, "sha": commit, "siblings": siblings, "private": False,
                     "gated": False, "tags": [], "downloads": 0, "likes": 0, "usedStorage": 1}  # fmt: skip
            return self.send(200, json.dumps(about).encode(), body_too, Content_Type="application/json")
        if kind == "tree":
            entries = [{"type": "file", "path": file, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                       for file, data in files.items()]  # fmt: skip
            return self.send(200, json.dumps(entries).encode(), body_too, Content_Type="application/json")
        file = "/".join(parts[4:])
        if file not in files:
            return self.send(404, b"", body_too, X_Error_Code="EntryNotFound")
        tag = f'"{hashlib.sha1(files[file]).hexdigest()}"'
        return self.send(200, files[file], body_too, ETag=tag, X_Repo_Commit=commit)


def model_files(folder, seed):
    """A small GPT-2 as transformers writes it, with what repositories have besides: pickles, code, other forms."""
    config = transformers.GPT2Config(
        n_embd=16, n_layer=1, n_head=2, vocab_size=50, n_positions=8, tie_word_embeddings=True
    )
    transformers.set_seed(seed)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    others = ("pytorch_model.bin", "model.pkl", "modeling_evil.py", "tf_model.h5", "onnx/model.onnx", "x/y.safetensors")
    return files | dict.fromkeys(others, b"cos\nsystem\n")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    from huggingface_hub import constants

    monkeypatch.chdir(tmp_path)
    server.endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
    url = f"{server.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    server.repositories["org/tiny"] = {OLD: model_files(tmp_path / "old", 0), NEW: model_files(tmp_path / "new", 1)}
    yield server
    server.shutdown()
    server.server_close()


def test_weights_and_texts_alone_are_taken_and_the_commit_is_known(hub):
    folder = local_folder("hf://org/tiny")
    assert sorted(file.name for file in folder.rglob("*")) == [
        "config.json", "generation_config.json", "model.safetensors",
    ]  # fmt: skip
    assert describe_origin(folder) == {"repository": "org/tiny", "revision": NEW}
    assert not [path for _, path in hub.requests if path.endswith((".bin", ".pkl", ".py", ".h5", ".onnx"))]
    old = local_folder(Path("hf://org/tiny@v1"))  # whose second slash a Path has removed
    assert describe_origin(old)["revision"] == OLD
    assert (old / "model.safetensors").read_bytes() != (folder / "model.safetensors").read_bytes()
    assert local_folder(f"hf://org/tiny@{OLD}") == old
    assert not is_remote("runs/hf")
    assert local_folder("runs/hf") == Path("runs/hf")


@pytest.mark.parametrize(
    ("name", "downloads"),
    [("2_Dense/model.safetensors", True), ("2_Dense/config.json", True), ("0_Transformer/model.safetensors", True),
     ("unet/model.safetensors", False), ("original/model.safetensors", False), ("onnx/config.json", False)],
)  # fmt: skip
def test_weights_of_the_modules_of_a_sentence_model_are_taken(hub, name, downloads):
    hub.repositories["org/tiny"][NEW][name] = b"{}"
    assert (local_folder("hf://org/tiny") / name).is_file() == downloads


def test_the_cache_is_used_without_a_network(hub, monkeypatch):
    from huggingface_hub import constants

    folder = local_folder("hf://org/tiny")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # where nothing listens
    assert local_folder("hf://org/tiny") == folder
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert local_folder("hf://org/tiny") == folder
    with pytest.raises(UsageError, match=r"hf://org/other is not in the cache, and the hub cannot be reached"):
        local_folder("hf://org/other")


@pytest.mark.parametrize("commits", [[NEW], [OLD, NEW]], ids=["one", "two"])
@pytest.mark.parametrize("ref", [None, "", "\n", NEW, NEW + "\n", f" {NEW}\r\n", "3" * 40])
@pytest.mark.parametrize("revision", ["main", "v1"])
def test_a_cache_made_by_hand_is_read_or_its_commits_are_named(hub, monkeypatch, commits, ref, revision):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder = Path(constants.HF_HUB_CACHE) / "models--org--tiny"
    for commit in commits:
        (folder / "snapshots" / commit).mkdir(parents=True)
        (folder / "snapshots" / commit / "model.safetensors").write_bytes(b"")
    if ref is not None:
        (folder / "refs").mkdir()
        (folder / "refs" / revision).write_bytes(ref.encode())
    place = "hf://org/tiny" + ("" if revision == "main" else f"@{revision}")
    text = (ref or "").strip()
    if text == NEW or (not text and revision == "main" and len(commits) == 1):
        assert describe_origin(local_folder(place))["revision"] == NEW
        return
    with pytest.raises(UsageError, match="is not in the cache") as caught:
        local_folder(place)
    for commit in commits:
        assert f"hf://org/tiny@{commit}" in str(caught.value)
        assert describe_origin(local_folder(f"hf://org/tiny@{commit}"))["revision"] == commit


@pytest.mark.parametrize(
    ("place", "error", "message"),
    [
        ("hf://org/none", None, "is not on the hub, or is private"),
        ("hf://org/tiny@v9", None, "has no revision 'v9'"),
        ("hf://org/gated", (403, "GatedRepo"), "is gated: accept its conditions"),
        ("hf://org/secret", (401, "RepoNotFound"), "is not on the hub, or is private"),
        ("hf://org/broken", (500, ""), "cannot be downloaded|cannot be reached"),
        ("hf://org", None, "is no place on the hub: hf://ORG/NAME"),
        ("hf://org/../x", None, "is no place on the hub|is no name of a repository"),
        ("hf://org/a--b", None, "is no name of a repository"),
        ("hf://org/pickles", None, "has no file of safetensors: zoo reads no pickles"),
    ],
)
def test_what_is_not_there_is_said_in_one_sentence(hub, place, error, message):
    if error:
        hub.errors[place.removeprefix("hf://")] = error
    hub.repositories["org/pickles"] = {NEW: {"config.json": b"{}", "pytorch_model.bin": b"cos\nsystem\n"}}
    with pytest.raises(UsageError, match=message) as caught:
        local_folder(place)
    assert len(str(caught.value).splitlines()) == 1


def run(*words, **variables):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
    command = [sys.executable, "-m", "zoo", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_a_model_of_the_hub_is_imported_with_its_commit(hub, tmp_path):
    place = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home")}
    assert run("import", "hf://org/tiny@v1", "imported", **place).returncode == 0
    about = json.loads(Path("imported/config.json").read_text())
    assert about["origin"] == {"repository": "org/tiny", "revision": OLD}
    assert f"org/tiny at {OLD}" in Path("imported/recipe.yaml").read_text()
    hub.repositories["org/zoo"] = {NEW: {file.name: file.read_bytes() for file in Path("imported").iterdir()}}
    task = zoo.load("hf://org/zoo", bare=True).task  # an export of zoo
    own = zoo.load("imported", bare=True).task
    assert all((a == b).all() for a, b in zip(task.parameters(), own.parameters(), strict=True))
    again = run("import", "hf://org/tiny@v1", "imported", "--force", **place, HF_HUB_OFFLINE="1")
    assert again.returncode == 0
    for name, variables in (("none", {}), ("tiny@main", {"HF_HUB_OFFLINE": "1"})):
        refusal = run("import", f"hf://org/{name}", "other", **place, **variables)
        assert refusal.returncode == 2
        assert refusal.stderr.count("\n") == 1
        assert "Traceback" not in refusal.stderr
        assert not Path("other").exists()


def test_the_package_is_needed_for_the_hub_alone(tmp_path):
    code = "import sys; sys.modules['huggingface_hub'] = None; import zoo.inference.hub as hub; hub.local_folder('x')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
