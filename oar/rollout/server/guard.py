"""What stands before every route of the engine; vLLM loads it into its server (`--middleware`).

vLLM's own key (`--api-key`) covers /v1, /v2, /inference and /cohere only; the routes that load weights and call any method of a
worker (/collective_rpc, /update_weights, /pause, ...) stay open (vLLM 0.32, entrypoints/serve/middleware/authenticate.py).
This covers all of them. The token comes from the environment, so that no list of processes shows it.
"""

import hashlib
import hmac
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from oar.rollout.access import TOKEN_VARIABLE

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


class Guard:
    """ASGI middleware: refuses web pages always, and whoever does not show the token where there is one.

    A browser says where a page comes from (`Origin`), and vLLM lets every page in: without this, any page that is open on the
    engine's machine could load weights into it, loopback or not.
    """

    def __init__(self, app: Application) -> None:
        token = os.environ.get(TOKEN_VARIABLE)
        self._app = app
        self._expected = None if token is None else _digest(f"Bearer {token}".encode())

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass on what may come in."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        headers = dict(scope["headers"])
        if b"origin" in headers:
            return await _refuse(scope, send, 403, "this engine takes no requests from web pages")
        shown = _digest(headers.get(b"authorization", b""))
        if self._expected is not None and not hmac.compare_digest(shown, self._expected):
            return await _refuse(
                scope, send, 401, f"this engine asks for its token, in {TOKEN_VARIABLE} or rollout.token_file"
            )
        return await self._app(scope, receive, send)


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()


async def _refuse(scope: Message, send: Send, status: int, reason: str) -> None:
    if scope["type"] == "websocket":
        return await send({"type": "websocket.close", "code": 1008, "reason": reason})
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": reason}).encode()})
    return None
