package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"torpor/guest/account"
	"torpor/guest/at"
	"torpor/guest/fsys"
	"torpor/guest/wire"
)

// entriesMax bounds one archive.
const entriesMax = 1_000_000

// unpacker writes a tar below one open folder. Every name is walked from there one folder at a time, never through a
// link, so nothing can land outside, whatever else changes the tree meanwhile.
type unpacker struct {
	name    string // of the folder, for messages
	root    int
	user    *account.User
	done    received
	buffer  []byte
	folders []folderMode
	serial  int
}

// folderMode is set when everything is in: a read-only folder could not be filled.
type folderMode struct {
	name  string
	mode  uint32
	mtime time.Time
}

func newUnpacker(dir string, user *account.User) (*unpacker, error) {
	root, err := syscall.Open(dir, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fsys.PathError(err, dir)
	}
	return &unpacker{name: dir, root: root, user: user, buffer: make([]byte, 64<<10)}, nil
}

func (u *unpacker) close() { syscall.Close(u.root) }

func (u *unpacker) unpack(body io.Reader) error {
	entries := tar.NewReader(body)
	for {
		h, err := entries.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return wire.Errorf(wire.InvalidArgument, "the body is not a whole tar: %v, after %d entries", err, u.done.Entries)
		}
		if u.done.Entries >= entriesMax {
			return wire.Errorf(wire.InvalidArgument, "the tar has more than %d entries", entriesMax)
		}
		if err := u.entry(h, entries); err != nil {
			return fmt.Errorf("unpacking %q below %s failed: %w", h.Name, u.name, u.explain(err, h.Name))
		}
	}
	for i := len(u.folders) - 1; i >= 0; i-- {
		f := u.folders[i]
		if fd, err := u.openFolder(f.name, false); err == nil {
			_ = syscall.Fchmod(fd, f.mode)
			_ = at.SetTimes(fd, f.mtime)
			syscall.Close(fd)
		}
	}
	return nil
}

func (u *unpacker) explain(err error, name string) error {
	var coded *wire.Error
	if errors.As(err, &coded) {
		return err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return wire.Errorf(wire.InvalidArgument, "the tar was cut off")
	}
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENOTDIR) {
		return wire.Errorf(wire.InvalidArgument, "a part of its path is a symbolic link or a file, and archives are unpacked through neither")
	}
	return fsys.PathError(err, name)
}

// check gives the cleaned name; empty means the folder itself.
func check(name string) (string, error) {
	if strings.HasPrefix(name, "/") {
		return "", wire.Errorf(wire.InvalidArgument, "its name is absolute; names in the tar must be relative")
	}
	if strings.ContainsRune(name, 0) {
		return "", wire.Errorf(wire.InvalidArgument, "its name holds a NUL byte")
	}
	for _, part := range strings.Split(name, "/") {
		if part == ".." {
			return "", wire.Errorf(wire.InvalidArgument, "its name holds '..'")
		}
		if len(part) > 255 {
			return "", wire.Errorf(wire.InvalidArgument, "its name has a part of %d bytes; at most 255 are possible", len(part))
		}
	}
	cleaned := path.Clean(name)
	if cleaned == "." {
		cleaned = ""
	}
	return cleaned, nil
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	name, err := check(h.Name)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeDir:
		if name != "" {
			fd, err := u.openFolder(name, true)
			if err != nil {
				return err
			}
			_ = u.own(fd, "", h)
			syscall.Close(fd)
			u.folders = append(u.folders, folderMode{name, u.mode(h), h.ModTime})
		}
		u.done.Entries++
		return nil
	case tar.TypeReg, tar.TypeSymlink, tar.TypeLink, tar.TypeFifo:
	default:
		return wire.Errorf(wire.InvalidArgument, "it is of tar type %q; only files, folders, links and pipes can be unpacked", h.Typeflag)
	}
	if name == "" {
		return wire.Errorf(wire.InvalidArgument, "it has no name")
	}
	dir, base := path.Split(name)
	parent, err := u.openFolder(strings.TrimSuffix(dir, "/"), true)
	if err != nil {
		return err
	}
	defer syscall.Close(parent)
	u.serial++
	part := ".torpor-unpack-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36) + "-" + strconv.Itoa(u.serial)
	if err := u.make(parent, part, h, content); err != nil {
		_ = at.Unlink(parent, part)
		return err
	}
	if err := at.Rename(parent, part, base); err != nil {
		_ = at.Unlink(parent, part)
		return err
	}
	if h.Typeflag == tar.TypeLink {
		_ = at.Unlink(parent, part) // renaming onto another name of the same file does nothing
	}
	u.done.Entries++
	return nil
}

func (u *unpacker) make(parent int, part string, h *tar.Header, content io.Reader) error {
	switch h.Typeflag {
	case tar.TypeSymlink:
		if err := at.Symlink(h.Linkname, parent, part); err != nil {
			return err
		}
		return u.own(parent, part, h)
	case tar.TypeLink:
		target, err := check(h.Linkname)
		if err != nil || target == "" {
			return wire.Errorf(wire.InvalidArgument, "it is a hard link to %q, which is not below the folder", h.Linkname)
		}
		dir, base := path.Split(target)
		from, err := u.openFolder(strings.TrimSuffix(dir, "/"), false)
		if err != nil {
			return err
		}
		defer syscall.Close(from)
		return at.Link(from, base, parent, part)
	case tar.TypeFifo:
		if err := syscall.Mknodat(parent, part, syscall.S_IFIFO|u.mode(h)&0o777, 0); err != nil {
			return err
		}
		return u.own(parent, part, h)
	}
	fd, err := syscall.Openat(parent, part, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), part)
	n, err := io.CopyBuffer(struct{ io.Writer }{file}, struct{ io.Reader }{content}, u.buffer)
	u.done.Bytes += n
	if err == nil {
		err = u.own(fd, "", h)
	}
	if err == nil {
		err = syscall.Fchmod(fd, u.mode(h)) // after the owner, whose change takes setuid away
	}
	if err == nil {
		err = at.SetTimes(fd, h.ModTime)
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}

// mode is the entry's; only root gets set-id bits.
func (u *unpacker) mode(h *tar.Header) uint32 {
	mode := uint32(h.Mode) & 0o7777
	if u.user.UID != 0 {
		mode &= 0o1777
	}
	return mode
}

// own gives an entry its owner: the user, or for root whoever the tar names. An empty name means fd itself.
func (u *unpacker) own(fd int, name string, h *tar.Header) error {
	uid, gid := int(u.user.UID), int(u.user.GID)
	if u.user.UID == 0 {
		uid, gid = h.Uid, h.Gid
	}
	if name == "" {
		return syscall.Fchown(fd, uid, gid)
	}
	return at.Chown(fd, name, uid, gid)
}

// openFolder opens a folder below the root, made on the way if create is set.
func (u *unpacker) openFolder(name string, create bool) (int, error) {
	folder, err := syscall.Dup(u.root)
	if err != nil {
		return -1, err
	}
	syscall.CloseOnExec(folder)
	if name == "" {
		return folder, nil
	}
	for _, part := range strings.Split(name, "/") {
		next, err := at.OpenFolder(folder, part)
		if errors.Is(err, syscall.ENOENT) && create {
			if err = syscall.Mkdirat(folder, part, 0o755); err == nil || errors.Is(err, syscall.EEXIST) {
				made := err == nil
				if next, err = at.OpenFolder(folder, part); err == nil && made {
					err = syscall.Fchown(next, int(u.user.UID), int(u.user.GID))
				}
			}
		}
		syscall.Close(folder)
		if err != nil {
			return -1, err
		}
		folder = next
	}
	return folder, nil
}
