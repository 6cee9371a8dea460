"""An object store on loopback: every answer has the same latency, and all clients share one bandwidth.

    python throttled_server.py '{"bytes_per_s": 12e6, "item_bytes": 32768, "latency_s": 0.004}'

Prints its port.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time


class Store:
    """Answers GET with a fixed number of bytes, after the turn of everybody who asked before."""

    def __init__(self, bytes_per_s: float, item_bytes: int, latency_s: float) -> None:
        self.transfer_s = item_bytes / bytes_per_s
        self.latency_s = latency_s
        self.free_at = 0.0
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        self.answer = head % item_bytes + bytes(item_bytes)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        try:
            await reader.readuntil(b"\r\n\r\n")
            now = time.monotonic()
            self.free_at = max(now + self.latency_s, self.free_at) + self.transfer_s
            await asyncio.sleep(self.free_at - now)
            writer.write(self.answer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def main() -> None:
    """Serve until terminated."""
    server = await asyncio.start_server(Store(**json.loads(sys.argv[1])).handle, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
