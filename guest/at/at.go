// Package at has the calls relative to an open folder, or on an open file, that package syscall leaves out. None of them
// follows a link in the last name it is given.
package at

import (
	"bytes"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// From linux/fcntl.h.
const (
	atSymlinkNoFollow = 0x100
	atRemoveDir       = 0x200
)

func call3(number uintptr, a, b, c uintptr) error {
	if _, _, errno := syscall.Syscall(number, a, b, c); errno != 0 {
		return errno
	}
	return nil
}

// Unlink removes anything but a folder.
func Unlink(dir int, name string) error { return syscall.Unlinkat(dir, name) }

// Rename renames within one folder.
func Rename(dir int, from, to string) error { return syscall.Renameat(dir, from, dir, to) }

// Symlink makes a link to target.
func Symlink(target string, dir int, name string) error {
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

// Stat looks at name itself, not at what a link leads to.
func Stat(dir int, name string, into *syscall.Stat_t) error {
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

// Link gives a file another name.
func Link(fromDir int, from string, toDir int, to string) error {
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

// SetTimes sets access and change times of fd itself.
func SetTimes(fd int, at time.Time) error {
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

// SetLinkTimes is [SetTimes] of name itself.
func SetLinkTimes(dir int, name string, at time.Time) error {
	n, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	ts := syscall.NsecToTimespec(at.UnixNano())
	times := [2]syscall.Timespec{ts, ts}
	_, _, errno := syscall.Syscall6(syscall.SYS_UTIMENSAT, uintptr(dir), uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(&times)), atSymlinkNoFollow, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// Rmdir removes an empty folder.
func Rmdir(dir int, name string) error {
	n, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return call3(syscall.SYS_UNLINKAT, uintptr(dir), uintptr(unsafe.Pointer(n)), atRemoveDir)
}

// Readlink reads where a link leads to.
func Readlink(dir int, name string) (string, error) {
	n, err := syscall.BytePtrFromString(name)
	if err != nil {
		return "", err
	}
	target := make([]byte, 4096) // PATH_MAX
	size, _, errno := syscall.Syscall6(syscall.SYS_READLINKAT, uintptr(dir), uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(&target[0])), uintptr(len(target)), 0, 0)
	if errno != 0 {
		return "", errno
	}
	return string(target[:size]), nil
}

// Chown gives name itself an owner.
func Chown(dir int, name string, uid, gid int) error {
	return syscall.Fchownat(dir, name, uid, gid, atSymlinkNoFollow)
}

// xattrsMax bounds the names, and each value, of one file's extended attributes. From linux/limits.h.
const xattrsMax = 64 << 10

// Xattrs reads the extended attributes of an open file or folder.
func Xattrs(fd int) (map[string][]byte, error) {
	size, _, errno := syscall.Syscall(syscall.SYS_FLISTXATTR, uintptr(fd), 0, 0)
	if errno == syscall.ENOTSUP || errno == 0 && size == 0 {
		return nil, nil
	}
	buffer := make([]byte, xattrsMax)
	if errno == 0 {
		size, _, errno = syscall.Syscall(syscall.SYS_FLISTXATTR, uintptr(fd), uintptr(unsafe.Pointer(&buffer[0])), xattrsMax)
	}
	if errno != 0 {
		return nil, errno
	}
	found := map[string][]byte{}
	for _, name := range strings.Split(strings.TrimSuffix(string(buffer[:size]), "\x00"), "\x00") {
		n, err := syscall.BytePtrFromString(name)
		if err != nil {
			return nil, err
		}
		size, _, errno = syscall.Syscall6(syscall.SYS_FGETXATTR, uintptr(fd), uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(&buffer[0])), xattrsMax, 0, 0)
		if errno != 0 {
			return nil, errno
		}
		found[name] = bytes.Clone(buffer[:size])
	}
	return found, nil
}

// SetXattr sets an extended attribute of an open file or folder.
func SetXattr(fd int, name string, value []byte) error {
	n, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	var at unsafe.Pointer
	if len(value) > 0 {
		at = unsafe.Pointer(&value[0])
	}
	_, _, errno := syscall.Syscall6(syscall.SYS_FSETXATTR, uintptr(fd), uintptr(unsafe.Pointer(n)), uintptr(at), uintptr(len(value)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// OpenFolder opens a folder in the folder dir, and nothing else. The folder is looked at first and compared afterwards:
// gVisor follows a link in spite of O_NOFOLLOW when O_DIRECTORY is there too, and without it a pipe or a device could be opened.
func OpenFolder(dir int, name string) (int, error) {
	var seen, opened syscall.Stat_t
	if err := Stat(dir, name, &seen); err != nil {
		return -1, err
	}
	switch seen.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
	case syscall.S_IFLNK:
		return -1, syscall.ELOOP
	default:
		return -1, syscall.ENOTDIR
	}
	fd, err := syscall.Openat(dir, name, syscall.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := syscall.Fstat(fd, &opened); err != nil || opened.Dev != seen.Dev || opened.Ino != seen.Ino {
		syscall.Close(fd)
		return -1, syscall.ELOOP // it was exchanged in between
	}
	return fd, nil
}
