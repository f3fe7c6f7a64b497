// Package files serves E2B's GET and POST /files: whole files in and out.
package files

import (
	"compress/gzip"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"torpor/guest/account"
	"torpor/guest/fsys"
	"torpor/guest/wire"
)

// Files serves /files.
type Files struct {
	paths     *fsys.Paths
	authorize func(r *http.Request, operation string) error
}

// New makes the server; authorize says whether a request may "read" or "write", by token or signature.
func New(paths *fsys.Paths, authorize func(r *http.Request, operation string) error) *Files {
	return &Files{paths: paths, authorize: authorize}
}

// ServeHTTP answers GET, HEAD and POST.
func (f *Files) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var err error
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		if err = f.authorize(r, "read"); err == nil {
			err = f.download(w, r)
		}
	case http.MethodPost:
		if err = f.authorize(r, "write"); err == nil {
			err = f.upload(w, r)
		}
	default:
		w.Header().Set("Allow", "GET, HEAD, POST")
		err = &statusError{http.StatusMethodNotAllowed, "use GET to read and POST to write a file"}
	}
	if err != nil {
		WriteError(w, err)
	}
}

type statusError struct {
	status  int
	message string
}

func (e *statusError) Error() string { return e.message }

// Status is the HTTP status of a failure.
func Status(err error) int {
	status := http.StatusInternalServerError
	var plain *statusError
	var coded *wire.Error
	switch {
	case errors.As(err, &plain):
		status = plain.status
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		status = http.StatusInsufficientStorage
	case errors.As(err, &coded):
		status = coded.Code.HTTPStatus()
		if coded.Code == wire.ResourceExhausted {
			status = http.StatusInsufficientStorage
		}
	}
	return status
}

// WriteError answers in the form of the REST calls: {"code": status, "message"}.
func WriteError(w http.ResponseWriter, err error) {
	status := Status(err)
	for _, name := range []string{"Content-Disposition", "Content-Encoding", "Content-Type", "Accept-Ranges"} {
		w.Header().Del(name)
	}
	wire.WriteJSON(w, status, map[string]any{"code": status, "message": err.Error()})
}

// user is whose home and ownership a request is about.
func (f *Files) user(r *http.Request) (*account.User, error) {
	name := r.URL.Query().Get("username")
	if name == "" {
		name, _, _ = r.BasicAuth()
	}
	return f.paths.User(name)
}

func (f *Files) download(w http.ResponseWriter, r *http.Request) error {
	user, err := f.user(r)
	if err != nil {
		return err
	}
	asked := r.URL.Query().Get("path")
	path, err := f.paths.Resolve(asked, user)
	if err != nil {
		return err
	}
	file, info, err := openRegular(path)
	if err != nil {
		return err
	}
	defer file.Close()
	encoding, err := chooseEncoding(r.Header.Get("Accept-Encoding"), r.Header.Get("Range") != "")
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Disposition", contentDisposition(filepath.Base(path)))
	h.Set("Vary", "Accept-Encoding")
	if encoding == "gzip" && info.Size() > 0 {
		h.Set("Content-Type", typeOf(path))
		h.Set("Content-Encoding", "gzip")
		return streamGzip(w, r, file)
	}
	if info.Size() == 0 {
		return streamUnsized(w, r, file, path)
	}
	http.ServeContent(w, r, path, info.ModTime(), file)
	return nil
}

// openRegular opens without ever blocking on a pipe or waking a device.
func openRegular(path string) (*os.File, os.FileInfo, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		if info, statErr := os.Stat(path); statErr == nil && !info.Mode().IsRegular() { // a socket, or a device with nothing behind it
			return nil, nil, wire.Errorf(wire.InvalidArgument, "path '%s' is not a regular file", path)
		}
		return nil, nil, fsys.PathError(err, path)
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		err = wire.Errorf(wire.InvalidArgument, "path '%s' is a directory", path)
	} else if err == nil && !info.Mode().IsRegular() {
		err = wire.Errorf(wire.InvalidArgument, "path '%s' is a device, pipe or socket, not a regular file", path)
	}
	if err != nil {
		file.Close()
		return nil, nil, fsys.PathError(err, path)
	}
	return file, info, nil
}

var gzipWriters = sync.Pool{New: func() any { w, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed); return w }}

func streamGzip(w http.ResponseWriter, r *http.Request, from io.Reader) error {
	if r.Method == http.MethodHead {
		return nil
	}
	z := gzipWriters.Get().(*gzip.Writer)
	defer gzipWriters.Put(z)
	z.Reset(w)
	if _, err := io.Copy(z, from); err != nil {
		abort()
	}
	if err := z.Close(); err != nil {
		abort()
	}
	return nil
}

// streamUnsized sends a file that says it is empty: it is, or it is one of /proc, whose size is known only at its end.
func streamUnsized(w http.ResponseWriter, r *http.Request, file *os.File, path string) error {
	first := make([]byte, 32<<10)
	n, err := file.Read(first)
	if err != nil && err != io.EOF {
		return fsys.PathError(err, path)
	}
	w.Header().Set("Content-Type", typeOf(path))
	if n == 0 {
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(http.StatusOK)
		return nil
	}
	if r.Method == http.MethodHead {
		return nil
	}
	if _, err := w.Write(first[:n]); err != nil {
		return nil
	}
	if _, err := io.Copy(w, file); err != nil {
		abort()
	}
	return nil
}

// abort closes the connection, so that the receiver sees a cut-off body and not a short file.
func abort() { panic(http.ErrAbortHandler) }

func typeOf(path string) string {
	if t := mime.TypeByExtension(filepath.Ext(path)); t != "" {
		return t
	}
	return "application/octet-stream"
}

func contentDisposition(name string) string {
	if t := mime.FormatMediaType("inline", map[string]string{"filename": name}); t != "" {
		return t
	}
	return "inline; filename*=utf-8''" + url.PathEscape(name)
}

// chooseEncoding gives "gzip" or "" for a request's Accept-Encoding; a range is always served as it is.
func chooseEncoding(accepted string, ranged bool) (string, error) {
	if accepted == "" {
		return "", nil
	}
	quality := map[string]float64{}
	for _, item := range strings.Split(accepted, ",") {
		name, parameters, _ := strings.Cut(strings.TrimSpace(item), ";")
		q := 1.0
		if value, ok := strings.CutPrefix(strings.TrimSpace(parameters), "q="); ok {
			if parsed, err := strconv.ParseFloat(value, 64); err == nil {
				q = parsed
			}
		}
		quality[strings.ToLower(strings.TrimSpace(name))] = q
	}
	get := func(name string, fallback float64) float64 {
		if q, ok := quality[name]; ok {
			return q
		}
		if q, ok := quality["*"]; ok {
			return q
		}
		return fallback
	}
	zipped, plain := get("gzip", 0), get("identity", 0.001)
	switch {
	case ranged && plain > 0:
		return "", nil
	case zipped > 0 && zipped >= plain:
		return "gzip", nil
	case plain > 0:
		return "", nil
	case zipped > 0:
		return "gzip", nil
	}
	return "", &statusError{http.StatusNotAcceptable, "no acceptable encoding: only identity and gzip are offered"}
}
