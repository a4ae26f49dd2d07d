from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Command(_message.Message):
    __slots__ = ("session", "command_id", "body")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    session: str
    command_id: str
    body: bytes
    def __init__(self, session: _Optional[str] = ..., command_id: _Optional[str] = ..., body: _Optional[bytes] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("session", "seq", "kind", "turn", "body", "offset", "calls")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    session: str
    seq: int
    kind: str
    turn: int
    body: bytes
    offset: int
    calls: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, session: _Optional[str] = ..., seq: _Optional[int] = ..., kind: _Optional[str] = ..., turn: _Optional[int] = ..., body: _Optional[bytes] = ..., offset: _Optional[int] = ..., calls: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Frames(_message.Message):
    __slots__ = ("frames",)
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, frames: _Optional[_Iterable[bytes]] = ...) -> None: ...
