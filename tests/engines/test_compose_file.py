"""The compose file of docs/ is one, and goes with the options, the versions and the page that names it."""

import re
from importlib.metadata import version

import pytest
import yaml

from slicebeam.runner_configs.options import FlinkOptions
from tests.engines.programs import SPARK
from tests.object_stores import ROOT

FOLDER = ROOT / "docs" / "how-to"
FILE = yaml.safe_load((FOLDER / "clusters.compose.yaml").read_text("utf-8"))
SERVICES = FILE["services"]
# Of a service, as https://github.com/compose-spec/compose-spec/blob/main/spec.md has them.
TYPES = dict.fromkeys(("command", "volumes", "profiles", "depends_on"), list)
TYPES |= {"image": str, "network_mode": str, "build": dict, "environment": dict}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_keys_of_compose_and_one_origin(name):
    service = SERVICES[name]
    assert all(type(value) is TYPES[key] for key, value in service.items())
    assert ("image" in service) != ("build" in service)
    for key in ("command", "volumes", "profiles", "depends_on"):
        assert all(isinstance(text, str) for text in service.get(key, []))
    assert all(isinstance(value, str) for value in service.get("environment", {}).values())
    assert re.fullmatch(r"[a-z][a-z-]+", name)
    for needed in service.get("depends_on", []):
        assert set(service["profiles"]) <= set(SERVICES[needed]["profiles"])


def test_each_engine_has_a_master_a_node_a_job_server_and_workers():
    assert set(FILE) == {"x-slicebeam", "services"}
    for engine in ("flink", "spark"):
        names = {name for name, service in SERVICES.items() if engine in service["profiles"]}
        assert names == {
            *(f"{engine}-{part}" for part in ("master", "node", "job-server")),
            "workers",
        }
    settings = yaml.safe_load(SERVICES["flink-node"]["environment"]["FLINK_PROPERTIES"])
    assert settings["taskmanager.numberOfTaskSlots"] == FlinkOptions().parallelism


def test_versions_are_those_of_the_options_and_of_beam():
    flink, beam = FlinkOptions().version, version("apache-beam")
    assert SERVICES["flink-master"]["image"].startswith(f"flink:{flink}-")
    assert SERVICES["flink-node"]["image"] == SERVICES["flink-master"]["image"]
    assert SERVICES["spark-master"]["image"] == SERVICES["spark-node"]["image"] == f"spark:{SPARK}"
    images = (SERVICES[f"{name}-job-server"]["image"] for name in ("flink", "spark"))
    assert list(images) == [
        f"apache/beam_flink{flink}_job_server:{beam}", f"apache/beam_spark3_job_server:{beam}"
    ]  # fmt: skip
    assert f"sdk:{beam}\n" in SERVICES["workers"]["build"]["dockerfile_inline"]


def test_the_page_names_file_addresses_and_folder():
    page = (FOLDER / "engines.md").read_text("utf-8")
    assert "--file docs/how-to/clusters.compose.yaml" in page
    # Ports that Flink, Spark, Beam's job servers and its worker pool have unless they are told.
    for address in (
        "127.0.0.1:8081",
        "spark://127.0.0.1:7077",
        "127.0.0.1:8099",
        "127.0.0.1:50000",
    ):
        assert address in page
    assert all(
        service["volumes"] == ["/tmp/slicebeam:/tmp/slicebeam"] for service in SERVICES.values()
    )
    assert "/tmp/slicebeam" in page
