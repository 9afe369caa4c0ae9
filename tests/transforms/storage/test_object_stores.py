"""Faults of object storage; the tests' own server of Google's is as strict as the real one."""

import json
import re
import socket
from urllib.parse import quote, urlsplit

import pytest
import requests

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.transforms.storage import object_stores as stores
from slicebeam.transforms.storage import storage
from slicebeam.transforms.storage.files import expand_paths
from slicebeam.transforms.storage.publish import version_of
from slicebeam.transforms.storage.storage import ObjectPath, identity, remove_folder, written_whole
from tests.conftest import google_first, own_stores
from tests.gcs_server import FLAKY, FORBIDDEN, crc32c
from tests.object_stores import free_port, one_line
from tests.refusals import refusal
from tests.storage_faults import OBJECTS, Fault, within
from tests.transforms.storage.test_publish import put


def write(path, data):
    with written_whole(path) as stream:
        stream.write(data)


USES = {
    "is_file": lambda path: path.is_file(), "is_dir": lambda path: path.is_dir(),
    "iterdir": lambda path: list(path.iterdir()),
    "glob": lambda path: list(path.glob("*")),
    "read": lambda path: path.read_bytes(), "open": lambda path: path.open().read(),
    "identity": identity, "unlink": lambda path: path.unlink(missing_ok=True),
    "remove_folder": remove_folder, "write": lambda path: write(path, b"data"),
    "expand_paths": lambda path: expand_paths([str(path)]),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
@pytest.mark.slow
def test_a_bucket_that_is_not_there(bucket, use):
    error = refusal(EngineError, USES[use], ObjectPath(f"{bucket.uri}-absent/folder/file"))
    one_line(error, f"{bucket.uri}-absent/", "no bucket", f"'{bucket.name}-absent'", "; create it")


@own_stores
@pytest.mark.parametrize("use", ["is_file", "read", "write"])
@pytest.mark.slow
def test_nobody_listens(bucket, use, monkeypatch):
    monkeypatch.setenv("SLICEBEAM_STORAGE_TIMEOUT", "1")
    for name, value in bucket.store.environment(f"http://127.0.0.1:{free_port()}").items():
        monkeypatch.setenv(name, value)
    storage._store.cache_clear()
    error = refusal(EngineError, within, 60, USES[use], ObjectPath(f"{bucket.uri}/file"))
    one_line(error, f"{bucket.uri}/", "127.0.0.1", "SLICEBEAM_STORAGE_TIMEOUT")


def test_a_time_limit_that_is_none(monkeypatch):
    for value in ("soon", "0", "-1", "nan", "1e9"):
        monkeypatch.setenv("SLICEBEAM_STORAGE_TIMEOUT", value)
        with pytest.raises(InputError, match="SLICEBEAM_STORAGE_TIMEOUT") as error:
            stores.storage_timeout()
        one_line(error, repr(value))


FAULTS = {
    "429": {"kind": "status", "status": 429, "times": 2},
    "500": {"kind": "status", "status": 500, "times": 2},
    "502": {"kind": "status", "status": 502, "times": 1},
    "503": {"kind": "status", "status": 503, "times": 3},
    "dropped": {"kind": "drop", "times": 2},
    "lost answer": {"kind": "lose answer", "times": 1},
    "half an answer": {"kind": "cut answer", "times": 1},
    "slow": {"kind": "delay", "times": 1, "seconds": 0.3},
}
FAULTY_USES = ["is_file", "iterdir", "read", "open", "write", "unlink"]


@own_stores
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("use", FAULTY_USES)
@pytest.mark.usefixtures("short_waits")
@pytest.mark.slow
def test_passing_faults_go_unnoticed(bucket, proxy, use, name):
    bucket.write("folder/file", b"content" * 1000)
    bucket.write("folder/file/below", b"")
    path = ObjectPath(f"{bucket.uri}/folder/file")
    wanted = USES[use](path)
    bucket.write("folder/file", b"content" * 1000)
    fault = proxy.add(Fault(path=OBJECTS[bucket.store.scheme], **FAULTS[name]))
    assert USES[use](path) == wanted
    assert fault.struck == fault.times
    assert bucket.keys() == ["folder/file"] * (use != "unlink") + ["folder/file/below"]
    if use == "write":
        assert bucket.read("folder/file") == b"data"


# Answers without a body, which cannot be cut.
BODILESS = {"gcs_server": ("unlink",), "moto": ("is_file", "write")}


@pytest.mark.parametrize(("bucket", "use", "kind"), [
    (store, use, kind)
    for store in BODILESS
    for use in FAULTY_USES
    for kind in ("silence", "drop", "status", "cut answer", "lose answer")
    if kind != "cut answer" or use not in BODILESS[store]
], indirect=["bucket"])  # fmt: skip
@pytest.mark.slow
def test_lasting_faults_are_an_error(bucket, proxy, use, kind, monkeypatch):
    monkeypatch.setenv("SLICEBEAM_STORAGE_TIMEOUT", "2")
    bucket.write("folder/file", b"content" * 1000)
    proxy.add(Fault(kind, path=OBJECTS[bucket.store.scheme]))
    error = refusal(EngineError, within, 60, USES[use], ObjectPath(f"{bucket.uri}/folder/file"))
    one_line(error, f"{bucket.uri}/folder/file", "SLICEBEAM_STORAGE_TIMEOUT")


@pytest.mark.parametrize(
    "bucket", ["gcs_server", pytest.param("minio", marks=pytest.mark.engine)], indirect=True
)
def test_what_is_damaged_on_its_way_is_fetched_again_or_refused(bucket, proxy, monkeypatch):
    """Both libraries compare the store's checksum of a whole object."""
    monkeypatch.setenv("SLICEBEAM_STORAGE_TIMEOUT", "3")
    path = ObjectPath(f"{bucket.uri}/file")
    write(path, b"content" * 1000)
    once = proxy.add(Fault("damage", method="GET", path="file", times=1))
    assert path.read_bytes() == b"content" * 1000
    assert once.struck == 1
    proxy.add(Fault("damage", method="GET", path="file"))
    one_line(refusal(EngineError, path.read_bytes), str(path))


@google_first
@pytest.mark.usefixtures("short_waits")
@pytest.mark.slow
def test_an_upload_that_is_cut_leaves_what_was_there(bucket, proxy, monkeypatch):
    path = ObjectPath(f"{bucket.uri}/file")
    write(path, b"old")
    once = proxy.add(Fault("cut request", method="PUT|POST", times=1))
    write(path, b"new" * 1_000_000)
    assert once.struck == 1
    assert path.read_bytes() == b"new" * 1_000_000
    monkeypatch.setenv("SLICEBEAM_STORAGE_TIMEOUT", "2")
    proxy.add(Fault("cut request", method="PUT|POST"))
    with pytest.raises(EngineError):
        write(path, b"newer" * 1_000_000)
    assert bucket.read("file") == b"new" * 1_000_000


@google_first
@pytest.mark.parametrize("kind", ["status", "silence", "drop", "cut request"])
@pytest.mark.slow
def test_a_store_that_never_answers(path, proxy, bucket, kind, monkeypatch):
    put(path, b"old", None)
    version = version_of(path)
    monkeypatch.setenv("SLICEBEAM_STORAGE_TIMEOUT", "2")
    proxy.add(Fault(kind, path=OBJECTS[bucket.store.scheme]))
    error = refusal(EngineError, within, 60, put, path, b"new" * 1_000_000, version)
    one_line(error, str(path), "SLICEBEAM_STORAGE_TIMEOUT")
    proxy.heal()
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("bucket", ["gcs_server"], indirect=True)
def test_no_permission_on_google_cloud_storage(bucket, use):
    error = refusal(EngineError, USES[use], ObjectPath(f"gs://{FORBIDDEN}bucket/folder/file"))
    one_line(error, f"gs://{FORBIDDEN}bucket/", "does not have storage.objects", "credentials")


def test_no_credentials_for_google_cloud_storage(monkeypatch, tmp_path):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "absent.json"))
    storage._store.cache_clear()
    error = refusal(EngineError, ObjectPath("gs://bucket/file").read_bytes)
    one_line(error, "gs://", "absent.json", "; check the credentials")


@pytest.mark.engine
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("bucket", ["minio"], indirect=True)
@pytest.mark.parametrize("variable", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_keys(bucket, use, variable, monkeypatch):
    bucket.write("folder/file", b"data")
    monkeypatch.setenv(variable, "wrong")
    # Neither the client nor the credentials that it has found are kept.
    storage._store.cache_clear()
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    error = refusal(EngineError, USES[use], ObjectPath(f"{bucket.uri}/folder/file"))
    one_line(error, f"{bucket.uri}/", "; check the credentials")


@pytest.mark.parametrize("bucket", ["moto"], indirect=True)
def test_no_keys(bucket, monkeypatch, tmp_path):
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    # It keeps the credentials that it has found.
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    storage._store.cache_clear()
    error = refusal(EngineError, ObjectPath(f"{bucket.uri}/file").read_bytes)
    one_line(error, f"{bucket.uri}/file", "Unable to locate credentials", "; check the credentials")


own_server = pytest.mark.parametrize("bucket", ["gcs_server"], indirect=True)
google_stores = pytest.mark.parametrize(
    "bucket",
    ["gcs_server", pytest.param("fake_gcs_server", marks=pytest.mark.engine)],
    indirect=True,
)


def deletions(proxy):
    return [one for one in proxy.requests if one.startswith(("DELETE", "POST /batch/"))]


@google_stores
@pytest.mark.parametrize("status", [None, 404])
def test_objects_are_deleted_where_no_batch_is_known(bucket, proxy, status):
    """As by fake-gcs-server, which leaves out what has no Content-ID, as all that the library sends."""
    for number in range(205):
        bucket.write(f"folder/{number:03}", b"")
    if status:
        proxy.add(Fault("status", path="/batch/", status=status))
    remove_folder(ObjectPath(f"{bucket.uri}/folder"))
    assert bucket.keys() == []


@own_server
@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("fault", [None, "drop", "lose answer", "cut answer", "status"])
def test_objects_are_deleted_in_batches(bucket, proxy, fault):
    """What is gone already is no error, and of a batch that breaks in between all is asked again."""
    for number in range(205):
        bucket.write(f"folder/{number:03}", b"")
    bucket.write("kept", b"")
    if fault:
        proxy.add(Fault(fault, path="/batch/", skip=1, times=1))
    folder = ObjectPath(f"{bucket.uri}/folder")
    folder.store.delete(bucket.name, [*(one.key for one in folder.iterdir()), "folder/absent"])
    assert bucket.keys() == ["kept"]
    assert len(deletions(proxy)) == 3 + bool(fault)


@own_server
@pytest.mark.usefixtures("short_waits")
def test_members_of_a_batch_that_fail_are_asked_for_again(bucket, proxy):
    for name in ("a", f"{FLAKY}b", "c", f"{FLAKY}d"):
        bucket.write(f"folder/{name}", b"")
    remove_folder(ObjectPath(f"{bucket.uri}/folder"))
    assert bucket.keys() == []
    assert len(deletions(proxy)) == 2


@own_server
def test_a_batch_that_is_refused_names_the_object(bucket, proxy, monkeypatch):
    monkeypatch.setenv("SLICEBEAM_STORAGE_TIMEOUT", "10")
    path = ObjectPath(f"gs://{FORBIDDEN}bucket/folder/a")
    error = refusal(EngineError, path.store.delete, path.bucket, [path.key, "folder/b"])
    one_line(error, str(path), "does not have storage.objects", "credentials")
    assert len(deletions(proxy)) == 1


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
