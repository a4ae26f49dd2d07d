"""A gRPC client that has nothing but the generated stubs: it sends, streams and reads.

    python examples/grpc_client.py [HOST:PORT]

Without an address it starts a service of its own, offline: a script stands in for the model.
The JSON inside the envelopes is that of docs/reference/wire.md. In Python llmsession.connect() is
more comfortable, and comes back after a lost connection by itself.
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
    """Where it listens. It says what is scripted here, whatever it is asked."""
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
"""gRPC's own way to ask a busy service again. A command_id makes that harmless."""


async def talk(address: str) -> None:
    """One turn, and an error."""
    options = [("grpc.service_config", json.dumps(RETRY))]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        service = SessionServiceStub(channel)
        # The id makes a repeat harmless: after a lost answer the same call is made again.
        made = await service.Create(
            Command(
                session=uuid.uuid4().hex,
                command_id=uuid.uuid4().hex,
                body=body(config={"model": "scripted-model"}),
            ),
            timeout=10,
        )
        sent = await service.Send(
            Command(session=made.session, command_id=uuid.uuid4().hex, body=body(content="hello?")),
            timeout=10,
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
    """The name of an error of llmsession, from the rich details of its status."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # it has what is needed
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
