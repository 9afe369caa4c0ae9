"""S3: keys."""

import pytest

from slicebeam.metrics.errors import EngineError
from slicebeam.transforms.storage import storage
from slicebeam.transforms.storage.storage import ObjectPath
from tests.object_stores import one_line
from tests.transforms.storage.test_object_stores import USES


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
    with pytest.raises(EngineError) as error:
        USES[use](ObjectPath(f"{bucket.uri}/folder/file"))
    one_line(error, f"{bucket.uri}/", "; check the credentials")


@pytest.mark.parametrize("bucket", ["moto"], indirect=True)
def test_no_keys(bucket, monkeypatch, tmp_path):
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    # It keeps the credentials that it has found.
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    storage._store.cache_clear()
    with pytest.raises(EngineError) as error:
        ObjectPath(f"{bucket.uri}/file").read_bytes()
    one_line(error, f"{bucket.uri}/file", "Unable to locate credentials", "; check the credentials")
