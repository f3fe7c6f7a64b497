package fsys

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"torpor/guest/account"
)

// Entry is E2B's EntryInfo.
type Entry struct {
	Name          string            `json:"name"`
	Type          string            `json:"type,omitempty"`
	Path          string            `json:"path"`
	Size          string            `json:"size"` // bytes; a 64-bit number is text in proto3 JSON
	Mode          uint32            `json:"mode"`
	Permissions   string            `json:"permissions"`
	Owner         string            `json:"owner"`
	Group         string            `json:"group"`
	ModifiedTime  string            `json:"modifiedTime"`
	SymlinkTarget *string           `json:"symlinkTarget,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
}

// The entry types of the protocol. Devices, pipes and sockets have none.
const (
	typeFile      = "FILE_TYPE_FILE"
	typeDirectory = "FILE_TYPE_DIRECTORY"
	typeSymlink   = "FILE_TYPE_SYMLINK"
)

// ReadEntry describes the file at an absolute path; a symbolic link has its target's type and mode, so far as it leads anywhere.
func ReadEntry(path string, accounts *account.Book) (*Entry, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, PathError(err, path)
	}
	return describe(path, info, accounts), nil
}

func describe(path string, info os.FileInfo, accounts *account.Book) *Entry {
	entry := &Entry{
		Name: filepath.Base(path), Path: path, Size: strconv.FormatInt(info.Size(), 10),
		Permissions: info.Mode().String(), ModifiedTime: info.ModTime().UTC().Format(time.RFC3339Nano),
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		entry.Owner, entry.Group = accounts.UserName(st.Uid), accounts.GroupName(st.Gid)
	}
	mode := info.Mode()
	if mode&os.ModeSymlink != 0 {
		target, err := filepath.EvalSymlinks(path)
		if err != nil {
			target, _ = os.Readlink(path)
		}
		entry.SymlinkTarget = &target
		entry.Type = typeSymlink
		if followed, err := os.Stat(path); err == nil {
			mode = followed.Mode()
		}
	}
	switch {
	case mode.IsDir():
		entry.Type = typeDirectory
	case mode.IsRegular():
		entry.Type = typeFile
	}
	entry.Mode = uint32(mode.Perm())
	if mode.IsRegular() || mode.IsDir() {
		entry.Metadata = ReadMetadata(path)
	}
	return entry
}
