"""Engines that the tests of this folder share."""

import pytest

from tests.engines.started import Engines


@pytest.fixture(scope="session")
def engines(tmp_path_factory):
    with Engines(tmp_path_factory.mktemp("engines")) as started:
        yield started
