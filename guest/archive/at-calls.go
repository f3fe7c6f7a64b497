package archive

import (
	"syscall"
	"time"
	"unsafe"
)

// The calls relative to an open folder that package syscall leaves out.

const atSymlinkNoFollow = 0x100

func call3(number uintptr, a, b, c uintptr) error {
	if _, _, errno := syscall.Syscall(number, a, b, c); errno != 0 {
		return errno
	}
	return nil
}

func unlinkat(dir int, name string) error { return syscall.Unlinkat(dir, name) }

func renameat(dir int, from, to string) error { return syscall.Renameat(dir, from, dir, to) }

func symlinkat(target string, dir int, name string) error {
	t, err := syscall.BytePtrFromString(target)
	if err != nil {
		return err
	}
	n, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return call3(syscall.SYS_SYMLINKAT, uintptr(unsafe.Pointer(t)), uintptr(dir), uintptr(unsafe.Pointer(n)))
}

// fstatat looks at name itself, not at what a link leads to.
func fstatat(dir int, name string, into *syscall.Stat_t) error {
	n, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall6(syscall.SYS_NEWFSTATAT, uintptr(dir), uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(into)), atSymlinkNoFollow, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func linkat(fromDir int, from string, toDir int, to string) error {
	f, err := syscall.BytePtrFromString(from)
	if err != nil {
		return err
	}
	t, err := syscall.BytePtrFromString(to)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall6(syscall.SYS_LINKAT, uintptr(fromDir), uintptr(unsafe.Pointer(f)), uintptr(toDir), uintptr(unsafe.Pointer(t)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// setTimes sets access and change times of fd itself.
func setTimes(fd int, at time.Time) error {
	if at.Unix() <= 0 {
		return nil
	}
	ts := syscall.NsecToTimespec(at.UnixNano())
	times := [2]syscall.Timespec{ts, ts}
	_, _, errno := syscall.Syscall6(syscall.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
