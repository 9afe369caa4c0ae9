"""The files of runner_configs/ and the compose file of docs/: complete, explained, and checked key by key."""

import re
from importlib.metadata import version

import pytest
import yaml

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.run.engine import runner_config, shipped_configs
from slicebeam.runner_configs.options import MODELS, FlinkOptions, configs_folder
from tests.engines.programs import SPARK
from tests.object_stores import ROOT

# What a file leaves out, since it has no default.
NEEDED = {"dataflow": ("project=p", "region=europe-west1", "temp_location=gs://b/t")}
DATAFLOW = "runner: dataflow\noptions:\n  project: p\n  region: r\n  temp_location: gs://b/t\n"


def test_every_engine_has_a_file():
    assert shipped_configs() == sorted([*MODELS, "direct_multi"])


@pytest.mark.parametrize("name", shipped_configs())
def test_a_shipped_file_says_the_defaults(name):
    config = runner_config(name, NEEDED.get(name, ()))
    written = yaml.safe_load((configs_folder() / f"{name}.yaml").read_text("utf-8"))["options"]
    fields = type(config.options).model_fields
    for key, value in written.items():
        if name != "direct_multi":
            default = fields[key].get_default()
            assert value == (list(default) if isinstance(default, tuple) else default), key


@pytest.mark.parametrize("name", MODELS)
def test_a_shipped_file_explains_every_option(name):
    lines = (configs_folder() / f"{name}.yaml").read_text("utf-8").splitlines()
    keys = {match.group(1): i for i, line in enumerate(lines) if (match := _KEY.match(line))}
    for option in MODELS[name].model_fields:
        assert option in keys, option
        # The explanation stands above the key, or above those that go with it.
        above = lines[: keys[option]]
        while above and _KEY.match(above[-1]):
            above.pop()
        assert above[-1].startswith("  # "), option


_KEY = re.compile(r"^  (?:# )?([a-z_]+):(?: |$)")


@pytest.mark.parametrize(("text", "message"), [
    ("runner: flink\noptions:\n  mastr: x", "line 3: .*unknown option 'mastr'; did you mean 'master'"),
    ("runner: flink\noptions:\n  parallelism: 0", "line 3: options.parallelism 0: it must be"),
    ("runner: flink\noptions:\n  master: nowhere", "line 3: .*'nowhere': it must be host:port"),
    ("runner: flink\noptions:\n  version: 1.19.3", "line 3: options.version '1.19.3'"),
    ("runner: flink\noptions: 3", "line 2: options 3 are not a mapping"),
    ("runner: direct\noptions: 0", "line 2: options 0 are not a mapping"),
    ("runner: direct\nrunner: prism", "the key 'runner' occurs twice"),
    ("runner: direct\noptions:\n  workers: true", "not true or false"),
    ("runner: direct\noptions: &a {workers: *a}", "contains itself through an alias"),
    ("runner: direct\noptions: 2024-13-01", "not readable as YAML"),
    ("runner: [direct]", r"line 1: unknown runner \"\['direct'\]\""),
    ("- direct", "a mapping of 'runner' and 'options' is expected"),
    ("a: [", "not readable as YAML"),
    ("runner: flnk", "line 1: unknown runner 'flnk'; did you mean 'flink'?"),
    ("runner: flink\n\noption: {}", "line 3: unknown key 'option'; did you mean 'options'?"),
    ("runner: spark\noptions:\n  master: yarn", "line 3: .*local.N. or spark://host:port"),
    ("runner: spark\noptions:\n  spark_conf:\n    executor.memory: 1g", "line 2: .*a property begins with 'spark.'"),
    ("runner: flink\noptions:\n  master: 10.0.0.5:8081", "environment loopback works only with an engine on this machine"),
    ("runner: flink\noptions:\n  master: flink.example:8081\n  environment: process", "environment process needs environment_config"),
    ("runner: flink\noptions:\n  environment: docker", "environment docker needs an image"),
    ("runner: flink\noptions:\n  master: h:0", "line 3: .*it must be host:port"),
    ("runner: flink\noptions:\n  master: h:65536", "line 3: .*it must be host:port"),
    ("runner: flink\noptions:\n  master: localhost.example:1", "only with an engine on this machine"),
    ("runner: flink\noptions:\n  master: h:1\n  environment: external", "environment external needs the address of a worker pool"),
    ("runner: flink\noptions:\n  environment_config: x", "environment loopback takes no environment_config"),
    ("runner: flink\noptions:\n  environment: external\n  environment_config: x", "it must be host:port, not 'x'"),
    ("runner: direct\noptions:\n  workers: 0", "line 3: options.workers 0: it must be"),
    ("runner: direct\noptions:\n  workers: 257", "line 3: options.workers 257: it must be"),
    ("runner: prism\noptions:\n  job_timeout: 0", "line 3: options.job_timeout 0: it must be"),
    (f"{DATAFLOW}  num_workers: 3\n  max_num_workers: 2", "num_workers 3 is more than max_num_workers 2"),
    ("runner: dataflow\noptions:\n  project: p", "line 2: options.region is missing; add it, or give --runner-option region="),
    ("runner: dataflow\noptions:\n  project: p\n  region: r\n  temp_location: /tmp", "line 5: options.temp_location '/tmp'"),
])  # fmt: skip
def test_a_wrong_file_is_an_error_with_its_line(tmp_path, text, message):
    path = tmp_path / "engine.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        runner_config(str(path), ())
    assert len(str(error.value).splitlines()) <= 2
    assert str(path) in str(error.value)


@pytest.mark.parametrize(("name", "overrides", "options"), [
    ("flink", ["master=127.0.0.1:8081"], {"master": "127.0.0.1:8081"}),
    ("flink", ["master=[local]"], {"master": "[local]"}),
    ("flink", ["master=[::1]:65535"], {"master": "[::1]:65535"}),
    ("dataflow", [*NEEDED["dataflow"], "num_workers=2", "max_num_workers=2"], {"max_num_workers": 2}),
    ("flink", ["shared_folder=true", "parallelism=7"], {"shared_folder": True, "parallelism": 7}),
    ("flink", ["java_options=[-Xmx2g, -Dx=y]"], {"java_options": ("-Xmx2g", "-Dx=y")}),
    ("flink", ["worker_processes=3"], {"worker_processes": 3}),
    ("flink", ["worker_processes=null"], {"worker_processes": None}),
    ("spark", ["spark_conf.spark.executor.memory=2g"], {"spark_conf": {"spark.executor.memory": "2g"}}),
    ("spark", ["spark_conf={spark.a: b}"], {"spark_conf": {"spark.a": "b"}}),
    ("prism", ["beam_options.max_cache_memory_usage_mb=5"], {"beam_options": {"max_cache_memory_usage_mb": 5}}),
])  # fmt: skip
def test_the_command_line_changes_options(name, overrides, options):
    config = runner_config(name, overrides)
    assert {key: getattr(config.options, key) for key in options} == options


def test_a_wrong_option_of_the_command_line_names_itself():
    with pytest.raises(InputError, match=r"^--runner-option parallelism=many: options.parallelism"):
        runner_config("flink", ["parallelism=many"])
    with pytest.raises(InputError, match=r"^--runner-option mster=x: .*did you mean 'master'"):
        runner_config("flink", ["mster=x"])


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
        own = {f"{engine}-{part}" for part in ("master", "node", "job-server")}
        assert names == own | {"workers"}
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
    addresses = ("127.0.0.1:8081", "spark://127.0.0.1:7077", "127.0.0.1:8099", "127.0.0.1:50000")
    for address in addresses:
        assert address in page
    assert all(
        service["volumes"] == ["/tmp/slicebeam:/tmp/slicebeam"] for service in SERVICES.values()
    )
    assert "/tmp/slicebeam" in page
