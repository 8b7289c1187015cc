"""JSON over HTTP to one server: every way in which it can fail is one sentence."""

from typing import Any

import requests

from oar.common.errors import EngineError, EngineLostError

CONNECT_S = 5.0
BUSY_S = 1.0


class HttpServer:
    """A server at `url`; `timeout_s` bounds the wait for each answer, `token` is shown to a server that asks for one."""

    def __init__(self, url: str, timeout_s: float, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def answers(self, route: str) -> bool:
        """Whether a GET of `route` gives 200 at once; False where nobody is there."""
        try:
            return self._send("GET", route, timeout=CONNECT_S).status_code == requests.codes.ok
        except requests.RequestException:
            return False

    def wants_another_token(self, route: str) -> bool:
        """Whether a GET of `route` gives 401 or 403."""
        try:
            found = self._send("GET", route, timeout=BUSY_S).status_code
        except requests.RequestException:
            return False
        return found in (requests.codes.unauthorized, requests.codes.forbidden)

    def refuses(self, route: str) -> bool:
        """Whether a GET of `route` gives anything but 200, or nobody listens; False where no answer comes: it may be busy."""
        try:
            return self._send("GET", route, timeout=BUSY_S).status_code != requests.codes.ok
        except requests.Timeout:
            return False
        except requests.RequestException:
            return True

    def call(self, method: str, route: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request; returns the JSON object that a 200 carries.

        Raises EngineLostError where no answer comes or the server has failed (500 and above), EngineError for any other answer.
        """
        try:
            response = self._send(method, route, json=body, timeout=(CONNECT_S, self._timeout_s))
        except requests.ConnectTimeout:
            raise EngineLostError(
                f"the engine at {self.url} took no connection within {CONNECT_S:g} s: it hangs, or the network does; see its log."
            ) from None
        except requests.Timeout:
            raise EngineLostError(
                f"the engine at {self.url} did not answer {route} within {self._timeout_s:g} s;"
                " it hangs, or rollout.request_timeout_s (of a weight sync: sync.timeout_s) is too low."
            ) from None
        except requests.exceptions.ChunkedEncodingError:
            raise EngineLostError(f"the engine at {self.url} cut off its answer to {route}; see its log.") from None
        except requests.RequestException as error:
            raise EngineLostError(
                f"the engine at {self.url} is gone: {route} failed with {type(error).__name__}; see its log."
            ) from error
        if response.status_code != requests.codes.ok:
            page = "html" in response.headers.get("Content-Type", "")
            said = "a web page, so it is no vLLM server" if page else " ".join(response.text.split())[:300].rstrip(".")
            # vLLM answers 500 once its core has died, and shuts down a moment later.
            kind = EngineLostError if response.status_code >= requests.codes.server_error else EngineError
            raise kind(f"the engine at {self.url} answered {route} with HTTP {response.status_code}: {said}.")
        try:
            answer = response.json()
        except requests.JSONDecodeError:
            raise EngineError(
                f"the engine at {self.url} answered {route} with broken JSON: {response.text[:100]!r}."
            ) from None
        if not isinstance(answer, dict):
            raise EngineError(
                f"the engine at {self.url} answered {route} with {type(answer).__name__} instead of a JSON object."
            )
        return answer

    def _send(self, method: str, route: str, **options: Any) -> requests.Response:
        # A connection of its own for each request: a kept one that the server closes just as the next request is sent on it
        # looks like a dead engine, and asking the server to close ("Connection: close") does not take it out of the pool.
        with requests.Session() as session:
            session.trust_env = False  # a proxy has no business between two processes of one machine
            return session.request(method, self.url + route, headers=self._headers, **options)
