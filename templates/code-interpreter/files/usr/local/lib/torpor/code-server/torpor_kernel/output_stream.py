"""Standard output and error of a kernel: any text, any bytes, in bounded memory."""

import array
import codecs
import fcntl
import os
import select
import termios
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
        if not self._is_master_process():
            self._write_as_child(string)
            return length
        for start in range(0, length, PIECE_CHARACTERS):
            piece = string if length <= PIECE_CHARACTERS else string[start : start + PIECE_CHARACTERS]
            if not piece.isascii():
                piece = piece.encode("utf-8", "replace").decode("utf-8")
            super().write(piece)
            self._unsent += len(piece)
            if self._unsent >= PIECE_CHARACTERS:
                self._wait_until_sent()
        return length

    def _write_as_child(self, string: str) -> None:
        """A forked child must not touch the parent's sockets; its descriptor leads to the parent's pipe."""
        data = memoryview(string.encode("utf-8", "replace"))
        while data:
            data = data[os.write(1 if self.name == "stdout" else 2, data) :]

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

    def _setup_stream_redirects(self, name: str) -> None:
        # Reading is done under this lock and never waits in it, so that `drain` knows where what was written is.
        self._pipe = threading.Lock()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        super()._setup_stream_redirects(name)

    def _watch_pipe_fd(self) -> None:
        poll = select.poll()
        poll.register(self._fid, select.POLLIN)
        while self._should_watch:
            events = poll.poll()
            with self._pipe:
                if self._available() > 0:
                    self._read_pipe()
                elif any(event & ~select.POLLIN for _, event in events):
                    return  # the code has closed its standard streams

    def drain(self) -> None:
        """Passes on what child processes and native code have written up to now; what they write later is not waited for."""
        with self._pipe:
            left = self._available()
            while left > 0:
                left -= self._read_pipe()

    def _available(self) -> int:
        count = array.array("i", [0])
        fcntl.ioctl(self._fid, termios.FIONREAD, count)
        return count[0]

    def _read_pipe(self) -> int:
        data = os.read(self._fid, PIPE_READ_BYTES)
        try:
            self.write(self._decoder.decode(data))
        except Exception as error:  # the pipe must be read on, or every later writer to it hangs
            os.write(self._original_stdstream_copy, f"torpor: output was lost: {error}\n".encode())
        return len(data)

    def close(self) -> None:
        # Whoever holds the pipe's other end may never close it: this thread ends with the process.
        self._should_watch = False
        self.pub_thread = None
