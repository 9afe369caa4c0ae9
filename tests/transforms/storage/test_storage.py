"""Files in folders and in object storage behave alike; work files are checked."""

import errno
import os
import pickle
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.errors import FileError, InputError, StorageError
from slicebeam.transforms.storage.files import expand_paths
from slicebeam.transforms.storage.storage import (
    ObjectPath,
    fetch,
    forget_copies,
    identity,
    make_folder,
    named_content,
    open_input,
    open_unchanging,
    open_whole,
    remove_folder,
    storage_path,
    written_whole,
)
from tests.conftest import google_first, own_stores
from tests.object_stores import one_line
from tests.refusals import refusal, refuses

STRANGE_NAMES = [
    *("two  blanks", "plus+minus-.parquet", "50%.csv", "already%20quoted", "what?.csv", "number#1"),
    *("day=2024-01-31", "größe-数据-😀", "a&b;c,d@e:f!g$h'i(j)k", "[1].parquet"),
    *("back\\slash", '"quoted"'),
]


def write(path, data):
    make_folder(path.parent)
    with written_whole(path) as stream:
        stream.write(data)


def test_a_file_is_written_found_read_and_deleted(place):
    path = place.folder / "deeper" / "file.bin"
    assert not path.exists()
    assert not path.is_file()
    assert not place.folder.is_dir()
    data = bytes(range(256)) * 100
    write(path, data)
    assert path.exists()
    assert path.is_file()
    assert not path.is_dir()
    assert place.folder.is_dir()
    assert place.folder.exists()
    assert not place.folder.is_file()
    assert path.read_bytes() == data
    assert (path.name, path.parent.name) == ("file.bin", "deeper")
    assert place.names() == ["deeper/file.bin"]
    write(path, "größer\n".encode())
    assert path.read_text("utf-8") == "größer\n"
    path.unlink()
    assert not path.exists()
    assert place.names() == []
    path.unlink(missing_ok=True)
    refuses(FileNotFoundError, r"file\.bin", path.unlink)


def test_what_is_not_there_is_not_found(place):
    place.put("other")
    path = place.folder / "absent"
    for look in (path.read_bytes, path.read_text, lambda: identity(path)):
        refuses(FileNotFoundError, "absent", look)
    for open_it in (open_input, open_whole, open_unchanging):
        refuses(FileNotFoundError, "absent", open_it, path)


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_names_are_taken_as_they_stand(place, name):
    path = place.folder / name / name
    write(path, name.encode())
    assert place.names() == [f"{name}/{name}"]
    assert path.read_bytes() == name.encode()
    assert [one.name for one in place.folder.iterdir()] == [name]
    assert list((place.folder / name).iterdir()) == [path]
    assert list(place.folder.glob("*/*")) == [path]
    assert storage_path(str(path)) == path
    assert expand_paths([str(path)]) == [str(path)]
    with path.open("rb") as stream:
        assert stream.read() == name.encode()
    remove_folder(place.folder)
    assert place.names() == []


def test_a_folder_lists_what_is_directly_in_it(place):
    for name in ("b", "a", "sub/c", "sub/deeper/d"):
        place.put(name)
    assert sorted(place.folder.iterdir()) == [place.folder / name for name in ("a", "b", "sub")]
    assert [one.name for one in (place.folder / "sub").glob("*")] != []
    assert (place.folder / "sub").is_dir()
    # A name that merely begins alike is another's.
    assert not (place.folder / "su").exists()
    assert not (place.folder / "su").is_dir()


@pytest.mark.slow
def test_more_objects_than_a_page_holds(place):
    """Both stores list a thousand at a time, and S3 deletes so many at once."""
    names = [f"many/part-{number:04d}" for number in range(1100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(place.put, names))
    place.put("many-others/kept")
    assert sorted(one.name for one in (place.folder / "many").iterdir()) == [
        name.removeprefix("many/") for name in names
    ]
    assert len(list(place.folder.glob("many/*9"))) == 110
    assert len(list(place.folder.glob("**/*"))) >= 1101
    assert sorted(one.name for one in place.folder.iterdir()) == ["many", "many-others"]
    remove_folder(place.folder / "many")
    assert place.names() == ["many-others/kept"]
    remove_folder(place.folder / "many")


def test_a_file_is_read_here_and_there(place):
    data = os.urandom(3_000_000)
    path = place.folder / "file"
    write(path, data)
    with path.open("rb") as stream:
        assert stream.read(10) == data[:10]
        assert stream.seek(-10, os.SEEK_END) == len(data) - 10
        assert stream.read() == data[-10:]
        assert stream.read() == b""
        stream.seek(2_000_000)
        stream.seek(5, os.SEEK_CUR)
        assert stream.read(1_000_000) == data[2_000_005:]
        stream.seek(len(data) + 5)
        assert stream.read(1) == b""
    for opened in (open_input(path), open_whole(path), open_unchanging(path)):
        assert opened.size() == len(data)
        opened.seek(1_234_567)
        assert opened.read(100) == data[1_234_567:1_234_667]
        opened.seek(0)
        assert opened.read() == data


def test_an_empty_file(place):
    path = place.folder / "empty"
    write(path, b"")
    assert path.read_bytes() == b""
    assert identity(path)[0] == 0
    with path.open("rb") as stream:
        assert stream.read() == b""


def test_parquet_is_read_in_ranges(place):
    table = pa.table({"x": range(100_000), "text": [f"value {i}" for i in range(100_000)]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=10_000)
    path = place.folder / "table.parquet"
    write(path, sink.getvalue().to_pybytes())
    file = pq.ParquetFile(open_input(path))
    assert file.metadata.num_row_groups == 10
    assert file.read_row_group(7, columns=["x"]).equals(table.select(["x"]).slice(70_000, 10_000))
    assert file.read().equals(table)


def test_a_file_appears_whole_or_not_at_all(place):
    path = place.folder / "file"
    make_folder(place.folder)

    def write_and_fail():
        with written_whole(path) as stream:
            stream.write(b"new" * 1_000_000)
            stream.flush()
            raise KeyError

    with pytest.raises(KeyError):
        write_and_fail()
    assert place.names() == []
    write(path, b"old")
    with pytest.raises(KeyError):
        write_and_fail()
    assert place.names() == ["file"]
    assert path.read_bytes() == b"old"
    with written_whole(path) as stream:
        stream.write(b"new")
        assert path.read_bytes() == b"old"
        stream.seek(0)
        assert stream.read() == b"new"
    assert path.read_bytes() == b"new"
    assert place.names() == ["file"]


def test_identity_changes_with_the_content(place):
    path = place.folder / "file"
    place.put("file", b"one")
    first = identity(path)
    assert identity(path) == first
    place.put("file", b"two")
    assert identity(path) != first
    assert identity(path)[0] == first[0] == 3
    # It is kept as JSON.
    assert all(isinstance(part, int | str) for part in first)


@own_stores
def test_what_does_not_change_is_fetched_once(bucket, proxy):
    bucket.write("file", b"content")
    path = ObjectPath(f"{bucket.uri}/file")
    forget_copies()
    for _ in range(3):
        assert open_unchanging(path).read() == b"content"
    whole = re.compile(r"GET .*(alt=media|/file$)")
    assert len([one for one in proxy.requests if whole.match(one)]) == 1
    # A worker that outlives a run meets another run's objects under the same names.
    first = open_unchanging(path)
    bucket.write("file", b"another run's")
    assert open_unchanging(path).read() == b"another run's"
    assert first.read() == b"content"
    bucket.delete("file")
    refuses(FileNotFoundError, "file", open_unchanging, path)


@google_first
def test_what_is_fetched_ahead_is_not_asked_for_again(bucket, proxy):
    paths = [ObjectPath(f"{bucket.uri}/part-{number}") for number in range(20)]
    for path in paths:
        bucket.write(path.key, path.key.encode())
    forget_copies()
    fetch([*paths, Path("on a disk")])
    proxy.requests.clear()
    assert [open_unchanging(path).read() for path in paths] == [path.key.encode() for path in paths]
    assert proxy.requests == []
    bucket.write("part-7", b"another run's")
    assert open_unchanging(paths[7]).read() == b"another run's"


@own_stores
def test_paths_and_what_they_read_go_to_other_processes(bucket):
    bucket.write("file", b"content")
    path = ObjectPath(f"{bucket.uri}/file")
    assert path.read_bytes() == b"content"
    again = pickle.loads(pickle.dumps(path))
    assert (again, hash(again)) == (path, hash(path))
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).read_text())"
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(path), capture_output=True, check=True
    )
    assert done.stdout.strip() == b"content"
    child = os.fork()
    if child == 0:
        # The forked process must not use the connection of the other.
        os._exit(0 if path.read_bytes() == b"content" else 1)
    assert path.read_bytes() == b"content"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_paths_are_ordered_and_taken_apart():
    path = ObjectPath("gs://bucket/a/b.tar.gz")
    assert (path.scheme, path.bucket, path.key) == ("gs", "bucket", "a/b.tar.gz")
    assert path.name == "b.tar.gz"
    assert path.parent.parent == ObjectPath("gs://bucket")
    assert path.parent.parent.parent == ObjectPath("gs://bucket")
    assert ObjectPath("gs://bucket/a/") == path.parent
    assert path.parent / "b.tar.gz" == path
    assert min(ObjectPath("s3://b/2"), ObjectPath("s3://b/10")).key == "10"
    assert len({path, ObjectPath("gs://bucket/a/b.tar.gz"), ObjectPath("s3://bucket/a")}) == 2


def test_places_that_users_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert storage_path("~/x") == tmp_path / "x"
    assert storage_path("file:///a/b") == Path("/a/b")
    assert storage_path("a:b/c") == Path("a:b/c")
    assert storage_path("s3://bucket/name") == ObjectPath("s3://bucket/name")
    for text, parts in {
        "gcs://bucket/x": ["gs://"],
        "S4://bucket/x": ["S4://", "s3://"],
        "https://host/x": ["https://", "gs://", "s3://"],
        "gs://": ["gs://bucket/name"],
        "s3:///name": ["://bucket/name"],
    }.items():
        one_line(refusal(InputError, storage_path, text, "--output"), "--output", text, *parts)


def test_a_file_that_the_user_named(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_bytes(b"{}\r\n")
    assert named_content(path, "--domains a.json") == b"{}\r\n"
    refuses(FileError, "--domains b: no such file", named_content, tmp_path / "b", "--domains b")
    folder = "--domains b is a folder; name its changelist.json"
    remedy = "name its changelist.json"
    refuses(FileError, folder, named_content, tmp_path, "--domains b", remedy)

    def failing(number):
        def read(_):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(Path, "read_bytes", read)

    failing(errno.EACCES)
    refuses(FileError, "b: cannot be read .Permission denied.", named_content, path, "b")
    failing(errno.EIO)
    refuses(StorageError, "Input/output error", named_content, path, "b")
