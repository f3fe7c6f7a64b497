package files

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"torpor/guest/account"
	"torpor/guest/fsys"
	"torpor/guest/wire"
)

// bodyError marks a failure of the incoming data, not of the disk.
type bodyError struct{ cause error }

func (e *bodyError) Error() string { return e.cause.Error() }

type bodyReader struct{ io.Reader }

func (b bodyReader) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil && err != io.EOF {
		err = &bodyError{err}
	}
	return n, err
}

// Replace writes body to path whole or not at all: into a hidden file beside it, which then takes its name. An existing
// file keeps its mode and owner; a new one is 0644 and user's, as are the folders made for it. A symbolic link is
// followed. Metadata replaces what there was.
func Replace(path string, user *account.User, body io.Reader, metadata map[string]string) error {
	target, existing, err := finalTarget(path)
	if err != nil {
		return err
	}
	if existing == nil {
		if err := fsys.MakeParents(target, user); err != nil {
			return err
		}
	}
	mode, uid, gid, prefix := os.FileMode(0o644), int(user.UID), int(user.GID), fsys.PartOfNew
	if existing != nil {
		prefix = fsys.PartOfExisting
		st := existing.Sys().(*syscall.Stat_t)
		mode, uid, gid = existing.Mode()&(os.ModePerm|os.ModeSetuid|os.ModeSetgid|os.ModeSticky), int(st.Uid), int(st.Gid)
	}
	part, err := os.CreateTemp(filepath.Dir(target), prefix+"*")
	if err != nil {
		if existing != nil && !errors.Is(err, syscall.ENOSPC) {
			return overwrite(target, body) // a file of /proc or /sys, where nothing can be made
		}
		return diskError(err, target)
	}
	defer os.Remove(part.Name()) // fails once renamed
	defer part.Close()
	if err := copyBody(part, body); err != nil {
		return diskError(err, target)
	}
	if err := part.Chown(uid, gid); err != nil {
		return diskError(err, target)
	}
	if err := part.Chmod(mode); err != nil { // after chown, which takes setuid away
		return diskError(err, target)
	}
	if err := fsys.WriteMetadata(part.Name(), metadata); err != nil {
		return diskError(err, target)
	}
	if err := part.Close(); err != nil {
		return diskError(err, target)
	}
	err = os.Rename(part.Name(), target)
	if errors.Is(err, syscall.EBUSY) && existing != nil {
		// The file is a mount of its own, as /etc/hosts may be.
		again, openErr := os.Open(part.Name())
		if openErr != nil {
			return diskError(openErr, target)
		}
		defer again.Close()
		return overwrite(target, again)
	}
	if err != nil {
		return diskError(err, target)
	}
	return nil
}

// copyBody reads in pieces of 64 KiB: several copies at once must not be able to use much memory.
func copyBody(to *os.File, body io.Reader) error {
	buffer := make([]byte, 64<<10)
	_, err := io.CopyBuffer(struct{ io.Writer }{to}, bodyReader{body}, buffer)
	return err
}

func overwrite(target string, body io.Reader) error {
	file, err := os.OpenFile(target, os.O_WRONLY|os.O_TRUNC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return diskError(err, target)
	}
	if err := copyBody(file, body); err != nil {
		file.Close()
		return diskError(err, target)
	}
	return diskError(file.Close(), target)
}

// linksMax is the kernel's own bound on links in one path.
const linksMax = 40

// finalTarget follows symbolic links to where the data is to go, which need not exist yet.
func finalTarget(path string) (target string, existing os.FileInfo, err error) {
	target = path
	for range linksMax {
		info, err := os.Lstat(target)
		if errors.Is(err, os.ErrNotExist) {
			return target, nil, nil
		}
		if err != nil {
			return "", nil, fsys.PathError(err, path)
		}
		switch {
		case info.Mode()&os.ModeSymlink != 0:
			to, err := os.Readlink(target)
			if err != nil {
				return "", nil, fsys.PathError(err, path)
			}
			if !filepath.IsAbs(to) {
				// ".." in a link counts from the folder that really holds it.
				dir, err := filepath.EvalSymlinks(filepath.Dir(target))
				if err != nil {
					return "", nil, fsys.PathError(err, path)
				}
				to = filepath.Join(dir, to)
			}
			target = filepath.Clean(to)
		case info.IsDir():
			return "", nil, wire.Errorf(wire.InvalidArgument, "path '%s' is a directory", path)
		case !info.Mode().IsRegular():
			return "", nil, wire.Errorf(wire.InvalidArgument, "path '%s' is a device, pipe or socket, not a regular file", path)
		default:
			return target, info, nil
		}
	}
	return "", nil, wire.Errorf(wire.InvalidArgument, "path '%s' is a loop of symbolic links", path)
}

func diskError(err error, path string) error {
	var cut *bodyError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &cut):
		return cut
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &statusError{507, "not enough disk space available to write " + strconv.Quote(path)}
	}
	return fsys.PathError(err, path)
}
