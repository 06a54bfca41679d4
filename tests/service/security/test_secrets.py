"""No issued secret is in the database or in the log of a real process."""

from __future__ import annotations

import json
import re
import sqlite3
import zlib
from pathlib import Path

import httpx

from tests.service.serving import end, start

BETWEEN = rb"(?<![0-9A-Za-z])%s(?![0-9A-Za-z])"


def everything(db: Path) -> bytes:
    """All bytes of the files, and the unpacked content of the snapshots."""
    parts = [file.read_bytes() for file in sorted(db.parent.glob(db.name + "*"))]
    with sqlite3.connect(f"file:{db}?mode=ro", uri=True) as rows:
        parts += [zlib.decompress(state) for (state,) in rows.execute("SELECT state FROM snapshots")]
        for table in ("commands", "replies", "meta"):
            parts += [repr(row).encode() for row in rows.execute(f"SELECT * FROM {table}")]
    return b"\n".join(parts)


def test_no_secret_is_in_the_database_or_in_the_log(tmp_path: Path) -> None:
    db = tmp_path / "s.db"
    served = start(db=db, port=0, markets=["BTC"], rate_limits=False, invite_codes=["invite-of-mine"])
    secrets: dict[str, str] = {"invite": "invite-of-mine"}
    try:
        with httpx.Client(base_url=served.base_url, timeout=60, headers={"Content-Type": "application/json"}) as http:
            secrets["first key"] = http.post("/v1/sandbox/accounts", json={}).json()["apiKey"]
            phone = {"phoneNumber": "+447911123456"}
            secrets["otp"] = http.post("/v1/auth/otp", json=phone).json()["sandboxCode"]
            wrong = f"{(int(secrets['otp']) + 1) % 1_000_000:06d}"
            assert http.post("/v1/auth/verify", json={**phone, "code": wrong}).status_code == 401
            body = {**phone, "code": secrets["otp"], "inviteCode": "invite-of-mine"}
            secrets["session"] = http.post("/v1/auth/verify", json=body).json()["accessToken"]
            secrets["pending otp"] = http.post("/v1/auth/otp", json=phone).json()["sandboxCode"]
            session = {"Authorization": f"Bearer {secrets['session']}"}
            keyed = {**session, "Idempotency-Key": "one"}
            secrets["key"] = http.post("/v1/keys", json={"scopes": ["read", "trade"]}, headers=keyed).json()["apiKey"]
            assert http.post("/v1/keys", json={"scopes": ["read", "trade"]}, headers=keyed).json()["apiKey"] is None
            device = http.post("/v1/oauth/device", content=b"").json()
            secrets["device"], secrets["user code"] = device["deviceCode"], device["userCode"]
            page = http.get("/device").text
            origin = {"Origin": served.base_url, "Content-Type": "application/x-www-form-urlencoded"}
            found = re.search(r'name="csrf" value="([^"]+)"', page)
            assert found is not None
            secrets["csrf"] = found[1]
            for form in (
                {"step": "code", "userCode": device["userCode"]},
                {"step": "key", "apiKey": secrets["first key"]},
                {"step": "approve", "name": "d", "scope": "read"},
            ):
                answer = http.post("/device", data={"csrf": found[1], **form}, headers=origin)
                assert answer.status_code == 200, answer.text
            secrets["visit"] = http.cookies["bb_device"]
            token = http.post("/v1/oauth/device/token", json={"deviceCode": device["deviceCode"]})
            secrets["device key"] = token.json()["accessToken"]
            order = {"market": "BTC", "side": "long", "usdAmount": 100, "dryRun": True}
            trader = {"Authorization": f"Bearer {secrets['key']}"}
            secrets["plan"] = http.post("/v1/orders", json=order, headers=trader).json()["confirmToken"]
            secrets["webhook"] = "whsec_c2VjcmV0LW9mLXRoaXMtdGVzdC1hbG9uZQ"
            hook = {"url": "http://127.0.0.1:9/", "secret": secrets["webhook"]}
            assert http.post("/v1/webhooks", json=hook, headers=session).status_code == 200
            # Failed requests do not log their secrets either.
            for path in ("/v1/nowhere", "/v1/keys/" + secrets["key"], "/v1/orders"):
                http.post(path, content=b'{"x": "' + secrets["key"].encode(), headers=trader)
            # Nor do requests with the secret in place of its id; only the first letters of a key are used.
            for path, secret in (("keys", secrets["key"]), ("webhooks", secrets["webhook"])):
                refused = http.delete(f"/v1/{path}/{secret}", headers=session)
                assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
                assert secret[:40] not in refused.text
            secrets["start of the key"] = secrets["key"][:61]
            assert http.delete("/v1/auth/session", headers=session).status_code == 200
        killed = everything(db)
        served.stop()
        assert served.process.stderr is not None
        log = served.process.stderr.read()
        stopped = everything(db)
    finally:
        end(served)
    assert len(secrets) == 14
    assert len(set(secrets.values())) == len(secrets)
    for line in log.splitlines():
        json.loads(line)
    places = {"the database": killed, "the database after a snapshot": stopped, "the log": log}
    for name, secret in secrets.items():
        for place, text in places.items():
            assert not re.search(BETWEEN % re.escape(secret.encode()), text), f"{name} stands in {place}"
    assert b"447911123456" not in killed + stopped + log
