"""Under BentoML every answer and every refusal is byte for byte that of our routes alone."""

from __future__ import annotations

import io
import json
import re
import socket
from collections.abc import Iterator

import pytest

from tests.xlt_serve.serving.processes import serving
from tests.xlt_serve.serving.sockets import listening
from xlt_serve.serving.app import create
from xlt_serve.serving.log import Log
from xlt_serve.serving.middleware import Gate, Guard
from xlt_serve.serving.settings import Environment

KEY, ADMIN = "k" * 16, "a" * 16
JSON = "Content-Type: application/json"
USER = f"Authorization: Bearer {KEY}"


def request(line: str, *headers: str, body: bytes | None = None, key: str = USER) -> bytes:
    """Its own id comes back, so that answers of two services can be compared."""
    lines = [f"{line} HTTP/1.1", "Host: xlt", "X-Request-Id: same", "Connection: close", *headers]
    lines += [key] if key else []
    lines += [f"Content-Length: {len(body)}"] if body is not None else []
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def post(path: str, value: object, *headers: str, key: str = USER) -> bytes:
    return request(f"POST {path}", JSON, *headers, body=json.dumps(value).encode(), key=key)


def raw(content: bytes, *headers: str) -> bytes:
    return request("POST /classify", *(headers or (JSON,)), body=content)


def chunked(*parts: bytes) -> bytes:
    head = request("POST /classify", JSON, "Transfer-Encoding: chunked")
    return head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))


FORM = b'--x\r\nContent-Disposition: form-data; name="texts"\r\n\r\n["a"]\r\n--x--\r\n'
TEXTS = {"texts": ["Die Mannschaft gewann das Finale.", "", None, ["a", "b"], 7]}
VOTES = {"texts": ["a game"], "mode": "smoothed", "samples": 50, "seed": 7}
ANSWERED = {
    "texts": post("/classify", TEXTS),
    "one text": post("/classify", {"texts": "El virus se propaga."}),
    "options": post("/classify", {"texts": "a game", "top_k": 2, "language": "xx"}),
    "votes": post("/classify", VOTES),
    "no texts": post("/classify", {"texts": []}),
    "nulls": post("/classify", {"texts": ["a"], "pairs": None, "top_k": None}),
    "half a character": raw(b'{"texts": ["half \\ud800", "a game"]}'),
    "in chunks": chunked(b'{"texts": ', b'["a game"]}'),
    "charset": raw(b'{"texts": ["a"]}', "Content-Type: Application/JSON; charset=utf-8"),
    "query": post("/classify?x=1", {"texts": ["a"]}),
    "by the other header": post("/classify", {"texts": ["a"]}, f"X-API-Key: {KEY}", key=""),
    "models": request("GET /models"),
    "head of models": request("HEAD /models"),
    "upgrade": request("GET /models", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
    "page": request("GET /", key=""),
    "description": request("GET /docs.json", key=""),
}
REFUSED = {
    "no content type": raw(b'{"texts": ["a"]}', "Accept: */*"),
    "no body": request("POST /classify", JSON),
    "empty body": raw(b""),
    "half a body": raw(b"{"),
    "not UTF-8": raw(b'{"texts": ["\xff"]}'),
    "NaN": raw(b'{"texts": ["a"], "abstain_below": NaN}'),
    "Infinity": raw(b'{"texts": ["a"], "abstain_below": Infinity}'),
    "too large a number": raw(b'{"texts": ["a"], "seed": 1e999}'),
    "too long a number": raw(b'{"texts": ["a"], "seed": ' + b"9" * 5000 + b"}"),
    "deep": raw(b'{"texts": ' + b"[" * 200 + b"]" * 200 + b"}"),
    "half a character in a key": raw(b'{"texts": ["a"], "\\ud800": 1}'),
    "too large a body": raw(b"x" * 8_000_001),
    "too large in chunks": chunked(*[b"x" * 1_000_000] * 9),
    "no object": post("/classify", ["a"]),
    "no field": post("/classify", {}),
    "two fields": post("/classify", {"texts": ["a"], "pairs": [["a", "b"]]}),
    "wrong type": post("/classify", {"texts": 7}),
    "wrong value": post("/classify", {"texts": ["a"], "abstain_below": 7, "top_k": "x"}),
    "wrong mode": post("/classify", {"texts": ["a"], "mode": "guess"}),
    "no such mode here": post("/classify", {"texts": ["a"], "mode": "paired"}),
    "unknown option": post("/classify", {"texts": ["a"], "colour": "red"}),
    "unknown bundle": post("/classify", {"texts": ["a"], "bundle": "other"}),
    "too many items": post("/classify", {"texts": ["a"] * 1001}),
    "too late": post(
        "/classify", {**VOTES, "texts": ["a"] * 100, "samples": 500, "deadline_ms": 1}
    ),
    "pickle": raw(b"\x80\x05}.", "Content-Type: application/vnd.bentoml+pickle"),
    "form": raw(b"texts=a", "Content-Type: application/x-www-form-urlencoded"),
    "parts": raw(FORM, "Content-Type: multipart/form-data; boundary=x"),
    "text": raw(b"a", "Content-Type: text/plain"),
    "zipped": raw(b"{}", JSON, "Content-Encoding: gzip"),
    "zero shot by no such bundle": post("/zero_shot", {"texts": ["a"], "labels": ["sports"]}),
    "labels missing": post("/zero_shot", {"texts": ["a"]}),
    "pickled labels": request(
        "POST /zero_shot", "Content-Type: application/vnd.bentoml+pickle", body=b"\x80\x05}."
    ),
    "no key": post("/classify", {"texts": ["a"]}, key=""),
    "wrong key": post("/classify", {"texts": ["a"]}, key="X-API-Key: wrong"),
    "no key for models": request("GET /models", key=""),
    "swap without the admin's key": post("/models", {"name": "topics"}),
    "swap of nothing": post("/models", {"name": "other"}, key=f"X-API-Key: {ADMIN}"),
    "swap to nothing": post(
        "/models", {"name": "topics", "bundle": "nowhere"}, key=f"X-API-Key: {ADMIN}"
    ),
    "pickled swap": request(
        "POST /models",
        "Content-Type: application/vnd.bentoml+pickle",
        body=b"\x80\x05}.",
        key=f"X-API-Key: {ADMIN}",
    ),
    "no such path": request("GET /nowhere"),
    "BentoML's static files": request("GET /static_content/index.css", key=""),
    "path with a line break": post("/classify%0A", {"texts": ["a"]}, key=""),
    "path with a slash": post("/classify/", {"texts": ["a"]}),
    "path with two slashes": post("//classify", {"texts": ["a"]}),
    "path below": post("/classify/submit", {"texts": ["a"]}),
    "GET of classify": request("GET /classify"),
    "HEAD of classify": request("HEAD /classify"),
    "OPTIONS of classify": request("OPTIONS /classify", "Origin: http://a"),
    "PUT of models": request("PUT /models", JSON, body=b"{}", key=f"X-API-Key: {ADMIN}"),
    "DELETE of the page": request("DELETE /"),
    "no HTTP": b"nonsense\r\n\r\n",
    "long header": request("GET /models", "X-Long: " + "a" * 20_000),
    "many headers": request("GET /models", *[f"X-{n}: a" for n in range(200)]),
}
CASES = ANSWERED | REFUSED

CHANGING = (
    (rb"\r\n(date|server): [^\r]*", b""),
    (rb'("(queue|run|predict)_ms":)[0-9.e-]+', rb"\1 0"),
    (rb'("loaded_at":)"[^"]*"', rb'\1""'),
    (rb"\b[0-9a-f]{32}\b", b"id"),  # where nobody has read the request's own
    (rb"\r\n(last-modified|etag): [^\r]*", b""),
)


def said(port: int, content: bytes) -> bytes:
    """The whole answer, without what differs from one moment to the next."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        line.sendall(content)
        got = b""
        while piece := line.recv(65536):
            got += piece
    if b"_ms" in got:  # some digits more or less
        got = re.sub(rb"(content-length:) \d+", rb"\1", got)
    for pattern, instead in CHANGING:
        got = re.sub(pattern, instead, got)
    return re.sub(rb"(?<=allow: )[A-Z, ]+", lambda found: _sorted(found[0]), got)


def _sorted(methods: bytes) -> bytes:
    """Starlette has them in a set."""
    return b", ".join(sorted(methods.split(b", ")))


Ports = tuple[int, int]


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    """Of ``xlt serve``, and of our routes on a server without BentoML."""
    folder = tmp_path_factory.mktemp("same")
    keys = {"XLT_API_KEYS": KEY, "XLT_ADMIN_KEYS": ADMIN}
    gate = Gate(log=Log(io.StringIO()))
    environment = Environment(
        {"topics": "topics"},
        keys=(KEY,),
        admin_keys=(ADMIN,),
        state=folder / "alone",
        host="127.0.0.1",
    )
    patient = {"header_timeout": 10, "idle_timeout": 5, "write_timeout": 20, "drain_timeout": 5}
    with (
        serving(folder, "--bundle", "topics", **keys) as running,
        listening(Guard(create(gate, environment), gate), **patient) as alone,
    ):
        yield int(running.url.rsplit(":", 1)[1]), alone.port


@pytest.mark.parametrize("name", CASES)
def test_bentoml_changes_no_byte(ports: Ports, name: str) -> None:
    ours, alone = (said(port, CASES[name]) for port in ports)
    assert ours == alone
    status = int(ours.split()[1])
    assert (status < 300) is (name in ANSWERED), ours
