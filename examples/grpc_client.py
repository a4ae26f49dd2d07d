"""A gRPC client that uses only the generated stubs: it sends, streams and reads.

    python examples/grpc_client.py [HOST:PORT]

Without an address it starts its own service, which runs offline with scripted replies. The JSON
in the envelopes is documented in docs/reference/wire.md. In Python, llmsession.connect() is easier
to use, and it reconnects by itself after a lost connection.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from llmsession import SessionManager
from llmsession.testing.scripted import ScriptedProvider, say
from llmsession.transport import GrpcServer, Service
from llmsession.transport.v1.session_pb2 import Command
from llmsession.transport.v1.session_pb2_grpc import SessionServiceStub


@asynccontextmanager
async def a_service_of_our_own() -> AsyncIterator[str]:
    """The address of a service that gives this reply, whatever the question is."""
    provider = ScriptedProvider([say("Hello over gRPC.").slow(0.01, delta_chars=6)])
    async with (
        SessionManager(provider=provider) as manager,
        Service(manager) as service,
        GrpcServer(service, "grpc://127.0.0.1:0") as server,
    ):
        yield server.address.removeprefix("grpc://")


def body(**fields: object) -> bytes:
    """The other fields of a command."""
    return json.dumps(fields).encode()


RETRY = {
    "methodConfig": [
        {
            "name": [{"service": "llmsession.v1.SessionService"}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.5s",
                "maxBackoff": "5s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["RESOURCE_EXHAUSTED", "UNAVAILABLE"],
            },
        }
    ]
}
"""gRPC's own retry policy, for a busy service. The command_id makes a retry safe."""


async def talk(address: str) -> None:
    """Run a turn, read its events, and provoke an error."""
    options = [("grpc.service_config", json.dumps(RETRY))]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        service = SessionServiceStub(channel)
        # If the answer is lost, gRPC repeats the call. The command_id makes that safe.
        made = await service.Create(
            Command(
                session=uuid.uuid4().hex,
                command_id=uuid.uuid4().hex,
                body=body(config={"model": "scripted-model"}),
            ),
            timeout=60,
        )
        sent = await service.Send(
            Command(session=made.session, command_id=uuid.uuid4().hex, body=body(content="hello?")),
            timeout=60,
        )
        print(f"turn {sent.turn} was accepted")

        text = ""
        async for event in service.Subscribe(
            Command(session=made.session, body=body(turn=sent.turn))
        ):
            if event.kind == "preview.text":
                text = text[: event.offset] + json.loads(event.body)["text"]
            elif event.seq and event.kind.startswith("turn."):
                print(f"{event.kind}, record {event.seq}")
        print(f"it said: {text}")

        page = await service.Conversation(Command(session=made.session))
        print(f"{len(json.loads(page.body)['messages'])} messages")

        try:
            await service.Status(Command(session="another"))
        except grpc.aio.AioRpcError as error:
            print(f"{error.code().name}: {name_of(error)}")


def name_of(error: grpc.aio.AioRpcError) -> str:
    """The class name of an llmsession error, from the details of the gRPC status."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # has the methods needed
    for detail in status.details if status else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return str(info.reason)
    return "?"


async def main() -> None:
    if len(sys.argv) > 1:
        await talk(sys.argv[1])
    else:
        async with a_service_of_our_own() as address:
            await talk(address)


if __name__ == "__main__":
    asyncio.run(main())
