"""A server on this machine that counts tokens as Gemini and Bedrock do: by the characters that it
was sent. It refuses what neither would take."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

GEMINI_KEY = "AIza-not-a-real-key-0123456789"
AWS_KEY, AWS_SECRET = "AKIANOTAREALKEY00000", "not-a-real-secret-0123456789"


class TokenServer:
    """What it was asked: the path and the body of each request. ``status`` is its answer to all,
    ``go`` is waited for before any."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.status = 200
        self.answer: dict[str, Any] | None = None
        self.go = threading.Event()
        self.go.set()
        self.url = ""

    def respond(self, path: str, headers: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.asked.append((path, body))
        self.go.wait(30)
        if self.status != 200:
            error = {"code": self.status, "message": "no", "status": "X"}
            return self.status, {"error": error, "message": "no"}
        if self.answer is not None:
            return 200, self.answer
        if path.endswith(":countTokens"):
            return self._gemini(path, headers, body)
        return self._bedrock(path, headers, body)

    def _gemini(self, path: str, headers: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        whole = body.get("generateContentRequest")
        model = path.removesuffix(":countTokens").rpartition("/")[2]
        if headers.get("x-goog-api-key") != GEMINI_KEY:
            return 403, {"error": {"code": 403, "message": "a wrong key", "status": "DENIED"}}
        if body.get("contents") or not whole or whole["model"] != f"models/{model}":
            return 400, {"error": {"code": 400, "message": "not both", "status": "INVALID"}}
        if set(whole) - {"model", "contents", "systemInstruction", "tools"}:
            return 400, {"error": {"code": 400, "message": "unknown field", "status": "INVALID"}}
        return 200, {"totalTokens": len(json.dumps(whole["contents"]))}

    def _bedrock(self, path: str, headers: Any, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if AWS_KEY not in headers.get("Authorization", ""):
            return 403, {"message": "no credentials"}
        asked = json.loads(base64.b64decode(body["input"]["invokeModel"]["body"]))
        if asked.get("anthropic_version") != "bedrock-2023-05-31" or "max_tokens" not in asked:
            return 400, {"message": "malformed input"}
        if {"model", "stream", "betas"} & asked.keys() or asked["messages"][-1]["role"] != "user":
            return 400, {"message": "malformed input"}
        return 200, {"inputTokens": len(json.dumps(asked["messages"]))}

    def invoked(self) -> dict[str, Any]:
        """The body of the model's own that Bedrock was asked to count last."""
        raw = base64.b64decode(self.asked[-1][1]["input"]["invokeModel"]["body"])
        body: dict[str, Any] = json.loads(raw)
        return body


@contextmanager
def token_server() -> Iterator[TokenServer]:
    server = TokenServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            status, body = server.respond(unquote(self.path), self.headers, json.loads(raw))
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    server.url = f"http://127.0.0.1:{listening.server_address[1]}"
    listen = {"poll_interval": 0.01}
    thread = threading.Thread(target=listening.serve_forever, kwargs=listen, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.go.set()
        listening.shutdown()
        listening.server_close()
        thread.join()
