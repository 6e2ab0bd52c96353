"""A hub on this machine: the part of the hub's HTTP API that uploads use, with what reached it, and ways to fail."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

LARGE = (".safetensors", ".bin", ".pt", ".pth")
USER, TOKEN, READ_TOKEN = "me", "hf_secretSECRETsecret", "hf_readonlyREADONLY"


@dataclass
class Commit:
    """One commit of a revision: what it says, and the files that it added, as they then were, or removed."""

    revision: str
    message: str
    files: dict[str, bytes]
    removed: list[str]


@dataclass
class Repository:
    """Branches, each a tree of files, and the commits in order."""

    private: bool
    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {".gitattributes": b""}})
    commits: list[Commit] = field(default_factory=list)

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return {name: content for name, content in self.branches[revision].items() if name != ".gitattributes"}

    @property
    def messages(self) -> list[str]:
        return [commit.message for commit in self.commits]


class HubServer:
    """`delay`: seconds before a commit is answered. `failures`: statuses of next answers, by kind; None: as usual."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.failures: dict[str, list[int | None]] = {}
        self.delay = 0.0
        self.hang = threading.Event()  # set: no commit is ever answered
        self.licenses: dict[str, str] = {}
        self.uploading = 0
        self.most_uploading = 0
        self.lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def only(self) -> Repository:
        (found,) = self.repositories.values()
        return found

    def add(self, name: str, private: bool = False) -> Repository:
        self.repositories[name] = Repository(private)
        return self.repositories[name]

    def close(self) -> None:
        self.hang.clear()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed amid an answer are what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._route("GET")

    def do_POST(self) -> None:
        self._route("POST")

    def do_PUT(self) -> None:
        self._route("PUT")

    # ---- answers

    def _answer(self, status: int, content: Any = None, error: str | None = None, code: str | None = None) -> None:
        body = json.dumps(content if content is not None else {"error": error}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if error is not None:
            self.send_header("X-Error-Message", error)
        if code is not None:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length")
        if length is not None:
            return self.rfile.read(int(length))
        content = b""
        while size := int(self.rfile.readline().strip(), 16):  # chunked
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def _route(self, method: str) -> None:
        path = unquote(urlsplit(self.path).path)
        words = path.strip("/").split("/")
        body = self._body() if method != "GET" else b""
        kind = self._kind(method, words)
        with self.hub.lock:
            self.hub.requests.append(f"{method} {path}")
            failing = self.hub.failures.get(kind)
            status = failing.pop(0) if failing else None
        if status is not None:
            self._answer(status, error="told to fail")
            return
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if kind not in ("put", "validate") and token not in (TOKEN, READ_TOKEN):
            self._answer(401, error="Invalid username or password.")
            return
        getattr(self, f"_{kind}")(words, body, token)

    @staticmethod
    def _kind(method: str, words: list[str]) -> str:
        if method == "PUT":
            return "put"
        if words[-1] == "batch":
            return "batch"
        named = {"create": "create", "validate-yaml": "validate", "write": "rights"}
        if words[-1] in named and words[0] == "api":
            return named[words[-1]]
        kinds = {"preupload": "preupload", "commit": "commit", "tree": "tree", "branch": "branch"}
        return kinds.get(words[4], "info") if len(words) > 4 else "info"

    def _repository(self, words: list[str]) -> Repository | None:
        found = self.hub.repositories.get("/".join(words[2:4]))
        if found is None:
            self._answer(404, error="Repository not found", code="RepoNotFound")
        return found

    # ---- what is asked

    def _create(self, words: list[str], body: bytes, token: str) -> None:
        asked = json.loads(body)
        name = f"{asked.get('organization') or USER}/{asked['name']}"
        if token != TOKEN or name.partition("/")[0] not in (USER, "org"):
            self._answer(403, error=f"You don't have the rights to create a model under the namespace of {name}")
        elif name in self.hub.repositories:
            self._answer(409, {"url": f"{self.hub.url}/{name}", "error": "You already created this model repo"})
        else:
            self.hub.repositories[name] = Repository(asked.get("visibility") == "private")
            self._answer(200, {"url": f"{self.hub.url}/{name}", "name": name})

    def _info(self, words: list[str], body: bytes, token: str) -> None:
        name = "/".join(words[2:4])
        if name in self.hub.licenses:
            self._answer(200, {"id": name, "tags": [f"license:{self.hub.licenses[name]}"], "siblings": []})
        elif (found := self._repository(words)) is not None:
            revision = "/".join(words[5:]) or "main"
            if revision not in found.branches:
                self._answer(404, error=f"Invalid rev id: {revision}", code="RevisionNotFound")
            else:
                self._answer(200, {"id": name, "sha": "0" * 40, "siblings": [], "tags": []})

    def _rights(self, words: list[str], body: bytes, token: str) -> None:
        is_own = words[2] in (USER, "org") and token == TOKEN
        self._answer(200, {}) if is_own else self._answer(403, error="no write access")

    def _branch(self, words: list[str], body: bytes, token: str) -> None:
        if (found := self._repository(words)) is not None:
            found.branches["/".join(words[5:])] = dict(found.branches["main"])
            self._answer(200, {})

    def _validate(self, words: list[str], body: bytes, token: str) -> None:
        content = json.loads(body)["content"]
        errors = []
        if content.startswith("---\n"):
            data = yaml.safe_load(content[4:].split("\n---\n")[0])
            if isinstance(data.get("language"), str) and len(data["language"]) > 3:
                errors.append({"message": '"language" must be an ISO 639 code'})
            for result in [one for index in data.get("model-index") or [] for one in index["results"]]:
                errors += [{"message": f'"{key}" is required'} for key in ("task", "dataset") if key not in result]
        self._answer(400 if errors else 200, {"errors": errors, "warnings": []})

    def _tree(self, words: list[str], body: bytes, token: str) -> None:
        if (found := self._repository(words)) is not None:
            files = found.branches[words[5]]
            self._answer(200, [_entry(name, content) for name, content in files.items()])

    def _preupload(self, words: list[str], body: bytes, token: str) -> None:
        found = self._repository(words)
        if found is None:
            return
        if words[5] not in found.branches:
            self._answer(404, error=f"Invalid rev id: {words[5]}", code="RevisionNotFound")
            return
        asked = json.loads(body)
        present = found.branches[words[5]]
        ignored = asked.get("gitIgnore", "").split()
        files = []
        for one in asked["files"]:
            path = one["path"]
            entry = {"path": path, "uploadMode": "lfs" if path.endswith(LARGE) else "regular"}
            entry["shouldIgnore"] = any(fnmatch.fnmatch(path, rule) for rule in ignored)
            entry["oid"] = _oid(path, present[path]) if path in present else None
            files.append(entry)
        self._answer(200, {"files": files})

    def _batch(self, words: list[str], body: bytes, token: str) -> None:
        objects = []
        for one in json.loads(body)["objects"]:
            entry = {"oid": one["oid"], "size": one["size"]}
            if one["oid"] not in self.hub.objects:
                entry["actions"] = {"upload": {"href": f"{self.hub.url}/lfs/{one['oid']}"}}
            objects.append(entry)
        self._answer(200, {"objects": objects, "transfer": "basic"})

    def _put(self, words: list[str], body: bytes, token: str) -> None:
        if hashlib.sha256(body).hexdigest() != words[-1]:
            self._answer(400, error="this is not what its name says")
            return
        self.hub.objects[words[-1]] = body
        self._answer(200, {})

    def _commit(self, words: list[str], body: bytes, token: str) -> None:
        found = self._repository(words)
        if found is None:
            return
        with self.hub.lock:
            self.hub.uploading += 1
            self.hub.most_uploading = max(self.hub.most_uploading, self.hub.uploading)
        time.sleep(self.hub.delay)
        while self.hub.hang.is_set():
            time.sleep(0.02)
        revision = "/".join(words[5:])
        commit = Commit(revision, "", {}, [])
        for line in filter(None, body.split(b"\n")):
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                commit.message = value["summary"]
            elif entry["key"] == "file":
                commit.files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                commit.files[value["path"]] = self.hub.objects[value["oid"]]
            elif entry["key"] == "deletedFile":
                commit.removed.append(value["path"])
        tree = found.branches[revision]
        for name in commit.removed:
            tree.pop(name)
        tree.update(commit.files)
        found.commits.append(commit)
        with self.hub.lock:
            self.hub.uploading -= 1
        oid = f"{len(found.commits):040x}"
        url = f"{self.hub.url}/{'/'.join(words[2:4])}/commit/{oid}"
        self._answer(200, {"commitUrl": url, "commitOid": oid, "hookOutput": "", "success": True})


def _oid(name: str, content: bytes) -> str:
    if name.endswith(LARGE):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _entry(name: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(content), "oid": _oid(name, content)}
