package sudo

import (
	"io"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"torpor/guest/spawn"
)

// screen is a terminal of the command's own between it and the caller's. The command leads a session that cannot have the
// caller's terminal; with this one, ^C, job control, /dev/tty and window sizes work as they should.
type screen struct {
	master, terminal *os.File
	saved            syscall.Termios
	once             sync.Once
	copied           chan struct{}
}

func isTerminal(fd int) bool {
	var t syscall.Termios
	return terminalCall(fd, syscall.TCGETS, unsafe.Pointer(&t)) == nil
}

func terminalCall(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// openScreen makes one if the caller is in the foreground of a terminal it both reads and writes; otherwise nil.
func openScreen() *screen {
	if !isTerminal(0) || !isTerminal(1) {
		return nil
	}
	var foreground int32
	if terminalCall(0, syscall.TIOCGPGRP, unsafe.Pointer(&foreground)) != nil || int(foreground) != syscall.Getpgrp() {
		return nil
	}
	s := &screen{copied: make(chan struct{})}
	if terminalCall(0, syscall.TCGETS, unsafe.Pointer(&s.saved)) != nil {
		return nil
	}
	cols, rows := size()
	var err error
	if s.master, s.terminal, err = spawn.OpenTerminal(cols, rows, os.Getuid()); err != nil {
		return nil
	}
	_ = terminalCall(int(s.terminal.Fd()), syscall.TCSETS, unsafe.Pointer(&s.saved))
	return s
}

func size() (cols, rows uint16) {
	var ws struct{ rows, cols, x, y uint16 }
	if terminalCall(0, syscall.TIOCGWINSZ, unsafe.Pointer(&ws)) != nil || ws.cols == 0 {
		return 80, 24
	}
	return ws.cols, ws.rows
}

// begin passes everything through unchanged: the new terminal does the line editing and makes the signals.
func (s *screen) begin() {
	s.terminal.Close() // the command has it now, so its end is seen
	raw := s.saved
	raw.Iflag &^= syscall.IGNBRK | syscall.BRKINT | syscall.PARMRK | syscall.ISTRIP | syscall.INLCR | syscall.IGNCR | syscall.ICRNL | syscall.IXON
	raw.Oflag &^= syscall.OPOST
	raw.Lflag &^= syscall.ECHO | syscall.ECHONL | syscall.ICANON | syscall.ISIG | syscall.IEXTEN
	raw.Cc[syscall.VMIN], raw.Cc[syscall.VTIME] = 1, 0
	_ = terminalCall(0, syscall.TCSETS, unsafe.Pointer(&raw))
	go func() { _, _ = io.Copy(s.master, os.Stdin) }()
	go func() {
		_, _ = io.Copy(os.Stdout, s.master)
		close(s.copied)
	}()
}

func (s *screen) resize() {
	cols, rows := size()
	_ = spawn.ResizeTerminal(s.master, cols, rows)
}

// lastOutputWait is how long the last output may take to come through when something in the background keeps the terminal.
const lastOutputWait = 200 * time.Millisecond

// end gives the caller's terminal back as it was.
func (s *screen) end() {
	s.once.Do(func() {
		timer := time.NewTimer(lastOutputWait)
		defer timer.Stop()
		select {
		case <-s.copied:
		case <-timer.C:
		}
		_ = terminalCall(0, syscall.TCSETS, unsafe.Pointer(&s.saved))
	})
}
