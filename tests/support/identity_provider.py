"""An identity provider: keys, tokens that it signs or that others forge, and a server with both."""

from __future__ import annotations

import hashlib
import hmac
import json
import ssl
import threading
import time
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

ISSUER, AUDIENCE, USER = "https://issuer.example", "kafka", "alice"
Claims = dict[str, Any]


@cache
def key(kind: str, name: str) -> Any:
    """Return the private key with a name. `kind`: RSA, RSA-1024, or a curve."""
    parameters: Any = {"kid": name, "use": "sig"}
    if kind.startswith("RSA"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about short keys
            return RSAKey.generate_key(int(kind.partition("-")[2] or 2048), parameters)
    make: Any = ECKey if kind.startswith("P-") else OKPKey
    return make.generate_key(kind, parameters)


def public(*keys: Any) -> dict[str, Any]:
    """Return the key set with the public halves of keys."""
    return {"keys": [each.as_dict(private=False) for each in keys]}


def encoded(content: Any) -> str:
    """Return a part of a token: JSON, or bytes as they are, in base64url."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return urlsafe_b64encode(data).decode().rstrip("=")


def claims(**changes: Any) -> Claims:
    """Return the claims of a valid token. A change to None removes a claim."""
    now = int(time.time())
    made = {"iss": ISSUER, "aud": AUDIENCE, "sub": USER, "iat": now, "exp": now + 3600, "scope": "all", **changes}
    return {name: value for name, value in made.items() if value is not None}


def signed(
    private: Any, content: Claims | bytes, algorithm: str = "RS256", header: Mapping[str, Any] | bytes | None = None
) -> str:
    """Return a token. `header` replaces the whole header."""
    if header is None:
        header = {"alg": algorithm, "kid": private.kid, "typ": "JWT"}
    what = f"{encoded(header)}.{encoded(content)}"
    return f"{what}.{encoded(JWSRegistry.algorithms[algorithm].sign(what.encode(), private))}"


def symmetric(secret: bytes, content: Claims, kid: str) -> str:
    """Return a token whose signature is an HMAC with a key that is no secret."""
    what = f"{encoded({'alg': 'HS256', 'kid': kid})}.{encoded(content)}"
    return f"{what}.{encoded(hmac.digest(secret, what.encode(), hashlib.sha256))}"


class IdentityProvider:
    """A server with `/keys`, and with `/token` for clients with `client_id` and `client_secret`.

    Use it in a `with` block. `key_set`, `status`, and `life_s` and `subject` (of issued tokens) may change. `requests`
    counts the requests for the keys.
    """

    client_id, client_secret = "broker-client", "hunter2-client"

    def __init__(self, *keys: Any, tls: ssl.SSLContext | None = None) -> None:
        self.key_set: Any = public(*keys)
        self.status = 200
        self.requests = 0
        self.life_s = 3600
        self.subject = "broker"
        self.issued: list[str] = []
        self._private = keys[0]
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.requests += 1
                self._answer(provider.status, provider.key_set)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                login = f"{provider.client_id}:{provider.client_secret}".encode()
                if self.headers["Authorization"] != f"Basic {urlsafe_b64encode(login).decode()}":
                    self._answer(401, {"error": "invalid_client"})
                    return
                provider.issued.append(provider.token())
                self._answer(200, {"access_token": provider.issued[-1], "expires_in": provider.life_s})

            def _answer(self, status: int, found: Any) -> None:
                content = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        base = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._server.server_port}"
        self.keys_url, self.token_url = f"{base}/keys", f"{base}/token"

    def token(self) -> str:
        """Return a new token for the user `subject`."""
        return signed(self._private, claims(sub=self.subject, exp=int(time.time()) + self.life_s))

    def __enter__(self) -> IdentityProvider:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
