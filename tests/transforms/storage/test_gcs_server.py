"""The tests' own server of Google Cloud Storage is as strict as the real one, and behaves alike."""

import json
import re
import socket
from urllib.parse import quote, urlsplit

import pytest
import requests

from tests.gcs_server import FORBIDDEN, crc32c

own_server = pytest.mark.parametrize("bucket", ["gcs_server"], indirect=True)
google_stores = pytest.mark.parametrize(
    "bucket",
    ["gcs_server", pytest.param("fake_gcs_server", marks=pytest.mark.engine)],
    indirect=True,
)


@google_stores
def test_pages(bucket):
    names = [f"n/{number}" for number in range(7)] + ["n/sub/x", "n/sub/y"]
    for name in names:
        bucket.write(name, b"")
    client = bucket.store.client
    pages = list(client.list_blobs(bucket.name, prefix="n/", page_size=2).pages)
    assert [blob.name for page in pages for blob in page] == sorted(names)
    found = client.list_blobs(bucket.name, prefix="n/", delimiter="/", page_size=3)
    assert sorted(blob.name for blob in found) == names[:7]
    assert found.prefixes == {"n/sub/"}


def api(bucket, path):
    return f"{bucket.store.endpoint}{path.replace('BUCKET', bucket.name)}"


UPLOAD = "/upload/storage/v1/b/BUCKET/o?uploadType="


@own_server
def test_what_it_does_not_know_it_refuses(bucket):
    """A condition that is not honoured would let a test pass for nothing."""
    answer = requests.post(
        api(bucket, f"{UPLOAD}multipart&name=x&ifMagic=1"), data=b"x", timeout=10
    )
    assert answer.status_code == 501
    assert "ifMagic" in answer.json()["error"]["message"]
    assert requests.get(api(bucket, "/storage/v1/b/BUCKET/acl"), timeout=10).status_code == 501
    assert requests.post(api(bucket, f"{UPLOAD}odd&name=x"), timeout=10).status_code == 400
    assert bucket.keys() == []


@own_server
def test_wrong_hashes_are_refused(bucket):
    for told, status in ((crc32c(b"other"), 400), (crc32c(b"data"), 200)):
        attributes = json.dumps({"name": "file", "crc32c": told})
        body = f"--b\r\n\r\n{attributes}\r\n--b\r\ncontent-type: x\r\n\r\ndata\r\n--b--".encode()
        headers = {"Content-Type": "multipart/related; boundary=b"}
        address = api(bucket, f"{UPLOAD}multipart")
        answer = requests.post(address, data=body, headers=headers, timeout=10)
        assert answer.status_code == status
        assert bucket.keys() == (["file"] if status == 200 else [])


@own_server
def test_a_body_that_is_cut_is_nothing(bucket):
    place = urlsplit(bucket.store.endpoint)
    body = b'--b\r\ncontent-type: x\r\n\r\n{"name": "file"}\r\n--b\r\n\r\n' + b"x" * 1000
    with socket.create_connection((place.hostname, place.port or 0)) as client:
        head = (
            f"POST {UPLOAD.replace('BUCKET', bucket.name)}multipart&name=file HTTP/1.1\r\n"
            f"Host: {place.netloc}\r\nContent-Length: 5000\r\n"
            "Content-Type: multipart/related; boundary=b\r\n\r\n"
        )
        client.sendall(head.encode() + body)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b""
    assert bucket.keys() == []


@own_server
def test_an_upload_that_is_resumed(bucket):
    def start(more=""):
        answer = requests.post(
            api(bucket, f"{UPLOAD}resumable&name={quote('a/b')}{more}"), timeout=10
        )
        assert answer.status_code == 200
        return answer.headers["Location"]

    def send(place, span, data=b""):
        answer = requests.put(place, data=data, headers={"Content-Range": span}, timeout=10)
        return answer.status_code, answer.headers.get("Range")

    place, other = start("&ifGenerationMatch=0"), start("&ifGenerationMatch=0")
    assert send(place, "bytes */*") == (308, None)
    assert send(place, "bytes 0-3/*", b"0123") == (308, "bytes=0-3")
    assert bucket.keys() == []
    assert send(place, "bytes */*") == (308, "bytes=0-3")
    # A chunk that comes again, and one that leaves a gap.
    assert send(place, "bytes 2-5/*", b"2345") == (308, "bytes=0-5")
    assert send(place, "bytes 8-9/*", b"89")[0] == 503
    assert send(place, "bytes 6-9/10", b"6789")[0] == 200
    assert send(place, "bytes */*")[0] == 200
    assert bucket.read("a/b") == b"0123456789"
    # The condition counts when the object is stored, not when the upload begins.
    assert send(other, "bytes 0-3/4", b"late")[0] == 412
    assert bucket.read("a/b") == b"0123456789"
    assert requests.delete(other, timeout=10).status_code == 499
    assert send(other, "bytes */*")[0] == 404


@own_server
def test_errors_are_told_as_google_tells_them(bucket):
    answer = requests.get(api(bucket, "/storage/v1/b/BUCKET/o/absent"), timeout=10)
    assert answer.status_code == 404
    assert re.search("No such object", json.loads(answer.text)["error"]["message"])
    address = f"{bucket.store.endpoint}/storage/v1/b/{FORBIDDEN}x/o"
    assert requests.get(address, timeout=10).json()["error"]["errors"][0]["reason"] == "forbidden"
