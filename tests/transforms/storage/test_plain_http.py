"""Keys do not travel over http, but where the user insists; how calls are made."""

import pickle
from pathlib import Path

import pytest
import yaml

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.attribution.labelers import LanguageModel
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.define.llm_filter import _api as api_of_filter
from slicebeam.pipelines.discovery.llm_phrases import read_phrases_api as api_of_phrases
from slicebeam.pipelines.paid_api.api_file import ApiFile
from slicebeam.transforms.discovery.encoders import encoder
from slicebeam.transforms.discovery.endpoint_encoder import key_of
from slicebeam.transforms.storage import secrets
from tests.refusals import refusal, refuses
from tests.running import refused

KEY = "sk-a-very-secret-key"
FAR = "http://models.example.org:8080/v1"
NEAR = ["http://127.0.0.1:1", "http://127.255.3.4/x", "http://[::1]:8080/v1", "http://LocalHost/v1"]
# Names and addresses that only look like this machine.
LIKE_NEAR = [
    "http://127.0.0.1.example.org/v1", "http://localhost.example.org/v1",
    "http://127.0.0.1@example.org/v1", "http://0.0.0.0/v1", "http://10.0.0.1/v1",
    "http://[::2]/v1", "HTTP://example.org/v1",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _nobody_insists():
    secrets.allow_http(False)
    yield
    secrets.allow_http(False)


@pytest.mark.parametrize("url", [*NEAR, "https://example.org/v1"])
def test_https_and_this_machine_are_free(url):
    secrets.refuse_plain_http("x", url, "the key")


@pytest.mark.parametrize("url", [FAR, *LIKE_NEAR])
def test_other_machines_are_refused_over_http(url):
    with pytest.raises(InputError, match="over http, where others can read it; write https://"):
        secrets.refuse_plain_http("x", url, "the key")
    secrets.refuse_plain_http("x", url, "the key", allowed=True)


def test_an_encoder_sends_no_key_over_http(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    without = encoder(f"openai:{FAR}", cache=None)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(InputError, match=r"sent to models\.example\.org over http") as error:
        encoder(f"openai:{FAR}", cache=None)
    assert KEY not in str(error.value)
    # A worker that has the key looks again.
    with pytest.raises(InputError, match=r"sent to models\.example\.org over http"):
        pickle.loads(pickle.dumps(without)).encode(["a"])
    secrets.allow_http(True)
    insisted = pickle.loads(pickle.dumps(encoder(f"openai:{FAR}", cache=None)))
    secrets.allow_http(False)
    assert key_of(*insisted.embed.args[:2], insisted.embed.args[3]) == KEY
    assert insisted.fingerprint == without.fingerprint


def api_file(folder, **content):
    path = folder / "api.yaml"
    path.write_text(yaml.safe_dump({"url": FAR, "answer": "a", "json": {"x": "{x}"}} | content))
    return str(path)


WITH_KEY = {
    "headers.X": {"headers": {"X": "${K}"}},
    "headers.Authorization": {"headers": {"Authorization": "Bearer spelt-out"}},
    "headers.x-api-key": {"headers": {"x-api-key": "spelt-out"}},
    "params.key": {"params": {"key": "spelt-out"}},
    "params.q": {"params": {"q": "${K}"}},
    "json.auth": {"json": {"auth": "${K}", "x": "{x}"}},
    "url": {"url": "http://models.example.org/${K}/predict"},
}


@pytest.mark.parametrize("key", WITH_KEY)
def test_an_api_file_sends_no_key_over_http(key, tmp_path):
    path = api_file(tmp_path, **WITH_KEY[key])
    assert refusal(InputError, ApiFile.read, path, {"K": KEY}) == (
        f"{path}, url: the key in {key} would be sent to models.example.org over http, where others can "
        "read it; write https://, or give --allow-http if you insist"
    )
    secrets.allow_http(True)
    ApiFile.read(path, {"K": KEY})


def test_a_password_in_the_url_is_a_key(tmp_path):
    with pytest.raises(InputError, match=r"the key in url would be sent to example\.org over http"):
        ApiFile.read(api_file(tmp_path, url="http://user:word@example.org/x"), {})


def test_what_holds_no_key_may_go_over_http(tmp_path):
    headers = {"Accept": "application/json", "X-Keyboard": "a"}
    ApiFile.read(api_file(tmp_path, headers=headers, params={"q": "{x}"}), {})
    ApiFile.read(api_file(tmp_path, url="http://${HOST}:8080/v1"), {"HOST": "models.example.org"})
    for url in NEAR:
        ApiFile.read(api_file(tmp_path, url=url, headers={"X": "${K}"}), {"K": KEY})


def test_callers_of_language_models_read_the_same_file(tmp_path):
    def label(path):
        LanguageModel(path, None, tmp_path, lambda _: None)

    path = api_file(tmp_path, headers={"Authorization": "Bearer spelt-out"})
    for caller in (api_of_filter, api_of_phrases, label):
        refuses(InputError, r"sent to models\.example\.org over http", caller, path)


COMMANDS = {
    "shift": ["shift", "--label", "y", "--old-prediction", "p", "--budget", "10"],
    "discover": ["discover", "--text", "t", "--label", "y", "--prediction", "p"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_flag_and_the_key_of_a_file_insist(command, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    data = tmp_path / "d.csv"
    data.write_text("t,y,p\n" + "".join(f"text {n},{n % 2},{n % 2}\n" for n in range(40)))
    # Nobody answers at this address of documentation; the call itself is not what is tested.
    far = "http://192.0.2.1/v1"
    monkeypatch.setattr("slicebeam.transforms.discovery.endpoint_encoder._RETRIES", 0)
    monkeypatch.setattr("slicebeam.transforms.discovery.endpoint_encoder._CONNECTS_WITHIN", 0.05)
    given = ["--encoder", f"openai:{far}"]
    if command == "shift":
        api = api_file(tmp_path, url=far, json={"x": "{t}"}, headers={"X-Api-Key": "spelt-out"})
        given = ["--api", api]
        (tmp_path / "api.yaml").write_text(
            Path(api).read_text() + "timeout: 0.06\nretries: 0\nlost_calls: count\n"
        )
    arguments = [*COMMANDS[command], "--data", str(data), "--output", str(tmp_path / "o"), *given]
    said = refused([*arguments, "--quiet"], capsys, folder=tmp_path)
    assert "would be sent to 192.0.2.1 over http" in said
    run([*arguments, "--quiet", "--allow-http"])
    assert "over http" not in capsys.readouterr().err
    options = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    file = tmp_path / "run.yaml"
    content = {name[2:].replace("-", "_"): value for name, value in options.items()}
    for insists in (False, True):
        file.write_text(yaml.safe_dump({"command": command, "allow_http": insists} | content))
        run(["run", str(file), "--quiet"])
        assert ("over http" in capsys.readouterr().err) is not insists


def test_the_flag_is_declared_for_all_that_ask_endpoints():
    from slicebeam.pipelines.commands.table import COMMANDS

    flags = {
        name: {option for one in command.fields() for option in one.flags}
        for name, command in COMMANDS.items()
    }
    asks = {"--encoder", "--api", "--llm", "--phrases", "--endpoint"}
    # The model of texts may be the file of an endpoint.
    assert {name for name, known in flags.items() if "--allow-http" in known} == {
        name for name, known in flags.items() if asks & known or name == "adapt run"
    }


def test_a_search_refuses_the_key(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    content = {"command": "search", "data": "x", "output": "o", "allow_http": True}
    file.write_text(yaml.safe_dump(content))
    said = refused(["run", str(file)], capsys, folder=tmp_path)
    assert "--allow-http has no effect on a search" in said
