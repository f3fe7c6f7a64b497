package archive

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"torpor/guest/account"
	"torpor/guest/fsys"
	"torpor/guest/wire"
)

// packer writes one file or folder as a tar: sorted, links as links, owners by number and name; sockets, devices and
// the kernel's own file systems left out.
type packer struct {
	root     string
	info     os.FileInfo
	accounts *account.Book
	tar      *tar.Writer
	buffer   []byte
	// seen finds the first name of a file that has several.
	seen map[[2]uint64]string
}

func newPacker(path string, accounts *account.Book) (*packer, error) {
	info, err := os.Stat(path) // the root itself may be a link
	if err != nil {
		return nil, fsys.PathError(err, path)
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return nil, wire.Errorf(wire.InvalidArgument, "path '%s' is a device, pipe or socket and cannot be archived", path)
	}
	return &packer{root: path, info: info, accounts: accounts, buffer: make([]byte, 64<<10), seen: map[[2]uint64]string{}}, nil
}

func (p *packer) pack(w io.Writer) error {
	p.tar = tar.NewWriter(w)
	if p.info.IsDir() {
		if err := p.folder(p.root, ""); err != nil {
			return err
		}
	} else if err := p.file(p.root, filepath.Base(p.root), p.info); err != nil {
		return err
	}
	return p.tar.Close()
}

func (p *packer) folder(path, name string) error {
	children, err := os.ReadDir(path)
	if err != nil {
		if name != "" && errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	for _, child := range children {
		info, err := child.Info()
		if err != nil {
			continue // removed meanwhile
		}
		childPath, childName := filepath.Join(path, child.Name()), name+child.Name()
		switch mode := info.Mode(); {
		case mode.IsDir():
			if isKernels(childPath) {
				continue
			}
			if err := p.tar.WriteHeader(p.header(childName+"/", info, tar.TypeDir)); err != nil {
				return err
			}
			err = p.folder(childPath, childName+"/")
		case mode&os.ModeSymlink != 0:
			h := p.header(childName, info, tar.TypeSymlink)
			if h.Linkname, err = os.Readlink(childPath); err != nil {
				continue
			}
			err = p.tar.WriteHeader(h)
		case mode&os.ModeNamedPipe != 0:
			err = p.tar.WriteHeader(p.header(childName, info, tar.TypeFifo))
		case mode.IsRegular():
			err = p.file(childPath, childName, info)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) file(path, name string, info os.FileInfo) error {
	st := info.Sys().(*syscall.Stat_t)
	key := [2]uint64{uint64(st.Dev), st.Ino}
	if first, ok := p.seen[key]; ok {
		h := p.header(name, info, tar.TypeLink)
		h.Linkname = first
		return p.tar.WriteHeader(h)
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if path == p.root && errors.Is(err, syscall.ELOOP) {
		file, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	}
	if errors.Is(err, os.ErrNotExist) && path != p.root {
		return nil // removed meanwhile
	}
	if err != nil {
		return err
	}
	defer file.Close()
	h := p.header(name, info, tar.TypeReg)
	h.Size = info.Size()
	if err := p.tar.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{p.tar}, io.LimitReader(struct{ io.Reader }{file}, h.Size), p.buffer)
	if err != nil {
		return err
	}
	clear(p.buffer)
	for n < h.Size { // it shrank meanwhile; as tar does, zeros keep the stream whole
		piece := min(h.Size-n, int64(len(p.buffer)))
		if _, err := p.tar.Write(p.buffer[:piece]); err != nil {
			return err
		}
		n += piece
	}
	if st.Nlink > 1 {
		p.seen[key] = name
	}
	return nil
}

func (p *packer) header(name string, info os.FileInfo, kind byte) *tar.Header {
	st := info.Sys().(*syscall.Stat_t)
	return &tar.Header{
		Typeflag: kind, Name: name, Mode: int64(st.Mode & 0o7777), ModTime: info.ModTime(), Format: tar.FormatPAX,
		Uid: int(st.Uid), Gid: int(st.Gid), Uname: p.accounts.UserName(st.Uid), Gname: p.accounts.GroupName(st.Gid),
	}
}

// isKernels says whether a folder is the root of proc, sysfs, devpts or cgroup.
func isKernels(path string) bool {
	var st syscall.Statfs_t
	if syscall.Statfs(path, &st) != nil {
		return false
	}
	switch uint32(st.Type) {
	case 0x9fa0, 0x62656572, 0x1cd1, 0x27e0eb, 0x63677270:
		return true
	}
	return false
}
