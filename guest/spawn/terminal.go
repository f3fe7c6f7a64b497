package spawn

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"unsafe"
)

// OpenTerminal makes a pseudo-terminal of the given size and returns its two ends; the caller closes both.
// uid becomes the owner of the terminal's device where the platform lets it.
func OpenTerminal(cols, rows uint16, uid int) (master, terminal *os.File, err error) {
	fd, err := syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("opening /dev/ptmx for a pseudo-terminal failed: %w", err)
	}
	master = os.NewFile(uintptr(fd), "/dev/ptmx")
	var number, unlock uint32
	if err = ioctl(uintptr(fd), syscall.TIOCSPTLCK, uintptr(unsafe.Pointer(&unlock))); err == nil {
		err = ioctl(uintptr(fd), syscall.TIOCGPTN, uintptr(unsafe.Pointer(&number)))
	}
	if err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("unlocking a pseudo-terminal failed: %w", err)
	}
	name := "/dev/pts/" + strconv.FormatUint(uint64(number), 10)
	slave, err := syscall.Open(name, syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
	if err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("opening the pseudo-terminal %s failed: %w", name, err)
	}
	_ = syscall.Fchown(slave, uid, -1) // gVisor's devpts may refuse; /dev/tty still works then
	terminal = os.NewFile(uintptr(slave), name)
	if err = ResizeTerminal(master, cols, rows); err != nil {
		master.Close()
		terminal.Close()
		return nil, nil, err
	}
	return master, terminal, nil
}

// ResizeTerminal sets the size that programs on the terminal see; they get SIGWINCH.
func ResizeTerminal(master *os.File, cols, rows uint16) error {
	size := struct{ rows, cols, x, y uint16 }{rows: rows, cols: cols}
	raw, err := master.SyscallConn()
	if err != nil {
		return err
	}
	var ioErr error
	err = raw.Control(func(fd uintptr) { ioErr = ioctl(fd, syscall.TIOCSWINSZ, uintptr(unsafe.Pointer(&size))) })
	if err == nil {
		err = ioErr
	}
	if err != nil {
		return fmt.Errorf("setting the terminal's size to %dx%d failed: %w", cols, rows, err)
	}
	return nil
}

func ioctl(fd, request, arg uintptr) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, request, arg); errno != 0 {
		return errno
	}
	return nil
}
