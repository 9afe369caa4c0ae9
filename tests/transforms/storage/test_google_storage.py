"""Google Cloud Storage: credentials and permissions."""

import pytest

from slicebeam.metrics.errors import EngineError
from slicebeam.transforms.storage import storage
from slicebeam.transforms.storage.storage import ObjectPath
from tests.gcs_server import FORBIDDEN
from tests.object_stores import one_line
from tests.transforms.storage.test_object_stores import USES


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("bucket", ["gcs_server"], indirect=True)
def test_no_permission_on_google_cloud_storage(bucket, use):
    with pytest.raises(EngineError) as error:
        USES[use](ObjectPath(f"gs://{FORBIDDEN}bucket/folder/file"))
    one_line(error, f"gs://{FORBIDDEN}bucket/", "does not have storage.objects", "credentials")


def test_no_credentials_for_google_cloud_storage(monkeypatch, tmp_path):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "absent.json"))
    storage._store.cache_clear()
    with pytest.raises(EngineError) as error:
        ObjectPath("gs://bucket/file").read_bytes()
    one_line(error, "gs://", "absent.json", "; check the credentials")
