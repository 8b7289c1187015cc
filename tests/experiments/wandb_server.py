"""A server on this machine that speaks as much of W&B's GraphQL as the dashboard needs, and keeps what it was asked."""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

KEY = "0123456789abcdef" * 2 + "01234567"  # made up; no account has it
ENTITY, PROJECT = "someone", "oar"


class Recording:
    """What W&B was asked for, and what it holds. runs: (config, summary) of each run of the only project, or None without it."""

    def __init__(self, runs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] | None) -> None:
        self.runs = runs
        self.requests: list[dict[str, Any]] = []
        self.views: list[dict[str, Any]] = []
        self.url = ""

    def saved(self, kind: str) -> list[dict[str, Any]]:
        """The specs of the views that were saved, with what was said beside them."""
        return [view | {"spec": json.loads(view["spec"])} for view in self.views if view["type"] == kind]

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The `data` of an answer, by the names of GraphQL operations. Raises KeyError for one that is not known here."""
        variables = request.get("variables") or {}
        name = re.findall(r"(?:query|mutation)\s+(\w+)", request["query"])[0]
        self.requests.append({"operation": name, "variables": variables})
        match name:
            case "Viewer" | "GetDefaultEntity" | "GetViewer":
                return {
                    "viewer": {"id": "1", "entity": ENTITY, "username": ENTITY, "teams": {"edges": []}, "flags": "{}"}
                }
            case "Runs" | "ProjectInternalId":
                return {"project": self._project(variables)}
            case "GetProjects":
                node = {"__typename": "Project", "id": "1", "name": PROJECT, "entityName": ENTITY, "isBenchmark": False}
                node |= {"createdAt": "2026-01-01T00:00:00Z", "user": None}
                page = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
                return {"models": {"edges": [{"node": node}], "pageInfo": page}}
            case "UpsertView2" | "upsertView":
                return {"upsertView": {"view": self._upsert(variables), "inserted": True}}
            case "View":
                nodes = [{"node": view} for view in self.views if view["name"] == variables["viewName"]]
                return {"project": {"allViews": {"edges": nodes}}}
            case "SpecificReport":
                return {"view": next((view for view in self.views if view["id"] == variables["reportId"]), None)}
        raise KeyError(name)

    def _project(self, variables: Mapping[str, Any]) -> dict[str, Any] | None:
        asked = (
            variables.get("entity") or variables.get("entityName"),
            variables.get("project") or variables.get("projectName"),
        )
        if self.runs is None or asked != (ENTITY, PROJECT):
            return None
        group = json.loads(variables.get("filters") or "{}").get("group")
        edges = [
            {"node": _run(at, config, summary), "cursor": str(at)}
            for at, (config, summary) in enumerate(self.runs)
            if group in (None, config["tracking"]["group"])
        ]
        runs = {"edges": edges, "pageInfo": {"endCursor": None, "hasNextPage": False}}
        return {"id": "1", "internalId": "1", "runCount": len(edges), "readOnly": False, "runs": runs}

    def _upsert(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        place = next((view for view in self.views if view["id"] == variables.get("id")), None)
        if place is None:
            number = base64.b64encode(f"View:{len(self.views) + 1}".encode()).decode().rstrip("=")
            place = {"id": number}
            self.views.append(place)
        known = {key: variables.get(key) for key in ("type", "name", "displayName", "description", "spec")}
        project = {"id": "1", "name": variables["projectName"], "entityName": variables["entityName"]}
        place.update(
            known | {"project": project, "createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-01T00:00:00Z"}
        )
        return place


def _run(at: int, config: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    """A run as W&B sends it: settings wrapped by key, both as JSON in a string."""
    return {
        "id": str(at),
        "projectId": "1",
        "name": f"run{at}",
        "displayName": f"run {at}",
        "state": "finished",
        "tags": [],
        "config": json.dumps({key: {"value": value} for key, value in config.items()}),
        "summaryMetrics": json.dumps(summary),
        "systemMetrics": "{}",
        "group": config["tracking"]["group"],
        "jobType": config["method"]["name"],
        "user": {"name": ENTITY, "username": ENTITY},
        "createdAt": "2026-01-01T00:00:00Z",
        "heartbeatAt": "2026-01-01T00:00:00Z",
        "historyKeys": None,
    }


@contextmanager
def serving(recording: Recording) -> Iterator[Recording]:
    """The recording behind an address of this machine; another key than KEY is refused."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            key = (
                base64.b64decode((self.headers["Authorization"] or "Basic ").split()[1] + "==")
                .decode()
                .removeprefix("api:")
            )
            try:
                status, body = (
                    (200, {"data": recording.answer(request)}) if key == KEY else (401, {"error": "unauthorized"})
                )
            except KeyError as error:
                status, body = 400, {"errors": [{"message": f"no operation {error}"}]}
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    recording.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield recording
    finally:
        server.shutdown()
        server.server_close()
