package changes

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"torpor/guest/at"
)

// Unpacked counts what was done.
type Unpacked struct {
	Entries int64 `json:"entries"`
	Removed int64 `json:"removed"`
	// Skipped is what the runtime would not do: attributes, times and devices, with the first reason.
	Skipped int64  `json:"skipped"`
	Reason  string `json:"reason,omitempty"`
}

type unpacker struct {
	in     *reader
	root   int
	open   []*openFolder
	buffer []byte
	done   Unpacked
}

// openFolder is one that is being filled.
type openFolder struct {
	fd     int
	record *record
	// left are names it had before of which nothing has been said yet.
	left map[string]bool
}

// Unpack makes a root that is as the template's into what was packed. The root may be read by nobody meanwhile, and is
// useless after an error, which names what could not be made.
func Unpack(in io.Reader, root Root) (Unpacked, error) {
	r, err := newReader(in)
	if err != nil {
		return Unpacked{}, err
	}
	fd, err := syscall.Open(root.path(), syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return Unpacked{}, err
	}
	u := &unpacker{in: r, root: fd, buffer: make([]byte, pieceMax)}
	defer func() {
		for _, o := range u.open {
			syscall.Close(o.fd)
		}
		syscall.Close(fd)
	}()
	err = u.unpack()
	return u.done, err
}

func (u *unpacker) unpack() error {
	for {
		r, err := u.in.next()
		if err != nil {
			return err
		}
		if r.kind == end {
			if len(u.open) > 0 || r.size != u.done.Entries {
				return fmt.Errorf("the stream of changes ends after %d entries with %d folders open; it was to have %d", u.done.Entries, len(u.open), r.size)
			}
			return nil
		}
		u.done.Entries++
		if err := u.apply(r); err != nil {
			return fmt.Errorf("making %q failed: %w", u.path(r.name), err)
		}
	}
}

func (u *unpacker) path(name string) string {
	var parts []string
	for _, o := range u.open {
		parts = append(parts, o.record.name)
	}
	return "/" + strings.TrimPrefix(strings.Join(append(parts, name), "/"), "/")
}

func (u *unpacker) apply(r *record) error {
	if len(u.open) == 0 {
		if r.kind != folder || r.name != "" || u.done.Entries > 1 {
			return errors.New("the stream of changes does not begin with the root, or goes on after it")
		}
		fd, err := syscall.Dup(u.root)
		if err != nil {
			return err
		}
		return u.enter(fd, r, true)
	}
	dir := u.open[len(u.open)-1]
	if r.kind == folderEnd {
		return u.leave(dir, r.kept)
	}
	if r.name == "" || r.name == "." || r.name == ".." || strings.ContainsAny(r.name, "/\x00") {
		return errors.New("that is no name of anything in a folder")
	}
	if r.kind == folder || r.kind == mountPoint {
		return u.makeFolder(dir, r)
	}
	if err := u.clear(dir, r.name); err != nil {
		return err
	}
	switch r.kind {
	case file:
		return u.makeFile(dir.fd, r)
	case link:
		if err := at.Symlink(r.target, dir.fd, r.name); err != nil {
			return err
		}
		u.optional(at.SetLinkTimes(dir.fd, r.name, r.modified))
		return at.Chown(dir.fd, r.name, int(r.uid), int(r.gid))
	case otherName:
		return u.linkTo(dir.fd, r)
	}
	return u.makeNode(dir.fd, r)
}

// optional notes what need not succeed.
func (u *unpacker) optional(err error) {
	if err == nil {
		return
	}
	if u.done.Skipped++; u.done.Reason == "" {
		u.done.Reason = err.Error()
	}
}

// clear makes room for a name.
func (u *unpacker) clear(dir *openFolder, name string) error {
	if !dir.left[name] {
		return nil
	}
	delete(dir.left, name)
	u.done.Removed++
	return removeAt(dir.fd, name)
}

func (u *unpacker) makeFolder(dir *openFolder, r *record) error {
	isNew := !dir.left[r.name]
	if !isNew {
		var st syscall.Stat_t
		if err := at.Stat(dir.fd, r.name, &st); err != nil {
			return err
		}
		if isNew = st.Mode&syscall.S_IFMT != syscall.S_IFDIR; isNew {
			if err := u.clear(dir, r.name); err != nil {
				return err
			}
		}
		delete(dir.left, r.name)
	}
	if isNew {
		if err := syscall.Mkdirat(dir.fd, r.name, 0o755); err != nil {
			return err
		}
	}
	if r.kind == mountPoint {
		return nil // what lies below a mount shows neither owner nor mode: a new one is root's, 0755
	}
	fd, err := at.OpenFolder(dir.fd, r.name)
	if err != nil {
		return err
	}
	return u.enter(fd, r, !isNew)
}

func (u *unpacker) enter(fd int, r *record, wasThere bool) error {
	o := &openFolder{fd: fd, record: r, left: map[string]bool{}}
	u.open = append(u.open, o)
	if !wasThere {
		return nil
	}
	names, err := namesIn(fd)
	for _, name := range names {
		o.left[name] = true
	}
	return err
}

// leave removes what nothing was said of: it is gone. Its mode comes last, since a set-id bit goes with a change of owner.
func (u *unpacker) leave(dir *openFolder, kept []string) error {
	for _, name := range kept {
		delete(dir.left, name)
	}
	for name := range dir.left {
		if err := u.clear(dir, name); err != nil {
			return err
		}
	}
	err := u.describe(dir.fd, dir.record)
	syscall.Close(dir.fd)
	u.open = u.open[:len(u.open)-1]
	return err
}

// describe gives an open file or folder its owner, mode, attributes and time.
func (u *unpacker) describe(fd int, r *record) error {
	if err := syscall.Fchown(fd, int(r.uid), int(r.gid)); err != nil {
		return err
	}
	if err := syscall.Fchmod(fd, r.mode); err != nil {
		return err
	}
	for name, value := range r.xattrs {
		u.optional(at.SetXattr(fd, name, value))
	}
	u.optional(at.SetTimes(fd, r.modified))
	return nil
}

func (u *unpacker) makeFile(dir int, r *record) error {
	fd, err := syscall.Openat(dir, r.name, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	reached := int64(0)
	for {
		offset, content, err := u.in.piece(u.buffer)
		if err != nil {
			return err
		}
		if len(content) == 0 {
			break
		}
		for len(content) > 0 {
			n, err := syscall.Pwrite(fd, content, offset)
			if err != nil {
				return err
			}
			offset, content = offset+int64(n), content[n:]
		}
		reached = max(reached, offset)
	}
	if reached != r.size {
		if err := syscall.Ftruncate(fd, r.size); err != nil {
			return err
		}
	}
	return u.describe(fd, r)
}

func (u *unpacker) makeNode(dir int, r *record) error {
	kinds := map[kind]uint32{pipe: syscall.S_IFIFO, charDevice: syscall.S_IFCHR, device: syscall.S_IFBLK}
	if err := syscall.Mknodat(dir, r.name, kinds[r.kind]|r.mode, int(r.rdev)); err != nil {
		u.optional(err) // the runtime makes few devices
		return nil
	}
	if err := at.Chown(dir, r.name, int(r.uid), int(r.gid)); err != nil {
		return err
	}
	if err := syscall.Fchmodat(dir, r.name, r.mode, 0); err != nil { // the umask must not decide
		return err
	}
	u.optional(at.SetLinkTimes(dir, r.name, r.modified))
	return nil
}

// linkTo gives the file at r.target, which has been made before, another name.
func (u *unpacker) linkTo(dir int, r *record) error {
	parts := strings.Split(r.target, "/")
	from, err := syscall.Dup(u.root)
	if err != nil {
		return err
	}
	for _, part := range parts[:len(parts)-1] {
		next, err := at.OpenFolder(from, part)
		syscall.Close(from)
		if err != nil {
			return err
		}
		from = next
	}
	defer syscall.Close(from)
	return at.Link(from, parts[len(parts)-1], dir, r.name)
}

func namesIn(fd int) ([]string, error) {
	own, err := syscall.Dup(fd)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(own), "")
	defer dir.Close()
	return dir.Readdirnames(-1)
}

// removeAt removes a name and all below it, following no link.
func removeAt(dir int, name string) error {
	var st syscall.Stat_t
	if err := at.Stat(dir, name, &st); err != nil {
		if errors.Is(err, syscall.ENOENT) {
			return nil
		}
		return err
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return at.Unlink(dir, name)
	}
	fd, err := at.OpenFolder(dir, name)
	if err != nil {
		return err
	}
	names, err := namesIn(fd)
	for _, child := range names {
		if err == nil {
			err = removeAt(fd, child)
		}
	}
	syscall.Close(fd)
	if err != nil {
		return err
	}
	return at.Rmdir(dir, name)
}
