"""The server as a process: one for each output, ended in order or killed, asked by many at once."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
import psutil
import pytest

from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.page import protection, server
from slicebeam.pipelines.page.app import application_of_runs
from slicebeam.pipelines.page.index_build import Task
from slicebeam.pipelines.page.runs import Runs
from slicebeam.pipelines.page.served import state_folder
from tests.pipelines.page.results import discovery_result, search_result
from tests.pipelines.page.served_outputs import logged_in, serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return search_result(tmp_path_factory.mktemp("served"))


def command(result, *more):
    return [sys.executable, "-m", "slicebeam.pipelines.commands.cli", "serve", str(result), *more]


@contextmanager
def started(result, *more, env=None):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command(result, *more), **pipes, env=env) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def second(result, *more):
    how = {"capture_output": True, "text": True, "timeout": 60}
    return subprocess.run(command(result, *more), check=False, **how)


def login(address):
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#code=[\w-]{43}", address)
    origin, headers = logged_in(address)
    return int(origin.rpartition(":")[2]), {**headers, "Content-Type": "application/json"}


def asked(port, method, path, headers, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
    answer = connection.getresponse()
    content = json.loads(answer.read())
    connection.close()
    assert answer.headers["set-cookie"] is None
    return answer.status, content


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_listens_on_this_machine_only_and_ends_by_a_signal(result, number):
    with started(result) as (process, address):
        port, headers = login(address)
        sockets = psutil.Process(process.pid).net_connections()
        listening = [tuple(one.laddr) for one in sockets if one.status == "LISTEN"]
        assert listening == [("127.0.0.1", port)]
        # One that is being asked ends, too.
        http.client.HTTPConnection("127.0.0.1", port).request("GET", "/api/page", headers=headers)
        process.send_signal(number)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 0
        assert said.startswith("Ctrl-C ends the server. The address opens one tab; ")


def test_the_second_says_where_the_first_is_and_a_killed_one_stops_nobody(result):
    with started(result) as (process, address):
        other = second(result)
        assert (other.returncode, other.stdout) == (0, f"{address}\n")
        assert "is served already" in other.stderr
        assert json.loads(second(result, "--json").stdout) == {"address": address, "running": True}
        port, opened = login(address)
        # A code is good once, and the next one is printed to who runs the command again.
        used = httpx.post(
            f"http://127.0.0.1:{port}/api/session",
            json={"code": address.partition("code=")[2]},
            headers={"origin": opened["origin"]},
        )
        assert (used.status_code, "was opened before" in used.text) == (401, True)
        assert login(second(result).stdout.strip()) == (port, opened)
        # Nobody but the user reads the code.
        assert (state_folder(result) / "server.lock").stat().st_mode & 0o77 == 0
        process.kill()
        process.wait()
    with started(result, "--port", str(port)) as (_, again):
        assert login(again)[0] == port
        assert again != address
        assert asked(port, "GET", "/api/page", opened)[0] == 401


def test_the_browser_gets_the_token_by_a_file_that_only_its_user_reads(result, tmp_path):
    seen, browser = tmp_path / "seen", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {seen}.part && mv {seen}.part {seen}\n')
    browser.chmod(0o755)
    environment = {**os.environ, "BROWSER": f"{browser} %s"}
    with started(result, "--open", env=environment) as (process, address):
        while not seen.exists():
            time.sleep(0.02)
        opened = Path(seen.read_text().removeprefix("file://"))
        assert opened.stat().st_mode & 0o77 == 0
        assert f"url={address}" in opened.read_text()
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        assert not opened.exists()


def test_half_a_request_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(protection, "MOST_SECONDS", 0.3)
    monkeypatch.setattr(server, "MOST_SECONDS", 0.3)
    session = protection.PageSession(0)
    with server.bound_socket(0) as bound:
        session.port = bound.getsockname()[1]
        app = application_of_runs(Runs(tmp_path), lambda _: pytest.fail("opened"), session)
        is_up = threading.Event()
        how = {"target": server.run_server, "args": (app, bound, is_up.set), "daemon": True}
        threading.Thread(**how).start()
        assert is_up.wait(10)
        host = f"127.0.0.1:{session.port}"
        begin = f"POST /api/session HTTP/1.1\r\nHost: {host}\r\n"
        whole = f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"
        body = f"{begin}Origin: http://{host}\r\nContent-Type: application/json\r\n"
        for half, status in [
            ("", b""),
            (begin, b""),
            (whole + begin, b"200"),
            (f"{body}Content-Length: 9\r\n\r\n{{", b"408"),
        ]:
            with socket.create_connection(("127.0.0.1", session.port), timeout=10) as client:
                client.sendall(half.encode())
                answer = b"".join(iter(lambda: client.recv(65_536), b""))
            assert answer.partition(b" ")[2][:3] == status, half


@pytest.mark.parametrize("seconds", [0.03, 0.1, 0.2, 0.4])
def test_an_interrupt_while_it_starts_shows_no_traceback(result, seconds):
    program = "from slicebeam.pipelines.commands.entry import main; main()"
    # Before the first line of Python, nothing of this program can answer.
    begun = f"print(flush=True); {program}"
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", begun, "serve", str(result)], **how) as process:
        process.stdout.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert "Traceback" not in said
    assert process.returncode in (-signal.SIGINT, 130)


def test_a_port_that_is_taken_is_said(result, tmp_path):
    with started(result) as (_, address):
        port, _ = login(address)
        copy = tmp_path / "copy"
        copy.mkdir()
        (copy / "changelist.json").write_bytes((result / "changelist.json").read_bytes())
        taken = second(copy, "--port", str(port))
        assert taken.returncode == 2
        assert f"--port {port}: Address already in use; leave it out for a free one" in taken.stderr


def test_fifty_clients_at_once_get_what_one_gets(result):
    with started(result) as (process, address):
        port, headers = login(address)
        while asked(port, "GET", "/api/index", headers)[1]["state"] == "building":
            pass
        filters = [{}, {"significant": True}, {"sort": "n", "descends": True}, {"text": "female"}]

        def ask(number):
            found = []
            for at in range(6):
                body = {"filter": {"metric": "accuracy", **filters[at % 4]}, "tab": f"tab {number}"}
                found.append(asked(port, "POST", "/api/slices", headers, body))
                found.append(asked(port, "GET", "/api/page", headers))
            return found

        alone = ask(0)
        with ThreadPoolExecutor(50) as pool:
            for found in pool.map(ask, range(50)):
                assert found == alone
        assert {status for status, _ in alone} == {200}
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=20)
        assert "Error" not in said
        assert process.returncode == 0


def test_what_builds_the_index_ends_with_the_server(tmp_path):
    table = tmp_path / "table"
    os.mkfifo(table)
    task = Task(str(table), "", {}, str(tmp_path / "index"))
    builder = [sys.executable, "-m", "slicebeam.pipelines.page.index_build"]
    with subprocess.Popen(builder, stdin=subprocess.PIPE, text=True) as process:
        process.stdin.write(task.to_json())
        process.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        process.stdin.close()
        assert process.wait(10) == 1


TEXT = "about food"


def test_kill_9_while_labels_are_saved_loses_none(tmp_path):
    result = discovery_result(tmp_path)
    slice_id = json.loads((result / "changelist.json").read_text())["slices"][0]["slice_id"]
    begin = {"slice_id": slice_id, "text": TEXT, "budget": 300}
    saved = {}

    def label(served):
        with served.client() as client:
            shown = client.post("/api/labels/begin", json=begin).json()
            while shown["item"] is not None:
                item, label = shown["item"]["id"], ("yes", "no")[len(saved) % 2]
                body = {"desk": shown["desk"], "item": item, "label": label}
                try:
                    answer = client.post("/api/labels/label", json=body)
                except httpx.HTTPError:
                    return
                assert answer.status_code == 200, answer.text
                # Only what the server has acknowledged is owed.
                saved[item] = label
                shown = answer.json()

    with serving(result) as served:
        labels = threading.Thread(target=label, args=(served,))
        labels.start()
        while len(saved) < 60 and labels.is_alive():
            time.sleep(0.001)
        # At any point of the next key.
        served.process.send_signal(signal.SIGKILL)
        labels.join()
    assert len(saved) >= 60
    (path,) = (result / "attribution").glob("words-*/labels.jsonl")
    lines = map(json.loads, path.read_text().splitlines())
    kept = {str(record["item"]): record["label"] for record in lines}
    assert {item: kept[item] for item in saved} == saved
    # A key may have been on its way.
    assert len(kept) <= len(saved) + 1
    # Whoever comes next goes on, here and in the command.
    with serving(result) as served, served.client() as client:
        shown = client.post("/api/labels/begin", json=begin).json()
        assert shown["standing"]["labelled"] == len(kept)
        assert shown["item"]["id"] not in kept
        assert client.post("/api/labels/end", json={"desk": shown["desk"]}).json() == {}
        command = ["attribute", "estimate", "--changelist", str(result), "--slice", slice_id]
        assert run([*command, "--text", TEXT, "--quiet"]) == 0
    attribution = json.loads((result / "changelist.r1.json").read_text())["slices"][0]
    assert 0 < sum(one["labelled"] for one in attribution["attribution"]["rounds"]) <= len(kept)


def test_what_was_made_of_the_data_goes_with_the_server(tmp_path, monkeypatch):
    result, made = search_result(tmp_path), tmp_path / "made"
    made.mkdir()
    monkeypatch.setenv("TMPDIR", str(made))
    slice_id = json.loads((result / "changelist.json").read_text())["findings"][0]["slice_id"]
    with serving(result) as served, served.client() as client:
        for path, given in (("examples", {"slice_id": slice_id}), ("playground/example", {})):
            assert client.post(f"/api/{path}", json=given).status_code == 200
        assert list(made.iterdir()) != []
    assert list(made.iterdir()) == []
