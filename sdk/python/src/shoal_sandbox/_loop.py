"""A thread with an event loop, where the synchronous half of the package runs the asynchronous one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

_T = TypeVar("_T")

# The error for a thread that comes after the close, or whose work the close cancelled.
CLOSED = "the pool is closed"


class Loop:
    """An event loop in a thread of its own, from the first work until it is closed."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._closing = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Lets work begin, in the order of these calls."""
        with self._changing:
            if self._closed:
                work.close()
                raise RuntimeError(CLOSED)
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # It keeps no program from ending.
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="shoal-sandbox", daemon=True
                )
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs work to its end. An interrupt of the thread cancels it, like a coroutine."""
        return self.wait(self.begin(work))

    def wait(self, begun: Future[_T]) -> _T:
        """Waits for work to end, or cancels it if this thread is interrupted."""
        try:
            return begun.result()
        except CancelledError:
            raise RuntimeError(CLOSED) from None
        finally:
            # Does nothing if the work has ended.
            begun.cancel()

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs the last work, cancels the rest and ends the thread. After an interrupt it may be called
        again."""
        with self._closing:
            with self._changing:
                loop, thread, self._closed = self._loop, self._thread, True
            if loop is None or thread is None or loop.is_closed():
                return
            asyncio.run_coroutine_threadsafe(_end(last()), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


async def _end(last: Coroutine[Any, Any, None]) -> None:
    await last
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
