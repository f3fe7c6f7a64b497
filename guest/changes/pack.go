package changes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"torpor/guest/at"
)

// Root is the filesystem that is packed and unpacked; the zero value is the machine's own.
type Root struct {
	// Path is where it is; empty is /.
	Path string
	// Platform are folders below it whose content is the platform's own, made anew at every boot.
	Platform []string
	// Mounts are the mount points below it.
	Mounts []string
}

// Packed counts what is in a stream.
type Packed struct {
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"`
}

// namesAtOnce bounds what of a large folder is in memory.
const namesAtOnce = 1024

type packer struct {
	ctx  context.Context
	out  *writer
	root Root
	// since is the newest time there is in the template.
	since time.Time
	// device numbers the files of the writable layer. The template's have another.
	device uint64
	// apart are paths that are not gone into.
	apart map[string]bool
	// firsts has the first name of a file that has several, by inode.
	firsts map[uint64]string
	buffer []byte
	done   Packed
}

// Pack writes what differs from the template, in which nothing is newer than since. Nothing may change meanwhile. Sockets are
// left out: nobody listens on them any more. Errors name what could not be read.
func Pack(ctx context.Context, out io.Writer, root Root, since time.Time) (Packed, error) {
	p := &packer{ctx: ctx, out: newWriter(out), root: root, since: since, apart: map[string]bool{}, firsts: map[uint64]string{}, buffer: make([]byte, pieceMax)}
	if time.Now().Before(since) {
		p.since = time.Time{} // the clock is wrong, so times tell nothing: all folders are taken for changed
	}
	for _, path := range append(root.Platform, root.Mounts...) {
		p.apart[path] = true
	}
	var err error
	if p.device, err = writableDevice(root.path()); err != nil {
		return p.done, err
	}
	fd, err := syscall.Open(root.path(), syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return p.done, err
	}
	if err := p.folder(fd, "", ""); err != nil {
		return p.done, err
	}
	if err := p.out.put(&record{kind: end, size: p.done.Entries}); err != nil {
		return p.done, err
	}
	return p.done, p.out.out.Flush()
}

func (r *Root) path() string {
	if r.Path == "" {
		return "/"
	}
	return r.Path
}

// writableDevice makes a file to see what device those in the writable layer are on.
func writableDevice(root string) (uint64, error) {
	probe, err := os.CreateTemp(root, ".torpor-probe-")
	if err != nil {
		return 0, err
	}
	defer probe.Close()
	defer os.Remove(probe.Name())
	var st syscall.Stat_t
	err = syscall.Fstat(int(probe.Fd()), &st)
	return uint64(st.Dev), err
}

// folder packs an open folder and closes it. path is that below the root, empty for the root itself.
func (p *packer) folder(fd int, path, name string) error {
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	fail := func(err error) error { return fmt.Errorf("reading folder /%s failed: %w", path, err) }
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return fail(err)
	}
	xattrs, err := at.Xattrs(fd)
	if err != nil {
		return fail(err)
	}
	begin := p.record(folder, name, &st)
	begin.xattrs = xattrs
	if err := p.put(begin); err != nil {
		return err
	}
	var kept []string
	for {
		names, err := dir.Readdirnames(namesAtOnce)
		for _, child := range names {
			if err := p.ctx.Err(); err != nil {
				return fail(err)
			}
			isKept, err := p.child(fd, strings.TrimPrefix(path+"/"+child, "/"), child)
			if err != nil {
				return err
			}
			if isKept {
				kept = append(kept, child)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fail(err)
		}
	}
	return p.put(&record{kind: folderEnd, kept: kept})
}

// child packs what is new or changed; isKept says that it is as in the template.
func (p *packer) child(dir int, path, name string) (isKept bool, err error) {
	var st syscall.Stat_t
	if err := at.Stat(dir, name, &st); err != nil {
		if errors.Is(err, syscall.ENOENT) {
			return false, nil // the agent's own, if anything
		}
		return false, fmt.Errorf("looking at /%s failed: %w", path, err)
	}
	kinds := map[uint32]kind{syscall.S_IFDIR: folder, syscall.S_IFREG: file, syscall.S_IFLNK: link, syscall.S_IFIFO: pipe,
		syscall.S_IFCHR: charDevice, syscall.S_IFBLK: device}
	what := kinds[st.Mode&syscall.S_IFMT]
	if what == folder {
		if p.apart["/"+path] {
			return false, p.put(&record{kind: mountPoint, name: name})
		}
		// The runtime copies a folder to the writable layer, as of now, with the first change in it or anywhere below it.
		if !time.Unix(st.Ctim.Unix()).After(p.since) {
			return true, nil
		}
		fd, err := at.OpenFolder(dir, name)
		if err != nil {
			return false, fmt.Errorf("opening folder /%s failed: %w", path, err)
		}
		return false, p.folder(fd, path, name)
	}
	if uint64(st.Dev) != p.device {
		return true, nil
	}
	if what == 0 {
		return false, nil // a socket
	}
	if st.Nlink > 1 {
		if first, seen := p.firsts[st.Ino]; seen {
			return false, p.put(&record{kind: otherName, name: name, target: first})
		}
		p.firsts[st.Ino] = path
	}
	r := p.record(what, name, &st)
	switch what {
	case file:
		r.size = st.Size
		err = p.file(dir, r)
	case link:
		if r.target, err = at.Readlink(dir, name); err == nil {
			err = p.put(r)
		}
	default:
		err = p.put(r)
	}
	if err != nil {
		return false, fmt.Errorf("packing /%s failed: %w", path, err)
	}
	return false, nil
}

func (p *packer) record(what kind, name string, st *syscall.Stat_t) *record {
	return &record{kind: what, name: name, mode: st.Mode & 0o7777, uid: st.Uid, gid: st.Gid, modified: time.Unix(st.Mtim.Unix()), rdev: uint64(st.Rdev)}
}

func (p *packer) put(r *record) error {
	p.done.Entries++
	return p.out.put(r)
}

func (p *packer) file(dir int, r *record) error {
	fd, err := syscall.Openat(dir, r.name, syscall.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	if r.xattrs, err = at.Xattrs(fd); err != nil {
		return err
	}
	if err := p.put(r); err != nil {
		return err
	}
	// A file may be a hole of any size, and this runtime tells neither where its holes are nor, by st_blocks, how large.
	for offset := int64(0); offset < r.size; {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		n, err := syscall.Pread(fd, p.buffer, offset)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		if err := p.pieces(offset, p.buffer[:n]); err != nil {
			return err
		}
		offset += int64(n)
	}
	return p.out.piece(0, nil)
}

var zeros [pieceMax]byte

// pieces writes what of content is not zeros.
func (p *packer) pieces(offset int64, content []byte) error {
	if bytes.Equal(content, zeros[:len(content)]) {
		return nil
	}
	begin := -1
	flush := func(until int) error {
		if begin < 0 {
			return nil
		}
		part := content[begin:until]
		p.done.Bytes += int64(len(part))
		err := p.out.piece(offset+int64(begin), part)
		begin = -1
		return err
	}
	for from := 0; from < len(content); from += zeroBlock {
		block := content[from:min(from+zeroBlock, len(content))]
		if !bytes.Equal(block, zeros[:len(block)]) {
			if begin < 0 {
				begin = from
			}
		} else if err := flush(from); err != nil {
			return err
		}
	}
	return flush(len(content))
}

// MachineRoot is the sandbox's own root. platform are its own folders.
func MachineRoot(platform ...string) (Root, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Root{}, err
	}
	root := Root{Platform: platform}
	for _, line := range strings.Split(string(text), "\n") {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] != "/" {
			root.Mounts = append(root.Mounts, filepath.Clean(unescape(fields[4])))
		}
	}
	return root, nil
}

// unescape undoes how the kernel writes blanks and backslashes in mountinfo.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}
