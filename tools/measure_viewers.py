"""A class at once: how long each of 60 viewers waits for their own change.

    python tools/measure_viewers.py [--viewers 60] [--seconds 40] [--distinct]

Starts the app, connects so many viewers to its websocket, and lets each show another state of the playground every 2 to
6 s, as a slider does, for some time. Prints p50 and p95 of the time from a change to the end of the script run. The knob
has ten stops, as on the page, so that viewers meet what others have computed; with --distinct every change is a run of
its own that no cache knows. The viewers take CPU of the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time

import websockets
from measuring import cpu_s, serving
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

STOPS = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512)


async def view(base: str, number: int, until: float, distinct: bool, waits: list[float]) -> None:
    """One viewer: change, wait for the run to end, look at it for 2 to 6 s, and so on."""
    chance = random.Random(number)
    url = base.replace("http", "ws") + "/_stcore/stream"
    async with websockets.connect(url, max_size=None, subprotocols=[websockets.Subprotocol("streamlit")]) as socket:
        count = 0
        while time.monotonic() < until:
            seed = 1000 * number + count if distinct else 1
            message = BackMsg()
            message.rerun_script.query_string = f"v=1&rr=30&ms={chance.choice(STOPS)}&sd={seed}"
            message.rerun_script.page_name = "playground"
            begun = time.monotonic()
            await socket.send(message.SerializeToString())
            while ForwardMsg.FromString(bytes(await socket.recv())).WhichOneof("type") != "script_finished":
                pass
            if count:  # the first is the opening of the page
                waits.append(time.monotonic() - begun)
            count += 1
            await asyncio.sleep(chance.uniform(2.0, 6.0))


async def crowd(base: str, viewers: int, seconds: float, distinct: bool) -> list[float]:
    """All of them, arriving within 4 s."""
    waits: list[float] = []

    async def arrive(number: int) -> None:
        await asyncio.sleep(4.0 * number / viewers)
        await view(base, number, time.monotonic() + seconds, distinct, waits)

    await asyncio.gather(*(arrive(number) for number in range(viewers)))
    return sorted(waits)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--viewers", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--distinct", action="store_true", help="no two changes are the same run")
    options = parser.parse_args()
    with serving() as (base, pid):
        begun, before = time.monotonic(), cpu_s(pid)
        waits = asyncio.run(crowd(base, options.viewers, options.seconds, options.distinct))
        wall, cpu = time.monotonic() - begun, cpu_s(pid) - before
    at = {p: waits[min(int(p / 100 * len(waits)), len(waits) - 1)] * 1000 for p in (50, 95)}
    print(f"{options.viewers} viewers, {len(waits)} changes in {wall:.0f} s: p50 {at[50]:.0f} ms, p95 {at[95]:.0f} ms; "
          f"server {cpu / wall * 100:.0f} % of a core")


if __name__ == "__main__":
    main()
