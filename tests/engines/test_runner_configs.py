"""The files of runner_configs/ and the compose file of docs/: complete, explained, and checked key by key."""

import re

import pytest
import yaml

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.run.engine import Engine, runner_config, shipped_configs
from slicebeam.runner_configs.beam_runner import _WORKERS, check_beam_options
from slicebeam.runner_configs.options import CONFIGS, RunnerOptions
from tests.engines.programs import FLINK, SPARK
from tests.object_stores import ROOT

RUNNERS = ("dataflow", "flink", "prism", "spark")


def test_every_engine_has_a_file():
    assert shipped_configs() == sorted([*RUNNERS, "direct", "direct_multi"])


@pytest.mark.parametrize("name", RUNNERS)
def test_a_shipped_file_says_the_defaults(name):
    """What it has, a run has without it too."""
    written = runner_config(name, ())
    beam = [f"{name}=gs://p" for name in ("project", "region", "temp_location")]
    beam = beam if name == "dataflow" else []
    backends = [
        Engine(runner_config(runner, (), beam))._backend for runner in (name, written.runner)
    ]
    for field in ("workers", "smallest_job_seconds", "name"):
        assert len({getattr(backend, field) for backend in backends}) == 1, field
    assert written.options.model_copy(update={"workers": None, "smallest_job_seconds": None}) == (
        RunnerOptions()
    )


@pytest.mark.parametrize("name", RUNNERS)
def test_a_shipped_file_is_valid_with_all_that_is_commented_out(name, tmp_path):
    """Each example is an option of Beam, or of ours, and has an explanation above it."""
    lines = (CONFIGS / f"{name}.yaml").read_text("utf-8").splitlines()
    for number, line in enumerate(lines):
        if _KEY.match(line) and not line.startswith("runner:"):
            above = lines[:number]
            while above and _KEY.match(above[-1]):
                above.pop()
            assert above[-1].lstrip().startswith("# "), line
    file = tmp_path / "engine.yaml"
    examples = (
        re.sub(r"# (?=[a-z_]+: )", "", line) if _KEY.match(line) else line for line in lines
    )
    file.write_text("\n".join(examples))
    beam = runner_config(str(file), ()).options.beam
    assert len(beam) > 1
    check_beam_options(beam)


_KEY = re.compile(r"^ *(?:# )?([a-z_]+):(?: |$)")


@pytest.mark.parametrize(("text", "message"), [
    ("runner: FlinkRunner\nwrkers: 3", "line 2: .*unknown option 'wrkers'; did you mean 'workers'"),
    ("runner: FlinkRunner\nworkers: 0", "line 2: workers 0: it must be"),
    ("runner: FlinkRunner\nbeam: 3", "line 2: beam 3 is not a mapping"),
    ("runner: direct\nbeam:\n  region: x", "line 3: runner direct takes no options of Beam"),
    ("runner: direct\nrunner: FlinkRunner", "the key 'runner' occurs twice"),
    ("runner: direct\nworkers: true", "not true or false"),
    ("runner: direct\nworkers: &a {workers: *a}", "contains itself through an alias"),
    ("runner: direct\nworkers: 2024-13-01", "not readable as YAML"),
    ("runner: [direct]", r"line 1: unknown runner \"\['direct'\]\""),
    ("- direct", "a mapping of 'runner' and its options is expected"),
    ("a: [", "not readable as YAML"),
    ("workers: 3", "unknown runner 'None'"),
    ("runner: FlinkRuner", "line 1: unknown runner 'FlinkRuner'; did you mean 'FlinkRunner'?"),
    ("runner: direct\nworkers: 257", "line 2: workers 257: it must be"),
    ("runner: PrismRunner\njob_timeout: 0", "line 2: job_timeout 0: it must be"),
])  # fmt: skip
def test_a_wrong_file_is_an_error_with_its_line(tmp_path, text, message):
    path = tmp_path / "engine.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        runner_config(str(path), ())
    assert len(str(error.value).splitlines()) <= 2
    assert str(path) in str(error.value)


@pytest.mark.parametrize(("name", "beam", "options"), [
    ("flink", ["flink_master=127.0.0.1:8081"], {"flink_master": "127.0.0.1:8081"}),
    ("FlinkRunner", ["flink_master=[local]"], {"flink_master": "[local]"}),
    ("flink", ["flink_version=1.20"], {"flink_version": "1.20"}),
    ("flink", ["experiments=a", "experiments=b"], {"experiments": ["a", "b"]}),
    ("flink", ["flink_version=null", "use_x=false"], {"flink_version": None, "use_x": False}),
    ("my.module.OddRunner", ["a==b"], {"a": "=b"}),
])  # fmt: skip
def test_the_command_line_gives_options_of_beam(name, beam, options):
    assert runner_config(name, (), beam).options.beam == options


def test_the_command_line_changes_options(tmp_path):
    config = runner_config("flink", ["shared_folder=true", "workers=7", "job_timeout=60"])
    assert (config.options.shared_folder, config.options.workers) == (True, 7)
    assert config.options.job_timeout == 60
    (tmp_path / "a.yaml").write_text("runner: FlinkRunner\nbeam: {experiments: [x], region: y}\n")
    config = runner_config(str(tmp_path / "a.yaml"), (), ["experiments=z"])
    assert config.options.beam == {"experiments": "z", "region": "y"}


def test_a_wrong_option_of_the_command_line_names_itself():
    with pytest.raises(InputError, match=r"^--runner-option workers=many: workers 'many'"):
        runner_config("flink", ["workers=many"])
    with pytest.raises(InputError, match=r"^--runner-option wrkers=x: .*did you mean 'workers'"):
        runner_config("flink", ["wrkers=x"])
    with pytest.raises(InputError, match=r"^--runner-option beam=x: .*unknown option 'beam'"):
        runner_config("flink", ["beam=x"])
    with pytest.raises(InputError, match=r"^--beam region=x: runner direct takes no options"):
        runner_config("direct", (), ["region=x"])
    with pytest.raises(InputError, match=r"^--beam 'region': write it as key=value"):
        runner_config("flink", (), ["region"])


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
    assert settings["taskmanager.numberOfTaskSlots"] == _WORKERS


def test_versions_are_those_of_the_options_and_of_beam():
    flink = FLINK.rpartition(".")[0]
    # Of one release, whichever is installed here.
    container = (CONFIGS / "Containerfile.dataflow").read_text("utf-8")
    (beam,) = set(re.findall(r"(?:_sdk:|apache-beam\[gcp\]==)([\d.]+)", container))
    (oldest,) = re.findall(r'"apache-beam>=([\d.]+),', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert _numbers(oldest) <= _numbers(beam)
    workflow = (ROOT / ".github/workflows/checks.yml").read_text("utf-8")
    assert f'beam: "=={oldest}.*"' in workflow
    assert f'beam: ">={oldest},<3"' in workflow
    assert SERVICES["flink-master"]["image"].startswith(f"flink:{flink}-")
    assert SERVICES["flink-node"]["image"] == SERVICES["flink-master"]["image"]
    assert SERVICES["spark-master"]["image"] == SERVICES["spark-node"]["image"] == f"spark:{SPARK}"
    images = (SERVICES[f"{name}-job-server"]["image"] for name in ("flink", "spark"))
    assert list(images) == [
        f"apache/beam_flink{flink}_job_server:{beam}", f"apache/beam_spark3_job_server:{beam}"
    ]  # fmt: skip
    assert f"sdk:{beam}\n" in SERVICES["workers"]["build"]["dockerfile_inline"]


def _numbers(text):
    return [int(number) for number in text.split(".")]


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
