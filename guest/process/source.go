package process

import (
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// source reads one output of a process into its log. It goes on until end of file, also after the process has
// ended, so that what runs on in the background never blocks on a full pipe.
type source struct {
	stream Stream
	file   *os.File
	log    *outputLog
	// bytesMax is how much is kept; what follows is read, counted and thrown away. Zero means no limit.
	bytesMax uint64

	// mu is held from before a read until its bytes are in the log, so whoever holds it sees no byte in between.
	mu       sync.Mutex
	advanced sync.Cond
	total    uint64
	eof      bool
}

func newSource(stream Stream, file *os.File, log *outputLog, bytesMax uint64) *source {
	s := &source{stream: stream, file: file, log: log, bytesMax: bytesMax}
	s.advanced.L = &s.mu
	return s
}

// Buffers are taken only when there is something to read: a thousand idle pipes must cost no buffers.
var readBuffers = sync.Pool{New: func() any { b := make([]byte, ChunkBytesMax); return &b }}

func (s *source) pump() {
	defer s.close()
	raw, err := s.file.SyscallConn()
	if err != nil {
		return
	}
	for {
		var n int
		var buffer *[]byte
		err = raw.Read(func(fd uintptr) bool {
			buffer = readBuffers.Get().(*[]byte)
			s.mu.Lock()
			for {
				var readErr error
				n, readErr = syscall.Read(int(fd), *buffer)
				if readErr == syscall.EINTR {
					continue
				}
				if readErr == syscall.EAGAIN {
					s.mu.Unlock()
					readBuffers.Put(buffer)
					return false
				}
				if readErr != nil {
					n = 0 // a terminal whose other end has closed gives EIO: that is its end
				}
				return true
			}
		})
		if err != nil {
			return
		}
		if n > 0 {
			s.store((*buffer)[:n])
		}
		s.mu.Unlock()
		readBuffers.Put(buffer)
		if n == 0 {
			return
		}
	}
}

func (s *source) store(data []byte) {
	kept := data
	if s.bytesMax > 0 {
		kept = data[:min(uint64(len(data)), s.bytesMax-min(s.bytesMax, s.total))]
	}
	if len(kept) > 0 {
		s.log.append(s.stream, kept)
	}
	s.total += uint64(len(data))
	s.advanced.Broadcast()
}

func (s *source) close() {
	s.file.Close()
	s.mu.Lock()
	s.eof = true
	s.advanced.Broadcast()
	s.mu.Unlock()
}

// drain waits until everything that is in the pipe at the time of the call has been read. The amount is fixed
// first, so a background process that writes without end cannot hold it up.
func (s *source) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.eof {
		return
	}
	target := s.total + uint64(s.available())
	for !s.eof && s.total < target {
		s.advanced.Wait()
	}
}

func (s *source) available() int {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return 0
	}
	var n int32
	_ = raw.Control(func(fd uintptr) {
		syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCINQ, uintptr(unsafe.Pointer(&n)))
	})
	return int(n)
}

// counts gives the bytes produced so far and whether any were thrown away.
func (s *source) counts() (total uint64, truncated bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total, s.bytesMax > 0 && s.total > s.bytesMax
}
