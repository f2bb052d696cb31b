import asyncio, contextlib
import grpc
import msgpack
from fluxmq.cluster.connection import Connection, Hello, encode, decode
from fluxmq.cluster.errors import EndpointError
CallHandler = object
OPTIONS = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]

class Endpoint:
    def __init__(self, security, address, own, listener, accept, calls=None):
        self.address, self.own, self.listener, self.accept = address, own, listener, accept
    async def start(self):
        self.server = grpc.aio.server(options=OPTIONS)
        handler = grpc.method_handlers_generic_handler("fluxmq.cluster.v1.Cluster", {"Connect": grpc.stream_stream_rpc_method_handler(self._connect)})
        self.server.add_generic_rpc_handlers((handler,))
        try:
            self.server.add_insecure_port(self.address)
        except RuntimeError as error:
            raise EndpointError(f"{self.address}: {error}") from error
        await self.server.start()
    async def stop(self):
        await self.server.stop(0)
    async def _connect(self, _it, context):
        data = await context.read()
        if data is grpc.aio.EOF:
            return
        hello = Hello(*msgpack.unpackb(decode(data)[0]))
        why = self.accept(hello)
        await context.write(encode([msgpack.packb([why, *self.own])]))
        if why:
            return
        connection = Connection(hello, False, context.write)
        self.listener.connected(connection)
        await run(connection, context.read, self.listener)

async def run(connection, read, listener):
    pump = asyncio.ensure_future(connection.pump())
    closed = asyncio.ensure_future(connection.closed.wait())
    async def reading():
        while True:
            data = await read()
            if data is grpc.aio.EOF:
                return
            listener.received(connection, decode(data))
    reader = asyncio.ensure_future(reading())
    why = ""
    try:
        done, _ = await asyncio.wait([pump, closed, reader], return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            if each.exception():
                why = repr(each.exception())[:200]
    finally:
        connection.open = False
        for each in (pump, closed, reader):
            each.cancel()
        listener.lost(connection, why)
