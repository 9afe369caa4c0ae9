"""What a file says of a paid API, how items become requests, and that no secret gets out."""

import base64
import datetime as dt
import html
import json
import pickle
import re
from decimal import Decimal
from urllib.parse import quote, quote_plus

import pytest
import yaml

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.paid_api.api_file import ApiFile
from slicebeam.pipelines.paid_api.calls import Item
from tests.conftest import own_stores
from tests.refusals import refusal, refuses

SECRET = 'p/s+ w"ö=d&9'
LEAST = {"url": "https://api.example.com/v1", "answer": "label"}


@pytest.fixture
def read(tmp_path):
    def reader(environment=None, /, **given):
        path = tmp_path / "api.yaml"
        told = {key: one for key, one in {**LEAST, **given}.items() if one is not ...}
        path.write_text(yaml.safe_dump(told, allow_unicode=True, sort_keys=False))
        return ApiFile.read(str(path), environment or {})

    return reader


def body_of(api, **fields):
    body = api.request(Item("7", fields)).body
    assert body is not None
    return json.loads(body)


def test_defaults(read):
    api = read()
    assert (api.method, api.timeout, api.concurrency, api.retries) == ("POST", 30, 16, 5)
    assert (api.price, api.currency, api.rate_limit, api.labels) == (None, "USD", None, None)
    assert (api.lost_calls, api.idempotency_header) == ("count", "Idempotency-Key")
    assert (api.stop_after, api.columns, api.secrets) == (20, (), ())
    assert api.request(Item("7", {})).body is None


@pytest.mark.parametrize(("given", "lost_calls"), [
    ({}, "count"),
    ({"idempotency_header": None}, "count"),
    ({"idempotency_header": "X-Request-Key"}, "repeat"),
    # Also where it is the name that is sent by default.
    ({"idempotency_header": "Idempotency-Key"}, "repeat"),
    ({"idempotency_header": "X-Request-Key", "lost_calls": "count"}, "count"),
    ({"lost_calls": "repeat"}, "repeat"),
    ({"idempotency_header": None, "lost_calls": "repeat"}, "repeat"),
])  # fmt: skip
def test_lost_calls_are_repeated_only_where_the_file_names_a_header(read, given, lost_calls):
    assert read(**given).lost_calls == lost_calls


def test_columns_are_filled_in_everywhere(read):
    api = read(
        {"KEY": "abc{text}"},
        url="https://api.example.com/{language}/x?key=${KEY}",
        headers={"Authorization": "Bearer ${KEY}", "X-Language": "{language}", "X-N": 2},
        params={"q": "{text}", "exact": True},
        json={"a": [{"b": "{text}"}, 1, None, True], "c": "<{text}> {{x}} ${{y}}", "n": "{n}"},
    )
    request = api.request(Item("7", {"language": "a/b?c", "text": "ü&=1", "n": 1.5}))
    # What the environment holds is no template.
    assert request.url == "https://api.example.com/a%2Fb%3Fc/x?key=abc%7Btext%7D"
    assert request.address == f"{request.url}&q=%C3%BC%26%3D1&exact=true"
    headers = {"Content-Type": "application/json", "Authorization": "Bearer abc{text}"}
    assert request.headers == {**headers, "X-Language": "a/b?c", "X-N": "2"}
    body = {"a": [{"b": "ü&=1"}, 1, None, True], "c": "<ü&=1> {x} ${y}", "n": 1.5}
    assert json.loads(request.body) == body
    assert api.columns == ("language", "text", "n")
    assert "abc" not in repr(request) + repr(api)


def test_a_default_stands_for_a_variable_that_is_not_set(read):
    headers = {"A": "${A:-of file}", "B": "${B:-of file}", "C": "${C:-}", "D": "${D}"}
    api = read({"B": "of environment", "C": "", "D": ""}, headers=headers)
    expected = {"A": "of file", "B": "of environment", "C": "", "D": ""}
    assert api.request(Item("7", {})).headers == expected
    # The default is in the file, for all to read.
    assert api.secrets == ("of environment",)


@pytest.mark.parametrize(("value", "alone", "within"), [
    ("t", "t", "<t>"),
    ("", "", "<>"),
    (3, 3, "<3>"),
    (0.1, 0.1, "<0.1>"),
    (True, True, "<true>"),
    ([1, None], [1, None], "<[1, null]>"),
    ({"a": "ö"}, {"a": "ö"}, '<{"a": "ö"}>'),
    (Decimal("2.50"), 2.5, "<2.5>"),
    (Decimal(12345678901234567890), 12345678901234567890, "<12345678901234567890>"),
    (dt.date(2026, 1, 2), "2026-01-02", "<2026-01-02>"),
])  # fmt: skip
def test_a_column_alone_keeps_its_type(read, value, alone, within):
    api = read(json={"alone": "{c}", "within": "<{c}>"})
    assert body_of(api, c=value) == {"alone": alone, "within": within}


def test_a_binary_column_is_sent_in_base64(read):
    api, data = read(json={"image": "{image:base64}"}), bytes(range(256))
    assert base64.b64decode(body_of(api, image=data)["image"]) == data
    assert base64.b64decode(body_of(api, image="ö")["image"]) == "ö".encode()
    assert api.columns == ("image",)
    refuses(InputError, "'image' is neither binary nor text", body_of, api, image=1)
    plain, said = read(json={"image": "{image}"}), r"'image' is binary; write \{image:base64\}"
    refuses(InputError, said, body_of, plain, image=data)


def test_what_a_request_cannot_hold_is_refused(read):
    for value in (None, float("nan")):
        said = "item '7': column 'text' is missing"
        refuses(InputError, said, body_of, read(json={"t": "{text}"}), text=value)
    said = "unknown column 'txt'; did you mean 'text'"
    refuses(InputError, said, body_of, read(json="{txt}"), text="a")
    said = "item '7': column 'x' holds 'inf'"
    refuses(InputError, said, body_of, read(json="{x}"), x=float("inf"))
    api, item = read(headers={"X-T": "{t}"}), Item("7", {"t": "a\r\nAuthorization: b"})
    refuses(InputError, "item '7': header 'X-T' would contain a line break", api.request, item)
    # A content type of one's own replaces the default.
    api = read(json={}, headers={"content-type": "application/x.v2+json"})
    assert api.request(Item("7", {})).headers == {"content-type": "application/x.v2+json"}


@pytest.mark.parametrize(("given", "message"), [
    ({"anwser": "x"}, "unknown key 'anwser'; did you mean 'answer'"),
    ({"json_body": {}}, "unknown key 'json_body'"),
    ({"url": ...}, "key 'url' is missing"),
    ({"answer": ...}, "key 'answer' is missing"),
    ({"url": 3}, "url: 3"),
    ({"url": "ftp://x/y"}, "url: 'ftp://x/y' is not a URL; write it as https://host/path"),
    ({"url": "{host}/x"}, "url: '{host}/x' is not a URL"),
    ({"url": "https://{host}/x"}, "is not a URL"),
    ({"url": "https://a.{host}/x"}, "a column must not decide where secrets are sent"),
    ({"url": "https://a/x#y"}, "the part after # is never sent"),
    ({"method": "post"}, "method: 'post': it must be 'GET', 'POST'"),
    ({"method": "GET", "json": {}}, "json: a GET request has no body"),
    ({"answer": "a..b"}, "answer: 'a..b' is not a JMESPath expression"),
    ({"json": {"a": ["{}"]}}, r"json.a\[0\]: '{}': write {column}"),
    ({"json": {"a": "x}"}}, r"json.a: 'x}': write {column}"),
    ({"json": {1: "x"}}, "json: the key 1 is not text"),
    ({"json": dt.date(2026, 1, 2)}, "json: .* is not a JSON value"),
    ({"json": float("inf")}, "json: inf is not a number"),
    ({"headers": {"A": "${NO_SUCH}"}}, "headers.A: the environment variable NO_SUCH is not"),
    ({"headers": {"A": "${NO-SUCH}"}}, r"headers.A: \${NO-SUCH} does not name an environment variable"),
    ({"headers": {"A": "${LINES}"}}, "headers.A: it contains a line break"),
    ({"headers": {"A b": "c"}}, "headers.A b: 'A b' is not a header name"),
    ({"headers": {"content-length": 3}}, "'content-length' is set by the client"),
    ({"headers": {"A": ["b"]}}, r"headers.A: \['b'\]"),
    ({"headers": {"idempotency-key": "b"}}, "the idempotency_header is set for each call"),
    ({"idempotency_header": "a b"}, "idempotency_header: 'a b' is not a header name"),
    ({"params": {"A": None}}, "params.A: None"),
    ({"labels": {}}, "labels: the list is empty"),
    ({"labels": {"a": [1]}}, r"labels.a: \[1\] is not a class"),
    ({"labels": {None: 1}}, "labels: the answer None"),
    ({"price": -1}, "price: -1: it must be greater than or equal to 0"),
    ({"price": float("nan")}, "price: nan"),
    ({"timeout": 0}, "timeout: 0"),
    ({"timeout": "30"}, "timeout: '30'"),
    ({"concurrency": 0}, "concurrency: 0"),
    ({"concurrency": 1025}, "concurrency: 1025"),
    ({"concurrency": True}, "concurrency: True"),
    ({"rate_limit": 0}, "rate_limit: 0"),
    ({"retries": -1}, "retries: -1"),
    ({"lost_calls": "forget"}, "lost_calls: 'forget': it must be 'repeat' or 'count'"),
    ({"stop_after": 1.5}, "stop_after: 1.5"),
])  # fmt: skip
def test_what_is_wrong_is_said_with_file_and_key(read, tmp_path, given, message):
    said = refusal(InputError, read, {"LINES": "top secret\n"}, **given)
    assert re.search(message.replace("{", r"\{"), said)
    assert said.startswith(str(tmp_path / "api.yaml"))
    assert "top secret" not in said


@pytest.mark.parametrize(("text", "message"), [
    ("url: [", "cannot be read"),
    ("url: a\nurl: b", "'url' occurs twice"),
    ("- url", "a mapping with 'url' and 'answer'"),
    ("", "a mapping with 'url' and 'answer'"),
])  # fmt: skip
def test_a_file_that_is_no_mapping(tmp_path, text, message):
    path = tmp_path / "api.yaml"
    path.write_text(text)
    refuses(InputError, message, ApiFile.read, str(path), {})
    refuses(InputError, "no such file", ApiFile.read, str(tmp_path / "other.yaml"), {})
    refuses(InputError, "is a folder", ApiFile.read, str(tmp_path), {})


@own_stores
def test_a_file_in_object_storage(bucket):
    bucket.write("api.yaml", yaml.safe_dump(LEAST).encode())
    assert ApiFile.read(f"{bucket.uri}/api.yaml", {}).answer == "label"
    refuses(InputError, "no such file", ApiFile.read, f"{bucket.uri}/other.yaml", {})


@pytest.mark.parametrize(("path", "body", "value", "problem"), [
    ("a.b", '{"a": {"b": "x"}}', "x", None),
    ("a.b", '{"a": {"b": false}}', False, None),
    ("a.b", '{"a": {"b": 0}}', 0, None),
    ("max_by(@, &p).l", '[{"l": "x", "p": 0.1}, {"l": "y", "p": 0.9}]', "y", None),
    ("a.b", '{"a": 1}', None, "nothing at 'a.b'"),
    ("a.b", '{"a": {"b": null}}', None, "nothing at 'a.b'"),
    ("a", '{"a": [1]}', None, "a list at 'a'"),
    ("a", '{"a": {}}', None, "an object at 'a'"),
    ("a", '{"a": 1e999}', None, "an infinite number at 'a'"),
    ("a", '{"a": 18446744073709551616}', None, "a number beyond 64 bits at 'a'"),
    ("a", '{"a": "\\ud800"}', None, "half of a character at 'a'"),
    ("a", json.dumps({"a": "x" * 1001}), None, "a text of 1,001 characters at 'a'"),
    ("a", '{"a": NaN}', None, "no JSON"),
    ("a", '{"a": ', None, "no JSON"),
    ("a", "", None, "no JSON"),
    ("a", "[" * 100_000, None, "no JSON"),
    ("a", b"\xff\xfe\xfa", None, "no JSON"),
    ("length(a)", '{"a": 1}', None, "'length(a)' fails: "),
])  # fmt: skip
def test_the_answer_in_a_body(read, path, body, value, problem):
    found, why = read(answer=path).answer_in(body)
    assert (found, type(found)) == (value, type(value))
    assert (why or "").startswith(problem or "")
    assert (why is None) == (problem is None)


def test_labels(tmp_path, read):
    path = tmp_path / "api.yaml"
    labels = "{POSITIVE: 1, NO: 0, true: t, 2: two, 2.5: half, UNKNOWN: null}"
    path.write_text(f"url: https://a/b\nanswer: c\nlabels: {labels}\n")
    api = ApiFile.read(str(path), {})
    # YAML takes NO for false.
    cases = {"POSITIVE": 1, "NO": 0, "true": "t", "2": "two", "2.5": "half", "UNKNOWN": None}
    assert {key: api.class_of(key) for key in cases} == cases
    others = {True: "t", False: 0, 2: "two", 2.5: "half"}
    assert [api.class_of(one) for one in (*others, 2.0)] == [*others.values(), "two"]
    assert [api.class_of(one) for one in (1, 0, "no", None)] == [None] * 4
    # Without labels an answer is its own class.
    assert [read().class_of(one) for one in ("x", 0, False)] == ["x", 0, False]


def test_the_identity_is_of_what_is_asked(read):
    given = {"url": "https://a/b?k=${KEY}", "params": {"p": "{c}"}, "headers": {"A": "${KEY}"}}
    given["json"] = {"x": "{c}", "y": 1}
    one = read({"KEY": "first"}, **given).identity
    assert one == read({"KEY": "second"}, **given).identity
    same = [
        {"answer": "other"},
        {"labels": {"a": 1}},
        {"price": 2, "timeout": 3, "concurrency": 4, "rate_limit": 5, "retries": 6},
        {"lost_calls": "count", "stop_after": 0, "currency": "EUR"},
        {"json": {"y": 1, "x": "{c}"}},
        {"headers": {"a": "other"}},
    ]
    for change in same:
        assert read({"KEY": "first"}, **{**given, **change}).identity == one, change
    others = [
        {"url": "https://a/c?k=${KEY}"},
        {"method": "PUT"},
        {"params": {"p": "c"}},
        {"headers": {"B": "${KEY}"}},
        {"json": {"x": "{c}", "y": True}},
        {"json": {"x": "{d}", "y": 1}},
    ]
    found = {read({"KEY": "first"}, **{**given, **change}).identity for change in others}
    assert len(found | {one}) == len(others) + 1


IN_JSON = json.dumps(SECRET)[1:-1]
FORMS = [
    *(SECRET, quote(SECRET), quote(SECRET, safe=""), quote(SECRET, safe="").lower(), quote_plus(SECRET)),
    # As it is sent within url.
    "p/s+%20w%22%C3%B6=d&9",
    *(IN_JSON, json.dumps(SECRET, ensure_ascii=False)[1:-1], IN_JSON.replace("/", "\\/")),
    html.escape(SECRET),
    base64.b64encode(SECRET.encode()).decode(),
    base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("="),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_secrets_are_hidden_in_every_form(read, form):
    api = read({"KEY": SECRET, "EMPTY": ""}, url="https://a/b?k=${KEY}&e=${EMPTY}")
    assert api.secrets == (SECRET,)
    hidden = api.redact(f"told: {form}. and x{form}y")
    assert form.rstrip("=") not in hidden
    assert (hidden.count("***"), api.redact("told nothing")) == (2, "told nothing")
    assert pickle.loads(pickle.dumps(api)).redact(form).startswith("***")


@pytest.mark.parametrize("user", ["u", "us", "use", "user"])
@pytest.mark.parametrize("after", ["", "!", "!!"])
def test_a_secret_within_base64_is_hidden(read, user, after):
    api = read({"KEY": "swordfish"}, headers={"A": "${KEY}"})
    text = base64.b64encode(f"{user}:swordfish{after}".encode()).decode()
    assert "***" in api.redact(text)
    # What is left of it tells two signs at most, of which others have a part.
    assert len(api.redact(text).replace("***", "")) <= len(text) - len("swordfish")


def test_a_short_secret_is_hidden_as_a_word_only(read):
    api = read({"LANG": "eu"}, params={"lang": "${LANG}"}, labels={"eu": 1, "neutral": 0})
    # The file itself spells it out.
    assert api.redact("eu neutral") == "eu neutral"
    api = read({"LANG": "eu"}, params={"lang": "${LANG}"})
    assert api.redact('"eu" neutral eu') == '"***" neutral ***'
    # One that holds another is hidden whole.
    api = read({"A": "secret", "B": "secret-and-more"}, headers={"A": "${A}", "B": "${B}"})
    assert api.redact("secret-and-more, secret") == "***, ***"
