"""A server of Google Cloud Storage's JSON API in memory, strict about preconditions.

It knows what google-cloud-storage asks for here, and refuses every parameter that it does not
know: a precondition that is not honoured would make a test pass for nothing.
Run as a module it prints its address and ends when its standard input does.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import threading
import time
import uuid
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import google_crc32c

# Every request for a bucket of such a name is refused, as for an account without permission.
FORBIDDEN = "forbidden-"
# A batch does not delete an object of such a name when it is first asked to.
FLAKY = "flaky-"
_PAGE = 1000
# What changes only how an answer is told, and who pays for it.
_PRESENTATION = {"alt", "fields", "prettyPrint", "projection", "quotaUser", "userProject"}
_LISTING = {"prefix", "delimiter", "maxResults", "pageToken"}


class Refused(Exception):  # noqa: N818  (an answer, not a fault of the server)
    """An answer other than success."""

    def __init__(self, status, reason, message):
        super().__init__(message)
        self.status, self.reason = status, reason

    def body(self):
        told = {"message": str(self)}
        errors = [{"domain": "global", "reason": self.reason, **told}]
        return json.dumps({"error": {"code": self.status, **told, "errors": errors}}).encode()


@dataclass(frozen=True)
class Stored:
    """One generation of an object."""

    bucket: str
    name: str
    data: bytes
    generation: int
    content_type: str
    metadata: dict[str, str]
    created: str
    metageneration: int = 1

    @property
    def md5(self):
        return base64.b64encode(hashlib.md5(self.data, usedforsecurity=False).digest()).decode()

    @property
    def crc32c(self):
        return crc32c(self.data)

    def resource(self):
        return {
            "kind": "storage#object",
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "name": self.name,
            "bucket": self.bucket,
            "generation": str(self.generation),
            "metageneration": str(self.metageneration),
            "contentType": self.content_type,
            "storageClass": "STANDARD",
            "size": str(len(self.data)),
            "md5Hash": self.md5,
            "crc32c": self.crc32c,
            "etag": base64.b64encode(str(self.generation).encode()).decode(),
            "timeCreated": self.created,
            "updated": self.created,
            **({"metadata": dict(self.metadata)} if self.metadata else {}),
        }


@dataclass
class Session:
    """A resumable upload: what came so far, and the object when all has come."""

    bucket: str
    name: str
    attributes: dict[str, Any]
    query: dict[str, str]
    data: bytearray = field(default_factory=bytearray)
    done: Stored | None = None


class Objects:
    """Buckets and what is in them; every change is atomic."""

    def __init__(self):
        self._lock = threading.RLock()
        self._buckets = {}
        self._sessions = {}
        self._refused = set()
        self._generation = 0

    def make_bucket(self, name):
        with self._lock:
            if name in self._buckets:
                raise Refused(409, "conflict", f"Your previous request to create {name} succeeded")
            self._buckets[name] = {}
        return self.bucket(name)

    def bucket(self, name):
        self._content(name)
        named = {"kind": "storage#bucket", "id": name, "name": name}
        return {**named, "location": "US", "metageneration": "1"}

    def _content(self, bucket):
        if bucket.startswith(FORBIDDEN):
            why = "Anonymous caller does not have storage.objects access to it."
            raise Refused(403, "forbidden", why)
        if bucket not in self._buckets:
            raise Refused(404, "notFound", "The specified bucket does not exist.")
        return self._buckets[bucket]

    def get(self, bucket, name, query):
        with self._lock:
            found = self._content(bucket).get(name)
        if found is None or query.get("generation", str(found.generation)) != str(found.generation):
            raise Refused(404, "notFound", f"No such object: {bucket}/{name}")
        return found

    def insert(self, bucket, name, data, attributes, query):
        if not name:
            raise Refused(400, "required", "Required object name is missing.")
        kind = attributes.get("contentType") or "application/octet-stream"
        now = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
        stored = Stored(bucket, name, data, 0, kind, attributes.get("metadata") or {}, now)
        for key, value in (("md5Hash", stored.md5), ("crc32c", stored.crc32c)):
            told = attributes.get(key)
            if told and told != value:
                raise Refused(400, "invalid", f"Provided {key} {told} doesn't match {value}.")
        with self._lock:
            content = self._content(bucket)
            _check(content.get(name), query)
            self._generation = max(self._generation + 1, time.time_ns() // 1000)
            stored = replace(stored, generation=self._generation)
            content[name] = stored
        return stored

    def delete(self, bucket, name, query):
        with self._lock:
            content = self._content(bucket)
            self.get(bucket, name, query)
            del content[name]

    def delete_in_batch(self, bucket, name):
        if name.rpartition("/")[2].startswith(FLAKY) and (bucket, name) not in self._refused:
            self._refused.add((bucket, name))
            raise Refused(503, "backendError", "Try again.")
        self.delete(bucket, name, {})

    def list(self, bucket, query):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        with self._lock:
            content = dict(self._content(bucket))
        entries = {}
        for name, stored in content.items():
            if not name.startswith(prefix):
                continue
            below = name.find(delimiter, len(prefix)) if delimiter else -1
            if below < 0:
                entries[name] = stored
            else:
                entries[name[: below + len(delimiter)]] = None
        order, token = sorted(entries, key=str.encode), query.get("pageToken")
        if token:
            after = base64.urlsafe_b64decode(token)
            order = order[bisect_right([name.encode() for name in order], after) :]
        page = order[: min(int(query.get("maxResults") or _PAGE), _PAGE)]
        answer = {"kind": "storage#objects"}
        items = [stored.resource() for name in page if (stored := entries[name]) is not None]
        folders = [name for name in page if delimiter and _is_folder(name, prefix, delimiter)]
        if items:
            answer["items"] = items
        if folders:
            answer["prefixes"] = folders
        if len(page) < len(order):
            answer["nextPageToken"] = base64.urlsafe_b64encode(page[-1].encode()).decode()
        return answer

    def begin_upload(self, bucket, name, attributes, query):
        with self._lock:
            _check(self._content(bucket).get(name), query)
            key = uuid.uuid4().hex
            self._sessions[key] = Session(bucket, name, attributes, query)
        return key

    def go_on(self, key, content_range, data):
        """Add a chunk to a resumable upload; the last one stores the object."""
        match = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", content_range)
        if not match:
            raise Refused(400, "invalid", f"Content-Range {content_range!r} cannot be read.")
        first, last, total = match.groups()
        with self._lock:
            session = self._sessions.get(key)
            if session is None:
                raise Refused(404, "notFound", "There is no such upload.")
            if session.done is not None:
                return session
            if first is not None:
                if int(last) - int(first) + 1 != len(data):
                    raise Refused(400, "invalid", "The range is not as long as the body.")
                if int(first) > len(session.data):
                    raise Refused(503, "backendError", "The range leaves a gap.")
                # What has come before is sent again after a lost answer.
                session.data += data[len(session.data) - int(first) :]
            if total != "*" and len(session.data) == int(total):
                data, where = bytes(session.data), (session.bucket, session.name)
                session.done = self.insert(*where, data, session.attributes, session.query)
            return session

    def give_up(self, key):
        with self._lock:
            if self._sessions.pop(key, None) is None:
                raise Refused(404, "notFound", "There is no such upload.")


def crc32c(data):
    """The checksum as the API tells it."""
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


def _is_folder(name, prefix, delimiter):
    return name.endswith(delimiter) and len(name) > len(prefix)


def _check(found, query):
    """Refuse what a precondition forbids; generation 0 is an object that is not there."""
    generation, wanted = found.generation if found else 0, query.get("ifGenerationMatch")
    if wanted is not None and int(wanted) != generation:
        raise Refused(412, "conditionNotMet", f"the generation is {generation}, not {wanted}.")


class Handler(BaseHTTPRequestHandler):
    """Reads requests and writes answers; what they mean is the store's."""

    protocol_version = "HTTP/1.1"
    # Head and body are sent apart, and the second must not wait for the first to be confirmed.
    disable_nagle_algorithm = True
    store: Objects

    def do_GET(self):
        self._answer()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_GET  # noqa: N815  (http.server's names)

    def log_message(self, *_):
        """Nothing: a test says what it expected."""

    def _answer(self):
        try:
            body = self._body()
        except (ConnectionError, ValueError):
            # The sender went away half-way: nothing of it counts.
            self.close_connection = True
            return
        address = urlsplit(self.path)
        query = dict(parse_qsl(address.query, keep_blank_values=True))
        # A slash of an object's name is sent as %2F.
        parts = [unquote(part) for part in address.path.lstrip("/").split("/")]
        try:
            self._route(parts, query, body)
        except Refused as refused:
            self._send(refused.status, refused.body())

    def _body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self._exactly(int(self.headers.get("Content-Length") or 0))
        blocks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            blocks.append(self._exactly(size))
            self._exactly(2)
        while self.rfile.readline().strip():
            """Trailers are nothing that a client needs here."""
        return b"".join(blocks)

    def _exactly(self, size):
        data = self.rfile.read(size)
        if len(data) != size:
            raise ConnectionError("the body is cut")
        return data

    def _route(self, parts, query, body):
        # What is downloaded has the same address, behind a word.
        match (self.command, *parts[parts[0] == "download" :]):
            case ("POST", "storage", "v1", "b"):
                _known(query, {"project", "enableObjectRetention"})
                self._json(self.store.make_bucket(json.loads(body)["name"]))
            case ("GET", "storage", "v1", "b", bucket):
                _known(query, set())
                self._json(self.store.bucket(bucket))
            case ("GET", "storage", "v1", "b", bucket, "o"):
                _known(query, _LISTING)
                self._json(self.store.list(bucket, query))
            case ("GET", "storage", "v1", "b", bucket, "o", name):
                _known(query, {"generation"})
                found = self.store.get(bucket, name, query)
                if query.get("alt") == "media":
                    self._media(found)
                else:
                    self._json(found.resource())
            case ("DELETE", "storage", "v1", "b", bucket, "o", name):
                _known(query, {"generation"})
                self.store.delete(bucket, name, query)
                self._send(204)
            case ("POST", "batch", "storage", "v1"):
                self._batch(body)
            case ("POST", "upload", "storage", "v1", "b", bucket, "o"):
                self._insert(bucket, query, body)
            case ("PUT", "upload", "storage", "v1", "b", _, "o"):
                self._go_on(query, body)
            case ("DELETE", "upload", "storage", "v1", "b", _, "o"):
                self.store.give_up(query.get("upload_id", ""))
                self._send(499)
            case _:
                raise Refused(501, "notImplemented", f"{self.command} {self.path} is not known.")

    def _insert(self, bucket, query, body):
        kind = query.get("uploadType", "")
        _known(query, {"uploadType", "name", "ifGenerationMatch"})
        if kind == "media":
            attributes, data = {}, body
        elif kind == "multipart":
            attributes, data = _related(self.headers.get("Content-Type", ""), body)
        elif kind == "resumable":
            attributes = json.loads(body) if body else {}
            attributes.setdefault("contentType", self.headers.get("X-Upload-Content-Type"))
            name = query.get("name") or attributes.get("name", "")
            key = self.store.begin_upload(bucket, name, attributes, query)
            where = (
                f"http://{self.headers['Host']}/upload/storage/v1/b/{quote(bucket)}/o"
                f"?uploadType=resumable&upload_id={key}"
            )
            self._send(200, headers={"Location": where, "X-GUploader-UploadID": key})
            return
        else:
            raise Refused(400, "invalid", f"uploadType {kind!r} is not known.")
        name = query.get("name") or attributes.get("name", "")
        self._json(self.store.insert(bucket, name, data, attributes, query).resource())

    def _go_on(self, query, body):
        whole = f"bytes 0-{len(body) - 1}/{len(body)}" if body else "bytes */0"
        content_range = self.headers.get("Content-Range", whole)
        session = self.store.go_on(query.get("upload_id", ""), content_range, body)
        if session.done is not None:
            self._json(session.done.resource())
            return
        size = len(session.data)
        self._send(308, headers={"Range": f"bytes=0-{size - 1}"} if size else {})

    def _batch(self, body):
        """Delete the objects that a body of many requests names, each by itself."""
        lines = re.findall(rb"^DELETE (\S+) HTTP/1.1", body, re.MULTILINE)
        if not 0 < len(lines) <= 100 or body.count(b"application/http") != len(lines):
            raise Refused(400, "invalid", "A batch is of 1 to 100 requests, all of them DELETE.")
        parts = []
        for number, line in enumerate(lines):
            address = urlsplit(line.decode())
            *_, bucket, _, name = map(unquote, address.path.split("/"))
            status, told = b"204 No Content", b""
            try:
                self.store.delete_in_batch(bucket, name)
            except Refused as refused:
                status, told = b"%d Refused" % refused.status, refused.body()
            head = b"Content-Type: application/http\r\nContent-ID: <response-%d>" % number
            parts.append(b"--b\r\n%s\r\n\r\nHTTP/1.1 %s\r\n\r\n%s\r\n" % (head, status, told))
        kind = 'multipart/mixed; boundary="b"'
        self._send(200, b"".join(parts) + b"--b--", content_type=kind)

    def _media(self, found):
        size, headers = len(found.data), {"x-goog-generation": str(found.generation)}
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not wanted or wanted.groups() == ("", ""):
            headers["x-goog-hash"] = f"crc32c={found.crc32c},md5={found.md5}"
            self._send(200, found.data, headers, found.content_type)
            return
        first, last = wanted.groups()
        begin = int(first) if first else max(size - int(last), 0)
        end = min(int(last) + 1, size) if first and last else size
        if begin >= size:
            raise Refused(416, "requestedRangeNotSatisfiable", f"There are {size} bytes.")
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        self._send(206, found.data[begin:end], headers, found.content_type)

    def _json(self, content):
        self._send(200, json.dumps(content).encode())

    def _send(self, status, body=b"", headers=None, content_type="application/json; charset=UTF-8"):
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        if status not in (204, 304):
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status not in (204, 304) and self.command != "HEAD":
            self.wfile.write(body)


def _known(query, known):
    for key in query:
        if key not in known | _PRESENTATION:
            raise Refused(501, "notImplemented", f"The parameter {key!r} is not known.")


def _related(content_type, body):
    """Return the attributes and the data of a body of two parts."""
    match = re.search(r'boundary="?([^";]+)"?', content_type)
    if not match:
        raise Refused(400, "badContent", "A multipart body has a boundary.")
    mark = b"--" + match.group(1).encode()
    end = body.rfind(b"\r\n" + mark + b"--")
    if not body.startswith(mark) or end < 0:
        raise Refused(400, "badContent", "The multipart body is malformed or cut.")
    first, _, second = body[len(mark) : end].partition(b"\r\n" + mark + b"\r\n")
    attributes = json.loads(first.partition(b"\r\n\r\n")[2])
    head, _, data = second.partition(b"\r\n\r\n")
    for line in head.decode().splitlines():
        key, _, value = line.partition(":")
        if key.lower() == "content-type":
            attributes.setdefault("contentType", value.strip())
    return attributes, data


class Server(ThreadingHTTPServer):
    """Takes many clients that come at once, as races of writers do."""

    request_queue_size = 128
    daemon_threads = True

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def serve():
    server = Server(("127.0.0.1", 0), type("StoreHandler", (Handler,), {"store": Objects()}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    serve()
