package fsys

import (
	"io"
	"os"
	"path/filepath"
	"syscall"

	"torpor/guest/wire"
)

// moveAcross moves between file systems: a whole copy under a name beside the destination, then a rename, then the
// removal of the source, so that no failure leaves less than one whole tree.
func moveAcross(source, destination string) error {
	part, err := os.MkdirTemp(filepath.Dir(destination), partOfMove)
	if err != nil {
		return PathError(err, destination)
	}
	defer removeTree(part)
	copied := filepath.Join(part, "tree")
	if err := copyTree(source, copied); err != nil {
		return PathError(err, source)
	}
	if err := os.Rename(copied, destination); err != nil {
		return PathError(err, destination)
	}
	if err := removeTree(source); err != nil {
		return PathError(err, source)
	}
	return nil
}

func copyTree(source, destination string) error {
	info, err := os.Lstat(source)
	if err != nil {
		return err
	}
	st := info.Sys().(*syscall.Stat_t)
	switch {
	case info.IsDir():
		if err := os.Mkdir(destination, 0o700); err != nil {
			return err
		}
		children, err := os.ReadDir(source)
		if err != nil {
			return err
		}
		for _, child := range children {
			if err := copyTree(filepath.Join(source, child.Name()), filepath.Join(destination, child.Name())); err != nil {
				return err
			}
		}
	case info.Mode()&os.ModeSymlink != 0:
		target, err := os.Readlink(source)
		if err != nil {
			return err
		}
		if err := os.Symlink(target, destination); err != nil {
			return err
		}
		return os.Lchown(destination, int(st.Uid), int(st.Gid))
	case info.Mode().IsRegular():
		if err := copyFile(source, destination); err != nil {
			return err
		}
	default:
		return wire.Errorf(wire.InvalidArgument, "'%s' is a device, pipe or socket and cannot be moved to another file system", source)
	}
	if err := WriteMetadata(destination, ReadMetadata(source)); err != nil {
		return err
	}
	if err := os.Lchown(destination, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if err := os.Chmod(destination, info.Mode()); err != nil {
		return err
	}
	return os.Chtimes(destination, info.ModTime(), info.ModTime())
}

func copyFile(source, destination string) error {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(destination, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
