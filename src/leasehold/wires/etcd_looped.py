"""Waiting for etcd's answers on an event loop. A blocking program never imports this file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from leasehold.wires.etcd_errors import UNAVAILABLE, Said
from leasehold.wires.etcd_link import OPTIONS, Call, CallFailed, Endpoint, grpc, limit, translated


class LoopedSide:
    """A task waits. A task that is cancelled meanwhile cancels its call: the answer reaches nobody."""

    def __init__(self) -> None:
        self._channels: dict[Endpoint, Any] = {}
        self._stubs: dict[tuple[Endpoint, str], Any] = {}

    async def ask(self, endpoint: Endpoint, call: Call) -> bytes:
        try:
            with translated():
                answer: bytes = await self._stub(endpoint, call.method)(
                    call.message, timeout=limit(call), metadata=call.metadata
                )
        except grpc.aio.UsageError as error:
            raise CallFailed(Said(UNAVAILABLE, f"the channel is closed: {error}")) from error
        return answer

    async def ask_all(self, endpoint: Endpoint, calls: Sequence[Call]) -> list[bytes | CallFailed]:
        async def one(call: Call) -> bytes | CallFailed:
            try:
                return await self.ask(endpoint, call)
            except CallFailed as failed:
                return failed

        return await asyncio.gather(*map(one, calls))

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self, endpoint: Endpoint) -> None:
        endpoint.close()
        channel = self._channels.pop(endpoint, None)
        self._stubs = {key: stub for key, stub in self._stubs.items() if key[0] is not endpoint}
        if channel is not None:
            await channel.close()

    def _stub(self, endpoint: Endpoint, method: str) -> Any:
        found = self._stubs.get((endpoint, method))
        if found is None:
            found = self._stubs[endpoint, method] = self._channel(endpoint).unary_unary(method)
        return found

    def _channel(self, endpoint: Endpoint) -> Any:
        found = self._channels.get(endpoint)
        if found is None:
            target, credentials = str(endpoint.address), endpoint.credentials
            found = self._channels[endpoint] = (
                grpc.aio.insecure_channel(target, options=OPTIONS)
                if credentials is None
                else grpc.aio.secure_channel(target, credentials, options=OPTIONS)
            )
        return found
