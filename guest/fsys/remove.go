package fsys

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"torpor/guest/wire"
)

// removeTree removes a path and all below it, as rm -rf --one-file-system does: links are removed, never followed, and
// what is mounted below stays. os.RemoveAll must not be used: under gVisor, opening a link with O_NOFOLLOW and
// O_DIRECTORY follows it, and the links of /proc, which cannot be unlinked, would lead it through the whole machine.
// A path that is not there is no error. Errors: the first that stood in the way.
func removeTree(path string) error {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		if err == syscall.ENOENT {
			return nil
		}
		return &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	return removeBelow(path, &st, uint64(st.Dev))
}

func removeBelow(path string, st *syscall.Stat_t, device uint64) error {
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return ignoreMissing(&os.PathError{Op: "unlink", Path: path, Err: syscall.Unlink(path)})
	}
	if st.Dev != device { // of directories alone: an overlay numbers files by the layer they come from
		return &os.PathError{Op: "remove", Path: path, Err: syscall.EBUSY}
	}
	var first error
	entries, err := os.ReadDir(path)
	if err != nil {
		first = err
	}
	for _, entry := range entries {
		child := filepath.Join(path, entry.Name())
		var childStat syscall.Stat_t
		err := syscall.Lstat(child, &childStat)
		switch {
		case err == syscall.ENOENT:
			err = nil
		case err == nil:
			err = removeBelow(child, &childStat, device)
		}
		if first == nil && err != nil {
			first = err
		}
	}
	if first != nil {
		return first
	}
	return ignoreMissing(&os.PathError{Op: "rmdir", Path: path, Err: syscall.Rmdir(path)})
}

func ignoreMissing(err *os.PathError) error {
	if errno, _ := err.Err.(syscall.Errno); errno == 0 || errno == syscall.ENOENT {
		return nil
	}
	return err
}

// From linux/magic.h.
const (
	procMagic    = 0x9fa0
	sysfsMagic   = 0x62656572
	cgroupMagic  = 0x27e0eb
	cgroup2Magic = 0x63677270
)

// checkRemovable refuses what is the machine's own face rather than files of the sandbox.
func checkRemovable(path string) error {
	if path == "/" {
		return wire.Errorf(wire.InvalidArgument, "the root of the sandbox cannot be removed; destroy the sandbox instead")
	}
	judged := path
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSymlink != 0 {
		judged = filepath.Dir(path) // statfs would follow it
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(judged, &fs); err != nil {
		if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
			return nil
		}
		return PathError(err, path)
	}
	switch int64(fs.Type) {
	case procMagic, sysfsMagic, cgroupMagic, cgroup2Magic:
		return wire.Errorf(wire.InvalidArgument, "'%s' is on a file system of the kernel's own, where nothing can be removed", path)
	}
	return nil
}
