import asyncio
import grpc
import msgpack
from fluxmq.cluster.connection import Connection, Hello, encode, decode
from fluxmq.cluster.endpoint import OPTIONS, run
class Dialer:
    def __init__(self, security, address, node, own, listener):
        self.address, self.node, self.own, self.listener = address, node, own, listener
    def start(self):
        self.task = asyncio.get_running_loop().create_task(self._run())
    async def stop(self):
        self.task.cancel()
        try:
            await self.task
        except asyncio.CancelledError:
            pass
    async def _run(self):
        while True:
            try:
                async with grpc.aio.insecure_channel(self.address, options=OPTIONS) as channel:
                    call = channel.stream_stream("/fluxmq.cluster.v1.Cluster/Connect")()
                    await call.write(encode([msgpack.packb([*self.own])]))
                    data = await call.read()
                    if data is not grpc.aio.EOF:
                        why, *hello = msgpack.unpackb(decode(data)[0])
                        if not why:
                            connection = Connection(Hello(*hello), True, call.write)
                            self.listener.connected(connection)
                            await run(connection, call.read, self.listener)
                    call.cancel()
            except Exception as error:
                pass
            await asyncio.sleep(0.1)
