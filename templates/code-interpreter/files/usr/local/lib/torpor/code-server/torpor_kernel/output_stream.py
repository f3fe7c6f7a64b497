"""Standard output and error of a kernel: any text, any bytes, in bounded memory."""

import codecs
import os
import sys
import threading

from ipykernel.iostream import OutStream

# Characters sent in one message; with as many unsent, the writer waits until they are on their way.
PIECE_CHARACTERS = 64 * 1024
PIPE_READ_BYTES = 64 * 1024
LOOK_SECONDS = 1.0


class OutputStream(OutStream):
    """ipykernel's stream, except that

    - a writer who is faster than the reader waits, instead of filling the kernel's memory;
    - bytes that are not UTF-8 and characters that cannot be encoded come out as U+FFFD or `?`, instead of ending the
      stream for good;
    - nothing is echoed to the service's log.
    """

    _unsent = 0

    def write(self, string: str) -> int:
        if not isinstance(string, str):
            raise TypeError(f"write() argument must be str, not {type(string).__name__}")
        length = len(string)
        for start in range(0, length, PIECE_CHARACTERS):
            piece = string if length <= PIECE_CHARACTERS else string[start : start + PIECE_CHARACTERS]
            if not piece.isascii():
                piece = piece.encode("utf-8", "replace").decode("utf-8")
            super().write(piece)
            self._unsent += len(piece)
            if self._unsent >= PIECE_CHARACTERS:
                self._wait_until_sent()
        return length

    def _flush_buffer(self) -> str:
        self._unsent = 0
        return super()._flush_buffer()

    def _wait_until_sent(self) -> None:
        thread = self.pub_thread.thread
        if not self._is_master_process() or not thread.is_alive() or thread.ident == threading.get_ident():
            return
        sent = threading.Event()
        self.pub_thread.schedule(self._flush)
        self.pub_thread.schedule(sent.set)
        # In pieces of a second only to notice the thread's end; an interrupt ends the wait at once.
        while not sent.wait(LOOK_SECONDS) and thread.is_alive():
            pass

    def flush(self) -> None:
        self._wait_until_sent()

    def _watch_pipe_fd(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while self._should_watch:
            try:
                data = os.read(self._fid, PIPE_READ_BYTES)
            except OSError:
                return
            if not data:
                return
            try:
                self.write(decoder.decode(data))
            except Exception as error:  # the pipe must be read on, or every later writer to it hangs
                os.write(self._original_stdstream_copy, f"torpor: output was lost: {error}\n".encode())

    def close(self) -> None:
        # Whoever holds the pipe's other end may never close it: this thread ends with the process.
        self._should_watch = False
        self.pub_thread = None


def original_error_stream() -> int:
    """The descriptor behind standard error before it was replaced."""
    return getattr(sys.stderr, "_original_stdstream_copy", 2)
