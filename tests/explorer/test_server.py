"""The server answers this machine, its own page and whoever has the token; nobody else."""

import asyncio
import json
import socket
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from html import escape

import numpy as np
import pytest

from anchorwatch.errors import SpecError
from anchorwatch.explorer import encode
from anchorwatch.explorer.open import from_memory
from anchorwatch.explorer.run_data import Run
from anchorwatch.explorer.server import Server, link, spot
from explorer_server import Held
from synthetic_traces import HOSTILE, hostile_trace, small_trace
from waiting import GUARD


@pytest.fixture(scope="module")
def held():
    server = Held([Run(from_memory(small_trace())), Run(from_memory(hostile_trace()))])
    yield server
    server.server.close()
    server.thread.join(timeout=GUARD)


def test_it_serves_headers_and_packets(held):
    status, body, _ = held("data/0/header.json")
    assert (status, json.loads(body)["positions"]) == (200, 14)
    status, body, headers = held("data/0/row-3-1-2.bin")
    assert (status, headers["content-type"]) == (200, "application/octet-stream")
    wanted = small_trace()["received"].values[3, 1, 2]
    np.testing.assert_array_equal(encode.unpack(body)[0]["shares"], wanted)


def test_the_first_run_alone_is_prepared_where_the_page_will_open(monkeypatch):
    runs, asked = [Run(from_memory(small_trace())), Run(from_memory(small_trace()))], []
    monkeypatch.setattr(Run, "prepare", lambda run, layer=None: asked.append((run, layer)))
    held = Held(runs, 2)
    try:
        assert held("")[0] == 200
        assert asked == [(runs[0], 2)]
    finally:
        held.server.close()
        held.thread.join(timeout=GUARD)


def test_every_answer_carries_the_policy(held):
    for path in ("", "app.js", "app.css", "data/0/header.json", "data/0/frames.bin", "nothing"):
        _, _, headers = held(path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"])
def test_it_only_reads(held, method):
    assert held("data/0/header.json", method=method)[0] == 405


@pytest.mark.parametrize(
    "path", ["/", "/app.js", "/data/0/header.json", "/wrong/", "/wrong/app.js"]
)
def test_without_the_token_there_is_nothing(held, path):
    status, body, _ = held.get(path)
    assert status == 403
    assert b"anchorwatch view" in body
    assert held.server.token.encode() not in body


def test_the_token_without_the_last_slash_leads_to_the_page(held):
    token = held.server.token
    for more in ({}, LED):
        status, body, headers = held.get(f"/{token}", **more)
        assert (status, body, headers["location"]) == (307, b"", f"/{token}/")
        assert headers["cache-control"] == "no-store"
    assert held.get(headers["location"])[0] == 200
    assert held.get(f"/{token}?x=1")[2]["location"] == f"/{token}/"
    assert held.get(f"/{token}", **(LED | {"Sec-Fetch-Dest": "iframe"}))[0] == 403
    assert held.get(f"/{token}", method="POST")[0] == 405


def test_a_token_that_begins_right_is_still_wrong(held):
    token = held.server.token
    for wrong in (token[:-1], token + "a", token.swapcase(), f"%{ord(token[0]):02x}{token[1:]}"):
        assert held.get(f"/{wrong}/")[0] in (403, 404)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil", "127.0.0.1", "127.0.0.1:1", "[::1]", "0.0.0.0", "", "a b"],
)
def test_other_hosts_are_refused_before_routing(held, host):
    status, body, _ = held.get(f"/{held.server.token}/", Host=host)
    assert status == 400
    assert b"<div id=app>" not in body


def test_localhost_by_name_is_this_machine(held):
    assert held("", Host=f"localhost:{held.server.port}")[0] == 200


def test_no_host_or_two_are_refused(held):
    target = f"GET /{held.server.token}/ HTTP/1.1\r\nConnection: close\r\n".encode()
    good = f"Host: 127.0.0.1:{held.server.port}\r\n".encode()
    assert held.raw(target + good + b"\r\n")[0] == 200
    assert held.raw(target + b"\r\n")[0] == 400
    assert held.raw(target + good + b"Host: evil.example\r\n\r\n")[0] == 400
    assert held.raw(target + good + good + b"\r\n")[0] == 400


@pytest.mark.parametrize("origin", ["null", "http://evil.example", "https://127.0.0.1", "file://"])
def test_other_origins_are_refused(held, origin):
    assert held("data/0/header.json", Origin=origin)[0] == 403


def test_its_own_origin_may_ask(held):
    own = f"http://127.0.0.1:{held.server.port}"
    assert held("data/0/header.json", Origin=own)[0] == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "whatever"])
def test_pages_of_other_sites_are_refused(held, site):
    assert held("data/0/header.json", **{"Sec-Fetch-Site": site})[0] == 403
    assert held("data/0/header.json", **{"Sec-Fetch-Site": "same-origin"})[0] == 200


LED = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


def test_a_link_leads_a_whole_window_to_the_page_and_to_nothing_else(held):
    assert held("", **LED)[0] == 200
    for path in ("app.js", "data/0/header.json", "data/0/frames.bin"):
        assert held(path, **LED)[0] == 403
    assert held.get("/wrong/", **LED)[0] == 403
    for name, other in (("Mode", "cors"), ("Mode", "no-cors"), ("Dest", "iframe"), ("Dest", "")):
        assert held("", **(LED | {f"Sec-Fetch-{name}": other}))[0] == 403
    assert held("", **(LED | {"Origin": "null"}))[0] == 403


def test_the_way_in_is_a_file_that_nobody_else_can_read_and_goes_when_it_was_used():
    one = Held([Run(from_memory(small_trace()))])
    place = link(one.server.url, {"step": 3})
    file = one.server.door(place)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert f'content="0;url={escape(place)}"' in file.read_text()
    assert one.get("/wrong/")[0] == 403
    assert file.exists()
    assert one()[0] == 200
    assert not file.parent.exists()
    again = one.server.door(place)
    assert again != file
    one.server.close()
    one.thread.join(timeout=GUARD)
    assert not again.parent.exists()


def test_a_way_into_what_never_served_is_closed():
    server = Server([Run(from_memory(small_trace()))])
    file = server.door(server.url)
    server.close()
    assert not file.parent.exists()


PATHS = (
    *("../../etc/passwd", "..%2f..%2fetc/passwd", "%2e%2e/%2e%2e/etc/passwd", "%252e%252e/etc"),
    *("..\\..\\etc", "//etc/passwd", "/etc/passwd", "data/", "data", "data/0", "data/0/", "."),
    *("data/0/../1/header.json", "data/-1/header.json", "data/9/header.json", "data/0/frames"),
    *("data/1e3/header.json", "data/0x0/header.json", "data/0/frames.bin/", "data/0/.bin"),
    *("data/0/layer-0.bin%00", "file:///etc/passwd", "data/0/" + "a" * 5000 + ".bin", "CON", "app"),
    *("data/0/frames.bin;x", "data//0/frames.bin", "NUL"),
    *("data/0/\x00.bin", "data/0/frames.bin\x00", "data/0/\u202eframes.bin", "~root", "aux.bin"),
    *("data/99999999999999999999999/header.json", "data/0/zarr.json", "data/0/COMMIT.json"),
)


@pytest.mark.parametrize("path", PATHS)
def test_paths_lead_nowhere(held, path):
    target = f"GET /{held.server.token}/{path} HTTP/1.1\r\nHost: 127.0.0.1:{held.server.port}\r\n"
    status, body = held.raw(f"{target}Connection: close\r\n\r\n".encode())
    assert status in (400, 403, 404, 414), path
    assert b"root:" not in body
    assert b"Traceback" not in body


@pytest.mark.parametrize(
    "target",
    [
        "http://evil.example/TOKEN/",
        "//evil.example/TOKEN/",
        "*",
        "evil.example:443",
        "\x00",
        "TOKEN/",
    ],
)
def test_targets_of_other_forms_are_refused(held, target):
    spelled = target.replace("TOKEN", held.server.token)
    request = f"GET {spelled} HTTP/1.1\r\nHost: 127.0.0.1:{held.server.port}\r\n"
    status, body = held.raw(f"{request}Connection: close\r\n\r\n".encode())
    assert status in (0, 400, 403, 404), target
    assert b"<div id=app>" not in body


def test_a_websocket_is_refused(held):
    upgrade = f"GET /{held.server.token}/ HTTP/1.1\r\nHost: 127.0.0.1:{held.server.port}\r\n"
    upgrade += "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    upgrade += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    with socket.create_connection(("127.0.0.1", held.server.port), timeout=GUARD) as wire:
        wire.sendall(upgrade.encode())
        assert b" 101 " not in wire.recv(4096)


def test_a_websocket_scope_is_closed():
    app = Server([Run(from_memory(small_trace()))])
    sent = []

    async def send(message):
        sent.append(message)

    async def ask():
        await app.app({"type": "websocket", "headers": [], "path": "/"}, None, send)

    with ThreadPoolExecutor(1) as pool:  # a browser of other tests keeps a loop in this thread
        pool.submit(asyncio.run, ask()).result()
    app.close()
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_hostile_text_stays_inside_the_json(held):
    for path in ("", "data/1/header.json"):
        _, body, headers = held(path)
        if headers["content-type"].startswith("text/html"):
            assert b"<img" not in body
            assert body.count(b"</script>") == 2
    told = json.loads(held("data/1/header.json")[1])
    assert HOSTILE[1] in told["model"]["source"]


def test_what_cannot_be_had_says_why(held):
    status, body, _ = held("data/0/map-0-0-0.bin")
    assert status == 404
    assert "aw.probes.pattern" in json.loads(body)["error"]


def test_it_listens_on_this_machine_only(held):
    assert held.server._socket.getsockname()[0] == "127.0.0.1"


def test_each_server_has_its_own_token(held):
    other = Server([Run(from_memory(small_trace()))])
    other.close()
    assert len(other.token) >= 32
    assert other.token != held.server.token


def test_a_busy_port_is_said(held):
    with pytest.raises(SpecError, match="leave --port out"):
        Server([Run(from_memory(small_trace()))], port=held.server.port)


def test_nothing_to_show_is_refused():
    with pytest.raises(SpecError, match="at least one trace"):
        Server([])


def test_links_are_places_in_the_page():
    assert link("http://x/", spot("step=40,layer=31")) == "http://x/#v=1&step=40&layer=31"
    assert spot("") == {}
    for wrong in (
        "step",
        "step=-1",
        "step=1e3",
        "window=2",
        "step=",
        "step=4&x=1",
        "step=" + "9" * 5000,
    ):
        with pytest.raises(SpecError, match="step=40,layer=31"):
            spot(wrong)


@pytest.fixture(scope="module")
def hasty():
    server = Held([Run(from_memory(small_trace()))], patience=0.2)
    yield server
    server.server.close()
    server.thread.join(timeout=60)
    assert not server.thread.is_alive()


def read_to_the_end(wire):
    """What came until the other side closed."""
    found = b""
    try:
        while block := wire.recv(1 << 16):
            found += block
    except ConnectionError:
        pass  # closed at once
    return found


HALF_OPEN = {
    "nothing": "",
    "half a line": "GET /TOKEN/",
    "half a header": "GET /TOKEN/ HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nX-A: ",
    "no empty line": "GET /TOKEN/ HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n",
    "no body": "POST /TOKEN/ HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nContent-Length: 9\r\n\r\n",
    "half a body": "GET /TOKEN/ HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nContent-Length: 9\r\n\r\nabc",
    "half a chunk": "GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    "one request and a half": "GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP",
}


@pytest.mark.parametrize("name", HALF_OPEN)
def test_a_request_that_never_ends_is_closed(hasty, name):
    text = HALF_OPEN[name].replace("TOKEN", hasty.server.token)
    text = text.replace("PORT", str(hasty.server.port))
    with socket.create_connection(("127.0.0.1", hasty.server.port), timeout=60) as wire:
        wire.sendall(text.encode())
        read_to_the_end(wire)  # a timeout of the socket would be raised
    assert hasty()[0] == 200


def test_a_request_that_comes_byte_by_byte_is_closed_too(hasty):
    sent = 0
    with (
        socket.create_connection(("127.0.0.1", hasty.server.port), timeout=60) as wire,
        pytest.raises(ConnectionError),
    ):
        wire.sendall(b"GET / HTTP/1.1\r\nX-A: ")
        while sent < 60 / 0.02:
            wire.sendall(b"a")
            sent += 1
            threading.Event().wait(0.02)


def test_who_never_reads_the_answer_is_closed_and_keeps_nobody_from_stopping():
    one = Held([Run(from_memory(small_trace()))], patience=0.2)
    ask = f"GET /{one.server.token}/app.js HTTP/1.1\r\nHost: 127.0.0.1:{one.server.port}\r\n\r\n"
    with socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.settimeout(60)
        wire.connect(("127.0.0.1", one.server.port))
        wire.sendall(ask.encode() * 40)  # some megabytes of answers
        assert one()[0] == 200
        one.server.close()
        one.thread.join(timeout=60)
        assert not one.thread.is_alive()


def test_too_many_connections_give_way_to_one_that_asks(monkeypatch):
    from anchorwatch.explorer.connections import Connection

    monkeypatch.setattr(Connection, "most", 4)
    one = Held([Run(from_memory(small_trace()))], patience=600)
    held = [socket.create_connection(("127.0.0.1", one.server.port), timeout=60) for _ in range(9)]
    try:
        assert one()[0] == 200
        for wire in held[:5]:  # those that waited longest
            assert read_to_the_end(wire) == b""
    finally:
        for wire in held:
            wire.close()
        one.server.close()
        one.thread.join(timeout=60)
    assert not one.thread.is_alive()
