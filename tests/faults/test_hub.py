"""Hub ids against a stand-in of the hub's protocol on this machine: no network is needed.

It answers what huggingface_hub asks: the list of a repository's files at a revision, the head of
each file, and its bytes, whole or from an offset on.
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from checkpoints import GOLDEN

FILES = {
    name: (GOLDEN / "llada" / name).read_bytes() for name in ("config.json", "model.safetensors")
}
INDEX = json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}}).encode()
COMMITS = {"main": "a" * 40, "v2": "b" * 40}
REPOSITORIES = {
    "org/whole": FILES,
    "org/cut": FILES,
    "org/gated": FILES,
    "org/no-config": {"model.safetensors": FILES["model.safetensors"]},
    "org/no-shard": {"config.json": FILES["config.json"], "model.safetensors.index.json": INDEX},
}

SCRIPT = """
import json, sys
import anchorwatch as aw
from huggingface_hub import constants

constants.DOWNLOAD_CHUNK_SIZE = 4096  # the files are small: what arrived before a break is kept
said = {}
def attempt(name, source, **given):
    try:
        model = aw.load(source, device="cpu", **given)
        said[name] = {"revision": model.revision, "digest": model.digest}
    except aw.AnchorwatchError as error:
        said[name] = {"error": str(error)}

attempt("whole", "org/whole")
attempt("revision", "org/whole", revision="v2")
attempt("no revision", "org/whole", revision="v9")
attempt("resumed", "org/cut")
attempt("gated", "org/gated")
attempt("absent", "org/absent")
attempt("no config", "org/no-config")
attempt("no shard", "org/no-shard")
attempt("no gguf", "org/whole/some.gguf")
attempt("folder", sys.argv[1])
constants.HF_HUB_OFFLINE = True
attempt("offline, in the cache", "org/whole")
attempt("offline, not there", "org/other")
print(json.dumps(said))
"""


class Hub(BaseHTTPRequestHandler):
    """The few answers of the hub that downloads need."""

    protocol_version = "HTTP/1.1"
    requests: ClassVar[list[tuple[str, str, str | None]]] = []
    cut = threading.Event()

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        path = self.path.partition("?")[0]
        Hub.requests.append((self.command, path, self.headers.get("Range")))
        words = path.strip("/").split("/")
        if words[0] == "api":
            self.list_files("/".join(words[2:4]), words[5] if len(words) > 5 else "main")
        else:
            self.send_file("/".join(words[:2]), words[3], "/".join(words[4:]), body=body)

    def list_files(self, repository, revision):
        if repository not in REPOSITORIES:
            return self.refuse(404, "RepoNotFound")
        if revision not in COMMITS and revision not in COMMITS.values():
            return self.refuse(404, "RevisionNotFound")
        siblings = [{"rfilename": name} for name in REPOSITORIES[repository]]
        sha = COMMITS.get(revision, revision)
        tree = [
            {"type": "file", "path": name, "size": len(data), "oid": "0" * 40}
            for name, data in REPOSITORIES[repository].items()
        ]
        info = {"id": repository, "sha": sha, "siblings": siblings, "private": False, "tags": []}
        self.reply(json.dumps(tree if "/tree/" in self.path else info).encode())

    def send_file(self, repository, revision, name, *, body):
        if repository == "org/gated":
            return self.refuse(403, "GatedRepo")
        data = REPOSITORIES.get(repository, {}).get(name)
        if data is None:
            return self.refuse(404, "EntryNotFound")
        more = {
            "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
            "X-Repo-Commit": COMMITS.get(revision, revision),
            "Accept-Ranges": "bytes",
        }
        start = self.headers.get("Range", "")
        first = int(start.removeprefix("bytes=").partition("-")[0]) if start else 0
        if first:
            more["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        if (
            body
            and repository == "org/cut"
            and name.endswith("safetensors")
            and not Hub.cut.is_set()
        ):
            Hub.cut.set()  # the connection breaks once, in the middle
            self.reply(data, more, send=len(data) // 2)
            self.close_connection = True
            return None
        return self.reply(data[first:], more, status=206 if first else 200, body=body)

    def refuse(self, status, code):
        self.reply(b"{}", {"X-Error-Code": code, "X-Error-Message": code}, status=status)

    def reply(self, data, more=(), *, status=200, body=True, send=None):
        self.send_response(status)
        for name, value in dict(more).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body and self.command == "GET":
            self.wfile.write(data[:send])

    def log_message(self, *_):
        """Quiet."""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What loading said in each case, from one process that knows only the stand-in."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path_factory.mktemp("hub")),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NO_PROXY": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, GOLDEN / "llada"],
        capture_output=True,
        text=True,
        env=os.environ | settings,
        check=False,
    )
    server.shutdown()
    server.server_close()
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_repository_is_downloaded_and_its_commit_kept(said):
    assert said["whole"]["revision"] == COMMITS["main"]
    assert said["whole"]["digest"] == said["folder"]["digest"]
    assert said["revision"]["revision"] == COMMITS["v2"]


def test_a_broken_download_is_resumed(said):
    assert said["resumed"]["digest"] == said["folder"]["digest"]
    offsets = [of for _, path, of in Hub.requests if "org/cut" in path and of]
    assert any(not of.startswith("bytes=0-") for of in offsets), offsets


def test_offline_the_cache_serves(said):
    assert said["offline, in the cache"]["digest"] == said["folder"]["digest"]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("no revision", "it has no revision 'v9': name a branch, tag or commit"),
        ("gated", "it is gated: ask for access at https://huggingface.co/org/gated and log in"),
        ("absent", "the hub has no such repository, or it is private: check the name"),
        ("no config", "a checkpoint folder needs its config.json"),
        ("no shard", "the shard model-00001-of-00002.safetensors is missing"),
        ("no gguf", "is not a file here and the hub did not give it"),
        ("offline, not there", "HF_HUB_OFFLINE is set and the cache does not have it: unset it"),
    ],
)
def test_what_the_hub_does_not_give_is_said(said, case, words):
    assert words in said[case]["error"]
