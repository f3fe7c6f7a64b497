package fsys

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"torpor/guest/wire"
)

// Bounds of watching.
const (
	watchersMax = 256
	// foldersMax is how many folders one recursive watch follows.
	foldersMax = 8192
	// eventsMax is how many events wait for a poller before the oldest are lost.
	eventsMax = 10_000
)

type watchRequest struct {
	Path                string `json:"path"`
	Recursive           bool   `json:"recursive"`
	IncludeEntry        bool   `json:"includeEntry"`
	IncludeEntrySnake   bool   `json:"include_entry"`
	AllowNetworkMounts  bool   `json:"allowNetworkMounts"`
	AllowNetworkMounts2 bool   `json:"allow_network_mounts"`
}

type event struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Entry *Entry `json:"entry,omitempty"`
}

// watcher follows one folder through inotify.
type watcher struct {
	root         string
	recursive    bool
	includeEntry bool
	fs           *Filesystem
	file         *os.File

	mu      sync.Mutex
	folders map[int32]string  // watch descriptor to folder
	parts   map[uint32]string // rename under way of a part, by inotify's cookie, to the part's name; of read alone
	events  []event
	wake    chan struct{}
	closed  chan struct{}
}

const watchMask = syscall.IN_CREATE | syscall.IN_MODIFY | syscall.IN_DELETE | syscall.IN_MOVED_FROM | syscall.IN_MOVED_TO | syscall.IN_ATTRIB

func (f *Filesystem) watch(r *http.Request, request *watchRequest) (*watcher, error) {
	path, err := f.resolve(r, request.Path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, PathError(err, path)
	}
	if !info.IsDir() {
		return nil, wire.Errorf(wire.InvalidArgument, "path %s not a directory", path)
	}
	if !request.AllowNetworkMounts && !request.AllowNetworkMounts2 && isNetworkMount(path) {
		return nil, wire.Errorf(wire.InvalidArgument, "cannot watch path on network filesystem: %s", path)
	}
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		return nil, wire.Errorf(wire.ResourceExhausted, "watching %s failed: %v", path, err)
	}
	w := &watcher{root: path, recursive: request.Recursive, includeEntry: request.IncludeEntry || request.IncludeEntrySnake,
		fs: f, file: os.NewFile(uintptr(fd), "inotify"), folders: map[int32]string{}, parts: map[uint32]string{}, wake: make(chan struct{}, 1), closed: make(chan struct{})}
	if err := w.follow(path, known); err != nil {
		w.file.Close()
		return nil, err
	}
	go w.read()
	return w, nil
}

// origin is how a folder came to be watched.
type origin int

const (
	known origin = iota
	created
	movedIn
)

// follow watches a folder and, in a recursive watch, those in it. What is already inside a folder that has just
// appeared is reported as created, and in a new one as written, since that came before the watch did.
func (w *watcher) follow(dir string, from origin) error {
	wd, err := w.add(dir)
	if err != nil {
		return PathError(err, dir)
	}
	w.mu.Lock()
	full := len(w.folders) >= foldersMax
	if !full {
		w.folders[int32(wd)] = dir
	}
	w.mu.Unlock()
	if full {
		return wire.Errorf(wire.ResourceExhausted, "more than %d folders below %s; watch a smaller tree", foldersMax, w.root)
	}
	if !w.recursive {
		return nil
	}
	children, err := os.ReadDir(dir)
	if err != nil {
		return nil // gone again
	}
	for _, child := range children {
		path := filepath.Join(dir, child.Name())
		if isPart(child.Name()) {
			continue
		}
		if from != known {
			w.put("EVENT_TYPE_CREATE", path)
		}
		if from == created && child.Type().IsRegular() {
			if info, err := child.Info(); err == nil && info.Size() > 0 {
				w.put("EVENT_TYPE_WRITE", path)
			}
		}
		if child.IsDir() {
			if err := w.follow(path, from); err != nil && wire.AsError(err).Code == wire.ResourceExhausted {
				return err
			}
		}
	}
	return nil
}

func (w *watcher) add(dir string) (wd int, err error) {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	ctlErr := raw.Control(func(fd uintptr) { wd, err = syscall.InotifyAddWatch(int(fd), dir, watchMask) })
	if ctlErr != nil {
		return 0, ctlErr
	}
	return wd, err
}

func (w *watcher) read() {
	defer w.close()
	buffer := make([]byte, 16<<10)
	for {
		n, err := w.file.Read(buffer)
		if err != nil || n <= 0 {
			return
		}
		for at := 0; at+syscall.SizeofInotifyEvent <= n; {
			raw := (*syscall.InotifyEvent)(unsafe.Pointer(&buffer[at]))
			at += syscall.SizeofInotifyEvent
			name := strings.TrimRight(string(buffer[at:min(at+int(raw.Len), n)]), "\x00")
			at += int(raw.Len)
			w.dispatch(raw.Wd, raw.Mask, raw.Cookie, name)
		}
	}
}

func (w *watcher) dispatch(wd int32, mask, cookie uint32, name string) {
	w.mu.Lock()
	dir, known := w.folders[wd]
	if mask&syscall.IN_IGNORED != 0 {
		delete(w.folders, wd)
	}
	w.mu.Unlock()
	if !known || name == "" {
		return
	}
	if isPart(name) {
		if mask&syscall.IN_MOVED_FROM != 0 {
			w.parts[cookie] = name
		}
		return
	}
	path := filepath.Join(dir, name)
	if part, ok := w.parts[cookie]; ok && mask&syscall.IN_MOVED_TO != 0 {
		delete(w.parts, cookie)
		if !strings.HasPrefix(part, PartOfExisting) {
			w.put("EVENT_TYPE_CREATE", path)
		}
		w.put("EVENT_TYPE_WRITE", path)
		return
	}
	switch {
	case mask&syscall.IN_CREATE != 0, mask&syscall.IN_MOVED_TO != 0:
		w.put("EVENT_TYPE_CREATE", path)
		if mask&syscall.IN_ISDIR != 0 && w.recursive {
			from := created
			if mask&syscall.IN_MOVED_TO != 0 {
				from = movedIn
			}
			_ = w.follow(path, from) // beyond the bound, deeper folders go unwatched
		}
	case mask&syscall.IN_MODIFY != 0:
		w.put("EVENT_TYPE_WRITE", path)
	case mask&syscall.IN_DELETE != 0:
		w.put("EVENT_TYPE_REMOVE", path)
	case mask&syscall.IN_MOVED_FROM != 0:
		w.put("EVENT_TYPE_RENAME", path)
	case mask&syscall.IN_ATTRIB != 0:
		w.put("EVENT_TYPE_CHMOD", path)
	}
}

func (w *watcher) put(kind, path string) {
	name, err := filepath.Rel(w.root, path)
	if err != nil {
		return
	}
	e := event{Name: name, Type: kind}
	if w.includeEntry && kind != "EVENT_TYPE_REMOVE" && kind != "EVENT_TYPE_RENAME" {
		e.Entry, _ = ReadEntry(path, w.fs.paths.Accounts) // best effort: it may be gone
	}
	w.mu.Lock()
	if n := len(w.events); n > 0 && kind == "EVENT_TYPE_WRITE" && w.events[n-1].Name == name && w.events[n-1].Type == kind {
		w.events[n-1] = e // many writes in a row tell no more than one
	} else if w.events = append(w.events, e); len(w.events) > eventsMax {
		w.events = append([]event(nil), w.events[len(w.events)-eventsMax:]...)
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) takeEvents() []event {
	w.mu.Lock()
	defer w.mu.Unlock()
	events := w.events
	w.events = nil
	return events
}

func (w *watcher) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.closed:
	default:
		close(w.closed)
		w.file.Close()
	}
}

func (f *Filesystem) watchDir(r *http.Request, request *watchRequest, sender *wire.Sender) error {
	timeout, err := wire.Timeout(r)
	if err != nil {
		return err
	}
	w, err := f.watch(r, request)
	if err != nil {
		return err
	}
	defer w.close()
	sender.Append(func(b []byte) []byte { return append(b, `{"start":{}}`...) })
	if err := sender.Flush(); err != nil {
		return err
	}
	interval := 90 * time.Second
	if s, err := strconv.Atoi(r.Header.Get("Keepalive-Ping-Interval")); err == nil && s > 0 && s <= 86400 {
		interval = time.Duration(s) * time.Second
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var over <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		over = timer.C
	}
	for {
		select {
		case <-over:
			return wire.Errorf(wire.DeadlineExceeded, "the watch of %s reached its limit of %v", w.root, timeout)
		case <-w.wake:
			for _, e := range w.takeEvents() {
				if err := sender.AppendJSON(map[string]event{"filesystem": e}); err != nil {
					return err
				}
			}
		case <-ticker.C:
			sender.Append(func(b []byte) []byte { return append(b, `{"keepalive":{}}`...) })
		case <-w.closed:
			return wire.Errorf(wire.Unavailable, "the watch of %s ended: the kernel closed it", w.root)
		case <-r.Context().Done():
			return r.Context().Err()
		}
		if err := sender.Flush(); err != nil {
			return err
		}
	}
}

// watchers are those that clients poll.
type watchers struct {
	mu   sync.Mutex
	byID map[string]*watcher
}

type watcherRequest struct {
	WatcherID      string `json:"watcherId"`
	WatcherIDSnake string `json:"watcher_id"`
}

func (r *watcherRequest) id() string { return r.WatcherID + r.WatcherIDSnake }

func (f *Filesystem) createWatcher(r *http.Request, request *watchRequest) (any, error) {
	f.watchers.mu.Lock()
	defer f.watchers.mu.Unlock()
	if len(f.watchers.byID) >= watchersMax {
		return nil, wire.Errorf(wire.ResourceExhausted, "there are already %d watchers; remove some", watchersMax)
	}
	w, err := f.watch(r, request)
	if err != nil {
		return nil, err
	}
	var random [8]byte
	_, _ = rand.Read(random[:])
	id := "w" + hex.EncodeToString(random[:])
	f.watchers.byID[id] = w
	return map[string]string{"watcherId": id}, nil
}

func (f *Filesystem) getWatcherEvents(_ *http.Request, request *watcherRequest) (any, error) {
	f.watchers.mu.Lock()
	w := f.watchers.byID[request.id()]
	f.watchers.mu.Unlock()
	if w == nil {
		return nil, wire.Errorf(wire.NotFound, "watcher with id %s not found", request.id())
	}
	events := w.takeEvents()
	if events == nil {
		events = []event{}
	}
	return map[string]any{"events": events}, nil
}

func (f *Filesystem) removeWatcher(_ *http.Request, request *watcherRequest) (any, error) {
	f.watchers.mu.Lock()
	w := f.watchers.byID[request.id()]
	delete(f.watchers.byID, request.id())
	f.watchers.mu.Unlock()
	if w == nil {
		return nil, wire.Errorf(wire.NotFound, "watcher with id %s not found", request.id())
	}
	w.close()
	return struct{}{}, nil
}

func isNetworkMount(path string) bool {
	var st syscall.Statfs_t
	if syscall.Statfs(path, &st) != nil {
		return false
	}
	switch uint32(st.Type) {
	case 0x6969, 0xff534d42, 0xfe534d42, 0x517b, 0x65735546: // NFS, CIFS, SMB2, SMB, FUSE
		return true
	}
	return false
}
