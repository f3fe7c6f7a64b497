package fsys

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"syscall"

	"torpor/guest/wire"
)

// Filesystem serves filesystem.Filesystem.
type Filesystem struct {
	paths    *Paths
	watchers watchers
}

// New makes the service.
func New(paths *Paths) *Filesystem {
	return &Filesystem{paths: paths, watchers: watchers{byID: map[string]*watcher{}}}
}

// Register adds the procedures to mux.
func (f *Filesystem) Register(mux *http.ServeMux) {
	const prefix = "/filesystem.Filesystem/"
	mux.HandleFunc(prefix+"Stat", wire.Unary(f.stat))
	mux.HandleFunc(prefix+"MakeDir", wire.Unary(f.makeDir))
	mux.HandleFunc(prefix+"Move", wire.Unary(f.move))
	mux.HandleFunc(prefix+"ListDir", wire.Unary(f.listDir))
	mux.HandleFunc(prefix+"Remove", wire.Unary(f.remove))
	mux.HandleFunc(prefix+"WatchDir", wire.Stream(f.watchDir))
	mux.HandleFunc(prefix+"CreateWatcher", wire.Unary(f.createWatcher))
	mux.HandleFunc(prefix+"GetWatcherEvents", wire.Unary(f.getWatcherEvents))
	mux.HandleFunc(prefix+"RemoveWatcher", wire.Unary(f.removeWatcher))
}

type pathRequest struct {
	Path string `json:"path"`
}

type entryAnswer struct {
	Entry *Entry `json:"entry"`
}

func (f *Filesystem) resolve(r *http.Request, path string) (string, error) {
	name, _, _ := r.BasicAuth()
	user, err := f.paths.User(name)
	if err != nil {
		return "", err
	}
	return f.paths.Resolve(path, user)
}

func (f *Filesystem) stat(r *http.Request, request *pathRequest) (any, error) {
	path, err := f.resolve(r, request.Path)
	if err != nil {
		return nil, err
	}
	entry, err := ReadEntry(path, f.paths.Accounts)
	return entryAnswer{entry}, err
}

func (f *Filesystem) makeDir(r *http.Request, request *pathRequest) (any, error) {
	path, err := f.resolve(r, request.Path)
	if err != nil {
		return nil, err
	}
	name, _, _ := r.BasicAuth()
	user, err := f.paths.User(name)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err == nil {
		if info.IsDir() {
			return nil, wire.Errorf(wire.AlreadyExists, "directory already exists: %s", path)
		}
		return nil, wire.Errorf(wire.InvalidArgument, "path already exists but it is not a directory: %s", path)
	}
	if err := makeAll(path, user); err != nil {
		return nil, err
	}
	entry, err := ReadEntry(path, f.paths.Accounts)
	return entryAnswer{entry}, err
}

type moveRequest struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

func (f *Filesystem) move(r *http.Request, request *moveRequest) (any, error) {
	if request.Source == "" || request.Destination == "" {
		return nil, wire.Errorf(wire.InvalidArgument, "fields source and destination must both be given")
	}
	source, err := f.resolve(r, request.Source)
	if err != nil {
		return nil, err
	}
	destination, err := f.resolve(r, request.Destination)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(source); err != nil {
		return nil, PathError(err, source)
	}
	name, _, _ := r.BasicAuth()
	user, err := f.paths.User(name)
	if err != nil {
		return nil, err
	}
	if err := MakeParents(destination, user); err != nil {
		return nil, err
	}
	if err := os.Rename(source, destination); errors.Is(err, syscall.EXDEV) {
		if err := moveAcross(source, destination); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, PathError(err, destination)
	}
	entry, err := ReadEntry(destination, f.paths.Accounts)
	return entryAnswer{entry}, err
}

type listRequest struct {
	Path  string       `json:"path"`
	Depth *wire.Uint32 `json:"depth"`
}

// entriesMax bounds one listing; the answer is held in memory.
const entriesMax = 100_000

func (f *Filesystem) listDir(r *http.Request, request *listRequest) (any, error) {
	path, err := f.resolve(r, request.Path)
	if err != nil {
		return nil, err
	}
	depth := uint32(1)
	if request.Depth != nil && *request.Depth > 0 {
		depth = uint32(*request.Depth)
	}
	info, err := os.Stat(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, wire.Errorf(wire.NotFound, "directory not found: %s", path)
		}
		return nil, PathError(err, path)
	}
	if !info.IsDir() {
		return nil, wire.Errorf(wire.InvalidArgument, "path is not a directory: %s", path)
	}
	entries := []*Entry{}
	if err := f.walk(path, deviceOf(info), depth, &entries); err != nil {
		return nil, err
	}
	return map[string]any{"entries": entries}, nil
}

// walk lists depth first in lexical order, without following links below the root or entering what is mounted there:
// nobody who lists / at some depth wants every process of /proc.
func (f *Filesystem) walk(dir string, device uint64, depth uint32, entries *[]*Entry) error {
	children, err := os.ReadDir(dir)
	if err != nil {
		return PathError(err, dir)
	}
	for _, child := range children {
		path := filepath.Join(dir, child.Name())
		info, err := child.Info()
		if err != nil {
			continue // gone since the folder was read
		}
		if len(*entries) >= entriesMax {
			return wire.Errorf(wire.ResourceExhausted, "the listing of '%s' has more than %d entries; ask for less depth", dir, entriesMax)
		}
		*entries = append(*entries, describe(path, info, f.paths.Accounts))
		if child.IsDir() && depth > 1 && deviceOf(info) == device {
			if err := f.walk(path, device, depth-1, entries); err != nil && !errors.Is(err, os.ErrNotExist) {
				if e := wire.AsError(err); e.Code == wire.NotFound {
					continue
				}
				return err
			}
		}
	}
	return nil
}

func deviceOf(info os.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Dev
	}
	return 0
}

func (f *Filesystem) remove(r *http.Request, request *pathRequest) (any, error) {
	if request.Path == "" {
		return nil, wire.Errorf(wire.InvalidArgument, "field path is empty; name what to remove")
	}
	path, err := f.resolve(r, request.Path)
	if err != nil {
		return nil, err
	}
	if err := checkRemovable(path); err != nil {
		return nil, err
	}
	if err := removeTree(path); err != nil {
		return nil, PathError(err, path)
	}
	return struct{}{}, nil
}
